"""The pages for contributors name what is there: files, classes, wire keys, folders, words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import leakmeter
from leakmeter.auditors.hook import wire
from tests.helpers.project import ROOT

PAGE = ROOT / "docs" / "architecture.md"
ROOMS = ("auditors", "clients", "strategies", "fl_app")
PAPERS = "examples/papers"
# A path in backticks: from a folder of the repository, or one of the files at its top.
TOP = "auditors|clients|strategies|fl_app|leakmeter|tests|docs|benchmarks|examples|\\.ci"
PATH = re.compile(rf"`((?:{TOP})/[\w./-]*|run_sim\.py|pyproject\.toml|\w+\.cff|\w+\.md)`")
LIMIT = 30  # words of the glossary
MAX_STEPS = 25  # of one update: a story that is read with the files open


def section(name: str) -> str:
    """Return the text of the page under one of its headings."""
    [text] = re.findall(rf"^## {name}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.S | re.M)
    return str(text)


def rows(name: str) -> Iterator[dict[str, str]]:
    """Yield the lines of all tables of a section, by column."""
    head: list[str] = []
    for line in section(name).splitlines():
        if not line.startswith("|"):
            head = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not head:
            head = cells
        elif set(line) - set("|- "):
            yield dict(zip(head, cells, strict=True))


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@cache
def defined(path: str) -> frozenset[str]:
    """Return the functions and classes of a file, methods as `Class.method`."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{n.name}" for n in node.body if isinstance(n, ast.FunctionDef)}
    return frozenset(names)


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/methods.md", "CONTRIBUTING.md"])
def test_every_path_exists(page: str) -> None:
    named = PATH.findall((ROOT / page).read_text())
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", ["The life of one update", "Seams"])
def test_every_name_is_defined_in_the_file_beside_it(name: str) -> None:
    claims = [
        (path, what)
        for row in rows(name)
        for path in quoted(row["file"])
        for what in quoted(row["name"])
    ]
    assert len(claims) > 10
    missing = [
        f"{what} in {path}"
        for path, what in claims
        if not (ROOT / path).exists() or what not in defined(path)
    ]
    assert missing == []


def test_the_steps_are_few_and_counted_through() -> None:
    steps = [int(row["step"]) for row in rows("The life of one update")]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) <= MAX_STEPS


def test_the_wire_keys_are_those_of_the_code() -> None:
    shown = [key for row in rows("The two chains") for key in quoted(row["wire key"])]
    assert len(shown) == len(set(shown))
    known = {
        value
        for name, value in vars(wire).items()
        if name.isupper() and not name.startswith("_") and isinstance(value, str)
    }
    assert set(shown) == known


def test_the_map_has_every_folder_and_no_other() -> None:
    shown = {path for row in rows("Folders") for path in quoted(row["folder"])}
    folders = {file.parent for room in (*ROOMS, PAPERS) for file in (ROOT / room).rglob("*.py")}
    assert shown == {f"{folder.relative_to(ROOT)}/" for folder in folders} | {"leakmeter/"}


def test_modules_called_public_are_those_with_a_table_of_names() -> None:
    named = re.findall(r"`(leakmeter\.[\w.]+)`", section("Public and internal"))
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]
    tables = [file for file in files if re.search(r"^ *__all__\b.* =", file.read_text(), re.M)]
    parts = [file.relative_to(ROOT).with_suffix("").parts for file in tables]
    assert set(named) == {
        ".".join(("leakmeter", *part)).removesuffix(".__init__") for part in parts
    }
    assert [name for name in named if not getattr(import_module(name), "__all__", ())] == []


def test_the_glossary_is_short_and_sorted() -> None:
    words = [row["word"] for row in rows("Glossary")]
    assert len(words) <= LIMIT
    assert words == sorted(set(words))


def test_the_citation_names_this_release() -> None:
    stated = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert stated == [leakmeter.__version__]


FOLDERS = sorted(
    path.parent.relative_to(ROOT)
    for room in ROOMS
    for path in (ROOT / room).glob("*/**/__init__.py")
)


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_a_folder_says_what_each_of_its_modules_is_for(folder: Path) -> None:
    files = {path.stem: path for path in (ROOT / folder).glob("*.py")}
    said = ast.get_docstring(ast.parse(files.pop("__init__").read_text())) or ""
    named = set(re.findall(r"`(\w+)`", said))
    assert not files.keys() - named
    there = {name for path in files.values() for name in defined(str(path.relative_to(ROOT)))}
    assert not named - there - files.keys()
