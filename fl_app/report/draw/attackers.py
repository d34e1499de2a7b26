"""The attackers of a run on one axis of ε: what is shown, and what is guaranteed above it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from leakmeter.auditors.judge.standing import Standing, standings
from leakmeter.auditors.wording import is_epsilon
from leakmeter.fl_app.report.draw.chart import Axis, Chart, Figure, Series
from leakmeter.fl_app.report.draw.scale import Scale, label
from leakmeter.fl_app.report.judge.of_run import verdicts
from leakmeter.fl_app.report.markup import Markup, tag
from leakmeter.fl_app.report.read.run import Run

_WIDTH, _LEFT, _RIGHT, _STEP, _TOP, _BOTTOM = 440, 14, 22, 66, 6, 56


@dataclass(frozen=True)
class _Rows(Chart):
    """Attackers below each other, each on its own line with its name above it."""

    lines: tuple[Standing, ...] = ()

    def svg(self) -> Markup:
        """Return the drawing."""
        scale = self.x.scale([v for one in self.series for v in one.x])
        height = _TOP + _STEP * len(self.lines) + _BOTTOM
        rows = [_row(one, i, scale) for i, one in enumerate(self.lines)]
        drawing = tag(
            "g",
            tag("title", self.title, id=f"{self.name}-title"),
            tag("desc", self.text, id=f"{self.name}-desc"),
            _axis(scale, height, self.x.full_label),
            *rows,
            role="img",
            aria_labelledby=f"{self.name}-title {self.name}-desc",
        )
        box = f"0 0 {_WIDTH} {height}"
        return tag("svg", drawing, viewBox=box, class_="chart", id=self.name)

    def legend(self) -> Markup:
        """Return nothing: names are next to the lines."""
        return Markup("")


def attackers(run: Run) -> list[Figure]:
    """Return the figure, if the run has any ε that is shown or guaranteed."""
    lines = [one for one in standings(verdicts(run)) if _values(one)]
    if not lines:
        return []
    series = tuple(
        Series(f"{one.who}: {one.tells}", _values(one), (0.0,) * len(_values(one)), kind=None)
        for one in lines
    )
    words = "; ".join(f"{one.who}: shown {one.shown}, at most {one.at_most}" for one in lines)
    chart = _Rows(
        "attackers",
        "Attackers on one axis",
        f"{words}.",
        Axis("ε", "shifted"),
        Axis(""),
        series,
        tuple(lines),
    )
    caption = (
        "Filled: shown. The truth may be anywhere along the dotted line. A triangle that points "
        "left is a guarantee, an open diamond an estimate. Different questions are not comparable."
    )
    return [Figure(chart, caption, is_first=True)]


def _values(one: Standing) -> tuple[float, ...]:
    """Return the ε of a line that can be drawn."""
    low = [] if one.lead.is_conditional else [one.lead]
    ends = [*low, *([one.upper] if one.upper is not None else [])]
    return tuple(dict.fromkeys(f.value for f in ends if is_epsilon(f) and math.isfinite(f.value)))


def _x(scale: Scale, value: float) -> float:
    return round(_LEFT + scale.at(value) * (_WIDTH - _LEFT - _RIGHT), 1)


def _row(one: Standing, index: int, scale: Scale) -> Markup:
    y = _TOP + _STEP * index + 52
    right, upper = _WIDTH - _RIGHT, one.upper
    end = right if upper is None or math.isinf(upper.value) else _x(scale, upper.value)
    pieces: list[Markup] = [
        # Two lines, so that on a phone the names leave room for the number.
        tag("text", one.who, x=_LEFT, y=y - 32, class_="label head"),
        tag("text", _range(one), x=right, y=y - 32, text_anchor="end", class_="label head"),
        tag("text", one.tells, x=_LEFT, y=y - 13),
    ]
    if one.lead.kind == "lower_bound" and is_epsilon(one.lead) and not one.lead.is_conditional:
        at = _x(scale, one.lead.value)
        pieces.append(tag("path", d=f"M{_LEFT} {y}H{at:g}", class_="line thick c1"))
        pieces.append(_ray(at, end, y))
        pieces.append(_mark(f"M{at:g} {y - 6}l8 6l-8 6z", "c1"))
    elif is_epsilon(one.lead) and one.lead.kind in ("estimate", "approximation"):
        at = _x(scale, one.lead.value)
        pieces.append(_mark(f"M{at - 6:g} {y}l6 -6l6 6l-6 6z", "c0"))
    if end < right:
        pieces.append(_mark(f"M{end:g} {y - 6}l-8 6l8 6z", "c2"))
    return tag("g", *pieces)


def _range(one: Standing) -> str:
    """Return what is shown and what is guaranteed, those that there are."""
    shown = [one.shown] if is_epsilon(one.lead) and one.shown.startswith("ε") else []
    is_bounded = one.upper is not None and math.isfinite(one.upper.value)
    return " … ".join([*shown, *([one.at_most] if is_bounded else [])]) or one.shown


def _ray(start: float, end: float, y: float) -> Markup:
    return tag("path", d=f"M{start:g} {y}H{end:g}", class_="line c1", stroke_dasharray="2 4")


def _mark(shape: str, color: str) -> Markup:
    return tag("g", tag("path", d=shape, class_="mark"), class_=f"pt {color}")


def _axis(scale: Scale, height: float, words: str) -> Markup:
    """Return the axis below the rows, with lines up through them."""
    bottom = height - _BOTTOM + 6
    pieces: list[Markup] = []
    for tick in scale.ticks(7):
        at = _x(scale, tick)
        pieces.append(tag("path", d=f"M{at:g} {_TOP}V{bottom:g}", class_="grid"))
        pieces.append(tag("text", label(tick), x=at, y=bottom + 19, text_anchor="middle"))
    pieces.append(tag("path", d=f"M{_LEFT} {bottom:g}H{_WIDTH - _RIGHT}", class_="axis"))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    pieces.append(tag("text", words, x=middle, y=height - 8, text_anchor="middle", class_="label"))
    return tag("g", *pieces)
