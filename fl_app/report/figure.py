"""What a figure shows, as data, and where everything in it is.

A figure has axes and series of points and bands. An axis has a scale, which says where a value is
and which values to name.

One renderer draws all figures, with one size of text. A drawing is as wide as its card. So that
text and markers keep their size, they are not scaled: places from left to right are thousandths of
the width, heights are pixels. Lines and areas alone are stretched. Names of lines are in a legend
outside the drawing, so no word can cover a line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Literal, Self

from leakmeter.auditors.finding import Kind
from leakmeter.auditors.wording import number

# shifted: ln(1 + x), which is even near 0 and logarithmic above 1: for ε.
Form = Literal["linear", "log", "shifted"]
Marker = Literal["", "circle", "square", "triangle", "diamond", "right", "left"]

MARKERS: tuple[Marker, ...] = ("circle", "square", "triangle", "diamond")
REFERENCE = -1  # the colour of what a line is compared with
_SHIFTED = (0, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5, 1e6, 1e8, 1e10)
_WIDE = 30.0  # from here on a logarithmic axis names powers of ten alone
_STEPS = 5  # of a linear axis, about; at both ends a part of one is added
_MAX_TICKS = 7
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
        steps = [_nice(wide / _MAX_TICKS * 2**i) for i in range(3)]
        ends = (self.low, self.high)
        meets = (s for s in steps if all(abs(e / s - round(e / s)) < _NEAR for e in ends))
        return next(meets, _nice(wide / most))

    def _decades(self, most: int) -> list[float]:
        low, high = math.log10(self.low), math.log10(self.high)
        if high - low < 1.5:
            near = _one_two_five(range(math.floor(low), math.ceil(high) + 1))
            return [t for t in near if self.low * 0.999 <= t <= self.high * 1.001] or [self.low]
        powers = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
        step = -(-len(powers) // most)
        # From the upper end, so that the last number is where the axis ends.
        return [10.0**e for e in powers if (powers[-1] - e) % step == 0]


def _nice(step: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= step * (1 - 1e-9))


def _one_two_five(powers: Iterable[int]) -> list[float]:
    """Return 1, 2 and 5 times each power of ten."""
    return [m * 10.0**e for e in powers for m in (1, 2, 5)]


def _decades(low: float, high: float) -> tuple[float, float]:
    """Return the ends of a logarithmic axis: 1, 2 or 5 times a power of ten, around all values."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    marks = [10.0**e for e in powers] if high / low > _WIDE else _one_two_five(powers)
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


TEXT: Final = 12.0  # pixels: the size of all text in drawings
WIDE: Final = 1000.0  # what the width of the plot counts as
NARROWEST: Final = 232  # pixels of a plot in a phone's card: here words must not meet
_LINE = 16.0  # pixels from one line of words to the next
_TOP, _BOTTOM, _HIGH, _RIGHT = 12.0, 42.0, 188.0, 14.0
_ALONE = 12.0  # width of a single place, to either side
_DASHES = ("", "7 4", "2 3", "9 3 2 3")
_NUM_COLORS = 6
_NARROW, _BROAD = frozenset("iljtfr.,:;'|!()[] -"), frozenset("mwMW%ε≥≤≈…→")

Place = tuple[float, float]


@dataclass(frozen=True)
class Text:
    """Words at a place."""

    words: str
    x: float  # thousandths of the width
    y: float  # pixels, of the line on which they are written
    by: float = 0.0  # pixels to the right of `x`
    anchor: str = "start"  # which part of the words is there: start, middle or end
    look: str = ""  # label, head or nothing
    is_upright: bool = False  # whether they are written from bottom to top


@dataclass(frozen=True)
class Stroke:
    """Lines or areas, in pieces with these corners."""

    pieces: tuple[tuple[Place, ...], ...]
    look: str
    dash: str = ""  # of a line; empty for a solid one

    @property
    def path(self) -> str:
        """As SVG has it."""
        end = "Z" if self.look.startswith("area") else ""
        drawn = ("L".join(f"{x:g} {y:g}" for x, y in piece) for piece in self.pieces)
        return "".join(f"M{one}{end}" for one in drawn)


@dataclass(frozen=True)
class Mark:
    """A point that answers to pointer and keyboard."""

    x: float  # thousandths of the width
    y: float  # pixels
    marker: Marker
    look: str  # its colour; quiet ones are seen only when they answer
    words: str  # what it says


