"""What a figure shows, as data: axes with series of points and bands.

An axis has a scale, which says where a value is and which values to name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from leakmeter.auditors.finding import Kind

# shifted: ln(1 + x), which is even near 0 and logarithmic above 1: for ε.
Form = Literal["linear", "log", "shifted"]
Marker = Literal["", "circle", "square", "triangle", "diamond", "right", "left"]

MARKERS: tuple[Marker, ...] = ("circle", "square", "triangle", "diamond")
REFERENCE = -1  # the colour of what a line is compared with
_SHIFTED = (0, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5, 1e6, 1e8, 1e10)
_WIDE = 30.0  # from here on a logarithmic axis names powers of ten alone
_STEPS = 5  # of a linear axis, about; at both ends a part of one is added
_MOST_TICKS = 7
_NEAR = 1e-6  # of a whole number of steps
HUGE = 1e250  # beyond it, or below its inverse, a scale leaves the range of floats
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Scale:
    """A range of values, from `low` to `high`, and how they are spread."""

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
        return math.log1p(max(value, 0.0)) if self.form == "shifted" else value

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

    @staticmethod
    def label(value: float) -> str:
        """Return how a tick is written.

        >>> [Scale.label(x) for x in (1e-6, 0.01, 0.5, 1000.0, 1e5)]
        ['10⁻⁶', '0.01', '0.5', '1000', '10⁵']
        """
        if value != 0 and not 1e-3 <= abs(value) < 1e5:
            power = math.floor(math.log10(abs(value)) + 1e-9)
            front = value / 10.0**power
            lead = "" if abs(front - 1) < 1e-9 else f"{front:.3g}·"
            return f"{lead}10{str(power).translate(_RAISED)}"
        return f"{value:.6g}".replace("-", "−")

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
            near = _marks(range(math.floor(low), math.ceil(high) + 1))
            return [t for t in near if self.low * 0.999 <= t <= self.high * 1.001] or [self.low]
        powers = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
        step = -(-len(powers) // most)
        # From the upper end, so that the last number is where the axis ends.
        return [10.0**e for e in powers if (powers[-1] - e) % step == 0]


def _nice(step: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= step * (1 - 1e-9))


def _marks(powers: Iterable[int]) -> list[float]:
    """Return 1, 2 and 5 times each power of ten."""
    return [m * 10.0**e for e in powers for m in (1, 2, 5)]


def _decades(low: float, high: float) -> tuple[float, float]:
    """Return the ends of a logarithmic axis: 1, 2 or 5 times a power of ten, around all values."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    marks = [10.0**e for e in powers] if high / low > _WIDE else _marks(powers)
    start = max(m for m in marks if m <= low * (1 + 1e-9))
    end = min(m for m in marks if m >= high * (1 - 1e-9))
    return (start, end) if end > start else (start / 2, end * 2)


def _thinned(ticks: Sequence[float], most: int) -> list[float]:
    """Return every second, third, … tick, so that they are few enough; both ends stay."""
    step = max(-(-(len(ticks) - 1) // (most - 1)), 1)
    kept = {0.0, *ticks[::-step]} if ticks and ticks[0] == 0 else set(ticks[::-step])
    return sorted(float(t) for t in kept)


@dataclass(frozen=True)
class Series:
    """One line of a figure."""

    label: str
    x: Sequence[float]
    y: Sequence[float]  # as many as `x`, or one fewer for the bins of a histogram
    color: int = 0  # index into the palette, or `REFERENCE`
    dash: int = 0  # index into the dashes
    marker: Marker = ""  # shape of its points; none draws the line alone, but points still answer
    low: Sequence[float] = ()  # lower end of a band; empty without one
    high: Sequence[float] = ()  # upper end of it
    is_filled: bool = False  # whether the area below it is filled
    is_line: bool = True  # whether points are joined
    kind: Kind | None = None  # how strong the values are, which decides how they are rounded
    gap: float = math.inf  # longest step to the next point that a line and its band bridge

    @property
    def is_histogram(self) -> bool:
        """Whether the values belong to bins."""
        return len(self.x) == len(self.y) + 1

    def points(self) -> Iterator[tuple[int, float, float]]:
        """Yield index, place and value of all that can be drawn; of bins the middle."""
        for i, value in enumerate(self.y):
            place = (self.x[i] + self.x[i + 1]) / 2 if self.is_histogram else self.x[i]
            if math.isfinite(place) and math.isfinite(value):
                yield i, place, value


@dataclass(frozen=True)
class Axis:
    """What an axis shows and how."""

    label: str
    form: Form = "linear"
    has_zero: bool = False
    is_whole: bool = False  # rounds have no halves
    limits: tuple[float, float] | None = None

    @property
    def full_label(self) -> str:
        """What the axis shows; a scale that is not even says so."""
        return self.label if self.form == "linear" else f"{self.label} (log scale)"

    def scale(self, values: Sequence[float]) -> Scale:
        """Return the scale for these values."""
        if self.limits is not None:
            return Scale.over(self.limits, self.form)
        return Scale.over(values, self.form, zero=self.has_zero)


@dataclass(frozen=True)
class Figure:
    """Series between two axes, and what to say about them."""

    name: str  # unique on the page
    title: str
    text: str  # what can be seen, for those who cannot
    caption: str
    x: Axis
    y: Axis
    series: tuple[Series, ...] = ()  # the most important last
    is_first: bool = False  # whether it is one of the few that everybody should see
    sentence: str = ""  # what says it all where a line is flat: shown instead of the drawing
    question: str = ""  # the one that it answers; no other figure of a page answers it

    @property
    def scales(self) -> tuple[Scale, Scale]:
        """The scales of both axes, around all values."""
        heights = [v for one in self.series for v in (*one.y, *one.low, *one.high)]
        return self.x.scale([v for one in self.series for v in one.x]), self.y.scale(heights)

    def values(self) -> Iterator[tuple[Series, float, float, float | None, float | None]]:
        """Yield every point: its line, x, y, and both ends of its band if it has one."""
        for one in self.series:
            for i, place, value in one.points():
                low, high = (one.low[i], one.high[i]) if one.low else (None, None)
                yield one, place, value, low, high
