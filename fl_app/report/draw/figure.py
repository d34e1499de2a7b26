"""What a figure shows, as data: axes with series of points and bands, or rows on one axis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from leakmeter.auditors.finding import Kind
from leakmeter.fl_app.report.draw.scale import Form, Scale

Marker = Literal["", "circle", "square", "triangle", "diamond", "right", "left"]

MARKERS: tuple[Marker, ...] = ("circle", "square", "triangle", "diamond")
REFERENCE = -1  # the colour of what a line is compared with


class Value(NamedTuple):
    """One point of a figure, with its band if it has one."""

    series: Series
    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """One line of a figure.

    Attributes:
        label: What it is.
        x: Where.
        y: What; as many as `x`, or one fewer for the bins of a histogram.
        color: Index into the palette, or `REFERENCE`.
        dash: Index into the dashes.
        marker: Shape of its points; none draws the line alone, but points still answer.
        low: Lower end of a band; empty without one.
        high: Upper end of it.
        is_filled: Whether the area below it is filled.
        is_line: Whether points are joined.
        is_thick: Whether the line is a bar.
        kind: How strong the values are, which decides how they are rounded.
        gap: Longest step from one point to the next that a line and its band bridge.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    color: int = 0
    dash: int = 0
    marker: Marker = ""
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    is_filled: bool = False
    is_line: bool = True
    is_thick: bool = False
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
class Row:
    """A line of its own on a common axis, with words above it.

    Attributes:
        head: Whose numbers they are.
        number: The numbers in words.
        about: What they are about.
        series: What is drawn; `y` goes from 0 to 1 within the row.
    """

    head: str
    number: str
    about: str
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Figure:
    """Series between two axes, or rows on one, and what to say about them.

    Attributes:
        name: Unique on the page.
        title: What it shows.
        text: What can be seen, for those who cannot.
        caption: What can be seen.
        x: The axis below.
        y: The axis to the left; rows have none.
        series: The lines, the most important last.
        rows: Rows, in place of the lines.
        is_first: Whether it is one of the few that everybody should see.
        sentence: What says it all where a line is flat; the page then shows it and no drawing.
    """

    name: str
    title: str
    text: str
    caption: str
    x: Axis
    y: Axis = Axis("")
    series: tuple[Series, ...] = ()
    rows: tuple[Row, ...] = ()
    is_first: bool = False
    sentence: str = ""

    @property
    def scales(self) -> tuple[Scale, Scale]:
        """The scales of both axes, around all values."""
        lines = [*self.series, *(one for row in self.rows for one in row.series)]
        heights = [v for one in lines for v in (*one.y, *one.low, *one.high)]
        return self.x.scale([v for one in lines for v in one.x]), self.y.scale(heights)

    def values(self) -> list[Value]:
        """Return every point."""
        return [
            Value(one, place, value, *([one.low[i], one.high[i]] if one.low else []))
            for one in self.series
            for i, place, value in one.points()
        ]