@dataclass(frozen=True)
class Canvas:
    """A figure with everything in its place."""

    height: float  # pixels, as the next two
    left: float  # beside the plot
    right: float
    strokes: tuple[Stroke, ...] = ()  # the lowest first
    marks: tuple[Mark, ...] = ()
    texts: tuple[Text, ...] = ()


@dataclass(frozen=True)
class _Frame:
    """From values to places."""

    x: Scale
    y: Scale
    top: float
    bottom: float

    def at(self, x: float, y: float) -> Place:
        high = self.bottom - self.y.at(y) * (self.bottom - self.top)
        return round(self.x.at(x) * WIDE, 1), round(high, 1)


def width_of(words: str) -> float:
    """Return about how wide words are, in pixels; rather too wide."""
    return TEXT * sum(0.4 if c in _NARROW else 0.9 if c in _BROAD else 0.62 for c in words)


def row_drawing(series: Sequence[Series], scale: Scale) -> Canvas:
    """Return a row of a table: a drawing without axes and words."""
    frame = _Frame(scale, Scale(0.0, 1.0), 4.0, 22.0)
    marks = (m for one in series if one.marker for m in _marks(one, frame, Axis(""), Axis("")))
    return Canvas(26.0, 12.0, 12.0, tuple(_strokes(series, frame)), tuple(marks))


def axis_strip(scale: Scale) -> Canvas:
    """Return the axis above such rows."""
    texts = _named(_Frame(scale, Scale(0.0, 1.0), 0.0, 25.0), 7, 14.0)
    lines = [((0.0, 25.0), (WIDE, 25.0)), *(((one.x, 20.0), (one.x, 25.0)) for one in texts)]
    return Canvas(26.0, 12.0, 12.0, (Stroke(tuple(lines), "axis"),), texts=texts)


def key(series: Series) -> Canvas:
    """Return a sample of a line for a legend."""
    lane = Scale(0.0, 1.0)
    low, high = ((0.0, 0.0), (1.0, 1.0)) if series.is_filled or series.low else ((), ())
    sample = Series("", (0.0, 1.0), (0.5, 0.5), series.color, series.dash, "", low, high)
    strokes = _strokes([replace(sample, is_line=series.is_line)], _Frame(lane, lane, 2.0, 14.0))
    middle = Mark(WIDE / 2, 8.0, series.marker, color_of(series), "")
    return Canvas(16.0, 0.0, 0.0, tuple(strokes), (middle,) if series.marker else ())


def color_of(series: Series) -> str:
    """Return the name of a colour."""
    return "ref" if series.color == REFERENCE else f"c{series.color % _NUM_COLORS}"


def layout(figure: Figure) -> Canvas:
    """Return the drawing of a figure: lines between two axes."""
    bottom, name = _TOP + _HIGH, figure.y.full_label
    frame = _Frame(*figure.scales, _TOP, bottom)
    ticks = [(Scale.label(tick), frame.at(frame.x.low, tick)[1]) for tick in frame.y.ticks(5)]
    is_upright = len(name) > 1
    beside = _LINE + 5 if is_upright else width_of("ε") + 4
    left = round(max(width_of(words) for words, _ in ticks) + 7 + beside, 1)
    by, anchor = (_LINE - 4 - left, "middle") if is_upright else (-left, "start")
    grid = Stroke(tuple(((0.0, y), (WIDE, y)) for _, y in ticks), "grid")
    below, named = _axis_below(figure.x, frame, bottom)
    return Canvas(
        bottom + _BOTTOM,
        left,
        _RIGHT,
        (grid, below, *_strokes(figure.series, frame)),
        tuple(m for one in figure.series for m in _marks(one, frame, figure.x, figure.y)),
        (
            *(Text(words, 0.0, y + 4, -7.0, "end") for words, y in ticks),
            Text(name, 0.0, _TOP + _HIGH / 2, by, anchor, "label", is_upright),
            *named,
        ),
    )


