"""Trade-off curves of tests, and the ε that they prove over δ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from leakmeter.auditors.finding import Finding
from leakmeter.auditors.gaussian.pair import epsilon_gaussian, tradeoff_gaussian
from leakmeter.auditors.wording import number, percent, slug
from leakmeter.fl_app.report.draw.chart import REFERENCE, Axis, Chart, Figure, Series
from leakmeter.fl_app.report.judge.adversary import covers
from leakmeter.fl_app.report.read.run import Run

_RATES = (0.0, 1e-4, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)


@dataclass(frozen=True)
class _Tested:
    """One played game, as far as its curves go.

    Attributes:
        run: Whose.
        finding: The lower bound that it belongs to.
        curve: Its curves, at the confidence that the finding states.
        server_round: The round that was played.
        separation: Distance of the two worlds on fresh trials, for the Gaussian reference.
    """

    run: Run
    finding: Finding
    curve: Mapping[str, Any]
    server_round: int | None
    separation: float | None


def _tested(run: Run) -> Iterator[_Tested]:
    """Yield one game an auditor: that of the run's bound, or else the last that was played."""
    latest: dict[str, _Tested] = {}
    for f in run.findings:
        curve = _curve(f.details.get("curve", f.details))
        if f.kind != "lower_bound" or curve is None:
            continue
        server_round = f.server_round or f.details.get("round")
        latest[f.auditor] = _Tested(run, f, curve, server_round, _separation(run, f, server_round))
    yield from latest.values()


def _curve(values: Any) -> dict[str, Any] | None:
    """Return curves in numbers; None if there are none: details of others may be anything."""
    try:
        found: dict[str, Any] = {
            name: [float(x) for x in values[name]] for name in ("deltas", "epsilons", "caps")
        }
        for name in ("tradeoff", "observed"):
            if name in values:
                found[name] = {k: [float(x) for x in values[name][k]] for k in ("fpr", "fnr")}
        return found if found["tradeoff"]["fpr"] and found["deltas"] else None
    except (KeyError, TypeError, ValueError):
        return None


def _separation(run: Run, bound: Finding, server_round: int | None) -> float | None:
    for f in run.findings:
        same = f.auditor == bound.auditor and f.server_round == server_round
        if f.quantity == "separation" and same and math.isfinite(f.value):
            return f.value
    return None


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
        observed = game.curve.get("observed")
        limit = _closed(game.curve["tradeoff"])
        if observed:
            counted = _closed(observed)
            low = np.interp(limit[0], *counted).tolist()
            if not name:  # of several runs the limits alone are enough lines
                lines.append(Series("as counted", *counted, color, dash=3))
        else:
            low = [0.0] * len(limit[0])
        level = f"upper limits, {percent(game.finding.confidence or 0)} confidence"
        lines.append(Series(name + level, *limit, color, marker="circle", low=low, high=limit[1]))
    has_model = any(line.dash == 2 for line in lines)
    model = " The dotted reference is a Gaussian model, no bound." if has_model else ""
    return Figure(
        Chart(
            f"tradeoff-{slug(auditor)}",
            f"Trade-off of errors, {auditor}",
            "False negative rate over false positive rate. The further below the diagonal, the "
            "better the adversary tells the two worlds apart.",
            Axis("false positive rate", limits=(0.0, 1.0)),
            Axis("false negative rate", limits=(0.0, 1.0)),
            tuple(lines),
        ),
        f"{_which(games)} The solid line is an upper limit on both error rates at once; between "
        "the points it is straight, as trade-off curves are convex. The shaded band reaches down "
        "to what was counted." + model,
    )


def _epsilons(auditor: str, games: Sequence[tuple[int, _Tested]]) -> Figure:
    lines: list[Series] = []
    for color, game in games:
        name, deltas = _named(game, games), game.curve["deltas"]
        cap = Series(f"{name}most that could be shown", deltas, game.curve["caps"], REFERENCE, 1)
        lines.append(cap)
        if game.separation is not None and not name:
            model = np.asarray(epsilon_gaussian(np.array(deltas), game.separation)).tolist()
            lines.append(Series("Gaussian model", deltas, model, color, dash=2))
        lines += _guaranteed(game, name, color)
        level = f"lower bound, {percent(game.finding.confidence or 0)} confidence"
        proven = Series(name + level, deltas, game.curve["epsilons"], color, marker="circle")
        lines.append(proven)
    values = [v for one in lines for v in one.y if math.isfinite(v)]
    most = max(float(v) for _, game in games for v in game.curve["caps"])
    wide = max(values, default=0.0) > 5 * most
    return Figure(
        Chart(
            f"epsilon-{slug(auditor)}",
            f"ε over δ, {auditor}",
            "Epsilon that the trials prove at each delta, below the most they could have shown.",
            Axis("δ", "log"),
            Axis("ε", "shifted" if wide else "linear", has_zero=True),
            tuple(lines),
        ),
        f"{_which(games)} Where the lower bound meets the dashed line it is saturated: more trials "
        "could show more. A guarantee stands here only if it is for the same observer, adjacency "
        "and unit.",
    )


def _guaranteed(game: _Tested, name: str, color: int) -> Iterator[Series]:
    """Yield finite guarantees that the bound may be compared with."""
    bound = game.finding
    for f in game.run.of_the_run:
        if covers(f, bound) and math.isfinite(f.value) and f.delta:
            words = f"{name}guarantee at δ = {number(f.delta)}"
            yield Series(words, (f.delta,), (f.value,), color, marker="triangle", is_line=False)


def _closed(rates: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """Return the lower convex hull of the points and both ends, by ascending false positive rate.

    A trade-off function is convex and at most 1 - x: where it is below the points, it is below
    their hull.
    """
    points = {(0.0, 1.0), (1.0, 0.0), *zip(rates["fpr"], rates["fnr"], strict=True)}
    hull: list[tuple[float, float]] = []
    for x, y in sorted(points):
        while len(hull) > 1 and _turns_up(hull[-2], hull[-1], (x, y)):
            hull.pop()
        if not hull or x > hull[-1][0]:
            hull.append((x, y))
    return [x for x, _ in hull], [y for _, y in hull]


def _turns_up(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    """Whether the middle one of three points is on or above the line of the others."""
    return (b[0] - a[0]) * (c[1] - a[1]) <= (c[0] - a[0]) * (b[1] - a[1])


def _named(game: _Tested, games: Sequence[tuple[int, _Tested]]) -> str:
    return f"{game.run.name}: " if len({i for i, _ in games}) > 1 else ""


def _which(games: Sequence[tuple[int, _Tested]]) -> str:
    """Return which round a figure is about."""
    if len(games) > 1:
        return "Each run's audited round that shows the most."
    game = games[0][1]
    if game.finding.server_round is None and game.server_round is not None:
        return (
            f"Round {game.server_round}, which shows the most of the audited ones; its limits are "
            "widened so that the confidence holds for the choice."
        )
    return "" if game.server_round is None else f"Round {game.server_round}."
