"""Canaries that play in several rounds: figures, and what is compared with the paper's.

Andrew et al. (2024), arXiv:2302.03098, Fig. 1 to 3 and Table 4: densities, estimates and lower
bounds from the cosines of canaries with the change of the model over the whole run, and whether
these cosines are normal. `writers` plays the runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from leakmeter.auditors.gaussian.pair import gaussian_sigma
from leakmeter.fl_app.experiments.andrew2024.audit import Runs, middle
from leakmeter.fl_app.experiments.andrew2024.federation import DELTA
from leakmeter.fl_app.experiments.base import Comparison
from leakmeter.fl_app.experiments.plot import Line, Panel

Got: TypeAlias = Mapping[tuple[str, float, int], Runs]  # by federation, noise and repetitions
Figures: TypeAlias = dict[str, tuple[Panel, ...]]

# Noise multipliers to the ε of one participation, those of Table 2, Fig. 1 and Fig. 2.
ONCE: Final = {0.0: math.inf, **{gaussian_sigma(e, DELTA): e for e in (300.0, 100.0, 30.0)}}
_SOURCE = "Andrew et al. 2024"
_LEVEL = 0.15  # at which the paper counts rejections of normality
# Table 4: statistics for noise 0, 0.1023 and 0.2344 and 1, 2, 3, 5 and 10 repetitions.
_TABLE4 = (
    (0.464, 0.590, 0.396, 0.407, 0.196),
    (0.976, 0.422, 0.340, 0.432, 0.116),
    (0.326, 0.157, 0.347, 0.951, 0.401),
)
_CRITICAL = 0.574  # of the statistic at that level
_GRID = np.linspace(-4.0, 16.0, 101)  # where densities are drawn, in units of 1/√d


def density(z: NDArray[np.float64]) -> list[float]:
    """Return a kernel density on the grid; the width is Silverman's."""
    width = 1.06 * float(z.std()) * z.size**-0.2
    kernel = np.exp(-(((_GRID[:, None] - z) / width) ** 2) / 2).mean(axis=1)
    return [round(float(v), 5) for v in kernel / (width * math.sqrt(2 * math.pi))]


def figures(got: Got) -> Figures:
    """Return one panel for each noise, as in Fig. 1 and in Fig. 2."""
    return {"densities.svg": _densities(got), "estimates.svg": _bars(got)}


def comparisons(got: Got) -> list[Comparison]:
    """Say how estimates grow with repetitions, and whether cosines are normal."""
    return [*_growth(got), _normality(got), _published_chance()]


def _by_noise(got: Got) -> dict[float, dict[int, Runs]]:
    """Return the runs by noise and repetitions."""
    noises = dict.fromkeys(z for _, z, _ in got)
    return {z: {times: runs for (_, own, times), runs in got.items() if own == z} for z in noises}


def _densities(got: Got) -> tuple[Panel, ...]:
    """Return one panel for each noise, as Fig. 1: densities of cosines and of their null."""
    null = (np.exp(-(_GRID**2) / 2) / math.sqrt(2 * math.pi)).tolist()
    grid = _GRID.tolist()
    panels = []
    for z, here in _by_noise(got).items():
        lines = [
            Line(f"{times} repetitions", grid, runs[0]["density"], i)
            for i, (times, runs) in enumerate(here.items())
        ]
        lines.append(Line("nobody sent them", grid, null, 7, ":"))
        title = f"ε = {ONCE[z]:g} of one participation"
        panels.append(Panel(title, "cosine in units of 1/√d", "density", tuple(lines)))
    return tuple(panels)


def _bars(got: Got) -> tuple[Panel, ...]:
    """Return one panel for each noise, as Fig. 2: estimates and bounds over repetitions."""
    kinds = (
        ("known", "estimate, known std", 0, "-"),
        ("bound", "ε ≥ if independent", 3, "--"),
        ("published", "published ε_lo", 1, ":"),
    )
    panels = []
    for z, here in _by_noise(got).items():
        lines = tuple(
            Line(words, list(here), [middle(r, "final", what) for r in here.values()], i, style)
            for what, words, i, style in kinds
        )
        title = f"ε = {ONCE[z]:g} of one participation"
        panels.append(Panel(title, "repetitions", "ε of the final model", lines))
    return tuple(panels)


def _growth(got: Got) -> list[Comparison]:
    """Say how estimates grow with repetitions."""
    found = []
    for z, here in _by_noise(got).items():
        known = {times: middle(runs, "final", "known") for times, runs in here.items()}
        shown = ", ".join(f"{times}: {value:.2f}" for times, value in known.items())
        is_rising = all(a < b for a, b in pairwise(known.values()))
        found.append(
            Comparison(
                source=f"{_SOURCE}, Fig. 1 to 3",
                what=f"ε̂ of the final model over repetitions, noise of ε = {ONCE[z]:g}",
                paper="increases sharply with the number of repetitions (bars without figures)",
                ours=f"{'rises' if is_rising else 'does not rise'} with every step ({shown})",
                why="Another task, and one run of each row; Fig. 3 has noise multipliers from 0.16 "
                "to 0.195.",
            )
        )
    return found


def _normality(got: Got) -> Comparison:
    """Say how often normality is rejected, and whether that is more often than by chance."""
    ps = [one["final"]["p"] for runs in got.values() for one in runs]
    rejected = sum(p < _LEVEL for p in ps)
    chance = float(binom.sf(rejected - 1, len(ps), _LEVEL))
    return Comparison(
        source=f"{_SOURCE}, Table 4",
        what=f"sets of cosines whose normality is rejected at {_LEVEL:.0%}",
        paper=f"{sum(v > _CRITICAL for row in _TABLE4 for v in row)} of 15",
        ours=f"{rejected} of {len(ps)}; as many or more by chance: {chance:.0%}",
    )


def _published_chance() -> Comparison:
    """Check the chance that the caption of Table 4 states."""
    three, two = (float(binom.sf(n - 1, 15, _LEVEL)) for n in (3, 2))
    return Comparison(
        source=f"{_SOURCE}, Table 4",
        what="chance that three or more of 15 normal sets exceed the statistic of 15 %",
        paper="68 %",
        ours=f"{three:.0%}",
        why=f"68 % is the chance of two or more ({two:.0%}); the conclusion is the same.",
    )
