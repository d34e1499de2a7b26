"""All ε of a run on one axis: guarantees from above, lower bounds from below, estimates between."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

from leakmeter.auditors.finding import Finding
from leakmeter.auditors.judge.adversary import Group, by_adversary
from leakmeter.auditors.judge.meaning import stake
from leakmeter.auditors.wording import KINDS, is_epsilon, sentence, size
from leakmeter.fl_app.report.draw.scale import Scale, label
from leakmeter.fl_app.report.judge.of_run import contradictions
from leakmeter.fl_app.report.markup import Markup, exact_claim, joined, tag
from leakmeter.fl_app.report.read.run import Run

_WIDTH, _HEIGHT, _PAD = 300, 26, 12
AXIS: Final = "ε (log scale)"
_COLORS = {"guarantee": "c2", "lower_bound": "c1", "estimate": "c0", "approximation": "c4"}


@dataclass(frozen=True)
class Forest:
    """All ε of a run, by attacker, and the scale on which they are drawn."""

    groups: Sequence[Group]
    scale: Scale

    @classmethod
    def of(cls, run: Run) -> Self | None:
        """Return the ε of a run, or nothing if it has none."""
        epsilons = [f for f in run.of_the_run if is_epsilon(f)]
        groups = [g for g in by_adversary(epsilons) if g.leads]
        if not groups:
            return None
        shown = [f for group in groups for f in (*group.leads, *group.guarantees)]
        values = [v for f in shown for v in (f.value, *(f.null_band or ()))]
        return cls(groups, Scale.over(filter(math.isfinite, values), "shifted"))

    def axis(self) -> Markup:
        """Return the axis, 300 × 26."""
        return _axis(self.scale)

    def bar(self, finding: Finding, upper: Finding | None) -> Markup:
        """Return a number, and the guarantee that it may be set against, on the axis."""
        return _bar([finding] if upper is None else [finding, upper], self.scale)


def title(group: Group) -> str:
    """Return who attacks, and what is at stake."""
    what = stake(group.findings[0])
    return group.adversary.sentence() + (f" At stake: {what}." if what else "")


def forest(run: Run) -> Markup | None:
    """Return the table, or nothing if the run has no ε."""
    drawn = Forest.of(run)
    if drawn is None:
        return None
    body = []
    for group in drawn.groups:
        body.append(tag("tr", tag("th", title(group), colspan=3, scope="rowgroup")))
        body += [_row(f, upper, drawn) for f, upper in group.rows]
    table = tag(
        "table",
        tag("caption", "ε of the run: what is guaranteed, what is shown, what is estimated"),
        tag(
            "thead",
            tag(
                "tr",
                tag("th", "number", scope="col"),
                tag("th", AXIS, drawn.axis(), scope="col", class_="wide"),
                tag("th", "how", scope="col"),
            ),
        ),
        tag("tbody", *body),
        class_="forest",
    )
    return joined(table, *(tag("p", words, class_="warn") for words in contradictions(run)))


def _row(finding: Finding, upper: Finding | None, drawn: Forest) -> Markup:
    """Return a number with the guarantee that it may be compared with."""
    ends = [finding] if upper is None else [finding, upper]
    return tag(
        "tr",
        tag("td", tag("span", exact_claim(finding, upper), class_="number")),
        tag("td", drawn.bar(finding, upper), class_="wide"),
        tag("td", " ".join(_how(f) for f in ends), class_="how"),
    )


def _how(f: Finding) -> str:
    sized = f", {words}" if (words := size(f)) else ""
    return sentence(f"{KINDS[f.kind][0]}, {f.auditor}{sized}: {f.rule}")


def _x(scale: Scale, value: float) -> float:
    return round(_PAD + scale.at(value) * (_WIDTH - 2 * _PAD), 1)


def _bar(ends: Sequence[Finding], scale: Scale) -> Markup:
    """Return where the numbers are, and on which side of each the truth may be."""
    pieces = [piece for finding in ends for piece in _marks(finding, scale)]
    return tag("svg", *pieces, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", aria_hidden="true")


def _marks(finding: Finding, scale: Scale) -> Iterator[Markup]:
    color, middle = _COLORS[finding.kind], _HEIGHT / 2
    if finding.null_band is not None:
        low, high = (_x(scale, edge) for edge in finding.null_band)
        wide = max(high - low, 1.5)
        yield tag("rect", x=low, y=6, width=wide, height=_HEIGHT - 12, class_="area ref")
    if not math.isfinite(finding.value):
        words = "no upper bound" if finding.kind == "guarantee" else "infinite"
        yield tag("text", words, x=_WIDTH - 4, y=middle + 4, text_anchor="end")
        return
    at = _x(scale, finding.value)
    if finding.kind == "lower_bound":
        yield _ray(at, _WIDTH - _PAD, color)
    if finding.kind == "guarantee":
        yield _ray(at, _PAD, color)
    if finding.cap is not None and math.isfinite(finding.cap):
        cap = _x(scale, finding.cap)
        yield tag("path", d=f"M{cap:g} 4V{_HEIGHT - 4}", class_="line ref")
    shape = {
        "lower_bound": f"M{at:g} {middle - 6:g}l8 6l-8 6z",
        "guarantee": f"M{at:g} {middle - 6:g}l-8 6l8 6z",
    }.get(finding.kind, f"M{at - 5:g} {middle:g}l5 -5l5 5l-5 5z")
    yield tag("g", tag("path", d=shape, class_="mark"), class_=f"pt {color}")


def _ray(start: float, end: float, color: str) -> Markup:
    """Return the line towards where the truth may be."""
    return tag(
        "path",
        d=f"M{start:g} {_HEIGHT / 2:g}H{end:g}",
        class_=f"line {color}",
        stroke_dasharray="3 3",
    )


def _axis(scale: Scale) -> Markup:
    pieces = [tag("path", d=f"M{_PAD} {_HEIGHT - 1}H{_WIDTH - _PAD}", class_="axis")]
    for tick in scale.ticks(7):
        at = _x(scale, tick)
        pieces.append(tag("path", d=f"M{at:g} {_HEIGHT - 6}V{_HEIGHT - 1}", class_="axis"))
        pieces.append(tag("text", label(tick), x=at, y=14, text_anchor="middle"))
    return tag("svg", *pieces, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", aria_hidden="true")
