"""What final and intermediate models of DP-FedAvg on MNIST by writer show of random canaries.

Andrew et al. (2024), arXiv:2302.03098, with MNIST's writers in place of Stackoverflow's authors and
EMNIST's writers. The variant `tables` is Tables 2 and 5; `repetitions` is Fig. 1 to 3 and Table 4,
canaries that play in several rounds. In both all canaries play, as in the paper, and as many
unobserved ones stand for those who did not. `coins` is what a run of this project does by itself: a
coin for each canary, secure sums, each client once. Ours differs:
1. Noise is set by the ε that it guarantees to somebody who takes part as often as a canary does,
   against whoever knows in which rounds: no amplification is claimed.
2. Beside the published ε_lo, which carries no confidence, stand bounds that do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from typing import Any, Final, TypeAlias

import numpy as np
from scipy.stats import binom

from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.values import Floats
from leakmeter.fl_app.config.config import Config
from leakmeter.papers.andrew2024 import audit
from leakmeter.papers.andrew2024.audit import DELTA, DIGITS, WRITERS, Runs, middle
from leakmeter.papers.base import Cells, Comparison, Table, median_range
from leakmeter.papers.gaussian import delta_gaussian, gaussian_sigma
from leakmeter.papers.plot import Line, Panel

Got: TypeAlias = Mapping[tuple[str, float, int], Runs]  # by federation, noise and repetitions

_SOURCE = "Andrew et al. 2024"
# Analytical ε to ε_lo and ε_est of all models, ε_lo and ε_est of the final one.
TABLE2: Final = {
    math.inf: (6.240, 45800, 2.88, 4.60),
    300.0: (6.238, 382.0, 1.11, 1.97),
    100.0: (5.05, 89.4, 0.688, 1.18),
    30.0: (0.407, 2.693, 0.311, 0.569),
}
# Noise multiplier to the same four, and to the printed analytical ε.
TABLE5: Final = {
    0.0: (6.25, 48300, 3.86, 5.72),
    0.16: (2.87, 17.9, 1.01, 1.20),
    0.18: (2.32, 12.0, 0.788, 1.15),
    0.195: (2.02, 8.88, 0.723, 1.08),
    0.25: (0.896, 3.86, 0.550, 0.818),
    0.315: (0.315, 1.50, 0.216, 0.737),
}
_PRINTED = {0.16: 33.8, 0.18: 28.1, 0.195: 24.8, 0.25: 16.9, 0.315: 12.0}
# Table 4 has 15 statistics; 0.590, 0.976 and 0.951 exceed 0.574, the critical one at this level.
_LEVEL, _REJECTED = 0.15, "3 of 15"
_GRID = np.linspace(-4.0, 16.0, 101)  # where densities are drawn, in units of 1/√d
# Noise multipliers to the ε of one participation, those of Table 2, Fig. 1 and Fig. 2.
_ONCE = {0.0: math.inf, **{gaussian_sigma(e, DELTA): e for e in (300.0, 100.0, 30.0)}}
_NOISES = tuple(_ONCE)


@dataclass(frozen=True)
class _Part:
    """A federation at several noises."""

    federation: Config  # without canaries, unless it has seats already
    noises: tuple[float, ...]  # multipliers
    runs: int  # of each noise
    canaries: int  # how many play, all of them; 0 for those of the federation, by coins
    repetitions: tuple[int, ...] = (1,)  # in how many rounds each canary plays


# Clients and canaries take part once, behind secure sums.
_once = partial(replace, participation="once", secagg="on", auditors="one-shot")
_COINS = _once(WRITERS, sample=29, canary_seats=20, rounds=11)
_COINS_DIGITS = _once(DIGITS, model="linear", clients=140, sample=7, canary_seats=7, rounds=10)
_SMOOTH = replace(WRITERS, server_momentum=0.9, server_lr=0.1)  # all steps add up to the same
_SMOOTHED = "1 epoch, momentum 0.9, d = 7,850"
_LONG, _LONG_DIGITS = (replace(c, rounds=5 * c.rounds) for c in (WRITERS, DIGITS))
_SHORT = replace(WRITERS, rounds=24)  # about half of the writers
_SCALES = {
    "coins": {
        "paper": {"coins, d = 7,850": _Part(_COINS, (0.0, 0.5, 2.0), 1, 0)},
        "small": {"coins, d = 650": _Part(_COINS_DIGITS, (0.0, 0.5, 2.0), 1, 0)},
    },
    "tables": {
        "paper": {
            "1 epoch, d = 7,850": _Part(WRITERS, _NOISES, 5, 1000),
            _SMOOTHED: _Part(_SMOOTH, _NOISES, 2, 1000),
            "1 epoch, d = 89,610": _Part(replace(WRITERS, model="mlp"), _NOISES, 1, 1000),
            "5 epochs, d = 7,850": _Part(_LONG, (0.0, 0.16, 0.315), 1, 400, (5,)),
        },
        "small": {
            "1 epoch, d = 17,610": _Part(DIGITS, _NOISES, 1, 200),
            "5 epochs, d = 17,610": _Part(_LONG_DIGITS, (0.0, 0.16, 0.315), 1, 200, (5,)),
        },
    },
    "repetitions": {
        "paper": {"d = 7,850": _Part(_SHORT, _NOISES, 1, 100, (1, 2, 4, 8))},
        "small": {"d = 17,610": _Part(DIGITS, _NOISES, 1, 60, (1, 2, 8))},
    },
}
_TITLES = {
    "coins": "DP-FedAvg with a coin for each canary and secure sums",
    "tables": "What final and intermediate models show of canaries",
    "repetitions": "Canaries that play several times",
}
_COLUMNS = (
    *("federation", "noise multiplier", "participations", "accuracy", "accountant's ε"),
    *("all models: ε ≥", "ε ≥ if independent", "published ε_lo", "estimate", "no leak"),
    *("final model: ε ≥", "ε ≥ if independent", "published ε_lo"),
    *("estimate, known std", "as printed", "no leak", "Anderson-Darling"),
    "ε ≥ above the accountant's",
)
_NOTES = (
    audit.COLUMNS_NOTE,
    "Unit: one client added or removed (with coins: its update set to zero), who takes part as "
    "often as a canary. The final model is seen with the first. Scores are capped at 88.7, the "
    "most that seeds of 128 bits can mean. No leak is of the estimate as printed for all models, "
    "and of that with the known std for the final one. Published ε_lo of all models counts "
    "unobserved canaries, which limits it; that of the final model has a known null, which does "
    "not, though the paper states 6.24 as its most. Anderson-Darling: statistic for normality of "
    "the cosines, mean and std fitted.",
    "δ is 1e-5, the paper's is m^-1.1: 8e-7 in Table 2, 1.3e-4 in Table 5. Canaries are compared "
    "with the mean of a round, as Algorithm 3 is printed, where the paper's server has a momentum "
    "of 0.9 (rows with momentum; one-shot-all-models). Where all canaries play, honest clients go "
    "through shuffled epochs and give up their seats to canaries at random, so that each of them "
    "trains about once an epoch, not exactly once.",
)


def run(scale: str, cells: Cells, variant: str) -> Table:
    """Play every federation at every noise, with every number of repetitions."""
    got: dict[tuple[str, float, int], Runs] = {}
    for name, part in _SCALES[variant][scale].items():
        for z, times in product(part.noises, part.repetitions):
            key = f"{name}, noise {z:.4g}, {times} times"
            got[name, z, times] = [
                cells.get(f"{key}, run {i}", _cell, part, z, times, key, i)
                for i in range(part.runs)
            ]
    task = "MNIST by writer" if scale == "paper" else "digits"
    is_repeated = variant == "repetitions"
    comparisons = [_growth(got), _normality(got)] if is_repeated else _with_tables(got)
    if variant == "tables":
        comparisons.append(_printed_epsilons())
    return Table(
        title=f"{_TITLES[variant]}, {task}, δ = 1e-5",
        columns=_COLUMNS,
        rows=[_row(*key, runs) for key, runs in got.items()],
        notes=_NOTES,
        figures=_over_repetitions(got) if is_repeated else _over_epsilon(got),
        comparisons=comparisons,
    )


def _cell(part: _Part, noise: float, times: int, key: str, number: int) -> dict[str, Any]:
    config = audit.seeded(part.federation, noise, key, number)
    if part.canaries:
        config = audit.with_canaries(config, part.canaries, times)
    played = audit.play(config, "all" if part.canaries else "coin")
    return {
        "accuracy": played.accuracy,
        "epsilon": audit.guaranteed(played, config),
        "all": audit.all_models(played),
        "final": audit.final_model(played),
        "density": _density(math.sqrt(played.dim) * played.scores["final model"].included),
    }


def _density(z: Floats) -> list[float]:
    """Return a kernel density on the grid; the width is Silverman's."""
    width = 1.06 * float(z.std()) * z.size**-0.2
    kernel = np.exp(-(((_GRID[:, None] - z) / width) ** 2) / 2).mean(axis=1)
    return [round(float(v), 5) for v in kernel / (width * math.sqrt(2 * math.pi))]


