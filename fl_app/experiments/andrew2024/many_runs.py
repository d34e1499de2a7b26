"""One run with many canaries against many runs with few.

Andrew et al. (2024), arXiv:2302.03098, Fig. 4: quantiles of ε̂ over experiments that collect a
thousand cosines in one run or in ten. The paper calls a thousand runs with one canary each ideal
and infeasible; for the Gaussian mechanism, which is simulated exactly, they are feasible.

In units of the clip norm, √d·E[cos] of a canary with the change of the model over T rounds is
1/√(T·σ² + k/d + ‖X‖²/d): noise, canaries and honest updates X hide it. The last comes from the
auditor's own diagnostic of each run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from leakmeter.auditors._types import Vector
from leakmeter.auditors.canaries.estimates import Std, one_fit
from leakmeter.auditors.gaussian.pair import epsilon_gaussian, gaussian_sigma
from leakmeter.auditors.rng import derive, stream
from leakmeter.auditors.wording import counted
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.experiments.andrew2024.federation import (
    DELTA,
    DIGITS,
    SEED,
    WRITERS,
    play,
    seeded,
    with_canaries,
)
from leakmeter.fl_app.experiments.andrew2024.gaussian_sum import simulate_cosines
from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.plot import Line, Panel

_QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
_NOISES = (0.1023, 0.2344)  # noise multipliers of the paper's other experiments
_TRUTH = 10.0  # ε of the Gaussian mechanism
_SQUARES = ("noise", "canaries", "honest")  # what hides a canary

# Mechanism, accountant's ε and number of runs, to what was found.
Got: TypeAlias = Mapping[tuple[str, float, int], Mapping[str, list[float]]]


@dataclass(frozen=True)
class _Scale:
    federation: Config
    canaries: int  # cosines of an experiment
    experiments: Mapping[int, int]  # with DP-FedAvg, by runs of an experiment
    dims: tuple[int, ...]
    exact: int  # experiments with the Gaussian mechanism


_SCALES = {
    "paper": _Scale(replace(WRITERS, sample=49, rounds=11), 1000, {1: 3, 10: 1}, (7850, 10**6), 50),
    "small": _Scale(replace(DIGITS, sample=15, rounds=4), 100, {1: 4, 10: 4}, (7850, 10**6), 10),
}


@dataclass(frozen=True, eq=False)
class _Drawn:
    """The cosines of one run in units of 1/√d, and the squares that hide a canary, over d."""

    z: Vector
    noise: float
    canaries: float
    honest: float = 0.0


def run(scale: str, cells: Cells) -> Table:
    """Repeat every way to collect the cosines."""
    size = _SCALES[scale]
    got: dict[tuple[str, float, int], Mapping[str, list[float]]] = {}
    for dim in size.dims:
        for runs in (1, 10, size.canaries):
            draw, key = partial(_gaussian, dim, size.canaries // runs), f"gaussian-d{dim}"
            name = f"Gaussian mechanism, d = {dim:,}"
            got[name, _TRUTH, runs] = _repeated(cells, draw, key, runs, size.exact)
    learnt = f"DP-FedAvg, {size.federation.dataset}"
    for z in _NOISES:
        for runs, times in size.experiments.items():
            config = with_canaries(size.federation, size.canaries // runs)
            draw, key = partial(_learnt, config, z), f"learnt-noise{z:g}"
            epsilon = epsilon_gaussian(DELTA, 1 / z)
            got[learnt, epsilon, runs] = _repeated(cells, draw, key, runs, times)
    return Table(
        title=f"Quantiles of ε̂ from {size.canaries} cosines of one run or of many, δ = 1e-5",
        columns=(
            *("mechanism", "accountant's ε", "runs", "canaries a run", "experiments"),
            *("noise, T·σ²", "canaries, k/d", "honest updates, ‖X‖²/d", "ε of their sum"),
            *(f"{q:.0%}" for q in _QUANTILES),
            "as printed, 50%",
        ),
        rows=tuple(_row(*key, size.canaries, one) for key, one in got.items()),
        notes=(*_NOTES, _explained(got, learnt)),
        figures={"quantiles.svg": tuple(_panels(got))},
        comparisons=tuple(_comparisons(got, size.canaries)),
    )


_NOTES = (
    "Quantiles of the estimate with known std over experiments; of the estimate as printed, with "
    "fitted std, the median. Estimates, no bounds, of an outsider who sees the sum (Gaussian "
    "mechanism), or the first and the last model (DP-FedAvg), and holds a canary. The accountant's "
    "ε is a guarantee for one client added or removed, against an outsider who sees the sum, or "
    "every model. √d·E[cos] is 1/√(T·σ² + k/d + ‖X‖²/d) with T rounds, k canaries in the sum and X "
    "the honest updates, in clip norms; ε of their sum is that of a Gaussian mechanism with this "
    "separation, medians over runs. The paper repeats experiments 50 times; those with DP-FedAvg "
    "are fewer here, for the sake of time, so that their quantiles show no spread. Fig. 4's own "
    "noise multipliers are not in the text.",
)


def _squares(one: Mapping[str, list[float]]) -> float:
    """Return what hides a canary: noise, canaries and honest updates."""
    return sum(float(np.median(one[what])) for what in _SQUARES)


def _explained(got: Got, learnt: str) -> str:
    """Say what the estimates of DP-FedAvg react to."""
    (low, one), (high, two) = (
        (epsilon, one) for (name, epsilon, runs), one in got.items() if (name, runs) == (learnt, 1)
    )
    noise, honest = (
        [float(np.median(x[what])) for x in (one, two)] for what in ("noise", "honest")
    )
    alone = [float(epsilon_gaussian(DELTA, 1 / math.sqrt(own))) for own in noise]
    words = (
        f"DP-FedAvg: between its two noises the accountant's ε falls from {low:.1f} to {high:.1f}. "
        f"ε̂ of one run goes from {np.median(one['known']):.2f} to {np.median(two['known']):.2f}. "
        f"The final model hides a canary in {noise[0]:.2g} and {noise[1]:.2g} of noise, and in "
        f"{honest[0]:.2g} and {honest[1]:.2g} of honest updates, which agree over the rounds; with "
        f"the noise alone ε̂ would be {alone[0]:.1f} and {alone[1]:.1f}. "
    )
    if honest[1] < noise[1]:
        return words + "Noise is the larger part, so ε̂ follows it."
    return (
        f"{words}Honest updates are {honest[0] / noise[0]:.0f} and "
        f"{honest[1] / noise[1]:.0f} times the noise, so ε̂ hardly reacts to it. Over d their "
        "square is small in a large model: the paper's has 4.1 million parameters, and ε̂ of the "
        "final model in one-shot-writers, d = 89,610, does react."
    )


def _repeated(
    cells: Cells, draw: Callable[[int], _Drawn], name: str, runs: int, experiments: int
) -> dict[str, list[float]]:
    """Return what each experiment gives, a list for each number."""
    found = [
        cells.get(f"{name}-runs{runs}-{i}", partial(_cell, draw, name, runs, i))
        for i in range(experiments)
    ]
    return {what: [one[what] for one in found] for what in found[0]}


def _cell(draw: Callable[[int], _Drawn], name: str, runs: int, experiment: int) -> dict[str, float]:
    """Return estimates of one experiment, from the cosines of so many runs."""
    seeds = [derive(SEED, "many-runs", name, runs, experiment, i) for i in range(runs)]
    drawn = [draw(seed) for seed in seeds]
    z = np.concatenate([one.z for one in drawn])[None]
    fits: tuple[Std, ...] = ("known", "fitted")
    return {
        **{std: float(one_fit(z, std, DELTA)[0]) for std in fits},
        "noise": drawn[0].noise,
        "canaries": drawn[0].canaries,
        "honest": float(np.median([one.honest for one in drawn])),
    }


def _gaussian(dim: int, canaries: int, seed: int) -> _Drawn:
    """Return the cosines of one Gaussian sum."""
    sigma = gaussian_sigma(_TRUTH, DELTA)
    cosines = simulate_cosines(dim, canaries, sigma, stream(seed, "sum"))
    return _Drawn(math.sqrt(dim) * cosines, sigma**2, canaries / dim)


def _learnt(config: Config, noise: float, seed: int) -> _Drawn:
    """Return the cosines with the final model of one training."""
    played = play(seeded(config, noise, seed))
    total, share = config.rounds * noise**2, config.canaries / played.dim
    # The squared length beyond the noise, relative to it: of canaries and honest updates.
    beyond = next(f.value for f in played.findings if f.quantity == "interference")
    z = math.sqrt(played.dim) * played.scores["final model"].included
    return _Drawn(z, total, share, beyond * total - share)


def _row(
    name: str, epsilon: float, runs: int, canaries: int, got: Mapping[str, list[float]]
) -> tuple[Any, ...]:
    """Return one line of the table."""
    return (
        *(name, f"{epsilon:.1f}", runs, canaries // runs, len(got["known"])),
        *(f"{np.median(got[what]):.3g}" for what in _SQUARES),
        f"{epsilon_gaussian(DELTA, 1 / math.sqrt(_squares(got))):.2f}",
        *(
            f"{np.quantile(got['known'], q):.2f}" if q == 0.5 or len(got["known"]) > 1 else ""
            for q in _QUANTILES
        ),
        f"{np.median(got['fitted']):.2f}",
    )


def _std(one: Mapping[str, list[float]], canaries: int) -> float:
    """Return about the std of ε̂ from the mean of so many cosines."""
    middle, step = 1 / math.sqrt(_squares(one)), 1 / math.sqrt(canaries)
    high, low = (float(epsilon_gaussian(DELTA, middle + sign * step)) for sign in (1, -1))
    return (high - low) / 2


def _comparisons(got: Got, canaries: int) -> list[Comparison]:
    """Set one run beside many, mechanism by mechanism."""
    found = []
    for name, epsilon in dict.fromkeys(key[:2] for key in got):
        here = {runs: one for (n, e, runs), one in got.items() if (n, e) == (name, epsilon)}
        shown = [f"{counted(runs, 'run')}: {_span(one['known'])}" for runs, one in here.items()]
        one, most = here[1], here[max(here)]
        apart = abs(float(np.median(one["known"]) - np.median(most["known"])))
        error = math.hypot(*(_std(x, canaries) / math.sqrt(len(x["known"])) for x in (one, most)))
        found.append(
            Comparison(
                source="Andrew et al. 2024, Fig. 4",
                what=f"{name}, accountant's ε = {epsilon:.1f}: ε̂, median (10 % to 90 %)",
                paper="one run and ten give distributions that are very close",
                ours="; ".join(shown),
                why=""
                if apart < 3 * error
                else f"{apart / error:.0f} standard errors apart. Canaries of one run hide each "
                f"other where they are many against d·σ²: here k/d is {one['canaries'][0]:.2g} and "
                f"T·σ² is {one['noise'][0]:.2g}.",
            )
        )
    return found


def _span(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.2f} (one experiment)"
    low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _panels(got: Got) -> list[Panel]:
    """Return quantiles of one run and of many, one panel a mechanism and noise."""
    panels = []
    for name, epsilon in dict.fromkeys(key[:2] for key in got):
        lines = [
            Line(
                counted(runs, "run"),
                list(_QUANTILES),
                np.quantile(one["known"], _QUANTILES).tolist(),
                i,
            )
            for i, ((n, e, runs), one) in enumerate(got.items())
            if (n, e) == (name, epsilon)
        ]
        panels.append(Panel(f"{name}\nε = {epsilon:.1f}", "quantile", "ε̂", tuple(lines)))
    return panels
