"""Charts as SVG that takes its colours from the page, with every point within reach of a key.

Lines differ in colour, dash and marker, so that any one of these distinguishes them. Text is text.
The drawing is one image with a title and a description; its points can be focused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from leakmeter.auditors.finding import Kind
from leakmeter.auditors.wording import number
from leakmeter.fl_app.report.draw.scale import Form, Scale, label
from leakmeter.fl_app.report.markup import Markup, exact, joined, tag

Marker = Literal["", "circle", "square", "triangle", "diamond"]

_WIDTH, _HEIGHT = 440, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 14, 14, 56
_DASHES = ("", "7 4", "2 3", "9 3 2 3")
_NUM_COLORS = 6
_MOST_NAMES = 4  # lines that are labelled directly; more get a legend
_APART = 18  # between two labels
_HALF = 4.0  # width of a single place, to either side
REFERENCE = -1  # the colour of what a line is compared with


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        label: What it is.
        x: Where.
        y: What; as many as `x`, or one fewer for the bins of a histogram.
        color: Index into the palette, or `REFERENCE`.
        dash: Index into the dashes.
        marker: Shape of its points; none draws the line alone, but points still answer.
        low: Lower end of a band, if there is one.
        high: Upper end of it.
        is_filled: Whether the area below it is filled.
        is_line: Whether points are joined.
        kind: How strong the values are, which decides how they are rounded.
        gap: Longest step from one point to the next that a line and its band bridge.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    color: int = 0
    dash: int = 0
    marker: Marker = ""
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    is_filled: bool = False
    is_line: bool = True
    kind: Kind | None = None
    gap: float = math.inf

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
class Chart:
    """A pair of axes with lines.

    Attributes:
        name: Unique on the page.
        title: What it shows.
        text: What can be seen, for those who cannot.
        x: The axis below.
        y: The axis to the left.
        series: The lines, the most important last.
    """

    name: str
    title: str
    text: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]

    def svg(self) -> Markup:
        """Return the drawing."""
        frame = _Frame(self._scale(0), self._scale(1))
        drawing = tag(
            "g",
            tag("title", self.title, id=f"{self.name}-title"),
            tag("desc", self.text, id=f"{self.name}-desc"),
            _grid(frame, self.x, self.y),
            *(_band(one, frame) for one in self.series),
            *(_line(one, frame) for one in self.series),
            *(_names(self.series, frame) if self.is_labelled else ()),
            role="img",
            aria_labelledby=f"{self.name}-title {self.name}-desc",
        )
        points = [p for one in self.series for p in _points(one, frame, self.x, self.y)]
        if points:  # one stop of the tab key; arrows lead on
            points[0] = Markup(points[0].replace('tabindex="-1"', 'tabindex="0"', 1))
        return tag(
            "svg",
            drawing,
            tag("g", *points, class_="points"),
            viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
            class_="chart",
            id=self.name,
        )

    def legend(self) -> Markup:
        """Return what the lines mean, where they do not say so themselves."""
        if self.is_labelled:
            return Markup("")
        entries = (tag("li", swatch, tag("span", words)) for swatch, words in self.key())
        return tag("ul", *entries, class_="legend")

    @property
    def is_labelled(self) -> bool:
        """Whether names fit next to the lines."""
        shown = [one for one in self.series if any(True for _ in one.points())]
        return len(shown) <= _MOST_NAMES

    def key(self) -> list[tuple[Markup, str]]:
        """Return a sample of each line, 30 × 16, with its label."""
        return [(_swatch(one), one.label) for one in self.series]

    def _scale(self, axis: int) -> Scale:
        values: list[float] = []
        for one in self.series:
            if axis == 0:
                values += one.x
            else:
                values += [*one.y, *(one.low or ()), *(one.high or ())]
        return (self.x, self.y)[axis].scale(values)


@dataclass(frozen=True)
class Figure:
    """A chart and what to say about it.

    Attributes:
        chart: The chart.
        caption: What can be seen.
        is_first: Whether it is one of the few that everybody should see.
        sentence: What says it all where a line is flat; the page then shows it and no chart.
    """

    chart: Chart
    caption: str
    is_first: bool = False
    sentence: str = ""

    def rows(self) -> list[tuple[str, float, float, float | None, float | None]]:
        """Return line, place, value and band of every point."""
        return [
            (
                one.label,
                place,
                value,
                one.low[i] if one.low is not None else None,
                one.high[i] if one.high is not None else None,
            )
            for one in self.chart.series
            for i, place, value in one.points()
        ]

    def html(self, heading: str = "h3") -> Markup:
        """Return the figure, with a heading that fits its place."""
        if self.sentence:
            return tag("figure", tag(heading, self.chart.title), tag("p", self.sentence))
        return tag(
            "figure",
            tag(heading, self.chart.title),
            self.chart.svg(),
            self.chart.legend(),
            tag("figcaption", self.caption),
            self._table(),
        )

    def _table(self) -> Markup | None:
        """Return the values, folded; rows without a second axis show theirs already."""
        if not self.chart.y.label:
            return None
        return tag("details", tag("summary", "Values"), self._values())

    def _values(self) -> Markup:
        heads = ("line", self.chart.x.label, self.chart.y.label, "band from", "to")
        has_band = any(one.low is not None for one in self.chart.series)
        shown = heads if has_band else heads[:3]
        kinds = [one.kind for one in self.chart.series for _ in one.points()]
        body = [
            tag(
                "tr",
                tag("th", line, scope="row"),
                tag("td", exact(place)),
                tag("td", exact(value, kind)),
                *(tag("td", "" if v is None else exact(v)) for v in band if has_band),
            )
            for (line, place, value, *band), kind in zip(self.rows(), kinds, strict=True)
        ]
        caption = f"Values of: {self.chart.title}"
        table = tag(
            "table",
            tag("caption", caption),
            tag("thead", tag("tr", *(tag("th", head, scope="col") for head in shown))),
            tag("tbody", *body),
        )
        return tag("div", table, class_="scroll", tabindex=0, role="group", aria_label=caption)


@dataclass(frozen=True)
class _Frame:
    """From values to places on the drawing."""

    x_scale: Scale
    y_scale: Scale

    def x(self, value: float) -> float:
        return round(_LEFT + self.x_scale.at(value) * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        return round(_HEIGHT - _BOTTOM - self.y_scale.at(value) * (_HEIGHT - _TOP - _BOTTOM), 1)


def _grid(frame: _Frame, x_axis: Axis, y_axis: Axis) -> Markup:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    pieces = []
    for tick in frame.y_scale.ticks(5):
        at = frame.y(tick)
        pieces.append(tag("line", x1=_LEFT, x2=right, y1=at, y2=at, class_="grid"))
        pieces.append(tag("text", label(tick), x=_LEFT - 7, y=at + 4, text_anchor="end"))
    for tick in frame.x_scale.ticks(6):
        if x_axis.is_whole and tick != round(tick):
            continue
        at = frame.x(tick)
        pieces.append(tag("line", x1=at, x2=at, y1=bottom, y2=bottom + 5, class_="axis"))
        pieces.append(tag("text", label(tick), x=at, y=bottom + 22, text_anchor="middle"))
    pieces.append(tag("line", x1=_LEFT, x2=right, y1=bottom, y2=bottom, class_="axis"))
    middle = (_LEFT + right) / 2
    pieces.append(
        tag(
            "text",
            x_axis.full_label,
            x=middle,
            y=_HEIGHT - 10,
            text_anchor="middle",
            class_="label",
        )
    )
    up = (_TOP + bottom) / 2
    turn = " rotate(-90)" if len(y_axis.full_label) > 1 else ""
    pieces.append(
        tag(
            "text",
            y_axis.full_label,
            transform=f"translate(13 {up:g}){turn}",
            text_anchor="middle",
            class_="label",
        )
    )
    return joined(*pieces)


def _color(series: Series) -> str:
    return "ref" if series.color == REFERENCE else f"c{series.color % _NUM_COLORS}"


def _outline(series: Series, frame: _Frame) -> str:
    """Return the path of a line; bins make steps."""
    if series.is_histogram:
        steps = [(series.x[0], 0.0)]
        for i, value in enumerate(series.y):
            steps += [(series.x[i], value), (series.x[i + 1], value)]
        return _path((frame.x(x), frame.y(y)) for x, y in [*steps, (series.x[-1], 0.0)])
    pieces = _pieces([(x, y) for _, x, y in series.points()], series.gap)
    return "".join(
        _path((frame.x(x) + by, frame.y(y)) for x, y in piece for by in _widths(piece))
        for piece in pieces
    )


def _pieces(
    places: Sequence[tuple[float, ...]], gap: float
) -> Iterator[Sequence[tuple[float, ...]]]:
    """Yield the places that a line joins, in one piece each."""
    start = 0
    for i in range(1, len(places) + 1):
        if i == len(places) or places[i][0] - places[i - 1][0] > gap:
            yield places[start:i]
            start = i


def _widths(piece: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Return offsets that make a single place wide enough to be seen."""
    return (0.0,) if len(piece) > 1 else (-_HALF, _HALF)


