"""The ε of attackers: rows on one axis for one run, against accuracy for several.

What is shown and what is guaranteed are two ends; the truth may be anywhere between.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from leakmeter.auditors.finding import Finding
from leakmeter.auditors.judge import terse
from leakmeter.auditors.judge.adversary import Adversary, Group, by_adversary, is_promise
from leakmeter.auditors.judge.standing import Standing, standings
from leakmeter.auditors.wording import is_epsilon
from leakmeter.fl_app.report.draw.figure import (
    MARKERS,
    REFERENCE,
    Axis,
    Figure,
    Marker,
    Row,
    Series,
)
from leakmeter.fl_app.report.draw.scale import Scale
from leakmeter.fl_app.report.judge.of_run import verdicts
from leakmeter.fl_app.report.read import Run

# Of each kind of number: its colour, and a marker that points to where the truth may be.
_KINDS: Mapping[str, tuple[int, Marker]] = {
    "lower_bound": (1, "right"),
    "guarantee": (2, "left"),
    "estimate": (0, "diamond"),
    "approximation": (4, "diamond"),
}
_DOTTED = 2


def _mark(finding: Finding, label: str = "") -> Series:
    """Return the marker of a number."""
    color, marker = _KINDS[finding.kind]
    return Series(label, (finding.value,), (0.5,), color, marker=marker, is_line=False)


def _ray(start: float, end: float, color: int) -> Series:
    """Return the line towards where the truth may be."""
    return Series("", (start, end), (0.5, 0.5), color, _DOTTED)


def attackers(run: Run) -> list[Figure]:
    """Return the attackers of a run on one axis, if any ε is shown or guaranteed."""
    lines = [one for one in standings(verdicts(run)) if _drawn(one)]
    if not lines:
        return []
    scale = Scale.over([f.value for one in lines for f in _drawn(one)], "shifted")
    words = "; ".join(f"{one.who}: shown {one.shown}, at most {one.at_most}" for one in lines)
    rows = [Row(one.who, _range(one), one.tells, tuple(_row(one, scale))) for one in lines]
    return [
        Figure(
            "attackers",
            "Attackers on one axis",
            f"{words}.",
            "Filled: shown. The truth may be anywhere along the dotted line. A triangle that "
            "points left is a guarantee, an open diamond an estimate. Different questions are not "
            "comparable.",
            Axis("ε", "shifted", limits=(scale.low, scale.high)),
            rows=tuple(rows),
            is_first=True,
        )
    ]


def _drawn(one: Standing) -> list[Finding]:
    """Return the numbers of a line that have a place on the axis."""
    low = [] if one.lead.is_conditional else [one.lead]
    ends = [*low, *([one.upper] if one.upper is not None and one.upper != one.lead else [])]
    return [f for f in ends if is_epsilon(f) and math.isfinite(f.value)]


def _row(one: Standing, scale: Scale) -> Iterator[Series]:
    words = f"{one.who}: {one.tells}; {_range(one)}"
    drawn = _drawn(one)
    upper = next((f.value for f in drawn if f is one.upper), scale.high)
    for f in drawn:
        if f.kind == "lower_bound":
            yield Series("", (0.0, f.value), (0.5, 0.5), 1, is_thick=True)
            yield _ray(f.value, upper, 1)
        if f.kind in _KINDS:
            yield _mark(f, words)


def _range(one: Standing) -> str:
    """Return what is shown and what is guaranteed, those that there are."""
    shown = [one.shown] if is_epsilon(one.lead) and one.shown.startswith("ε") else []
    is_bounded = one.upper is not None and math.isfinite(one.upper.value)
    return " … ".join([*shown, *([one.at_most] if is_bounded else [])]) or one.shown


@dataclass(frozen=True)
class Forest:
    """All ε of a run, by attacker, and the scale on which they are drawn."""

    groups: Sequence[Group]
    scale: Scale

    @classmethod
    def of(cls, run: Run) -> Self | None:
        """Return the ε of a run, or nothing if it has none."""
        groups = by_adversary([f for f in run.of_the_run if is_epsilon(f)])
        groups = [g for g in groups if g.leads]
        if not groups:
            return None
        shown = [f for group in groups for f in (*group.leads, *group.guarantees)]
        values = [v for f in shown for v in (f.value, *(f.null_band or ()))]
        return cls(groups, Scale.over(filter(math.isfinite, values), "shifted"))

    def series(self, finding: Finding, upper: Finding | None) -> list[Series]:
        """Return what is drawn for a number and the guarantee that it may be compared with."""
        ends = [finding] if upper is None else [finding, upper]
        return [one for f in ends for one in self._of(f)]

    def _of(self, finding: Finding) -> Iterator[Series]:
        """Yield a number, the side on which the truth may be, its cap and its null band."""
        if (band := finding.null_band) is not None:
            yield Series("", band, (0.5, 0.5), REFERENCE, low=(0, 0), high=(1, 1), is_line=False)
        if not math.isfinite(finding.value):
            return
        towards = {"lower_bound": self.scale.high, "guarantee": self.scale.low}
        if (end := towards.get(finding.kind)) is not None:
            yield _ray(finding.value, end, _KINDS[finding.kind][0])
        if finding.cap is not None and math.isfinite(finding.cap):
            yield Series("", (finding.cap, finding.cap), (0.0, 1.0), REFERENCE)
        yield _mark(finding)


def aliases(runs: Sequence[Run]) -> list[str]:
    """Return a short name for each run: A to Z, then numbers."""
    if len(runs) <= 26:
        return [chr(ord("A") + i) for i in range(len(runs))]
    return [str(i) for i in range(1, len(runs) + 1)]


def tradeoff(runs: Sequence[Run], names: Sequence[str]) -> list[Figure]:
    """Return accuracy against the ε of the attacker that most runs have in common.

    Nothing if no run has an accuracy and an ε that is shown or guaranteed.

    Args:
        runs: The runs.
        names: The short name of each.
    """
    lines = [_by_attacker(run) for run in runs]
    key = _common(lines)
    drawn = [
        Series(name, ends, (run.accuracy,) * len(ends), i, i // 4, MARKERS[i % 4])
        for i, (run, name, own) in enumerate(zip(runs, names, lines, strict=True))
        if key in own and run.accuracy is not None and (ends := _ends(own[key]))
    ]
    if key is None or not drawn:
        return []
    example = next(own[key] for own in lines if key in own)
    return [
        Figure(
            "tradeoff",
            "Accuracy against ε",
            f"Accuracy of {len(drawn)} runs over the ε of one attacker: {example.who}.",
            f"{terse.subject(example.lead.threat_model)}: {terse.tells(example.lead)}? From what "
            "is shown to what is guaranteed; a single point has no upper bound, and more may leak.",
            Axis("ε", "shifted"),
            Axis("accuracy", limits=(0.0, 1.0)),
            tuple(drawn),
        )
    ]


def _by_attacker(run: Run) -> Mapping[Adversary | None, Standing]:
    """Return the lines of a run that have an ε, by attacker and question."""
    made = standings(verdicts(run))
    return {_key(one): one for one in reversed(made) if _ends(one)}


def _key(one: Standing) -> Adversary:
    found = one.verdict.group.adversary
    return Adversary(found.model, found.adjacency, found.unit, is_measured=True)


def _common(lines: Sequence[Mapping[Adversary | None, Standing]]) -> Adversary | None:
    """Return the attacker that most runs have; of several the one that shows the most."""
    counts = Counter(key for own in lines for key in own)
    most = {key: max(_ends(own[key])[0] for own in lines if key in own) for key in counts}
    return max(counts, key=lambda key: (counts[key], most[key]), default=None)


def _ends(one: Standing) -> tuple[float, ...]:
    """Return the shown and the guaranteed ε of a line; a single one has no guarantee above it."""
    lead, upper = one.lead, one.upper
    is_shown = is_epsilon(lead) and lead.kind == "lower_bound" and not lead.is_conditional
    low = [lead.value] if is_shown else []
    high = [upper.value] if upper is not None and is_promise(upper) else []
    finite = [value for value in high if math.isfinite(value)]
    # Where nothing is shown, the truth may be anywhere from 0 to the guarantee.
    return tuple(dict.fromkeys([*(low or ([0.0] if finite else [])), *finite]))
