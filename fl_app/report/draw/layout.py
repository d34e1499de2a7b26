"""Where everything of a figure is: one renderer for all of them, with one size of text.

A drawing is as wide as its card. So that text and markers keep their size, they are not scaled:
places from left to right are thousandths of the width, heights are pixels. Lines and areas alone
are stretched. Names of lines are in a legend outside the drawing, so no word can cover a line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from leakmeter.auditors.wording import number
from leakmeter.fl_app.report.draw.figure import REFERENCE, Axis, Figure, Marker, Scale, Series

TEXT: Final = 12.0  # pixels: the size of all text in drawings
WIDE: Final = 1000.0  # what the width of the plot counts as
NARROWEST: Final = 232  # pixels of a plot in a phone's card: here words must not meet
_LINE = 16.0  # pixels from one line of words to the next
_TOP, _BOTTOM, _HIGH, _RIGHT = 12.0, 42.0, 188.0, 14.0
_LANE = 18.0  # height of a row's drawing
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
class Drawing:
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


def strip(series: Sequence[Series], scale: Scale) -> Drawing:
    """Return a row of a table: a drawing without axes and words."""
    return Drawing(26.0, 12.0, 12.0, *_lane(series, scale, 4.0))


def _lane(
    series: Sequence[Series], x: Scale, top: float
) -> tuple[tuple[Stroke, ...], tuple[Mark, ...]]:
    """Return what is drawn of a row, whose words have its numbers."""
    frame = _Frame(x, Scale(0.0, 1.0), top, top + _LANE)
    marks = (m for one in series if one.marker for m in _marks(one, frame, Axis(""), Axis("")))
    return tuple(_strokes(series, frame)), tuple(marks)


def axis_strip(scale: Scale) -> Drawing:
    """Return the axis above such rows."""
    texts = _named(_Frame(scale, Scale(0.0, 1.0), 0.0, 25.0), 7, 14.0)
    lines = [((0.0, 25.0), (WIDE, 25.0)), *(((one.x, 20.0), (one.x, 25.0)) for one in texts)]
    return Drawing(26.0, 12.0, 12.0, (Stroke(tuple(lines), "axis"),), texts=texts)


def key(series: Series) -> Drawing:
    """Return a sample of a line for a legend."""
    lane = Scale(0.0, 1.0)
    low, high = ((0.0, 0.0), (1.0, 1.0)) if series.is_filled or series.low else ((), ())
    sample = Series("", (0.0, 1.0), (0.5, 0.5), series.color, series.dash, "", low, high)
    strokes = _strokes([replace(sample, is_line=series.is_line)], _Frame(lane, lane, 2.0, 14.0))
    middle = Mark(WIDE / 2, 8.0, series.marker, color_of(series), "")
    return Drawing(16.0, 0.0, 0.0, tuple(strokes), (middle,) if series.marker else ())


def color_of(series: Series) -> str:
    """Return the name of a colour."""
    return "ref" if series.color == REFERENCE else f"c{series.color % _NUM_COLORS}"


def layout(figure: Figure) -> Drawing:
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
    return Drawing(
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