def _path(places: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in places)


def _band(series: Series, frame: _Frame) -> Markup | None:
    """Return the area of a band, or below a line."""
    if series.is_filled:
        return tag("path", d=_outline(series, frame), class_=f"area {_color(series)}")
    if series.low is None or series.high is None:
        return None
    kept = [
        (x, low, high)
        for x, low, high in zip(series.x, series.low, series.high, strict=True)
        if math.isfinite(low) and math.isfinite(high)
    ]
    areas = []
    for piece in _pieces(kept, series.gap):
        by = _widths(piece)
        there = [(frame.x(x) + b, frame.y(high)) for x, _, high in piece for b in by]
        back = [(frame.x(x) - b, frame.y(low)) for x, low, _ in reversed(piece) for b in by]
        areas.append(_path([*there, *back]) + "Z")
    return tag("path", d="".join(areas), class_=f"area {_color(series)}") if areas else None


def _line(series: Series, frame: _Frame) -> Markup | None:
    if not series.is_line or not any(True for _ in series.points()):
        return None
    return tag(
        "path",
        d=_outline(series, frame),
        class_=f"line {_color(series)}",
        stroke_dasharray=_DASHES[series.dash % len(_DASHES)] or None,
    )


def _names(every: Sequence[Series], frame: _Frame) -> Iterator[Markup]:
    """Yield the name of each line, at its end or its top, moved apart where they would meet."""
    found = []
    for one in every:
        points = list(one.points())
        if points and len(every) > 1:
            top = max(points, key=lambda p: p[2])
            # A line that ends on the ground, as a distribution does, is named at its top.
            is_top = one.is_histogram or points[-1][2] < top[2] / 10
            _, x, y = top if is_top else points[-1]
            found.append((frame.y(y), frame.x(x), is_top, one))
    last = -math.inf
    lowest = _HEIGHT - _BOTTOM - 4 - _APART * (len(found) - 1)
    for at, x, is_top, one in sorted(found, key=lambda f: f[0]):
        y = at - 8
        if not is_top and y < last + _APART:  # the name above is too near: below the line instead
            y = at + _APART
        y = max(min(y, lowest), last + _APART, _TOP + 8)
        last, lowest = y, lowest + _APART
        is_end = x > (_LEFT + _WIDTH) / 2
        yield tag(
            "text",
            one.label,
            x=min(x, _WIDTH - _RIGHT) if is_end else max(x, _LEFT + 6),
            y=y,
            text_anchor="end" if is_end else "start",
            class_=f"name {_color(one)}",
        )


