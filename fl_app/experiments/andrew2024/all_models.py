"""What Algorithm 3 gives as it is printed, and what its tables show: the server's momentum.

Andrew et al. (2024), arXiv:2302.03098, Tables 2 and 5. Algorithm 3 compares a canary with the
noised mean of every round. The models of the paper's runs move by more than that mean: the server
keeps a momentum of 0.9, so that a change of the model is a sum of past means and their noise. Here
the cosines of 1000 observed and 1000 unobserved canaries are drawn for both, with nothing in the
sums but noise and the canary itself: in units of 1/√d a cosine with a round's mean is standard
normal, plus 1/z where the canary plays, z the noise multiplier. That is the limit of many
parameters, in which honest updates are short against the noise; the paper's may not be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from leakmeter.auditors.canaries.estimates import two_fits
from leakmeter.auditors.gaussian.pair import epsilon_gaussian
from leakmeter.auditors.rng import stream
from leakmeter.auditors.wording import counted
from leakmeter.fl_app.experiments.andrew2024.audit import mean_std, published_sampled
from leakmeter.fl_app.experiments.andrew2024.federation import SEED
from leakmeter.fl_app.experiments.base import Cells, Comparison, Table, median_range
from leakmeter.fl_app.experiments.plot import Line, Panel

_CANARIES = 1000
_BETA = 0.9  # the server's momentum
WARM: Final = 100  # rounds before the first, until the momentum is stationary


@dataclass(frozen=True)
class _Printed:
    """A table of the paper.

    Attributes:
        rounds: Rounds of its runs.
        times: In how many rounds a canary may have played; of Table 5 that is not said.
        clients: m of δ = m^-1.1.
        rows: Noise multiplier to ε_lo and ε_est of all models.
    """

    rounds: int
    times: tuple[int, ...]
    clients: int
    rows: Mapping[float, tuple[float, float]]


_TWO = {0.0496: (6.238, 382.0), 0.0986: (5.05, 89.4), 0.2317: (0.407, 2.693)}
_FIVE = {
    0.16: (2.87, 17.9),
    0.18: (2.32, 12.0),
    0.195: (2.02, 8.88),
    0.25: (0.896, 3.86),
    0.315: (0.315, 1.50),
}
_TABLES = {"2": _Printed(2048, (1,), 341_000, _TWO), "5": _Printed(500, (1, 5), 3383, _FIVE)}
_SCALES = {"paper": (10, {"2": 3, "5": 5}), "small": (3, {"2": 3, "5": 1})}  # runs, rows of each


def run(scale: str, cells: Cells) -> Table:
    """Draw both statistics at the noises of both tables."""
    runs, counts = _SCALES[scale]
    got: dict[tuple[str, int, float], Any] = {}
    for table, count in counts.items():
        for times in _TABLES[table].times:
            for z in list(_TABLES[table].rows)[:count]:
                key = f"table{table}-times{times}-noise{z:g}"
                got[table, times, z] = cells.get(key, partial(_cell, table, times, z, runs))
    return Table(
        title=f"The estimate from all models with and without momentum, {runs} runs a row",
        columns=(
            *("table", "participations", "noise multiplier", "ε of the noise"),
            *("paper's ε_est", "mean of the round", "momentum 0.9"),
            *("paper's ε_lo", "published ε_lo, mean of the round", "momentum 0.9"),
        ),
        rows=tuple(_row(*key, one) for key, one in got.items()),
        notes=(*_NOTES, _above(got)),
        figures={"estimates.svg": tuple(_panels(got))},
        comparisons=tuple(_comparison(*key, one) for key, one in got.items()),
    )


_NOTES = (
    "Estimates, medians (smallest to largest) over runs; ε_lo as published, which carries no "
    "confidence. ε of the noise: what an outsider who sees every mean and knows the rounds is "
    "guaranteed not to exceed, one client added or removed, for that many participations, δ = "
    "m^-1.1. Each client of Table 5 takes part in five epochs, and canaries are said to take part "
    "as clients do; but Fig. 3 varies how often they do, so both are drawn. Cosines are drawn from "
    "their law where sums hold nothing but noise and one canary; honest updates would lower them. "
    "Whoever knows the momentum can undo it, so the estimate from the mean of a round is the one "
    "that the threat model asks for.",
    "The momentum of 0.9 is in the paper's text, not in Algorithm 3. That its tables come from it "
    "is a conclusion from how near the figures are, and nothing that the paper says.",
)


def _above(got: Mapping[tuple[str, int, float], Any]) -> str:
    """Say how often the estimate from the mean of a round is above what the noise guarantees."""
    over = sum(np.median(one["mean"]["estimate"]) > one["epsilon"] for one in got.values())
    return (
        f"The estimate from the mean of a round is above the ε of the noise in {over} of "
        f"{len(got)} rows: a Gaussian fitted to largest cosines over rounds is too narrow on the "
        "side of those who stayed out."
    )


def _cell(table: str, times: int, noise: float, runs: int) -> dict[str, Any]:
    """Return both statistics of several runs."""
    rounds, delta = _TABLES[table].rounds, _TABLES[table].clients ** -1.1
    found: dict[str, Any] = {"epsilon": epsilon_gaussian(delta, math.sqrt(times) / noise)}
    for name, beta in (("mean", 0.0), ("momentum", _BETA)):
        pairs = []
        for i in range(runs):
            rng = stream(SEED, "all-models", table, times, f"{noise:g}", name, i)
            pairs.append([_largest(rounds, k, noise, beta, rng) for k in (times, 0)])
        fits = [two_fits(inside[None], outside[None], delta)[0] for inside, outside in pairs]
        found[name] = {
            "estimate": [float(fit) for fit in fits],
            "published": [published_sampled(inside, outside, delta) for inside, outside in pairs],
        }
    return found


def _largest(
    rounds: int, times: int, noise: float, beta: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the largest cosine of each canary over rounds, in units of 1/√d.

    Args:
        rounds: Rounds of the run.
        times: Rounds in which a canary plays, one in each equal share of the run.
        noise: Noise multiplier.
        beta: Momentum of the server.
        rng: Source of randomness.
    """
    z = rng.standard_normal((_CANARIES, WARM + rounds))
    share = rounds // max(times, 1)
    for period in range(times):
        at = WARM + period * share + rng.integers(share, size=_CANARIES)
        z[np.arange(_CANARIES), at] += 1 / noise
    return np.asarray(smoothed(z, beta)[:, WARM:].max(axis=1))


