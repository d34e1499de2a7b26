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
from collections.abc import Mapping
from functools import partial
from itertools import groupby
from typing import Any, Final, TypeAlias

import numpy as np
from scipy.signal import lfilter

from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.bounds.lower_bound import Scores
from leakmeter.auditors.canaries.one_shot import two_fits
from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Floats
from leakmeter.auditors.wording import counted
from leakmeter.papers.andrew2024.audit import SEED, mean_std, published
from leakmeter.papers.andrew2024.writers import TABLE2, TABLE5
from leakmeter.papers.base import Cells, Comparison, Table, median_range
from leakmeter.papers.plot import Line, Panel

_CANARIES = 1000
_MOMENTA = {"mean": 0.0, "momentum": 0.9}  # the server's, by the statistic that it makes
WARM: Final = 100  # rounds before the first, until the momentum is stationary

_TWO = {z: TABLE2[e][:2] for z, e in ((0.0496, 300.0), (0.0986, 100.0), (0.2317, 30.0))}
_FIVE = {z: row[:2] for z, row in TABLE5.items() if z}
# Rounds, m of δ = m^-1.1, and ε_lo and ε_est of all models by noise multiplier.
_TABLES = {"2": (2048, 341_000, _TWO), "5": (500, 3383, _FIVE)}
Row: TypeAlias = tuple[str, int, float]  # table, participations of a canary, noise multiplier
# How often canaries of Table 5 play is not said.
_ROWS = [(t, times, z) for t, times in (("2", 1), ("5", 1), ("5", 5)) for z in _TABLES[t][2]]
_FEW = [row for row in _ROWS if row[0] == "2" or row[2] == 0.16]
_SCALES = {"paper": (10, _ROWS), "small": (3, _FEW)}  # runs of each row
_NOTES = (
    "Estimates, medians (smallest to largest) over runs; ε_lo as published, which carries no "
    "confidence. ε of the noise: what an outsider who sees every mean and knows the rounds is "
    "guaranteed not to exceed, one client added or removed, for that many participations, δ = "
    "m^-1.1. Each client of Table 5 takes part in five epochs, and canaries are said to take part "
    "as clients do; but Fig. 3 varies how often they do, so both are drawn. Cosines are drawn from "
    "their distribution where sums contain nothing but noise and one canary; honest updates would "
    "lower them. Whoever knows the momentum can undo it, so the estimate from the mean of a round "
    "is the one that the threat model asks for.",
    "The momentum of 0.9 is in the paper's text, not in Algorithm 3. That its tables come from it "
    "is a conclusion from how near the figures are, and nothing that the paper says.",
)


def run(scale: str, cells: Cells) -> Table:
    """Draw both statistics at the noises of both tables."""
    runs, keys = _SCALES[scale]
    got = cells.each("table{}-times{}-noise{:g}", keys, partial(_cell, runs))
    rows, comparisons = zip(*(_beside(*row, one) for row, one in got.items()), strict=True)
    over = sum(np.median(one["mean"]["estimate"]) > one["epsilon"] for one in got.values())
    above = (
        f"The estimate from the mean of a round is above the ε of the noise in {over} of "
        f"{len(got)} rows: a Gaussian fitted to largest cosines over rounds is too narrow on the "
        "side of those who stayed out."
    )
    return Table(
        title=f"The estimate from all models with and without momentum, {runs} runs a row",
        columns=(
            *("table", "participations", "noise multiplier", "ε of the noise"),
            *("paper's ε_est", "mean of the round", "momentum 0.9"),
            *("paper's ε_lo", "published ε_lo, mean of the round", "momentum 0.9"),
        ),
        rows=rows,
        notes=(*_NOTES, above),
        figures={"estimates.svg": _panels(got)},
        comparisons=comparisons,
    )


