"""Scales of axes: where a value is, and which values to name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

# shifted: ln(1 + x), which is even near 0 and logarithmic above 1: for ε.
Form = Literal["linear", "log", "shifted"]

_SHIFTED = (0, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5, 1e6, 1e8, 1e10)

_WIDE = 30.0  # from here on a logarithmic axis names powers of ten alone
_STEPS = 5  # of a linear axis, about; at both ends a part of one is added
_MOST_TICKS = 7
_NEAR = 1e-6  # of a whole number of steps
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
        """Return a scale for all values below `HUGE`, which ends at ticks.

        Args:
            values: What must fit.
            form: How they are spread; "log" leaves out what is not positive.
            zero: Whether a linear scale begins at zero.
        """
        near = (v if abs(v) > 1 / HUGE else 0.0 for v in values if abs(v) < HUGE)
        found = [v for v in near if form != "log" or v > 0]
        low, high = (min(found), max(found)) if found else (0.1, 1.0)
        if form == "log":
            return cls(*_decades(low, high), form)
        if form == "shifted":
            return cls(0.0, float(next((t for t in _SHIFTED[2:] if t >= high), high)), form)
        low = min(low, 0.0) if zero else low
        if high == low:
            low, high = low - (abs(low) * 0.1 or 1.0) * (not zero), high + (abs(high) * 0.1 or 1.0)
        # To the next tick on either side: no line ends beyond the last number of the axis.
        step = _nice((high - low) / _STEPS)
        return cls(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, form)

    def at(self, value: float) -> float:
        """Return where a value is, 0 at the low end and 1 at the high end, kept within."""
        low, high, here = (self._spread(v) for v in (self.low, self.high, value))
        return min(max((here - low) / (high - low), 0.0), 1.0)

    def _spread(self, value: float) -> float:
        if self.form == "log":
            return math.log(max(value, 1e-300))
        if self.form == "shifted":
            return math.log1p(max(value, 0.0))
        return value

    def ticks(self, most: int = 6) -> list[float]:
        """Return round values to name, about this many at most."""
        if self.form == "shifted":
            return _thinned([t for t in _SHIFTED if self.low <= t <= self.high], most)
        if self.form == "log":
            return self._decades(most)
        step = self._step(most)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(i * step, 12) for i in range(first, last + 1)]

    def _step(self, most: int) -> float:
        """Return the smallest round step that leaves few enough ticks and meets both ends."""
        wide = self.high - self.low
        steps = [_nice(wide / _MOST_TICKS * 2**i) for i in range(3)]
        ends = (self.low, self.high)
        meets = (s for s in steps if all(abs(e / s - round(e / s)) < _NEAR for e in ends))
        return next(meets, _nice(wide / most))

    def _decades(self, most: int) -> list[float]:
        low, high = math.log10(self.low), math.log10(self.high)
        if high - low < 1.5:
            near = [
                m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5)
            ]
            return [t for t in near if self.low * 0.999 <= t <= self.high * 1.001] or [self.low]
        powers = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
        step = -(-len(powers) // most)
        # From the upper end, so that the last number is where the axis ends.
        return [10.0**e for e in powers if (powers[-1] - e) % step == 0]


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


def _decades(low: float, high: float) -> tuple[float, float]:
    """Return the ends of a logarithmic axis: 1, 2 or 5 times a power of ten, around all values."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    marks = [m * 10.0**e for e in powers for m in (1, 2, 5)]
    if high / low > _WIDE:
        marks = [10.0**e for e in powers]
    start = max(m for m in marks if m <= low * (1 + 1e-9))
    end = min(m for m in marks if m >= high * (1 - 1e-9))
    return (start, end) if end > start else (start / 2, end * 2)


def _thinned(ticks: Sequence[float], most: int) -> list[float]:
    """Return every second, third, … tick, so that they are few enough; both ends stay."""
    step = max(-(-(len(ticks) - 1) // (most - 1)), 1)
    kept = {0.0, *ticks[::-step]} if ticks and ticks[0] == 0 else set(ticks[::-step])
    return sorted(float(t) for t in kept)
