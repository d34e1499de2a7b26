"""Finds the position of a mod in the client app's list.

Flower gives a mod only the next call, so the list is read from how Flower chains mods
(`make_ffn`, the same from release 1.26.1 to 1.41.0): each link is a function `new_ffn` that keeps
its mod as `_mod` and the next link as `_ffn`. Those behind the mod are in the closure of the next
call, those before it on the stack. A release that chains mods differently shows nothing: the audit
then says less about them, and a client that signs takes no part.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

_LINK: Final = "new_ffn"
_MOD: Final = "_mod"
_NEXT: Final = "_ffn"
_DEEPEST: Final = 200  # frames; a client's stack is far shorter


@dataclass(frozen=True)
class ModList:
    """The mods of a client app as one of them finds them, in list order.

    Attributes:
        before: Those between the wire and this mod.
        itself: This mod, as it is listed; None if the list cannot be read.
        behind: Those between this mod and the app.
    """

    before: tuple[Any, ...]
    itself: Any
    behind: tuple[Any, ...]

    def around(self, mod: Any) -> ModList | None:
        """Return the list as a mod behind this one finds it; None if it is not there."""
        place = next((i for i, one in enumerate(self.behind) if unwrapped(one) is mod), None)
        if place is None:
            return None
        before = (*self.before, self.itself, *self.behind[:place])
        return ModList(before, mod, self.behind[place + 1 :])


def mods_around(call_next: Callable[..., Any]) -> ModList:
    """Return the mods around the one that calls this.

    Args:
        call_next: What the calling mod was given.
    """
    passed = list(_before(sys._getframe(1)))  # the first is the calling mod itself
    itself = passed[0] if passed else None
    return ModList(tuple(reversed(passed[1:])), itself, tuple(_behind(call_next)))


def unwrapped(mod: Any) -> Any:
    """Return what a `functools.partial` calls; everything else is itself."""
    return getattr(mod, "func", mod)


def names_of(mods: tuple[Any, ...]) -> tuple[str, ...]:
    """Return what a user calls mods: the name of a function, or of an object's class."""
    functions = map(unwrapped, mods)
    return tuple(str(getattr(f, "__name__", type(f).__name__)) for f in functions)


def _behind(link: Any) -> Iterator[Any]:
    """Yield the mods that a call passes on its way to the app."""
    for _ in range(_DEEPEST):
        code, cells = getattr(link, "__code__", None), getattr(link, "__closure__", None)
        if code is None or cells is None or code.co_name != _LINK:
            return
        kept = dict(zip(code.co_freevars, cells, strict=True))
        if not {_MOD, _NEXT} <= set(kept):
            return
        yield kept[_MOD].cell_contents
        link = kept[_NEXT].cell_contents


def _before(frame: FrameType | None) -> Iterator[Any]:
    """Yield the mods that a call has passed, the last first."""
    for _ in range(_DEEPEST):
        if frame is None:
            return
        if frame.f_code.co_name == _LINK and _MOD in frame.f_code.co_freevars:
            yield frame.f_locals[_MOD]
        frame = frame.f_back
