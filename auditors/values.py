"""Array types and callbacks that several modules share, and what values an argument may take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leakmeter.auditors.errors import BadValueError

Floats = NDArray[np.float64]
AnyFloats = NDArray[np.floating[Any]]  # in the precision that its maker chose
Indices = NDArray[np.int64]
Vector = NDArray[np.float64]  # one update or model, flat


class Sliceable(Protocol):
    """A vector, or a model that makes its coordinates when they are asked for."""

    @property
    def size(self) -> int: ...
    def __getitem__(self, part: slice, /) -> Vector: ...


# What a client trains on: a text, or an input and its label.
Record = str | tuple[NDArray[Any], NDArray[Any]]

# Told which stage of a long audit is running and what share of it is done.
Watch = Callable[[str, float], None]


class NotFiniteError(ValueError):
    """An update or a metric holds NaN or an infinity: training has diverged."""


def within(
    name: str,
    values: ArrayLike,
    *,
    lowest: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    highest: float = math.inf,
) -> NDArray[np.float64]:
    """Return `values` as float64, or raise with the name, the range and the first culprit.

    >>> within("delta", 1.5, lowest=0.0, below=1.0)
    Traceback (most recent call last):
    leakmeter.auditors.errors.BadValueError: delta must be in [0, 1), got 1.5
    """
    array = np.asarray(values, dtype=np.float64)
    # NaN fails every comparison, and without a bound above or below so does infinity.
    fine = (array >= lowest) & (array > above) & (array < below) & (array <= highest)
    if not fine.all():
        left = f"[{lowest:g}" if lowest > above else f"({above:g}"
        right = f"{highest:g}]" if highest < below else f"{below:g})"
        raise BadValueError(name, f"in {left}, {right}", array[~fine].flat[0])
    return array


def require(allowed: str, *, is_optional: bool = False, **named: float | None) -> None:
    """Raise unless each value is in a range: "(0, 1]", or "at least 1".

    Args:
        allowed: The range, as the error says it.
        is_optional: Whether None stands for no value.
        named: Values by name.

    >>> require("(0, 1]", rate=1.0, share=0.0)
    Traceback (most recent call last):
    leakmeter.auditors.errors.BadValueError: share must be in (0, 1], got 0.0
    """
    least, most, left_out = _range(allowed)
    for name, value in named.items():
        if value is None and is_optional:
            continue
        # NaN is not between any two numbers.
        if value is None or not least <= value <= most or value in left_out:
            words = f"in {allowed}" if allowed[0] in "[(" else allowed
            raise BadValueError(name, words, value)


def require_one_of(allowed: Iterable[object], **named: object) -> None:
    """Raise unless each value is one of some.

    Args:
        allowed: These, in the order in which the error lists them.
        named: Values by name.

    >>> require_one_of(("sphere", "signs"), kind="cube")
    Traceback (most recent call last):
    leakmeter.auditors.errors.BadValueError: kind must be one of 'sphere', 'signs', got 'cube'
    """
    known = list(allowed)
    for name, value in named.items():
        if value not in known:
            raise BadValueError(name, f"one of {', '.join(map(repr, known))}", value)


@lru_cache(maxsize=256)  # most ranges are checked again and again, some for every update
def _range(allowed: str) -> tuple[float, float, list[float]]:
    """Return both ends of a range, and those of them that are not in it."""
    low, _, high = allowed.removeprefix("at least ").strip("[]()").partition(", ")
    least, most = float(low), float(high or "inf")
    return least, most, [least] * (allowed[0] == "(") + [most] * (allowed[-1] == ")")
