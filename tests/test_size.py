"""How large the library may be, so that a stranger can hold it in mind."""

from __future__ import annotations

import ast
import io
import statistics
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.helpers.project import ROOT, sources

# Lowered with every step towards 43,000 lines in 220 modules. Claims, single updates, sweeps,
# rehearsals, devices and a million clients took 5,500.
MAX_LINES = 60_271
MAX_MODULES = 169
MAX_IN_FOLDER = 15
MAX_MEDIAN_BODY = 5  # lines of a function without its signature and docstring
MIN_DOCUMENTED = 0.93  # share of public modules, classes and functions
MIN_COMMENTS = 3.33  # per hundred lines

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def texts() -> dict[str, str]:
    """Return the source of every module of the library, by its path."""
    own = {f"leakmeter/{path.name}" for path in (ROOT / "leakmeter").glob("*.py")}
    return {name: Path(ROOT, name).read_text(encoding="utf-8") for name in sources() | own}


@cache
def trees() -> tuple[ast.Module, ...]:
    """Return the same, parsed."""
    return tuple(ast.parse(text) for text in texts().values())


def body_lines(function: Function) -> int:
    """Return the number of lines below the signature and the docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def public(node: ast.Module | ast.ClassDef) -> Iterator[ast.AST]:
    """Yield a module or class and what is public in it."""
    yield node
    for inner in node.body:
        if isinstance(inner, Function) and not inner.name.startswith("_"):
            yield inner
        elif isinstance(inner, ast.ClassDef) and not inner.name.startswith("_"):
            yield from public(inner)


def num_comments(text: str) -> int:
    """Return the number of comments in a source."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type == tokenize.COMMENT for token in tokens)


def test_the_library_is_small() -> None:
    assert sum(text.count("\n") for text in texts().values()) <= MAX_LINES
    assert len(texts()) <= MAX_MODULES


def test_no_folder_is_crowded() -> None:
    folders = Counter(str(Path(name).parent) for name in texts())
    assert max(folders.values()) <= MAX_IN_FOLDER


def test_functions_are_short() -> None:
    functions = (n for tree in trees() for n in ast.walk(tree) if isinstance(n, Function))
    bodies = [body_lines(function) for function in functions]
    assert statistics.median(bodies) <= MAX_MEDIAN_BODY


def test_public_things_are_documented() -> None:
    found = [
        ast.get_docstring(node) is not None  # type: ignore[arg-type]
        for tree in trees()
        for node in public(tree)
    ]
    assert sum(found) / len(found) >= MIN_DOCUMENTED


@pytest.mark.slow
def test_comments_say_why_as_often_as_before() -> None:
    lines = sum(text.count("\n") for text in texts().values())
    comments = sum(num_comments(text) for text in texts().values())
    assert 100 * comments / lines >= MIN_COMMENTS


def test_a_class_has_a_name_of_its_own() -> None:
    classes = (n.name for tree in trees() for n in ast.walk(tree) if isinstance(n, ast.ClassDef))
    assert not [name for name, count in Counter(classes).items() if count > 1]