def _axis_below(axis: Axis, frame: _Frame, y: float) -> tuple[Stroke, list[Text]]:
    """Return the line of an axis with its ticks, their numbers, and what they are."""
    most = next((m for m in (7, 6, 5, 4, 3) if _has_room(frame, axis, m)), 2)
    named = list(_named(frame, most, y + _LINE + 3, is_whole=axis.is_whole))
    ticks = [((text.x, y), (text.x, y + 5)) for text in named]
    below = Stroke((((0.0, y), (WIDE, y)), *ticks), "axis")
    middle = Text(axis.full_label, WIDE / 2, y + _BOTTOM - 6, anchor="middle", look="label")
    return below, [*named, middle]


def _has_room(frame: _Frame, axis: Axis, most: int) -> bool:
    """Whether the numbers of the ticks keep apart in the narrowest card."""
    named = _named(frame, most, 0.0, is_whole=axis.is_whole)
    return all(
        (b.x - a.x) / WIDE * NARROWEST > (width_of(a.words) + width_of(b.words)) / 2 + 4
        for a, b in pairwise(named)
    )


def _named(frame: _Frame, most: int, y: float, *, is_whole: bool = False) -> tuple[Text, ...]:
    """Return the numbers of the ticks of the axis below."""
    ticks = [t for t in frame.x.ticks(most) if not is_whole or t == round(t)]
    return tuple(Text(Scale.label(t), frame.at(t, 0.0)[0], y, anchor="middle") for t in ticks)


def _strokes(every: Sequence[Series], frame: _Frame) -> Iterator[Stroke]:
    """Yield areas, then lines."""
    for one in every:
        if pieces := tuple(_area(one, frame)):
            yield Stroke(pieces, f"area {color_of(one)}")
    for one in every:
        pieces = tuple(_outline(one, frame))
        if one.is_line and pieces:
            look = f"line {color_of(one)}"
            yield Stroke(pieces, look, _DASHES[one.dash % len(_DASHES)])


def _outline(series: Series, frame: _Frame) -> Iterator[tuple[Place, ...]]:
    """Yield the corners of a line; bins make steps."""
    if series.is_histogram:
        steps = [(series.x[0], 0.0)]
        for i, value in enumerate(series.y):
            steps += [(series.x[i], value), (series.x[i + 1], value)]
        yield tuple(frame.at(x, y) for x, y in [*steps, (series.x[-1], 0.0)])
        return
    for piece in _pieces([(x, y) for _, x, y in series.points()], series.gap):
        yield tuple(_spread([frame.at(x, y) for x, y in piece]))


def _area(series: Series, frame: _Frame) -> Iterator[tuple[Place, ...]]:
    """Yield the corners of a band, or of what is below a line."""
    if series.is_filled:
        yield from _outline(series, frame)
    known = zip(series.x[: len(series.low)], series.low, series.high, strict=True)
    kept = [ends for ends in known if all(abs(end) < float("inf") for end in ends)]
    for piece in _pieces(kept, series.gap):
        there = _spread([frame.at(x, high) for x, _, high in piece])
        back = _spread([frame.at(x, low) for x, low, _ in piece])
        yield (*there, *reversed(back))


def _pieces(
    places: Sequence[tuple[float, ...]], gap: float
) -> Iterator[Sequence[tuple[float, ...]]]:
    """Yield the places that a line joins, in one piece each."""
    start = 0
    for i in range(1, len(places) + 1):
        if i == len(places) or places[i][0] - places[i - 1][0] > gap:
            yield places[start:i]
            start = i


def _spread(places: Sequence[Place]) -> list[Place]:
    """Return the places; a single one is made wide enough to be seen."""
    if len(places) > 1:
        return list(places)
    return [(x + by, y) for x, y in places for by in (-_ALONE, _ALONE)]


def _marks(series: Series, frame: _Frame, x: Axis, y: Axis) -> Iterator[Mark]:
    """Yield a target for pointer and keyboard at each value, drawn if the line has markers."""
    look = color_of(series) + ("" if series.marker else " quiet")
    for i, place, value in series.points():
        where = number(place)
        if series.is_histogram:
            where = f"{number(series.x[i], 3)} to {number(series.x[i + 1], 3)}"
        words = f"{series.label}: {y.label} {number(value, kind=series.kind)}; {x.label} {where}"
        if not y.label:  # a row: its words have the number
            words = series.label
        if series.low:
            words += f"; band {number(series.low[i])} to {number(series.high[i])}"
        yield Mark(*frame.at(place, value), series.marker or "circle", look, words)
