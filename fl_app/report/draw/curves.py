"""Curves of a whole run: errors of tests, the ε that they prove, cosines, spectra."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final

import numpy as np

from leakmeter.auditors.finding import ErrorCurve, Finding, Histogram, Sees, Spectrum
from leakmeter.auditors.gaussian.pair import epsilon_gaussian, tradeoff_gaussian
from leakmeter.auditors.judge.adversary import covers
from leakmeter.auditors.judge.terse import short_name
from leakmeter.auditors.wording import condition, number, percent, slug
from leakmeter.fl_app.report.draw.figure import REFERENCE, Axis, Figure, Series
from leakmeter.fl_app.report.draw.scale import HUGE
from leakmeter.fl_app.report.read import Run

_RATES = (0.0, 1e-4, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)


@dataclass(frozen=True)
class _Tested:
    """One played game, as far as its curves go.

    Attributes:
        run: Whose.
        finding: The lower bound that it belongs to.
        curve: Its curves, at the confidence that the finding states.
        separation: Distance of the two worlds on fresh trials, for the Gaussian reference.
    """

    run: Run
    finding: Finding
    curve: ErrorCurve
    separation: float | None


def _tested(run: Run) -> Iterator[_Tested]:
    """Yield one game an auditor: that of the run's bound, or else the last that was played."""
    latest: dict[str, tuple[Finding, ErrorCurve]] = {}
    for f in run.findings:
        for detail in f.details:
            if f.kind == "lower_bound" and isinstance(detail, ErrorCurve) and detail.deltas:
                latest[f.auditor] = f, detail
    # Only now: it looks through all findings.
    for f, curve in latest.values():
        apart = _separation(run, f, f.server_round or curve.server_round)
        yield _Tested(run, f, curve, apart)


def _separation(run: Run, bound: Finding, server_round: int | None) -> float | None:
    """Return how far apart Gaussians are that the auditor has put in place of the trials.

    An auditor whose trials are not Gaussian says no such thing, and no reference is drawn.
    """
    for f in run.findings:
        same = f.auditor == bound.auditor and f.server_round == server_round
        apart = f.facts.get("separation")
        if same and f.kind == "approximation" and isinstance(apart, float) and _is_distance(apart):
            return apart
    return None


def _is_distance(value: float) -> bool:
    return 0 <= value < math.inf


def tradeoffs(runs: Sequence[Run]) -> list[Figure]:
    """Return a figure an auditor: limits of both error rates, what was counted, references."""
    return [_tradeoff(name, games) for name, games in _by_auditor(runs).items()]


def epsilons(runs: Sequence[Run]) -> list[Figure]:
    """Return a figure an auditor: the proven ε at each δ, with what could have been shown."""
    return [_epsilons(name, games) for name, games in _by_auditor(runs).items()]


def _by_auditor(runs: Sequence[Run]) -> dict[str, list[tuple[int, _Tested]]]:
    games: dict[str, list[tuple[int, _Tested]]] = {}
    for i, run in enumerate(runs):
        for game in _tested(run):
            games.setdefault(game.finding.auditor, []).append((i, game))
    return games


def _tradeoff(auditor: str, games: Sequence[tuple[int, _Tested]]) -> Figure:
    lines = [Series("no leak", (0.0, 1.0), (1.0, 0.0), REFERENCE, dash=1)]
    for color, game in games:
        name = _named(game, games)
        if game.separation is not None and not name:
            fnr = np.asarray(tradeoff_gaussian(np.array(_RATES), game.separation))
            words = f"Gaussians {number(game.separation, 3)} sd apart"
            lines.append(Series(words, _RATES, fnr.tolist(), color, dash=2))
        curve = game.curve
        limit = _closed(curve.fpr, curve.fnr)
        if curve.observed_fpr:
            counted = _closed(curve.observed_fpr, curve.observed_fnr)
            low = np.interp(limit[0], *counted).tolist()
            if not name:  # of several runs the limits alone are enough lines
                lines.append(Series("as counted", *counted, color, dash=3))
        else:
            low = [0.0] * len(limit[0])
        level = f"{_if(game)}upper limits, {percent(game.finding.confidence or 0)} confidence"
        band: dict[str, Any] = {"low": low, "high": limit[1], "kind": "guarantee"}  # rounded up
        lines.append(Series(name + level, *limit, color, marker="circle", **band))
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
    )


def _epsilons(auditor: str, games: Sequence[tuple[int, _Tested]]) -> Figure:
    lines: list[Series] = []
    for color, game in games:
        name, deltas = _named(game, games), game.curve.deltas
        cap = Series(f"{name}most that could be shown", deltas, game.curve.caps, REFERENCE, 1)
        lines.append(cap)
        if game.separation is not None and not name:
            model = np.asarray(epsilon_gaussian(np.array(deltas), game.separation)).tolist()
            lines.append(Series("Gaussian model", deltas, model, color, dash=2))
        lines += _guaranteed(game, name, color)
        level = f"{_if(game)}lower bound, {percent(game.finding.confidence or 0)} confidence"
        shown: dict[str, Any] = {"marker": "circle", "kind": "lower_bound"}
        lines.append(Series(name + level, deltas, game.curve.epsilons, color, **shown))
    values = [v for one in lines for v in one.y if math.isfinite(v)]
    most = max(float(v) for _, game in games for v in game.curve.caps)
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
    )


