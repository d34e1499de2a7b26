"""Where the rooms are, their public names on first use, and one module under two names."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOMS = ("auditors", "clients", "strategies", "fl_app")
# What a checkout offers below `leakmeter`, and in which folder of the root it is. The papers are no
# room: an installation lacks them.
_BESIDE = {**dict.fromkeys(ROOMS, ""), "papers": "examples"}


def front_page(spec: ModuleSpec | None) -> tuple[list[str], Callable[[str], Any]]:
    """Return the `__all__` and the `__getattr__` of a front page.

    Public is what the page imports `if TYPE_CHECKING`: each name is stated once, for people, type
    checkers and Python alike, and imported when it is asked for. A folder is found as well: after
    `import leakmeter` alone, `leakmeter.auditors.bounds` is there. Type checkers must not see the
    call: with an `__all__` that they cannot read, a star hands on nothing.

    Args:
        spec: The page's `__spec__`.
    """
    assert spec is not None
    page = _full(spec.name)
    found = homes(spec)

    def find(name: str) -> Any:
        if name in found:
            return getattr(import_module(found[name]), name)
        if not name.startswith("_") and find_spec(f"{page}.{name}") is not None:
            return import_module(f"{page}.{name}")
        raise AttributeError(f"module {page!r} has no attribute {name!r}")

    return sorted(found), find


def homes(spec: ModuleSpec | None) -> dict[str, str]:
    """Return the names that a front page imports for type checkers, with their modules."""
    assert spec is not None
    assert isinstance(spec.loader, InspectLoader)
    body = ast.parse(spec.loader.get_source(spec.name) or "").body
    [block] = [node for node in body if isinstance(node, ast.If)]
    return {
        alias.name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def find_rooms(front_page: str) -> None:
    """Let the rooms of a checkout be found next to the package's folder, once, by both names.

    A wheel has the rooms inside the package. A checkout has only links there, for tools that read
    code without running it; a clone without links and Flower's bundle have nothing at all.

    Args:
        front_page: The `__file__` of the package.
    """
    package = os.path.dirname(front_page)  # as Python spells it in `__path__`
    inside = Path(package) / ROOMS[0]
    if inside.is_symlink() or not inside.is_dir():
        _install(_Beside(package))
        _install(_Alias())


@cache
def version() -> str:
    """Return the release, which only `pyproject.toml` states.

    A checkout and Flower's bundle have that file; an installation has what was made of it.
    """
    import tomllib  # both are for those who ask, and Python 3.10 gets a sentence elsewhere
    from importlib import metadata

    file = Path(__file__).parents[1] / "pyproject.toml"
    project = tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if (said := project.get("project", {})).get("name") == "leakmeter":
        return str(said["version"])
    return metadata.version("leakmeter")


def alias(room: str) -> None:
    """Make `import auditors` in a checkout give the module `leakmeter.auditors` itself.

    A room calls this at the end of its front page, which runs under the bare name only where
    nothing of this project has been imported before. Nothing happens when it was imported by its
    full name, which is the only name that an installation offers.

    Args:
        room: The room's `__name__`.
    """
    full = _full(room)
    if room == full:
        return
    # Python hands out what is registered when the import ends, not what it was running.
    sys.modules[room] = import_module(full)
    _install(_Alias())


def _full(name: str) -> str:
    return f"leakmeter.{name.removeprefix('leakmeter.')}"


def _install(finder: MetaPathFinder) -> None:
    if finder not in sys.meta_path:
        sys.meta_path.insert(0, finder)


@dataclass(frozen=True)
class _Beside(MetaPathFinder):
    """Finds the rooms and the papers near the package's folder, and nothing else that is there.

    With the root in `leakmeter.__path__` instead, `leakmeter.tests` could be imported, and
    `leakmeter.leakmeter` would be the package a second time.
    """

    package: str

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None or list(path) != [self.package]:
            return None
        folder = _BESIDE.get(fullname.removeprefix("leakmeter."))
        if folder is None:
            return None
        return PathFinder.find_spec(fullname, [str(Path(self.package).parent / folder)], target)


@dataclass(frozen=True)
class _Alias(MetaPathFinder):
    """Answers the bare name of a room, and those below it, with the modules of the full name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in ROOMS:
            return None
        # Only if Python would load our own file: a foreign project may have such a folder, too.
        meant = PathFinder.find_spec(fullname, path, target)
        try:
            found = find_spec(_full(fullname))
        except ModuleNotFoundError:  # below a folder that the foreign room has and ours has not
            return None
        if meant is None or found is None or meant.origin != found.origin:
            return None
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(fullname, _Same(found), origin=found.origin, is_package=is_package)


class _Same(InspectLoader):
    """Loads a bare name: imports the full name and hands out that module."""

    def __init__(self, found: ModuleSpec) -> None:
        self._found = found
        self._own: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._found.name)
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # It has run already. Give it back the spec that the import machinery has replaced.
        module.__spec__ = self._own

    def get_code(self, fullname: str) -> CodeType | None:  # for `python -m auditors.checks`
        loader = self._found.loader
        return loader.get_code(self._found.name) if isinstance(loader, InspectLoader) else None

    def get_source(self, fullname: str) -> str | None:
        loader = self._found.loader
        return loader.get_source(self._found.name) if isinstance(loader, InspectLoader) else None