def smoothed(z: NDArray[np.float64], beta: float) -> NDArray[np.float64]:
    """Return what momentum makes of cosines with means, those of changes, (canaries, rounds)."""
    # Noise of past means adds up to 1/√(1 − β²) of one: the length of a change of the model.
    return np.asarray(lfilter([math.sqrt(1 - beta**2)], [1.0, -beta], z, axis=1))


def _row(table: str, times: int, noise: float, got: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return one line of the table."""
    lower, estimate = _TABLES[table].rows[noise]
    return (
        *(table, times, noise, f"{got['epsilon']:.1f}", estimate),
        *(median_range(got[name]["estimate"]) for name in ("mean", "momentum")),
        lower,
        *(median_range(got[name]["published"]) for name in ("mean", "momentum")),
    )


def _comparison(table: str, times: int, noise: float, got: Mapping[str, Any]) -> Comparison:
    lower, estimate = _TABLES[table].rows[noise]
    mean, momentum = (got[name] for name in ("mean", "momentum"))
    return Comparison(
        source=f"Andrew et al. 2024, Table {table}",
        what=f"noise multiplier {noise:g}, {counted(times, 'participation')}, all models: ε_est; "
        "ε_lo",
        paper=f"{estimate:g}; {lower:g}",
        ours=f"Algorithm 3 as printed {mean_std(mean['estimate'])}; "
        f"{mean_std(mean['published'])}. With momentum {mean_std(momentum['estimate'])}; "
        f"{mean_std(momentum['published'])}",
        why="Algorithm 3 compares with the mean of a round, the paper's models move with a "
        f"momentum of 0.9. With it ours are {_ratio(momentum['estimate'], estimate)} and "
        f"{_ratio(momentum['published'], lower)} times the paper's, as printed "
        f"{_ratio(mean['estimate'], estimate)} and {_ratio(mean['published'], lower)} times.",
    )


def _ratio(values: Sequence[float], paper: float) -> str:
    return f"{float(np.mean(values)) / paper:.1f}"


def _panels(got: Mapping[tuple[str, int, float], Any]) -> list[Panel]:
    """Return estimates over the noise, one panel for each table and number of participations."""
    panels = []
    for table, times in dict.fromkeys(key[:2] for key in got):
        here = {z: one for (t, k, z), one in got.items() if (t, k) == (table, times)}
        noises = list(here)

        def middle(name: str, here: Mapping[float, Any] = here) -> list[float]:
            return [float(np.median(one[name]["estimate"])) for one in here.values()]

        lines = (
            Line("mean of the round, as printed", noises, middle("mean"), 0),
            Line("with momentum 0.9", noises, middle("momentum"), 1),
            Line("paper", noises, [_TABLES[table].rows[z][1] for z in noises], 3, "o"),
            Line("ε of the noise", noises, [one["epsilon"] for one in here.values()], 7, ":"),
        )
        title = f"Table {table}, {counted(times, 'participation')}"
        panels.append(Panel(title, "noise multiplier", "ε", lines, log_y=True))
    return panels
