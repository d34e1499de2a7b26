"""The figures of a page: those of a whole run, those of its rounds, and the list of all.

Of a whole run: errors of tests, proven ε, cosines, losses, spectra. Nothing here knows HTML.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final, TypeVar

import numpy as np

from leakmeter.auditors.bounds.gaussian import epsilon_gaussian, tradeoff_gaussian
from leakmeter.auditors.finding import ErrorCurve, Finding, Histogram, Kind, Losses, Sees, Spectrum
from leakmeter.auditors.information.mutual_information import NEURAL
from leakmeter.auditors.information.theory import NATS_PER_BIT
from leakmeter.auditors.verdict.claim import covers
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
from leakmeter.fl_app.report.figure import HUGE, MARKERS, REFERENCE, Axis, Figure, Series
from leakmeter.fl_app.report.read import Run

T = TypeVar("T")
B = TypeVar("B", Histogram, Losses)
_RATES = (0.0, 1e-4, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)


def prefix(run: Run, several: Sequence[object]) -> str:
    """Return the name of a run for its lines, where a figure shows several."""
    return f"{run.name}: " if len(several) > 1 else ""


@dataclass(frozen=True)
class _Game:
    """One played game, as far as its curves go."""

    run: Run
    color: int  # that of the run
    finding: Finding  # the lower bound that it belongs to
    curve: ErrorCurve  # at the confidence that the finding states

    @property
    def separation(self) -> float | None:
        """How far apart Gaussians are that the auditor has put in place of the trials.

        An auditor whose trials are not Gaussian says no such thing, and no reference is drawn.
        """
        here = self.finding.auditor, self.finding.server_round or self.curve.server_round
        for f in self.run.findings:
            apart = f.facts.get("separation")
            is_model = (f.auditor, f.server_round) == here and f.kind == "approximation"
            if is_model and isinstance(apart, float) and 0 <= apart < math.inf:
                return apart
        return None


def _details(findings: Iterable[Finding], kind: type[T]) -> Iterator[tuple[Finding, T]]:
    """Yield the details of this kind, each with its finding."""
    return ((f, one) for f in findings for one in f.details if isinstance(one, kind))


def _by_auditor(runs: Sequence[Run]) -> Mapping[str, Sequence[_Game]]:
    """Return one game a run and auditor: that of the run's bound, or else the last played."""
    games: dict[str, dict[int, _Game]] = {}
    for i, run in enumerate(runs):
        for f, curve in _details(run.findings, ErrorCurve):
            if f.kind == "lower_bound" and curve.deltas:
                games.setdefault(f.auditor, {})[i] = _Game(run, i, f, curve)
    return {auditor: list(of_runs.values()) for auditor, of_runs in games.items()}


def tradeoffs(runs: Sequence[Run]) -> list[Figure]:
    """Return a figure an auditor: limits of both error rates, what was counted, references."""
    return [_tradeoff(name, games) for name, games in _by_auditor(runs).items()]


def epsilons(runs: Sequence[Run]) -> list[Figure]:
    """Return a figure an auditor: the proven ε at each δ, with what could have been shown."""
    return [_epsilons(name, games) for name, games in _by_auditor(runs).items()]


