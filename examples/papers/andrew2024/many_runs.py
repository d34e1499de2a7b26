"""One run with many canaries against many runs with few.

Andrew et al. (2024), arXiv:2302.03098, Fig. 4: quantiles of ε̂ over experiments that collect a
thousand cosines in one run or in ten. The paper calls a thousand runs with one canary each ideal
and infeasible; for the Gaussian mechanism, which is simulated exactly, they are feasible.
What hides a canary is in the note of the table; the part of honest updates comes from the auditor's
own diagnostic of each run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.canaries.canary_auditor import one_fit
from leakmeter.auditors.rng import derive, stream
from leakmeter.auditors.values import Vector
from leakmeter.auditors.wording import counted
from leakmeter.fl_app.config.config import Config
from leakmeter.papers.andrew2024 import audit
from leakmeter.papers.andrew2024.audit import DELTA, SEED, STDS
from leakmeter.papers.andrew2024.gaussian_sum import simulate_cosines
from leakmeter.papers.base import Cells, Comparison, Table
from leakmeter.papers.gaussian import gaussian_sigma
from leakmeter.papers.plot import Line, Panel

_QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
_NOISES = (0.1023, 0.2344)  # noise multipliers of the paper's other experiments
_TRUTH, _DIMS = 10.0, (7850, 10**6)  # ε and dimensions of the Gaussian mechanism
_SQUARES = ("noise", "canaries", "honest")  # what hides a canary, over d

Found: TypeAlias = Mapping[str, list[float]]  # a list over experiments for each number
# The cosines of one run in units of 1/√d, and the squares that hide a canary.
Drawn: TypeAlias = tuple[Vector, tuple[float, float, float]]
Draw: TypeAlias = Callable[[int, int], Drawn]  # by canaries and seed


@dataclass(frozen=True)
class _Scale:
    federation: Config
    canaries: int  # cosines of an experiment
    experiments: Mapping[int, int]  # with DP-FedAvg, by runs of an experiment
    exact: int  # experiments with the Gaussian mechanism


_MNIST = replace(audit.WRITERS, sample=49, rounds=11)
_DIGITS = replace(audit.DIGITS, sample=15, rounds=4)
_SCALES = {
    "paper": _Scale(_MNIST, 1000, {1: 3, 10: 1}, 50),
    "small": _Scale(_DIGITS, 100, {1: 4, 10: 4}, 10),
}
_NOTE = (
    "Quantiles of the estimate with known std over experiments; of the estimate as printed, with "
    "fitted std, the median. Estimates, no bounds, of an outsider who sees the sum (Gaussian "
    "mechanism), or the first and the last model (DP-FedAvg), and holds a canary. The accountant's "
    "ε is a guarantee for one client added or removed, against an outsider who sees the sum, or "
    "every model. √d·E[cos] is 1/√(T·σ² + k/d + ‖X‖²/d) with T rounds, k canaries in the sum and X "
    "the honest updates, in clip norms; ε of their sum is that of a Gaussian mechanism with this "
    "separation, medians over runs. The paper repeats experiments 50 times; those with DP-FedAvg "
    "are fewer here, for the sake of time, so that their quantiles show no spread. Fig. 4's own "
    "noise multipliers are not in the text."
)


def run(scale: str, cells: Cells) -> Table:
    """Repeat every way to collect the cosines."""
    size = _SCALES[scale]
    learnt = f"DP-FedAvg, {size.federation.dataset}"
    got: dict[tuple[str, float], dict[int, Found]] = {}
    for dim in _DIMS:
        draw, times = partial(_gaussian, dim), dict.fromkeys((1, 10, size.canaries), size.exact)
        key = (f"Gaussian mechanism, d = {dim:,}", _TRUTH)
        got[key] = _repeated(cells, draw, f"gaussian-d{dim}", size.canaries, times)
    for z in _NOISES:
        draw, key = partial(_learnt, size.federation, z), (learnt, epsilon_gaussian(DELTA, 1 / z))
        got[key] = _repeated(cells, draw, f"learnt-noise{z:g}", size.canaries, size.experiments)
    of_one_run = {epsilon: here[1] for (name, epsilon), here in got.items() if name == learnt}
    return Table(
        title=f"Quantiles of ε̂ from {size.canaries} cosines of one run or of many, δ = 1e-5",
        columns=(
            *("mechanism", "accountant's ε", "runs", "canaries a run", "experiments"),
            *("noise, T·σ²", "canaries, k/d", "honest updates, ‖X‖²/d", "ε of their sum"),
            *(f"{q:.0%}" for q in _QUANTILES),
            "as printed, 50%",
        ),
        rows=[
            (name, f"{epsilon:.1f}", runs, size.canaries // runs, *_numbers(found))
            for (name, epsilon), here in got.items()
            for runs, found in here.items()
        ],
        notes=(_NOTE, _explained(of_one_run)),
        figures={"quantiles.svg": [_panel(*key, here) for key, here in got.items()]},
        comparisons=[_comparison(*key, here, size.canaries) for key, here in got.items()],
    )


def _repeated(
    cells: Cells, draw: Draw, name: str, canaries: int, experiments: Mapping[int, int]
) -> dict[int, Found]:
    """Return what the experiments with each number of runs give."""

    def cell(runs: int, experiment: int) -> dict[str, float]:
        seeds = [derive(SEED, "many-runs", name, runs, experiment, i) for i in range(runs)]
        cosines, squares = zip(*(draw(canaries // runs, seed) for seed in seeds), strict=True)
        z = np.concatenate(cosines)[None]
        return {
            **{std: float(one_fit(z, std, DELTA)[0]) for std in STDS},
            **dict(zip(_SQUARES, np.median(squares, axis=0).tolist(), strict=True)),
        }

    each = [(runs, i) for runs, times in experiments.items() for i in range(times)]
    got = cells.each(f"{name}-runs{{}}-{{}}", each, cell)
    return {
        runs: {what: [got[runs, i][what] for i in range(times)] for what in (*STDS, *_SQUARES)}
        for runs, times in experiments.items()
    }


def _gaussian(dim: int, canaries: int, seed: int) -> Drawn:
    """Return the cosines of one Gaussian sum."""
    sigma = gaussian_sigma(_TRUTH, DELTA)
    cosines = simulate_cosines(dim, canaries, sigma, stream(seed, "sum"))
    return math.sqrt(dim) * cosines, (sigma**2, canaries / dim, 0.0)


def _learnt(config: Config, noise: float, canaries: int, seed: int) -> Drawn:
    """Return the cosines with the final model of one training."""
    config = audit.with_canaries(config, canaries)
    played = audit.play(audit.seeded(config, noise, seed))
    total, share = config.rounds * noise**2, canaries / played.dim
    # The squared length beyond the noise, relative to it: of canaries and honest updates.
    beyond = next(f.value for f in played.findings if f.quantity == "interference")
    z = math.sqrt(played.dim) * played.scores["final model"].included
    return z, (total, share, beyond * total - share)


def _separation(found: Found) -> float:
    """Return √d·E[cos] of a canary that noise, canaries and honest updates hide."""
    return 1 / math.sqrt(sum(float(np.median(found[what])) for what in _SQUARES))


def _numbers(found: Found) -> tuple[Any, ...]:
    known = found["known"]
    return (
        len(known),
        *(f"{np.median(found[what]):.3g}" for what in _SQUARES),
        f"{epsilon_gaussian(DELTA, _separation(found)):.2f}",
        *(f"{np.quantile(known, q):.2f}" if q == 0.5 or len(known) > 1 else "" for q in _QUANTILES),
        f"{np.median(found['fitted']):.2f}",
    )


def _explained(found: Mapping[float, Found]) -> str:
    """Say what the estimates of DP-FedAvg react to, from one run at each of two ε."""
    epsilons, both = list(found), found.values()
    noise, honest, known = (
        [float(np.median(one[what])) for one in both] for what in ("noise", "honest", "known")
    )
    alone = [float(epsilon_gaussian(DELTA, 1 / math.sqrt(own))) for own in noise]
    words = (
        f"DP-FedAvg: between its two noises the accountant's ε falls from {epsilons[0]:.1f} to "
        f"{epsilons[1]:.1f}, and ε̂ of one run goes from {known[0]:.2f} to {known[1]:.2f}; with the "
        f"noise alone it would be {alone[0]:.1f} and {alone[1]:.1f}. Honest updates, which agree "
        f"over the rounds, are {honest[0] / noise[0]:.1f} and {honest[1] / noise[1]:.1f} times the "
        "noise in the final model"
    )
    if honest[1] < noise[1]:
        return f"{words}: noise is the larger part, so ε̂ follows it."
    return (
        f"{words}, so ε̂ hardly reacts to it. Over d their square is small in a large model: the "
        "paper's has 4.1 million parameters, and ε̂ of the final model in one-shot-writers, "
        "d = 89,610, does react."
    )


def _error(found: Found, canaries: int) -> float:
    """Return about the standard error of a median of ε̂, each from the mean of so many cosines."""
    middle, step = _separation(found), 1 / math.sqrt(canaries)
    high, low = (float(epsilon_gaussian(DELTA, middle + sign * step)) for sign in (1, -1))
    return (high - low) / 2 / math.sqrt(len(found["known"]))


def _comparison(name: str, epsilon: float, here: Mapping[int, Found], canaries: int) -> Comparison:
    one, most = here[1], here[max(here)]
    apart = abs(float(np.median(one["known"]) - np.median(most["known"])))
    error = math.hypot(_error(one, canaries), _error(most, canaries))
    return Comparison(
        source="Andrew et al. 2024, Fig. 4",
        what=f"{name}, accountant's ε = {epsilon:.1f}: ε̂, median (10 % to 90 %)",
        paper="one run and ten give distributions that are very close",
        ours="; ".join(f"{counted(n, 'run')}: {_span(own['known'])}" for n, own in here.items()),
        why=_why(one, most, apart / error),
    )


def _why(one: Found, most: Found, errors: float) -> str:
    """Say why one run and many differ, or what else hides a canary than noise."""
    noise, honest = (float(np.median(one[what])) for what in ("noise", "honest"))
    if errors >= 3:
        return (
            f"One run and the most runs are {errors:.0f} standard errors apart. Canaries of one "
            f"run hide each other where they are many against d·σ²: here k/d is "
            f"{one['canaries'][0]:.2g} and T·σ² is {noise:.2g}."
        )
    if len(most["known"]) > 1:
        return ""
    words = "So few experiments show no difference."
    if honest > noise:
        words += (
            f" Honest updates are {honest / noise:.0f} times the noise in the final model, so ε̂ "
            "is nearly the same at both of the accountant's ε. In a larger model it does react "
            "(see the table's notes)."
        )
    return words


def _span(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.2f} (one experiment)"
    low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _panel(name: str, epsilon: float, here: Mapping[int, Found]) -> Panel:
    lines = [
        Line(counted(runs, "run"), _QUANTILES, np.quantile(found["known"], _QUANTILES).tolist(), i)
        for i, (runs, found) in enumerate(here.items())
    ]
    return Panel(f"{name}\nε = {epsilon:.1f}", "quantile", "ε̂", lines)