def _points(series: Series, frame: _Frame, x: Axis, y: Axis) -> Iterator[Markup]:
    """Yield a target for pointer and keyboard at each value, drawn if the line has markers."""
    for i, place, value in series.points():
        where = (
            f"{number(series.x[i], 3)} to {number(series.x[i + 1], 3)}"
            if series.is_histogram
            else number(place)
        )
        words = f"{series.label}: {y.label} {number(value, kind=series.kind)}; {x.label} {where}"
        if series.low is not None and series.high is not None:
            words += f"; band {number(series.low[i])} to {number(series.high[i])}"
        at = frame.x(place), frame.y(value)
        yield tag(
            "g",
            tag("circle", cx=at[0], cy=at[1], r=9, class_="hit"),
            _shape(series.marker or "circle", *at),
            class_=f"pt {_color(series)}" + ("" if series.marker else " quiet"),
            tabindex=-1,
            role="img",
            aria_label=words,
        )


def _shape(marker: Marker, x: float, y: float) -> Markup:
    if marker == "square":
        return tag("rect", x=x - 3.2, y=y - 3.2, width=6.4, height=6.4, class_="mark")
    if marker == "triangle":
        return tag("path", d=f"M{x:g} {y - 4.4:g}l4.2 7.4h-8.4z", class_="mark")
    if marker == "diamond":
        return tag("path", d=f"M{x:g} {y - 4.6:g}l4.6 4.6l-4.6 4.6l-4.6 -4.6z", class_="mark")
    return tag("circle", cx=x, cy=y, r=3.4, class_="mark")


def _swatch(series: Series) -> Markup:
    color = _color(series)
    swatch = []
    if series.is_filled or series.low is not None:
        swatch.append(tag("rect", x=0, y=2, width=30, height=12, class_=f"area {color}"))
    if series.is_line:
        dash = _DASHES[series.dash % len(_DASHES)] or None
        swatch.append(tag("path", d="M0 8h30", class_=f"line {color}", stroke_dasharray=dash))
    if series.marker:
        swatch.append(tag("g", _shape(series.marker, 15, 8), class_=f"pt {color}"))
    return tag("svg", *swatch, viewBox="0 0 30 16", aria_hidden="true")