def _tradeoff(auditor: str, games: Sequence[_Game]) -> Figure:
    lines = [Series("no leak", (0.0, 1.0), (1.0, 0.0), REFERENCE, dash=1)]
    for game in games:
        name, apart, curve = prefix(game.run, games), game.separation, game.curve
        if apart is not None and not name:
            fnr = np.asarray(tradeoff_gaussian(np.array(_RATES), apart))
            words = f"Gaussians {number(apart, 3)} sd apart"
            lines.append(Series(words, _RATES, fnr.tolist(), game.color, dash=2))
        limit = _closed(curve.fpr, curve.fnr)
        low = [0.0] * len(limit[0])
        if curve.observed_fpr:
            counted = _closed(curve.observed_fpr, curve.observed_fnr)
            low = np.interp(limit[0], *counted).tolist()
            if not name:  # of several runs the limits alone are enough lines
                lines.append(Series("as counted", *counted, game.color, dash=3))
        band: dict[str, Any] = {"low": low, "high": limit[1], "kind": "guarantee"}  # rounded up
        words = name + _level("upper limits", game)
        lines.append(Series(words, *limit, game.color, marker="circle", **band))
    has_model = any(line.dash == 2 for line in lines)
    model = " The dotted reference is a Gaussian model, no bound." if has_model else ""
    return Figure(
        f"tradeoff-{slug(auditor)}",
        f"Trade-off of errors, {auditor}",
        "False negative rate over false positive rate. The further below the diagonal, the "
        "better the attacker distinguishes the two worlds.",
        f"{_which(games)} The solid line is an upper limit on both error rates at once; between "
        "the points it is straight, as trade-off curves are convex. The shaded band reaches down "
        "to what was counted." + model,
        Axis("false positive rate", limits=(0.0, 1.0)),
        Axis("false negative rate", limits=(0.0, 1.0)),
        tuple(lines),
        question=f"How often is the attacker of {short_name(auditor)} wrong?",
    )


def _epsilons(auditor: str, games: Sequence[_Game]) -> Figure:
    lines: list[Series] = []
    for game in games:
        name, deltas, apart = prefix(game.run, games), game.curve.deltas, game.separation
        cap = Series(f"{name}most that could be shown", deltas, game.curve.caps, REFERENCE, 1)
        lines.append(cap)
        if apart is not None and not name:
            model = np.asarray(epsilon_gaussian(np.array(deltas), apart)).tolist()
            lines.append(Series("Gaussian model", deltas, model, game.color, dash=2))
        lines += _guaranteed(game, name)
        shown: dict[str, Any] = {"marker": "circle", "kind": "lower_bound"}
        words = name + _level("lower bound", game)
        lines.append(Series(words, deltas, game.curve.epsilons, game.color, **shown))
    values = [v for one in lines for v in one.y if math.isfinite(v)]
    most = max(float(v) for game in games for v in game.curve.caps)
    wide = max(values, default=0.0) > 5 * most
    return Figure(
        f"epsilon-{slug(auditor)}",
        f"ε over δ, {auditor}",
        "Epsilon that the trials prove at each delta, below the most they could have shown.",
        f"{_which(games)} Where the lower bound meets the dashed line it is saturated: more trials "
        "could show more. A guarantee is drawn only if it covers this attacker and its two worlds.",
        Axis("δ", "log"),
        Axis("ε", "shifted" if wide else "linear", has_zero=True),
        tuple(lines),
        sentence=_at_the_cap(auditor, games),
        question=f"How much does {short_name(auditor)} prove at each δ?",
    )


def _at_the_cap(auditor: str, games: Sequence[_Game]) -> str:
    """Return the sentence that replaces a bound which is as high as it can be at every δ."""
    pairs = [p for g in games for p in zip(g.curve.epsilons, g.curve.caps, strict=True)]
    has_guarantee = any(True for g in games for _ in _guaranteed(g, ""))
    if has_guarantee or not all(value >= cap * (1 - 1e-9) > 0 for value, cap in pairs):
        return ""
    ends = (number(end(pairs)[0], kind="lower_bound") for end in (min, max))
    return (
        f"At every δ, {short_name(auditor)} shows the most that its samples can show: an ε of at "
        f"least {' to '.join(ends)}. More trials could show more."
    )


def _guaranteed(game: _Game, name: str) -> Iterator[Series]:
    """Yield finite guarantees that the bound may be compared with."""
    for f in game.run.of_the_run:
        if covers(f, game.finding) and math.isfinite(f.value) and f.delta:
            words = f"{name}guarantee at δ = {number(f.delta)}"
            point: dict[str, Any] = {"marker": "triangle", "is_line": False, "kind": f.kind}
            yield Series(words, (f.delta,), (f.value,), game.color, **point)