def _row(name: str, noise: float, times: int, runs: Runs) -> tuple[Any, ...]:
    accuracy = median_range([one["accuracy"] for one in runs], ".3f")
    return (
        *(name, f"{noise:.4g}", times, accuracy, f"{float(runs[0]['epsilon']):.1f}"),
        *audit.shown_view(runs, "all", "fitted"),
        *audit.shown_view(runs, "final", "known", "fitted"),
        audit.shown(runs, "final", "statistic", ".3f"),
        audit.above(runs, "all", "final"),
    )


def _over_epsilon(got: Got) -> dict[str, list[Panel]]:
    """Return estimates and bounds over the accountant's ε, where there is one."""
    panels = []
    for name in dict.fromkeys(key[0] for key in got):
        noised = [runs for (part, z, _), runs in got.items() if part == name and z]
        epsilons = [float(runs[0]["epsilon"]) for runs in noised]
        lines = [
            Line(f"{words}, {kind}", epsilons, [middle(r, view, what) for r in noised], i, style)
            for i, (view, words, estimate) in enumerate(
                [("all", "all models", "fitted"), ("final", "final model", "known")]
            )
            for kind, what, style in (("estimate", estimate, "-"), ("at least", "bound", "--"))
        ]
        lines.append(Line("accountant's ε", epsilons, epsilons, 7, ":"))
        panels.append(Panel(name, "accountant's ε", "ε", lines, log_x=True, log_y=True))
    return {"estimates.svg": panels}


