"""The shape of the code: no cycles, front pages that say what is public, pure mathematics."""

from __future__ import annotations

import ast
import inspect
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import grimp
import pytest

from leakmeter.auditors import Auditor
from leakmeter.auditors.hook.wrapper import Wrapper
from leakmeter.auditors.sampling.sampler import UpdateSampler
from tests.helpers.project import ROOT

ROOMS = ("auditors", "clients", "strategies")
MOST_ARGUMENTS = 10
MAX_PUBLIC = 73  # names on all front pages together


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """Return module to the modules that it imports, also inside functions, not for annotations."""
    graph = grimp.build_graph("leakmeter", cache_dir=None, exclude_type_checking_imports=True)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def cycle(imports: dict[str, set[str]]) -> list[str]:
    """Return a cycle, each importing the next, or nothing."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return [str(module) for module in reversed(error.args[1])]
    return []


def test_no_module_imports_itself_through_others(imports: dict[str, set[str]]) -> None:
    assert len(imports) > 150, "the graph must have all modules"
    assert cycle(imports) == []


def test_a_cycle_would_be_found() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}})


def test_imports_inside_functions_count(imports: dict[str, set[str]]) -> None:
    assert "leakmeter.fl_app.run.launch" in imports["leakmeter.papers.base"]


@pytest.mark.parametrize("room", [*ROOMS, "fl_app"])
def test_a_front_page_names_each_public_thing_once_and_where_it_is_defined(room: str) -> None:
    module = import_module(f"leakmeter.{room}")
    homes = checked(ROOT.joinpath(*room.split("."), "__init__.py"))
    assert module.__all__ == sorted(homes)
    assert module.__doc__
    for name, home in homes.items():
        found = getattr(module, name)
        assert getattr(import_module(home), name) is found
        # The home is where the name is defined, not a module that hands it on. Hints that are
        # made of others are from `typing`, since Python 3.13.
        assert getattr(found, "__module__", home) in (home, "typing")


def test_a_front_page_has_no_other_names() -> None:
    module = import_module("leakmeter.auditors")
    with pytest.raises(AttributeError, match=r"'leakmeter\.auditors' has no attribute 'Epsilon'"):
        module.__getattr__("Epsilon")


def checked(page: Path) -> dict[str, str]:
    """Return what a front page imports for type checkers: name to module."""
    body = ast.parse(page.read_text(encoding="utf-8")).body
    [block] = [node for node in body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    aliases = [(alias, str(node.module)) for node in imports for alias in node.names]
    # A type checker hands on a name only if it is imported as itself.
    assert all(alias.asname == alias.name for alias, _ in aliases)
    return {alias.name: home for alias, home in aliases}


def test_few_names_are_public() -> None:
    pages = [import_module(f"leakmeter.{room}").__all__ for room in (*ROOMS, "fl_app")]
    assert sum(len(page) for page in pages) <= MAX_PUBLIC


def test_only_rooms_have_front_pages() -> None:
    folders = [file for room in (*ROOMS, "fl_app") for file in (ROOT / room).rglob("*.py")]
    tables = {file for file in folders if "__all__" in file.read_text(encoding="utf-8")}
    assert tables == {ROOT / room / "__init__.py" for room in (*ROOMS, "fl_app")}


@pytest.mark.parametrize("room", ROOMS)
def test_auditors_samplers_and_wrappers_take_few_arguments(room: str) -> None:
    module = import_module(f"leakmeter.{room}")
    public = [getattr(module, name) for name in module.__all__]
    for one in public:
        if inspect.isclass(one) and issubclass(one, Auditor | UpdateSampler | Wrapper):
            own = set(inspect.signature(one).parameters) - {"strategy"}  # what a wrapper holds
            assert len(own) <= MOST_ARGUMENTS, one
