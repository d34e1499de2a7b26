"""Docs, examples and the notebook import public names only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module

import pytest

import leakmeter
from tests.docs_blocks import blocks
from tests.helpers.project import PAPERS, ROOMS, ROOT, code_cells

PAGES = [
    ROOT / "README.md",
    *sorted(p for p in (ROOT / "docs").rglob("*.md") if "results" not in p.parts),
]
# But for the papers, which are part of this project and moved with its internals.
EXAMPLES = sorted({*(ROOT / "examples").rglob("*.py")} - {*(ROOT / PAPERS).rglob("*.py")})
# Pages about a method and two scripts also show these, with their modules. They are not public: a
# module may move, and the changelog then says where.
SHOWN = {
    "leakmeter.auditors.bounds.anytime.AnytimeBound",
    "leakmeter.auditors.canary_draws.canary_vector",
    "leakmeter.auditors.finding.Bound",
    "leakmeter.papers.gaussian.classical_sigma_unsafe_above_epsilon_1",
    "leakmeter.papers.gaussian.gaussian_sigma",
    "leakmeter.auditors.information.theory.IndependentWhitened",
    "leakmeter.auditors.information.theory.Theory",
    "leakmeter.auditors.likelihood_ratio.sum_distribution.Span",
    "leakmeter.auditors.likelihood_ratio.sum_distribution.outside_span",
    "leakmeter.clients.protection.noise_mod.fill_mod",
    "leakmeter.clients.protection.noise_mod.filled_record",
    "leakmeter.clients.protection.record_rule.GaussianSampling",
    "leakmeter.clients.protection.record_rule.WaterFilling",
    "leakmeter.papers.ring_noise.integer_sum.IntegerNoise",
    "leakmeter.papers.ring_noise.integer_sum.IntegerSum",
}


def imported(code: str) -> Iterator[str]:
    """Yield the names of this project that Python code imports, such as leakmeter.Audited."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "leakmeter")


def is_public(name: str) -> bool:
    """Whether a table of public names lists a name, or it is a module that has such a table."""
    if name == "leakmeter":
        return True
    home, _, last = name.rpartition(".")
    module = import_module(home)
    if home == "leakmeter" and not last.startswith("_"):
        return hasattr(module, last)  # which hands on what the rooms' tables list
    if last in getattr(module, "__all__", ()):
        return True
    return hasattr(getattr(module, last, None), "__all__")


def sources() -> dict[str, list[str]]:
    """Return the Python code that readers see, by file."""
    found = {str(p.relative_to(ROOT)): [p.read_text()] for p in EXAMPLES}
    for page in PAGES:
        code = [block.text for block in blocks(page) if block.language == "python"]
        found[str(page.relative_to(ROOT))] = code
    return {
        **found,
        "docs/notebook.ipynb": code_cells(),
        "docs/notebook-foreign.ipynb": code_cells("notebook-foreign"),
    }


def test_only_public_names_are_imported() -> None:
    for file, codes in sources().items():
        names = {name for code in codes for name in imported(code)} - SHOWN
        assert sorted(name for name in names if not is_public(name)) == [], file


def test_the_check_knows_public_from_internal() -> None:
    code = "from leakmeter import Audited, auditors\nimport leakmeter.auditors.hook.audited\n"
    code += "def f():\n    from leakmeter.strategies import Masked\nimport numpy.linalg\n"
    names = list(imported(code))
    assert names == [
        *("leakmeter.Audited", "leakmeter.auditors", "leakmeter.auditors.hook.audited"),
        "leakmeter.strategies.Masked",
    ]
    assert [is_public(name) for name in names] == [True, True, False, True]
    assert not is_public("leakmeter.fl_app.engines.inline.run_inline")
    assert not is_public("leakmeter.auditors.rng.derive")
    assert not is_public("leakmeter.auditors.values.Vector")


def test_every_exception_is_shown_somewhere() -> None:
    names = {name for codes in sources().values() for code in codes for name in imported(code)}
    assert names >= SHOWN


def test_there_is_something_to_check() -> None:
    names = [name for codes in sources().values() for code in codes for name in imported(code)]
    assert len(names) > 30


@pytest.mark.parametrize("room", ["auditors", "clients", "strategies"])
def test_every_name_in_a_table_is_there(room: str) -> None:
    module = import_module(f"leakmeter.{room}")
    assert len(module.__all__) == len(set(module.__all__)) > 3
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_dir_offers_what_there_is_and_is_public() -> None:
    offered = dir(leakmeter)
    assert {"Audited", "run", "auditors", "loggers", "__version__"} <= set(offered)
    assert [name for name in offered if name.startswith("_")] == ["__version__"]
    for name in offered:
        assert hasattr(leakmeter, name), name
    tools = {"annotations", "import_module", "find_rooms", "homes", "Any", "TYPE_CHECKING", "ROOMS"}
    assert not tools & set(offered)


def test_a_star_imports_the_public_names() -> None:
    found: dict[str, object] = {}
    exec("from leakmeter import *", found)
    del found["__builtins__"]
    assert set(found) == set(dir(leakmeter)) - {"__version__", "loggers", *ROOMS}
    assert found["Audited"] is leakmeter.Audited
    assert found["run"] is leakmeter.run
