"""Accuracy against ε of several runs, for the attacker that most of them have in common."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from leakmeter.auditors.judge import terse
from leakmeter.auditors.judge.adversary import Adversary, is_promise
from leakmeter.auditors.judge.standing import Standing, standings
from leakmeter.auditors.wording import is_epsilon
from leakmeter.fl_app.report.draw.chart import Axis, Chart, Figure, Marker, Series
from leakmeter.fl_app.report.judge.of_run import verdicts
from leakmeter.fl_app.report.read.run import Run

_MARKERS: tuple[Marker, ...] = ("circle", "square", "triangle", "diamond")


def aliases(runs: Sequence[Run]) -> list[str]:
    """Return a short name for each run: A to Z, then numbers."""
    if len(runs) <= 26:
        return [chr(ord("A") + i) for i in range(len(runs))]
    return [str(i) for i in range(1, len(runs) + 1)]


def tradeoff(runs: Sequence[Run], names: Sequence[str]) -> list[Figure]:
    """Return the figure, if runs have an accuracy and an ε that is shown or guaranteed.

    Args:
        runs: The runs.
        names: The short name of each.
    """
    lines = [_by_attacker(run) for run in runs]
    key = _common(lines)
    if key is None:
        return []
    drawn = []
    for i, (run, name, own) in enumerate(zip(runs, names, lines, strict=True)):
        if run.accuracy is None or key not in own:
            continue
        ends = _ends(own[key])
        y = (run.accuracy,) * len(ends)
        drawn.append(Series(name, ends, y, i, i // 4, marker=_MARKERS[i % 4]))
    if not drawn:
        return []
    example = next(own[key] for own in lines if key in own)
    chart = Chart(
        "tradeoff",
        "Accuracy against ε",
        f"Accuracy of {len(drawn)} runs over the ε of one attacker: {example.who}.",
        Axis("ε", "shifted"),
        Axis("accuracy", limits=(0.0, 1.0)),
        tuple(drawn),
    )
    caption = (
        f"{terse.subject(example.lead.threat_model)}: {terse.tells(example.lead)}? From what is "
        "shown to what is guaranteed; a single point has no upper bound, and more may leak."
    )
    return [Figure(chart, caption)]


def _by_attacker(run: Run) -> Mapping[Adversary, Standing]:
    """Return the lines of a run that have an ε, by attacker and question."""
    made = standings(verdicts(run))
    return {_key(one): one for one in reversed(made) if _ends(one)}


def _key(one: Standing) -> Adversary:
    found = one.verdict.group.adversary
    return Adversary(found.model, found.adjacency, found.unit, is_measured=True)


def _common(lines: Sequence[Mapping[Adversary, Standing]]) -> Adversary | None:
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