def _by_noise(got: Got) -> dict[float, dict[int, Runs]]:
    """Return the runs by noise and repetitions."""
    noises = dict.fromkeys(z for _, z, _ in got)
    return {z: {times: runs for (_, own, times), runs in got.items() if own == z} for z in noises}


def _over_repetitions(got: Got) -> dict[str, list[Panel]]:
    """Return a panel for each noise: densities of cosines as Fig. 1, estimates as Fig. 2."""
    grid, null = _GRID.tolist(), (np.exp(-(_GRID**2) / 2) / math.sqrt(2 * math.pi)).tolist()
    kinds = (
        ("known", "estimate, known std", 0, "-"),
        ("bound", "ε ≥ if independent", 3, "--"),
        ("published", "published ε_lo", 1, ":"),
    )
    densities, estimates = [], []
    for z, here in _by_noise(got).items():
        title = f"ε = {_ONCE[z]:g} of one participation"
        curves = [
            Line(f"{times} repetitions", grid, runs[0]["density"], i)
            for i, (times, runs) in enumerate(here.items())
        ]
        curves.append(Line("nobody sent them", grid, null, 7, ":"))
        densities.append(Panel(title, "cosine in units of 1/√d", "density", curves))
        lines = [
            Line(words, list(here), [middle(r, "final", what) for r in here.values()], i, style)
            for what, words, i, style in kinds
        ]
        estimates.append(Panel(title, "repetitions", "ε of the final model", lines))
    return {"densities.svg": densities, "estimates.svg": estimates}


