"""Scales of axes: where a value stands, and which values to name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

# shifted: ln(1 + x), which is even near 0 and logarithmic above 1: for ε.
Form = Literal["linear", "log", "shifted"]

_SHIFTED = (0, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5, 1e6, 1e8, 1e10)

HUGE = 1e250  # beyond it, or below its inverse, a scale leaves the range of floats


@dataclass(frozen=True)
class Scale:
    """A range of values and how they are spread.

    Attributes:
        low: Smallest value.
        high: Largest, above `low`.
        form: How they are spread.
    """

    low: float
    high: float
    form: Form = "linear"

    @classmethod
    def over(cls, values: Iterable[float], form: Form = "linear", *, zero: bool = False) -> Self:
        """Return a scale that holds all values below `HUGE`, with some room.

        Args:
            values: What must fit.
            form: How they are spread; "log" leaves out what is not positive.
            zero: Whether a linear scale begins at zero.
        """
        near = (v if abs(v) > 1 / HUGE else 0.0 for v in values if abs(v) < HUGE)
        found = [v for v in near if form != "log" or v > 0]
        low, high = (min(found), max(found)) if found else (0.1, 1.0)
        if form == "log":
            room = high**0.04 / low**0.04 if high > low else 2.0
            return cls(low / room, high * room, form)
        if form == "shifted":
            return cls(0.0, max(high * 1.1, 1.0), form)
        low = min(low, 0.0) if zero else low
        room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
        return cls(low if zero and low == 0 else low - room, high + room, form)

    def at(self, value: float) -> float:
        """Return where a value stands, 0 at the low end and 1 at the high end, kept within."""
        low, high, here = (self._spread(v) for v in (self.low, self.high, value))
        return min(max((here - low) / (high - low), 0.0), 1.0)

    def _spread(self, value: float) -> float:
        if self.form == "log":
            return math.log(max(value, 1e-300))
        if self.form == "shifted":
            return math.log1p(max(value, 0.0))
        return value

    def ticks(self, most: int = 6) -> list[float]:
        """Return round values to name, at most about so many."""
        if self.form == "shifted":
            return _thinned([t for t in _SHIFTED if self.low <= t <= self.high], most)
        if self.form == "log":
            return self._decades(most)
        step = _nice((self.high - self.low) / most)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(i * step, 12) for i in range(first, last + 1)]

    def _decades(self, most: int) -> list[float]:
        low, high = math.log10(self.low), math.log10(self.high)
        if high - low < 1.5:
            near = [
                m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5)
            ]
            return [t for t in near if self.low * 0.999 <= t <= self.high * 1.001] or [self.low]
        powers = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
        step = -(-len(powers) // most)
        return [10.0**e for e in powers if e % step == 0]


def label(value: float) -> str:
    """Return how a tick is written.

    >>> [label(x) for x in (1e-6, 0.01, 0.5, 1000.0, 1e5)]
    ['10⁻⁶', '0.01', '0.5', '1000', '10⁵']
    """
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        power = math.floor(math.log10(abs(value)) + 1e-9)
        front = value / 10.0**power
        lead = "" if abs(front - 1) < 1e-9 else f"{front:.3g}·"
        return f"{lead}10{str(power).translate(_RAISED)}"
    return f"{value:.6g}".replace("-", "−")


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _nice(step: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= step * (1 - 1e-9))


def _thinned(ticks: Sequence[float], most: int) -> list[float]:
    """Return every second, third, … tick, so that they are few enough; zero stays."""
    step = max(-(-len(ticks) // most), 1)
    return [float(t) for t in ticks[::step]]