def _at_the_cap(auditor: str, games: Sequence[tuple[int, _Tested]]) -> str:
    """Return the sentence that replaces a bound which is as high as it can be at every δ."""
    pairs = [p for _, g in games for p in zip(g.curve.epsilons, g.curve.caps, strict=True)]
    has_guarantee = any(True for _, g in games for _ in _guaranteed(g, "", 0))
    if has_guarantee or not all(value >= cap * (1 - 1e-9) > 0 for value, cap in pairs):
        return ""
    return (
        f"At every δ, {short_name(auditor)} shows the most that its samples can show: an ε of at "
        f"least {number(min(p[0] for p in pairs), kind='lower_bound')} to "
        f"{number(max(p[0] for p in pairs), kind='lower_bound')}. More trials could show more."
    )


def _guaranteed(game: _Tested, name: str, color: int) -> Iterator[Series]:
    """Yield finite guarantees that the bound may be compared with."""
    for f in game.run.of_the_run:
        if covers(f, game.finding) and math.isfinite(f.value) and f.delta:
            words = f"{name}guarantee at δ = {number(f.delta)}"
            point: dict[str, Any] = {"marker": "triangle", "is_line": False, "kind": f.kind}
            yield Series(words, (f.delta,), (f.value,), color, **point)


def _if(game: _Tested) -> str:
    return f"{words}: " if (words := condition(game.finding)) else ""


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


def _named(game: _Tested, games: Sequence[tuple[int, _Tested]]) -> str:
    return f"{game.run.name}: " if len({i for i, _ in games}) > 1 else ""


def _which(games: Sequence[tuple[int, _Tested]]) -> str:
    """Return which round a figure is about."""
    if len(games) > 1:
        return "Each run's audited round that shows the most."
    finding, curve = games[0][1].finding, games[0][1].curve
    if finding.server_round is None and curve.server_round is not None:
        return (
            f"Round {curve.server_round}, which shows the most of the audited ones; its limits are "
            "widened so that the confidence holds for the choice."
        )
    server_round = finding.server_round or curve.server_round
    return "" if server_round is None else f"Round {server_round}."


_WHERE: Final[Mapping[Sees | None, str]] = {
    "final model": "in the final model",
    "all models": "in the models of all rounds",
}


def cosines(runs: Sequence[Run]) -> list[Figure]:
    """Return histograms of canary cosines: one for each run and model that was searched."""
    figures = []
    for i, run in enumerate(runs):
        drawn: dict[Sees | None, Histogram] = {}
        for f in run.of_the_run:
            for detail in f.details:
                if isinstance(detail, Histogram) and detail.edges[1:]:
                    drawn.setdefault(f.threat_model.sees, detail)
        name = f", {run.name}" if len(runs) > 1 else ""
        figures += [
            _cosines(i, _WHERE.get(sees, "in the model"), bins, name)
            for sees, bins in drawn.items()
        ]
    return figures


def _cosines(color: int, where: str, bins: Histogram, name: str) -> Figure:
    middles = [(a + b) / 2 for a, b in pairwise(bins.edges)]
    known = "the normal distribution" if bins.is_exact else "draws of the exact distribution"
    took, not_ = f"took part ({sum(bins.included)})", f"did not ({sum(bins.excluded)})"
    return Figure(
        f"cosines-{slug(where)}",
        f"Canaries {where}{name}",
        "Shares of canaries over their cosine with the change of the model: those that took "
        "part, those that did not, and the distribution without a leak.",
        "The further the canaries that took part are to the right of the others, the more "
        f"confident the attacker is. Without a leak: {known}. Bins of equal width; one standard "
        "deviation is 1/√d.",
        Axis("cosine in standard deviations of the null"),
        Axis("share of canaries", has_zero=True),
        (
            Series(took, bins.edges, _shares(bins.included), color, is_filled=True),
            Series(not_, bins.edges, _shares(bins.excluded), color + 1, dash=1),
            Series("without a leak", middles, bins.null, REFERENCE, dash=2),
        ),
        is_first=where == _WHERE["all models"],
    )


def _shares(counts: Sequence[float]) -> list[float]:
    total = math.fsum(counts) or 1.0
    return [count / total for count in counts]


def spectra(runs: Sequence[Run]) -> list[Figure]:
    """Return a figure for each run that has left a spectrum, of the last round that did."""
    figures = []
    for i, run in enumerate(runs):
        drawn = [
            (f.server_round, detail)
            for f in sorted(run.findings, key=lambda f: f.server_round or 0)
            for detail in f.details
            if isinstance(detail, Spectrum) and detail.index
        ]
        if drawn:
            name = f", {run.name}" if len(runs) > 1 else ""
            figures.append(_spectrum(i, drawn[-1][1], drawn[-1][0], name))
    return figures


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
    )
