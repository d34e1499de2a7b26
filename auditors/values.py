"""Array types and callbacks that several modules share, and what values an argument may take."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
AnyFloats = NDArray[np.floating[Any]]  # in the precision that its maker chose
Indices = NDArray[np.int64]
Vector = NDArray[np.float64]  # one update or model, flat


_MAX_BITS: Final = 300
_MAX_SHOWN: Final = 200


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


class BadValueError(ValueError):
    """A value is not what it must be.

    Attributes:
        name: The argument or option, as its caller wrote it. Tests ask for this, not for words.
        allowed: What the value must be.

    >>> raise BadValueError("rounds", "at least 1", 0, fix="Try rounds=1")
    Traceback (most recent call last):
    leakmeter.auditors.values.BadValueError: rounds must be at least 1, got 0. Try rounds=1.
    """

    def __init__(
        self, name: str, allowed: str, value: object, *, fix: str = "", hint: str = ""
    ) -> None:
        """Word the error.

        Args:
            name: The argument or option, as its caller wrote it.
            allowed: What the value must be; it follows "must be".
            value: What was received.
            fix: What to do next, as a sentence without its full stop.
            hint: What else follows the value, such as the nearest name.
        """
        self.name, self.allowed = name, allowed
        advice = f". {fix}." if fix else ""
        super().__init__(f"{name} must be {allowed}, got {shown(value)}{hint}{advice}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what remakes the error where Ray or another process hands it on."""
        return ValueError.__new__, (type(self), *self.args), {**self.__dict__, "args": self.args}


def shown(value: object) -> str:
    """Return a value as Python writes it, in one line that fits a terminal.

    >>> shown("x"), shown(10**5000), shown([1] * 1000)
    ("'x'", 'a number of 16610 bits', '[1, 1, 1, 1, 1, 1, 1…')
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return f"a number of {value.bit_length()} bits"  # Python refuses to write very long ones
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # such a number, or deep nesting, inside of it
        return f"a {type(value).__name__}"
    return text if len(text) <= _MAX_SHOWN else f"{text[:20].rstrip()}…"


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
    leakmeter.auditors.values.BadValueError: delta must be in [0, 1), got 1.5
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
    leakmeter.auditors.values.BadValueError: share must be in (0, 1], got 0.0
    """
    least, most, left_out = _range(allowed)
    for name, value in named.items():
        if value is None and is_optional:
            continue
        # NaN is not between any two numbers.
        if value is None or not least <= value <= most or value in left_out:
            words = f"in {allowed}" if allowed[0] in "[(" else allowed
            raise BadValueError(name, words, value)


@lru_cache(maxsize=256)  # most ranges are checked again and again, some for every update
def _range(allowed: str) -> tuple[float, float, list[float]]:
    """Return both ends of a range, and those of them that are not in it."""
    low, _, high = allowed.removeprefix("at least ").strip("[]()").partition(", ")
    least, most = float(low), float(high or "inf")
    return least, most, [least] * (allowed[0] == "(") + [most] * (allowed[-1] == ")")
