"""Finds the position of a mod in the client app's list.

Flower gives a mod only the next call, so the names are read from how Flower chains mods
(`make_ffn`, the same from release 1.26.1 to 1.41.0): each link is a function `new_ffn` that keeps
its mod as `_mod` and the next link as `_ffn`. Those behind the mod are in the closure of the next
call, those before it on the stack. A release that chains mods differently shows no names, and
the audit then says less about them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

_LINK: Final = "new_ffn"
_MOD: Final = "_mod"
_NEXT: Final = "_ffn"
_DEEPEST: Final = 200  # frames; a client's stack is far shorter


def mods_around(call_next: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the mods before and behind the one that calls this, in list order.

    Args:
        call_next: What the calling mod was given.
    """
    before = list(_before(sys._getframe(1)))[1:]  # the first is the calling mod itself
    return tuple(reversed(before)), tuple(_behind(call_next))


def _behind(link: Any) -> Iterator[str]:
    """Yield the mods that a call passes on its way to the app."""
    for _ in range(_DEEPEST):
        code, cells = getattr(link, "__code__", None), getattr(link, "__closure__", None)
        if code is None or cells is None or code.co_name != _LINK:
            return
        kept = dict(zip(code.co_freevars, cells, strict=True))
        if not {_MOD, _NEXT} <= set(kept):
            return
        yield _name(kept[_MOD].cell_contents)
        link = kept[_NEXT].cell_contents


def _before(frame: FrameType | None) -> Iterator[str]:
    """Yield the mods that a call has passed, the last first."""
    for _ in range(_DEEPEST):
        if frame is None:
            return
        if frame.f_code.co_name == _LINK and _MOD in frame.f_code.co_freevars:
            yield _name(frame.f_locals[_MOD])
        frame = frame.f_back


def _name(mod: Any) -> str:
    """Return what a user calls a mod: the name of a function, or of an object's class."""
    function = getattr(mod, "func", mod)  # of a functools.partial
    return str(getattr(function, "__name__", type(function).__name__))
