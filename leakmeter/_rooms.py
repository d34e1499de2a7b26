"""What the rooms' front pages share: public names on first use, and one module under two names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def lazy(room: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a room's `__getattr__`, which imports the home of a public name when it is asked for.

    Args:
        room: The room's `__name__`.
        homes: Public name to the module that defines it, relative to the room.
    """
    room = _full(room)

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return getattr(import_module(f"{room}.{homes[name]}"), name)

    return find


def alias(room: str) -> None:
    """Make `import auditors` in a checkout give the module `leakmeter.auditors` itself.

    A room calls this at the end of its front page. Nothing happens when it was imported by its
    full name, which is the only name that an installation offers.

    Args:
        room: The room's `__name__`.
    """
    full = _full(room)
    if room == full:
        return
    if not any(isinstance(finder, _Alias) and finder.room == room for finder in sys.meta_path):
        sys.meta_path.insert(0, _Alias(room))
    # Python hands out what is registered when the import ends, not what it was running.
    sys.modules[room] = import_module(full)


def _full(room: str) -> str:
    return f"leakmeter.{room.removeprefix('leakmeter.')}"


class _Alias(MetaPathFinder, Loader):
    """Answers a room's bare name, and the names below it, with the modules of the full name."""

    def __init__(self, room: str) -> None:
        self.room = room
        self._own: dict[str, ModuleSpec | None] = {}  # the specs that the import would overwrite

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != self.room:
            return None
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(f"leakmeter.{spec.name}")
        self._own[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # It has run already. Give it back the spec that it had before the import machinery put
        # the alias's in its place.
        for name in [n for n in self._own if f"leakmeter.{n}" == module.__name__]:
            module.__spec__ = self._own.pop(name)
