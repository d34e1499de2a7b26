"""What changes from round to round: accuracy, proven ε, ε of single rounds, information."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from leakmeter.auditors.finding import Finding, Kind
from leakmeter.auditors.information.figure import NATS_PER_BIT
from leakmeter.auditors.information.findings import NEURAL
from leakmeter.auditors.judge.terse import short_name
from leakmeter.auditors.wording import (
    KINDS,
    claim,
    condition,
    is_epsilon,
    number,
    share,
    slug,
)
from leakmeter.fl_app.report.draw.chart import REFERENCE, Axis, Chart, Figure, Marker, Series
from leakmeter.fl_app.report.draw.scale import Form
from leakmeter.fl_app.report.read.run import Run

_ROUND = "round"
_NEXT = 1.0  # a line joins a round with the next one only: what is between was not audited
_MUCH = 30  # times as large: such a line would press all others flat
_FLAT = 0.9  # share of the cap from which on a line says no more than a sentence
_MARKERS: tuple[Marker, ...] = ("circle", "square", "triangle", "diamond")


def accuracy(runs: Sequence[Run]) -> list[Figure]:
    """Return accuracy over rounds, where anybody measured it."""
    lines = []
    for i, run in enumerate(runs):
        known = [(one.server_round, one.accuracy) for one in run.rounds]
        points = [(r, a) for r, a in known if a is not None and math.isfinite(a)]
        if points:
            label = run.name if len(runs) > 1 else "accuracy"
            x, y = zip(*points, strict=True)
            lines.append(Series(label, x, y, i, i // 4, marker=_MARKERS[i % 4]))
    if not lines:
        return []
    chart = Chart(
        "accuracy",
        "Accuracy",
        f"Accuracy after each round, from {share(lines[0].y[0])} to "
        f"{share(lines[0].y[-1])} in {lines[0].label}.",
        Axis(_ROUND, is_whole=True),
        Axis("accuracy", limits=(0.0, 1.0)),
        tuple(lines),
    )
    return [
        Figure(
            chart,
            "Share of test records that the model gets right after each round.",
            is_first=True,
        )
    ]


def growth(runs: Sequence[Run]) -> list[Figure]:
    """Return how bounds that hold at all rounds together have grown, if there are any."""
    lines = [line for run in runs for line in _grown(run, f"{run.name}: " * (len(runs) > 1))]
    if not lines:
        return []
    # A color for each line; a limit that several runs share is drawn once.
    lines = [replace(one, color=i, marker=_MARKERS[i % 4]) for i, one in enumerate(lines)]
    last = max(one.y[-1] for one in lines)
    rounds = [r for one in lines for r in one.x]
    limits = {run.settings.get("stop-above") for run in runs}
    for limit in sorted(one for one in limits if isinstance(one, float) and one > 0):
        ends = (min(rounds), max(rounds))
        lines.append(Series("limit of --stop-above", ends, (limit, limit), REFERENCE, 1))
    chart = Chart(
        "growth",
        "Proven ε so far",
        f"The lower bound of epsilon after each round; the largest ends at {number(last)}.",
        Axis(_ROUND, is_whole=True),
        Axis("ε", "shifted" if last > 30 else "linear", has_zero=True),
        tuple(lines),
    )
    caption = (
        "The bound after each round, from bets on everything seen so far. It never falls, and all "
        "its values hold together at the stated confidence: you may stop at any round."
    )
    return [Figure(chart, caption, is_first=True)]


def _grown(run: Run, name: str) -> Iterator[Series]:
    """Yield a line for each auditor of a run whose bound grows from round to round."""
    found = [f for f in run.findings if f.server_round is not None and f.is_anytime]
    found = [f for f in found if is_epsilon(f)]
    for auditor in dict.fromkeys(f.auditor for f in found):
        own = [f for f in found if f.auditor == auditor]
        rounds, values = [float(f.server_round or 0) for f in own], [f.value for f in own]
        yield Series(f"{name}{short_name(auditor)}", rounds, values, kind="lower_bound")


def single_rounds(runs: Sequence[Run]) -> list[Figure]:
    """Return a figure for each auditor that gives an ε of single rounds."""
    names = dict.fromkeys(
        (f.auditor, f.kind, f.is_conditional)
        for run in runs
        for f in run.findings
        if _is_of_round(f)
    )
    return [_epsilons(*name, runs) for name in names]


def _is_of_round(f: Finding) -> bool:
    shown = f.kind in ("estimate", "lower_bound")
    return f.server_round is not None and is_epsilon(f) and shown and not f.is_anytime


def _epsilons(auditor: str, kind: Kind, is_conditional: bool, runs: Sequence[Run]) -> Figure:
    lines: list[Series] = []
    wanted = (auditor, kind, is_conditional)
    for i, run in enumerate(runs):
        if found := [f for f in _of_rounds(run, wanted) if math.isfinite(f.value)]:
            lines += _of_run(found, i, f"{run.name}: " if len(runs) > 1 else "")
    values = [v for one in lines for v in one.y]
    form: Form = "shifted" if max(values, default=0) > 30 else "linear"
    what = "An estimate" if kind == "estimate" else "A lower bound"
    what += " under a condition" if is_conditional else ""
    beside = (
        "the band has 90 % of what the method says without a leak"
        if kind == "estimate"
        else "the dashed line is the most that could have been shown"
    )
    return Figure(
        Chart(
            f"rounds-{slug(auditor)}-{kind}",
            f"ε of single rounds, {auditor}",
            f"{what} of epsilon for each audited round alone.",
            Axis(_ROUND, is_whole=True),
            Axis("ε", form, has_zero=True),
            tuple(lines),
        ),
        f"{what} for each round alone; {beside}. Rounds do not add up to the run.",
        sentence=_at_the_cap([f for run in runs for f in _of_rounds(run, wanted)]),
    )


def _of_rounds(run: Run, wanted: tuple[str, Kind, bool]) -> list[Finding]:
    """Return the ε of single rounds by auditor, kind, and whether under a condition."""
    found = [f for f in run.findings if _is_of_round(f)]
    return [f for f in found if (f.auditor, f.kind, f.is_conditional) == wanted]


def _at_the_cap(found: Sequence[Finding]) -> str:
    """Return the sentence that replaces a line which is as high as it can be in every round."""
    if len(found) < 2 or not all(f.cap is not None and f.value >= _FLAT * f.cap > 0 for f in found):
        return ""
    least, high = min(found, key=lambda f: f.value), max(f.cap or 0.0 for f in found)
    return (
        f"{short_name(least.auditor)} shows about as much as it can in each of {len(found)} "
        f"audited rounds: {claim(least)} or more, where {number(high)} is the most that these "
        "samples could show. More trials could show more."
    )


def _of_run(found: Sequence[Finding], color: int, name: str) -> Iterator[Series]:
    rounds = [float(f.server_round or 0) for f in found]
    bands = [f.null_band for f in found]
    if all(band is not None for band in bands):
        low, high = ([band[i] for band in bands if band is not None] for i in (0, 1))
        null = f"{name}without a leak, 90 % of audits"
        middle = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
        yield Series(null, rounds, middle, REFERENCE, 2, low=low, high=high, gap=_NEXT)
    capped = [(r, f.cap) for r, f in zip(rounds, found, strict=True) if f.cap is not None]
    if capped:
        x, y = zip(*capped, strict=True)
        yield Series(f"{name}most that could be shown", x, y, REFERENCE, 1, gap=_NEXT)
    label = KINDS[found[0].kind][0]
    if if_ := condition(found[0]):
        label = f"{if_}: {label}"
    if found[0].confidence is not None:
        label += f", {100 * found[0].confidence:g} % for each round"
    marker = _MARKERS[color % 4]
    values = [f.value for f in found]
    kind = found[0].kind
    yield Series(name + label, rounds, values, color, marker=marker, kind=kind, gap=_NEXT)


def information(runs: Sequence[Run]) -> list[Figure]:
    """Return mutual information over rounds with its references, if it was measured."""
    lines = [line for i, run in enumerate(runs) for line in _information(run, i, len(runs) > 1)]
    if not lines:
        return []
    return _over_rounds(
        "information",
        "Mutual information of single rounds",
        "Bits about one client's update in the sum of each round, with references.",
        lines,
        "What a Gaussian model of the sum says about one client's update, with two standard "
        "errors; no bound. A reference is what clients of one Gaussian distribution would give.",
    )


def critics(runs: Sequence[Run]) -> list[Figure]:
    """Return what held-out critics find in each round, next to shuffled pairs, if any looked."""
    lines = []
    for i, run in enumerate(runs):
        found = [f for f in run.findings if f.quantity == NEURAL and f.kind == "estimate"]
        found = [f for f in found if f.server_round is not None and math.isfinite(f.value)]
        if found:
            name = f"{run.name}: " if len(runs) > 1 else ""
            lines += [*_same_directions(found, name, 3), *_of_run(found, i, name)]
    if not lines:
        return []
    return _over_rounds(
        "critics",
        "Mutual information of single rounds, by critics (MINE)",
        "Bits that critics find on held-out draws of each round, and in shuffled pairs.",
        lines,
        "What critics find about one client's update in the sum, on draws that they were not "
        "trained on; the band is what they find in shuffled pairs. An estimate, no bound. From K "
        "pairs no method shows much more than log₂ K bits.",
    )


def _over_rounds(
    name: str, title: str, summary: str, lines: Sequence[Series], caption: str
) -> list[Figure]:
    """Return one figure of bits over rounds."""
    lines, note = _on_one_scale(lines)
    axes = Axis(_ROUND, is_whole=True), Axis("bits (log₂)", has_zero=True)
    return [Figure(Chart(name, title, summary, *axes, tuple(lines)), f"{caption}{note}")]


def _fact(finding: Finding, name: str) -> float | None:
    """Return a further number of the finding, if there is one."""
    found = finding.facts.get(name)
    is_number = isinstance(found, int | float) and math.isfinite(found)
    return float(found) if is_number and found is not None else None


def _on_one_scale(lines: Sequence[Series]) -> tuple[list[Series], str]:
    """Return the lines without those that would flatten all others, and a sentence about these."""
    least = max((v for one in lines if one.color != REFERENCE for v in one.y), default=math.inf)
    kept = [one for one in lines if max(one.y) <= _MUCH * abs(least)]
    said = [f" Not drawn, {one.label}: {_span(one.y)} bits." for one in lines if one not in kept]
    return kept, "".join(said)


def _span(values: Sequence[float]) -> str:
    """Return the smallest and the largest value, or one number if they print alike."""
    return " to ".join(dict.fromkeys(number(v, 3) for v in (min(values), max(values))))


def _information(run: Run, color: int, many: bool) -> Iterator[Series]:
    name = f"{run.name}: " if many else ""
    found = [f for f in run.findings if f.server_round is not None and math.isfinite(f.value)]
    main = [f for f in found if f.quantity == "mutual information" and f.kind == "approximation"]
    whole = [f for f in found if f.quantity == "mutual information of all coordinates"]
    kinds = {"approximation": "all coordinates, alike", "guarantee": "upper bound by theorem"}
    for i, (kind, words) in enumerate(kinds.items()):
        some = [f for f in whole if f.kind == kind]
        if some:
            rounds = [float(f.server_round or 0) for f in some]
            values = [f.value for f in some]
            yield Series(
                name + words, rounds, values, REFERENCE, 2 + i, kind=some[0].kind, gap=_NEXT
            )
    yield from _same_directions(main, name, 1)
    if main:
        rounds = [float(f.server_round or 0) for f in main]
        errors = [2 * (_fact(f, "std_error_bits") or 0.0) for f in main]
        value = [f.value for f in main]
        low = [v - e for v, e in zip(value, errors, strict=True)]
        high = [v + e for v, e in zip(value, errors, strict=True)]
        yield Series(f"{name}measured", rounds, value, color, 0, "circle", low, high, gap=_NEXT)


def _same_directions(found: Sequence[Finding], name: str, dash: int) -> Iterator[Series]:
    """Yield what clients of one Gaussian distribution would give along the same directions."""
    alike = [
        (float(f.server_round or 0), nats / NATS_PER_BIT)
        for f in found
        if (nats := _fact(f, "gaussian_nats")) is not None
    ]
    if alike:
        x, y = zip(*alike, strict=True)
        yield Series(f"{name}same directions, alike", x, y, REFERENCE, dash, gap=_NEXT)