def _level(what: str, game: _Game) -> str:
    """Return what is drawn, on which condition and with which confidence."""
    if_ = f"{words}: " if (words := condition(game.finding)) else ""
    return f"{if_}{what}, {percent(game.finding.confidence or 0)} confidence"


def _closed(fpr: Sequence[float], fnr: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the lower convex hull of the points and both ends, by ascending false positive rate.

    A trade-off function is convex and at most 1 - x: where it is below the points, it is below
    their hull.
    """
    counted = [p for p in zip(fpr, fnr, strict=True) if all(map(math.isfinite, p))]
    points = {(0.0, 1.0), (1.0, 0.0), *counted}
    hull: list[tuple[float, float]] = []
    for x, y in sorted(points):
        while len(hull) > 1 and _turns_up(hull[-2], hull[-1], (x, y)):
            hull.pop()
        if not hull or x > hull[-1][0]:
            hull.append((x, y))
    return [x for x, _ in hull], [y for _, y in hull]


def _turns_up(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    """Whether the middle one of three points is on or above the line of the others.

    In fractions: rates may differ by so little that a product of floats vanishes, and a point far
    below the line would seem to be on it.
    """
    (ax, ay), (bx, by), (cx, cy) = ((Fraction(x), Fraction(y)) for x, y in (a, b, c))
    return (bx - ax) * (cy - ay) <= (cx - ax) * (by - ay)


def _which(games: Sequence[_Game]) -> str:
    """Return which round a figure is about."""
    if len(games) > 1:
        return "Each run's audited round that shows the most."
    own, shown = games[0].finding.server_round, games[0].curve.server_round
    if own is None and shown is not None:
        return (
            f"Round {shown}, which shows the most of the audited ones; its limits are widened so "
            "that the confidence holds for the choice."
        )
    return f"Round {own}." if own is not None else ""


_WHERE: Final[Mapping[Sees | None, str]] = {
    "final model": "in the final model",
    "all models": "in the models of all rounds",
    "updates": "in single updates",
}


def cosines(runs: Sequence[Run]) -> Iterator[Figure]:
    """Yield histograms of canary cosines: one for each run and model that was searched."""
    return _binned(runs, Histogram, _cosines)


def losses(runs: Sequence[Run]) -> Iterator[Figure]:
    """Yield histograms of planted records: one for each run and model that was searched."""
    return _binned(runs, Losses, _losses)


def _binned(
    runs: Sequence[Run], kind: type[B], draw: Callable[[int, str, B, str], Figure]
) -> Iterator[Figure]:
    for i, run in enumerate(runs):
        drawn: dict[Sees | None, B] = {}
        for f, bins in _details(run.of_the_run, kind):
            if bins.edges[1:]:
                drawn.setdefault(f.threat_model.sees, bins)
        for sees, bins in drawn.items():
            yield draw(i, _WHERE.get(sees, "in the model"), bins, _suffix(run, runs))


def _losses(color: int, where: str, bins: Losses, name: str) -> Figure:
    return Figure(
        f"losses-{slug(where)}",
        f"Planted records {where}{name}",
        "Shares of records over how far training lowered their loss: canaries that were planted, "
        "canaries that were left out, and decoys.",
        "The further the planted records are to the right of the decoys, which nobody trained on, "
        "the more confident the attacker is. Bins of equal width.",
        Axis(f"fall of the loss in {bins.unit}"),
        Axis("share of records", has_zero=True),
        _groups(color, bins, ("planted", "left out"), "decoys"),
        is_first=where == _WHERE["all models"],
        question=f"Are planted records recognised {where}{name}?",
    )


def _groups(
    color: int, bins: Histogram | Losses, named: tuple[str, str], null: str
) -> tuple[Series, ...]:
    """Return the shares of both groups in bins, with what they would be without a leak."""
    middles = [(a + b) / 2 for a, b in pairwise(bins.edges)]
    took, not_ = (
        f"{n} ({sum(c)})" for n, c in zip(named, (bins.included, bins.excluded), strict=True)
    )
    others = (Series(not_, bins.edges, _shares(bins.excluded), color + 1, dash=1),)
    return (
        Series(took, bins.edges, _shares(bins.included), color, is_filled=True),
        *(others if any(bins.excluded) else ()),
        Series(null, middles, bins.null, REFERENCE, dash=2),
    )


def _suffix(run: Run, runs: Sequence[Run]) -> str:
    """Return the name of a run for its own figure, where there are several."""
    return f", {run.name}" if len(runs) > 1 else ""


def _cosines(color: int, where: str, bins: Histogram, name: str) -> Figure:
    known = "the normal distribution" if bins.is_exact else "draws of the exact distribution"
    in_updates, has_others = where == _WHERE["updates"], any(bins.excluded)
    seen = "update of their seat" if in_updates else "change of the model"
    return Figure(
        f"cosines-{slug(where)}",
        f"Canaries {where}{name}",
        f"Shares of canaries over their cosine with the {seen}: those that were sent, "
        f"{'those that never were, ' * has_others}and the distribution without a leak.",
        "The further the canaries that were sent are to the right of the others, the more "
        f"confident the attacker is. Without a leak: {known}. Bins of equal width; one standard "
        "deviation is 1/√d.",
        Axis("cosine in standard deviations of the null"),
        Axis("share of canaries", has_zero=True),
        _groups(color, bins, ("sent", "never sent"), "without a leak"),
        is_first=where == _WHERE["all models"],
        question=f"Are canaries (test updates) recognised {where}{name}?",
    )


def _shares(counts: Sequence[float]) -> list[float]:
    total = math.fsum(counts) or 1.0
    return [count / total for count in counts]


def spectra(runs: Sequence[Run]) -> Iterator[Figure]:
    """Yield a figure for each run that has left a spectrum, of the last round that did."""
    for i, run in enumerate(runs):
        ordered = sorted(run.findings, key=lambda f: f.server_round or 0)
        if drawn := [(f, one) for f, one in _details(ordered, Spectrum) if one.index]:
            finding, one = drawn[-1]
            yield _spectrum(i, one, finding.server_round, _suffix(run, runs))


def _spectrum(color: int, drawn: Spectrum, server_round: int | None, name: str) -> Figure:
    floor, index, alone = drawn.floor, drawn.index, drawn.variance
    filled = [max(a + b, 0.0) for a, b in zip(alone, drawn.added, strict=True)]
    least = min((v for v in [*alone, floor] if v > 1 / HUGE), default=1.0) / 3
    shown = [max(v, least) for v in alone]
    lines = [
        Series("after filling", index, filled, color + 1, 1, "square", low=shown, high=filled),
        Series("sampling alone", index, shown, color, 0, "circle"),
    ]
    if floor:
        lines.insert(0, Series("floor σ²", (index[0], index[-1]), (floor, floor), REFERENCE, 2))
    saved = f" {percent(round(drawn.share_saved, 6))} of isotropic noise is saved." if floor else ""
    where = "" if server_round is None else f"One client in round {server_round}. "
    zero = f" Values at {number(least, 2)} stand for zero." if shown != list(alone) else ""
    return Figure(
        "spectrum",
        f"Spectrum of a client's randomness{name}",
        "Variance along each direction, largest first: by sampling alone, and after the noise "
        "that water filling adds up to its floor.",
        f"{where}The shaded part is what water filling added.{saved}{zero} It describes these "
        "data and is no guarantee.",
        Axis("direction, largest first", "log"),
        Axis("variance", "log", limits=(least, min(max(filled), HUGE) * 1.3)),
        tuple(lines),
        question=f"How random is a client's update along each direction{name}?",
    )


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
        *tradeoffs(runs),
        *epsilons(runs),
        *cosines(runs),
        *losses(runs),
        *growth(runs),
        *single_rounds(runs),
        *information(runs),
        *spectra(runs),
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
        sentence=_rounds_at_the_cap(every),
        question=f"How much does {short_name(auditor)} {does} one round alone?",
    )


def _rounds_at_the_cap(found: Sequence[Finding]) -> str:
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