def _beside(table: str, times: int, noise: float, got: Any) -> tuple[tuple[Any, ...], Comparison]:
    """Return one line of the table, and the paper's beside it."""
    lower, estimate = _TABLES[table][2][noise]
    estimates, bounds = ([got[m][what] for m in _MOMENTA] for what in ("estimate", "published"))
    ours = [f"{mean_std(e)}; {mean_std(b)}" for e, b in zip(estimates, bounds, strict=True)]
    ratio = [
        f"{np.mean(e) / estimate:.1f} and {np.mean(b) / lower:.1f}"
        for e, b in zip(estimates, bounds, strict=True)
    ]
    return (
        *(table, times, noise, f"{got['epsilon']:.1f}"),
        *(estimate, *map(median_range, estimates), lower, *map(median_range, bounds)),
    ), Comparison(
        source=f"Andrew et al. 2024, Table {table}",
        what=f"noise multiplier {noise:g}, {counted(times, 'participation')}, all models: ε_est; "
        "ε_lo",
        paper=f"{estimate:g}; {lower:g}",
        ours=f"Algorithm 3 as printed {ours[0]}. With momentum {ours[1]}",
        why=f"With the paper's momentum of 0.9 ours are {ratio[1]} times the paper's; as printed, "
        f"{ratio[0]} times. Sums contain noise and canaries only.",
    )


def _panels(got: Mapping[Row, Any]) -> list[Panel]:
    """Return estimates over the noise, one panel for each table and number of participations."""
    panels = []
    for (table, times), rows in groupby(got, lambda row: row[:2]):
        here = {z: got[table, times, z] for _, _, z in rows}
        mean, momentum = (
            [float(np.median(one[name]["estimate"])) for one in here.values()] for name in _MOMENTA
        )
        lines = (
            Line("mean of the round, as printed", list(here), mean, 0),
            Line("with momentum 0.9", list(here), momentum, 1),
            Line("paper", list(here), [_TABLES[table][2][z][1] for z in here], 3, "o"),
            Line("ε of the noise", list(here), [one["epsilon"] for one in here.values()], 7, ":"),
        )
        title = f"Table {table}, {counted(times, 'participation')}"
        panels.append(Panel(title, "noise multiplier", "ε", lines, log_y=True))
    return panels


def _cell(runs: int, table: str, times: int, noise: float) -> dict[str, Any]:
    """Return both statistics of several runs."""
    rounds, clients, _ = _TABLES[table]
    delta = clients**-1.1
    found: dict[str, Any] = {"epsilon": epsilon_gaussian(delta, math.sqrt(times) / noise)}
    for name, beta in _MOMENTA.items():
        found[name] = {"estimate": [], "published": []}
        for i in range(runs):
            rng = stream(SEED, "all-models", table, times, f"{noise:g}", name, i)
            inside, outside = (_largest(rounds, k, noise, beta, rng) for k in (times, 0))
            found[name]["estimate"].append(float(two_fits(inside[None], outside[None], delta)[0]))
            found[name]["published"].append(published(Scores.of(inside, outside, None), delta))
    return found


def _largest(
    rounds: int, times: int, noise: float, beta: float, rng: np.random.Generator
) -> Floats:
    """Return the largest cosine of each canary over rounds, in units of 1/√d.

    A canary plays in `times` rounds, one in each equal share of the run.
    """
    z = rng.standard_normal((_CANARIES, WARM + rounds))
    share = rounds // max(times, 1)
    for period in range(times):
        at = WARM + period * share + rng.integers(share, size=_CANARIES)
        z[np.arange(_CANARIES), at] += 1 / noise
    return np.asarray(smoothed(z, beta)[:, WARM:].max(axis=1))


def smoothed(z: Floats, beta: float) -> Floats:
    """Return what momentum makes of cosines with means, those of changes, (canaries, rounds)."""
    # Noise of past means adds up to 1/√(1 − β²) of one: the length of a change of the model.
    return np.asarray(lfilter([math.sqrt(1 - beta**2)], [1.0, -beta], z, axis=1))
