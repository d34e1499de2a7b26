"""The figures of a page as data: all of them, and those that show one round after the other.

`curves` has those of a whole run, `figure` states what a figure is, `layout` places it. Nothing
here knows HTML.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from leakmeter.auditors.finding import Finding, Kind
from leakmeter.auditors.information.findings import NEURAL
from leakmeter.auditors.information.theory import NATS_PER_BIT
from leakmeter.auditors.verdict.labels import short_name
from leakmeter.auditors.wording import (
    KINDS,
    claim,
    condition,
    is_epsilon,
    number,
    percent,
    setting,
    share,
    slug,
)
from leakmeter.fl_app.report.draw import curves
from leakmeter.fl_app.report.draw.curves import prefix
from leakmeter.fl_app.report.draw.figure import MARKERS, REFERENCE, Axis, Figure, Series
from leakmeter.fl_app.report.read import Run

_ROUND: Final = Axis("round", is_whole=True)
_NEXT = 1.0  # a line joins a round with the next one only: what is between was not audited
_MUCH = 30  # times as large: such a line would press all others flat
_MODEL, _CRITICS = "Gaussian model", "critics (MINE)"
_BITS: Final = {  # what the lines of one figure mean, by what is in their names
    _MODEL: "The model of the sum is drawn with two standard errors; it is no bound.",
    _CRITICS: "Critics look at draws that they were not trained on: an estimate, no bound. Their "
    "band is what they find in shuffled pairs.",
    "alike": "A reference is what clients of one Gaussian distribution would give.",
}
_FLAT = 0.9  # share of the cap from which on a line says no more than a sentence


def figures(runs: Sequence[Run]) -> list[Figure]:
    """Return all figures that the runs have data for, in the order of the page."""
    found = [
        *curves.tradeoffs(runs),
        *curves.epsilons(runs),
        *curves.cosines(runs),
        *curves.losses(runs),
        *growth(runs),
        *single_rounds(runs),
        *information(runs),
        *curves.spectra(runs),
        *accuracy(runs),
    ]
    return [replace(one, name=f"figure-{i}-{one.name}") for i, one in enumerate(found, start=1)]


def accuracy(runs: Sequence[Run]) -> Iterator[Figure]:
    """Yield accuracy over rounds, where anybody measured it."""
    lines = []
    for i, run in enumerate(runs):
        known = [(one.server_round, one.accuracy) for one in run.rounds]
        if points := [(r, a) for r, a in known if a is not None and math.isfinite(a)]:
            label = run.name if len(runs) > 1 else "accuracy"
            x, y = zip(*points, strict=True)
            lines.append(Series(label, x, y, i, i // 4, MARKERS[i % 4]))
    if lines:
        yield Figure(
            "accuracy",
            "Accuracy",
            f"Accuracy after each round, from {share(lines[0].y[0])} to "
            f"{share(lines[0].y[-1])} in {lines[0].label}.",
            "Share of test records that the model gets right.",
            _ROUND,
            Axis("accuracy", limits=(0.0, 1.0)),
            tuple(lines),
            is_first=True,
            question="How good is the model after each round?",
        )


def growth(runs: Sequence[Run]) -> Iterator[Figure]:
    """Yield how bounds that hold at all rounds together have grown, if there are any."""
    grown = [line for run in runs for line in _grown(run, prefix(run, runs))]
    # A color for each line; a limit that several runs share is drawn once.
    lines = [replace(one, color=i, marker=MARKERS[i % 4]) for i, one in enumerate(grown)]
    if not lines:
        return
    last = max(one.y[-1] for one in lines)
    rounds = [r for one in lines for r in one.x]
    limits = {run.settings.get("stop-above"): setting("stop-above", run.spelling) for run in runs}
    for limit in sorted(one for one in limits if isinstance(one, float) and one > 0):
        ends = (min(rounds), max(rounds))
        name = f"limit of {limits[limit]}"
        lines.append(Series(name, ends, (limit, limit), REFERENCE, 1))
    yield Figure(
        "growth",
        "Proven ε so far",
        f"The lower bound of epsilon after each round; the largest ends at {number(last)}.",
        "The bound after each round, from bets on everything seen so far. It never falls, and "
        "all its values hold together at the stated confidence: you may stop at any round.",
        _ROUND,
        _epsilon_axis(last),
        tuple(lines),
        is_first=True,
        question="How much is proven if you stop after this round?",
    )


def _epsilon_axis(largest: float) -> Axis:
    return Axis("ε", "shifted" if largest > 30 else "linear", has_zero=True)


def _over_rounds(label: str, found: Sequence[Finding], color: int, **look: Any) -> Series:
    """Return the values of findings over their rounds."""
    rounds = [float(f.server_round or 0) for f in found]
    return Series(label, rounds, [f.value for f in found], color, **look)


def _grown(run: Run, name: str) -> Iterator[Series]:
    """Yield a line for each auditor of a run whose bound grows from round to round."""
    found = [f for f in run.findings if f.server_round is not None and f.is_anytime]
    found = [f for f in found if is_epsilon(f)]
    for auditor in dict.fromkeys(f.auditor for f in found):
        own = [f for f in found if f.auditor == auditor]
        yield _over_rounds(f"{name}{short_name(auditor)}", own, 0, kind="lower_bound")


def single_rounds(runs: Sequence[Run]) -> list[Figure]:
    """Return a figure for each auditor that gives an ε of single rounds."""
    found = [f for run in runs for f in run.findings if _is_of_round(f)]
    return [_single(*wanted, runs) for wanted in dict.fromkeys(map(_sort, found))]


def _is_of_round(f: Finding) -> bool:
    shown = f.kind in ("estimate", "lower_bound")
    return f.server_round is not None and is_epsilon(f) and shown and not f.is_anytime


def _sort(f: Finding) -> tuple[str, Kind, bool]:
    return f.auditor, f.kind, f.is_conditional


def _single(auditor: str, kind: Kind, is_conditional: bool, runs: Sequence[Run]) -> Figure:
    lines: list[Series] = []
    every: list[Finding] = []
    for i, run in enumerate(runs):
        of_rounds = (f for f in run.findings if _is_of_round(f))
        found = [f for f in of_rounds if _sort(f) == (auditor, kind, is_conditional)]
        every += found
        if drawn := [f for f in found if math.isfinite(f.value)]:
            lines += _of_run(drawn, i, prefix(run, runs))
    what, does = ("An estimate", "estimate for")
    if kind != "estimate":
        what, does = ("A lower bound", "prove in")
    if is_conditional:
        what, does = f"{what} under a condition", f"{does}, under a condition,"
    beside = (
        "the band has 90 % of what the method says without a leak"
        if kind == "estimate"
        else "the dashed line is the most that could have been shown"
    )
    return Figure(
        f"rounds-{slug(auditor)}-{kind}",
        f"ε of single rounds, {auditor}",
        f"{what} of epsilon for each audited round alone.",
        f"{what} for each round alone; {beside}. Rounds do not add up to the run.",
        _ROUND,
        _epsilon_axis(max((v for one in lines for v in one.y), default=0.0)),
        tuple(lines),
        sentence=_at_the_cap(every),
        question=f"How much does {short_name(auditor)} {does} one round alone?",
    )


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
    """Yield the null band, the caps and the values of one auditor."""
    rounds = [float(f.server_round or 0) for f in found]
    bands = [f.null_band for f in found if f.null_band is not None]
    if len(bands) == len(found):
        low, high = zip(*bands, strict=True)
        null = f"{name}without a leak, 90 % of audits"
        middle = [(a + b) / 2 for a, b in bands]
        yield Series(null, rounds, middle, REFERENCE, 2, low=low, high=high, gap=_NEXT)
    if capped := [(r, f.cap) for r, f in zip(rounds, found, strict=True) if f.cap is not None]:
        x, y = zip(*capped, strict=True)
        yield Series(f"{name}most that could be shown", x, y, REFERENCE, 1, gap=_NEXT)
    label = KINDS[found[0].kind][0]
    if if_ := condition(found[0]):
        label = f"{if_}: {label}"
    if found[0].confidence is not None:
        label += f", {percent(found[0].confidence)} for each round"
    look: dict[str, Any] = {"marker": MARKERS[color % 4], "kind": found[0].kind, "gap": _NEXT}
    yield _over_rounds(name + label, found, color, **look)


def information(runs: Sequence[Run]) -> list[Figure]:
    """Return what models and critics say of each round, in one figure with their references."""
    lines = [line for i, run in enumerate(runs) for line in _information(run, i, prefix(run, runs))]
    # Without lines that would flatten all others.
    least = max((v for one in lines if one.color != REFERENCE for v in one.y), default=math.inf)
    kept = tuple(one for one in lines if max(one.y) <= _MUCH * abs(least))
    said = [f" Not drawn, {one.label}: {_span(one.y)} bits." for one in lines if one not in kept]
    made = Figure(
        "information",
        "Mutual information of single rounds",
        "Bits about one client's update in the sum of each round, with references.",
        " ".join(words for name, words in _BITS.items() if any(name in one.label for one in lines))
        + "".join(said),
        _ROUND,
        Axis("bits (log₂)", has_zero=True),
        kept,
        question="How many bits does the sum of one round give away about one client's update?",
    )
    return [made] if lines else []


def _span(values: Sequence[float]) -> str:
    """Return the smallest and the largest value, or one number if they print alike."""
    return " to ".join(dict.fromkeys(number(v, 3) for v in (min(values), max(values))))


def _information(run: Run, color: int, name: str) -> Iterator[Series]:
    found = [f for f in run.findings if f.server_round is not None and math.isfinite(f.value)]
    main = [f for f in found if f.quantity == "mutual information" and f.kind == "approximation"]
    by_critics = [f for f in found if f.quantity == NEURAL and f.kind == "estimate"]
    whole = [f for f in found if f.quantity == "mutual information of all coordinates"]
    kinds = {"approximation": "all coordinates, alike", "guarantee": "upper bound by theorem"}
    for dash, (kind, words) in enumerate(kinds.items(), start=2):
        if some := [f for f in whole if f.kind == kind]:
            look: dict[str, Any] = {"dash": dash, "kind": kind, "gap": _NEXT}
            yield _over_rounds(name + words, some, REFERENCE, **look)
    yield from _same_directions(main or by_critics, name, 1)
    if by_critics:  # the second colour of a run: it has one of its own if critics alone looked
        for one in _of_run(by_critics, color + bool(main), ""):
            yield replace(one, label=f"{name}{_CRITICS}, {one.label}")
    if main:
        errors = [2 * (_fact(f, "std_error_bits") or 0.0) for f in main]
        low = [f.value - e for f, e in zip(main, errors, strict=True)]
        high = [f.value + e for f, e in zip(main, errors, strict=True)]
        look = {"marker": "circle", "low": low, "high": high, "gap": _NEXT}
        yield _over_rounds(f"{name}{_MODEL}", main, color, **look)


def _same_directions(found: Sequence[Finding], name: str, dash: int) -> Iterator[Series]:
    """Yield what clients of one Gaussian distribution would give along the same directions."""
    nats = [(float(f.server_round or 0), _fact(f, "gaussian_nats")) for f in found]
    if alike := [(at, value / NATS_PER_BIT) for at, value in nats if value is not None]:
        x, y = zip(*alike, strict=True)
        yield Series(f"{name}same directions, alike", x, y, REFERENCE, dash, gap=_NEXT)


def _fact(finding: Finding, name: str) -> float | None:
    """Return a further number of the finding, if there is one."""
    found = finding.facts.get(name)
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else None