def _with_tables(got: Got) -> list[Comparison]:
    """Return the paper's rows beside ours at the same analytical ε, or the same noise."""
    places = (("all", "published"), ("all", "fitted"), ("final", "published"), ("final", "fitted"))
    found = []
    for (name, z, times), runs in got.items():
        if times == 1 and z not in _ONCE:
            continue  # noise that the paper has no row of
        source, at, paper = (
            ("Table 2", f"analytical ε = {_ONCE[z]:g}", TABLE2[_ONCE[z]])
            if times == 1
            else ("Table 5", f"noise multiplier {z:g}", TABLE5[z])
        )
        ours = [audit.shown(runs, *place) for place in places]
        found.append(
            Comparison(
                source=f"{_SOURCE}, {source}",
                what=f"{name}, {at}: ε_lo and ε_est of all models; ε_lo and ε_est of the final one",
                paper=f"{paper[0]:g} and {paper[1]:g}; {paper[2]:g} and {paper[3]:g}",
                ours=f"{ours[0]} and {ours[1]}; {ours[2]} and {ours[3]}",
                why=_why(name, z, runs, paper),
            )
        )
    return found


def _why(name: str, noise: float, runs: Runs, paper: Sequence[float]) -> str:
    every, last = (middle(runs, view, "fitted") for view in ("all", "final"))
    momentum = "" if name == _SMOOTHED else ", and no momentum"
    words = (
        f"Another task, d and number of clients{momentum}. All models give {every / last:.0f} "
        f"times the estimate of the final one, the paper's {paper[1] / paper[3]:.0f} times. "
    )
    if not noise:
        return f"{words}Without noise ε_est of all models grows with d; the paper's is in millions."
    return f"{words}They give {every / paper[1]:.1f} times the paper's estimate."


def _printed_epsilons() -> Comparison:
    """Say what Table 5's analytical ε is the ε of."""
    stated = 3383**-1.1
    deltas = [float(delta_gaussian(e, 1 / z)) for z, e in _PRINTED.items()]
    least, most = (float(epsilon_gaussian(stated, math.sqrt(times) / 0.16)) for times in (1, 5))
    return Comparison(
        source=f"{_SOURCE}, Table 5",
        what="analytical ε at noise multiplier 0.16, five epochs, δ = m^-1.1",
        paper="33.8",
        ours=f"{most:.1f} for five participations, {least:.1f} for one, at δ = {stated:.2g}",
        why="The printed column fits one participation, without sampling, at a δ of "
        f"{min(deltas):.4f} to {max(deltas):.4f} in all five rows. But each writer takes part five "
        "times, and the paper states δ = m^-1.1.",
    )


def _growth(got: Got) -> Comparison:
    """Say how estimates grow with repetitions."""
    known = {
        z: [middle(runs, "final", "known") for runs in here.values()]
        for z, here in _by_noise(got).items()
    }
    rising = sum(all(a < b for a, b in pairwise(values)) for values in known.values())
    shown = (
        f"{', '.join(f'{value:.2f}' for value in values)} with noise of ε = {_ONCE[z]:g}"
        for z, values in known.items()
    )
    return Comparison(
        source=f"{_SOURCE}, Fig. 1 to 3",
        what="ε̂ of the final model over "
        f"{', '.join(str(times) for times in dict.fromkeys(key[2] for key in got))} repetitions",
        paper="increases sharply with the number of repetitions (bars without figures)",
        ours=f"rises with every step at {rising} of {len(known)} noises: {'; '.join(shown)}",
        why="Another task, and one run of each row; the estimate with known std. Fig. 3 has noise "
        "multipliers from 0.16 to 0.195.",
    )


def _normality(got: Got) -> Comparison:
    """Say how often normality is rejected, and check the chance that Table 4's caption states."""
    ps = [one["final"]["p"] for runs in got.values() for one in runs]
    rejected = sum(p < _LEVEL for p in ps)
    chance, three, two = (
        float(binom.sf(n - 1, of, _LEVEL)) for n, of in ((rejected, len(ps)), (3, 15), (2, 15))
    )
    return Comparison(
        source=f"{_SOURCE}, Table 4",
        what=f"sets of cosines whose normality is rejected at {_LEVEL:.0%}; chance of as many "
        "rejections or more if all are normal",
        paper=f"{_REJECTED}; 68 %",
        ours=f"{rejected} of {len(ps)}; {chance:.0%}",
        why=f"Of 15 normal sets three or more are rejected with a chance of {three:.0%}, two or "
        f"more with {two:.0%}: the paper's 68 % is the latter. The conclusion is the same.",
    )
