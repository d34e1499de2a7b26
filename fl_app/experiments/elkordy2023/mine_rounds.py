"""What the MINE audit finds after each round of a run, over its draws and its steps.

Elkordy et al. (2023), arXiv:2208.02304, section 4.1: MINE estimates the information in the sum
after every round, and footnote 1 says that the estimates hardly change over the rounds. Here each
run is one of the command line, masked, with the auditors `mine` and `mutual-information` on the
same draws. The paper does not say from how many samples K it estimates, nor with which optimiser,
so draws and steps are varied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from scipy.stats import linregress

from leakmeter.auditors.information import gaussian_information
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.experiments.base import Cells, Comparison, Table, audited_run
from leakmeter.fl_app.experiments.elkordy2023 import page
from leakmeter.fl_app.experiments.plot import Panel

_BY_CRITICS, _BY_DETERMINANTS = "mutual information by critics", "mutual information"
_WHOLE = "mutual information of all coordinates"


@dataclass(frozen=True)
class Scale:
    """The run, and what is varied.

    Attributes:
        config: Settings of the run; all users take part in every round.
        draws: Draws of all users that critics have in a round.
        steps: Steps that critics are trained for.
    """

    config: Config
    draws: tuple[int, ...]
    steps: tuple[int, ...]


_PAPER = Config(
    dataset="mnist",
    model="linear",
    clients=50,
    sample=5,
    rounds=10,
    algorithm="fedsgd",
    batch_size=32,
    lr=0.1,
    auditors="mutual-information,mine",
    lrt_game="independent",
    mi_rank=8,
    seed=2208,
)
_SMALL = replace(_PAPER, dataset="digits", clients=20, rounds=3, batch_size=8, mi_rank=2)
_SCALES = {
    "paper": Scale(_PAPER, (8, 32, 128), (20, 200, 1000)),
    "small": Scale(_SMALL, (8, 32), (5, 20)),
}
_NOTE = (
    "Bits that the sum of a round reveals about a client's update, given the model, along "
    "{rank} of {free:,} free directions, which were fixed on other draws. MINE: held-out value of "
    "four critics, mean over the rounds ± its standard error, and the smallest and largest round. "
    "Shuffled pairs: upper end of the 90 % band of that mean where there is nothing to find. "
    "Pairs: draws times users, which clients' independence allows to recombine. Log-det: the "
    "Gaussian figure from the same draws. Gaussian truth: (d*/2) log₂(N/(N - 1))."
)


def run(scale: str, cells: Cells) -> Table:
    """Run every number of draws and of steps."""
    what, config = _SCALES[scale], _SCALES[scale].config
    name = f"{config.dataset}-N{config.sample}-T{config.rounds}"
    found = {
        (k, steps): cells.get(f"{name}-K{k}-steps{steps}", partial(_audited, config, k, steps))
        for k, steps in product(what.draws, what.steps)
    }
    most = found[what.draws[-1], what.steps[-1]]
    rounds = range(1, config.rounds + 1)
    lines = [
        page.line(f"MINE, K = {k}, {steps} steps", rounds, one["mine"], color)
        for color, ((k, steps), one) in enumerate(found.items())
    ]
    lines.append(page.line(f"log-det, K = {what.draws[-1]}", rounds, most["logdet"], 9, "x-"))
    lines.append(page.line("Gaussian truth", rounds, [most["gaussian"]] * len(rounds), 7, "--"))
    return Table(
        title=f"What MINE finds after each round: {config.dataset}, {config.model} model, "
        f"{config.sample} users",
        columns=(
            *(
                "draws K",
                "pairs",
                "directions",
                "steps",
                "MINE",
                "smallest",
                "largest",
                "shuffled pairs",
            ),
            *("log₂ pairs", "log-det", "Gaussian truth"),
        ),
        rows=tuple(_row(k, steps, one) for (k, steps), one in found.items()),
        notes=(_NOTE.format(rank=config.mi_rank, free=most["free"]),),
        figures={
            "mine-rounds.svg": (
                Panel(
                    "After each round",
                    "round",
                    f"bits along {config.mi_rank} of {most['free']:,} directions",
                    tuple(lines),
                ),
            )
        },
        comparisons=_comparisons(what, found) if scale == "paper" else (),
    )


def _audited(config: Config, draws: int, steps: int) -> dict[str, Any]:
    """Return what both auditors find in the rounds of a run, in bits."""
    varied = replace(config, mi_draws=draws, mine_draws=draws, mine_steps=steps)
    by = {(one.quantity, one.server_round): one for one in audited_run(varied)[0].findings}
    rounds = range(1, config.rounds + 1)
    whole, last = by[_BY_CRITICS, None], by[_BY_CRITICS, config.rounds]
    assert whole.null_band is not None
    assert last.cap is not None
    return {
        "mine": [by[_BY_CRITICS, t].value for t in rounds],
        "logdet": [by[_BY_DETERMINANTS, t].value for t in rounds],
        "mean": whole.value,
        "error": whole.facts["std_error_bits"],
        "null": whole.null_band[1],
        "pairs": last.sample_sizes["pairs"],
        "cap": last.cap,
        "gaussian": gaussian_information(int(str(last.facts["rank"])), config.sample).bits,
        "free": by[_WHOLE, 1].facts["rank"],
    }


def _row(draws: int, steps: int, found: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        draws,
        found["pairs"],
        # Few draws allow fewer directions than were asked for.
        round(found["gaussian"] / gaussian_information(1, found["pairs"] // draws).bits),
        steps,
        f"{found['mean']:.2f} ± {found['error']:.2f}",
        *(f"{show(found['mine']):.2f}" for show in (min, max)),
        *(f"{value:.2f}" for value in (found["null"], found["cap"])),
        f"{np.mean(found['logdet']):.2f}",
        f"{found['gaussian']:.2f}",
    )


def _comparisons(
    what: Scale, found: Mapping[tuple[int, int], Mapping[str, Any]]
) -> tuple[Comparison, ...]:
    most = found[what.draws[-1], what.steps[-1]]
    means = ", ".join(
        f"{f['mean']:.2f} ± {f['error']:.2f} (K = {d}, {s:,} steps)" for (d, s), f in found.items()
    )
    users = f"N = {what.config.sample}, FedSGD, linear model on MNIST"
    logdet = most["logdet"]
    return (
        Comparison(
            f"{page.SOURCE}section 4.1",
            f"estimates after each of {what.config.rounds} rounds, {users}",
            "do not change significantly across training rounds (footnote 1)",
            f"K = {what.draws[-1]}, {what.steps[-1]:,} steps: {min(most['mine']):.2f} to "
            f"{max(most['mine']):.2f} bits; log-det on the same draws {min(logdet):.2f} to "
            f"{max(logdet):.2f}",
            f"{_trend(most['mine'])}; along {what.config.mi_rank} of {most['free']:,} free "
            "directions, on draws that no critic was trained on",
        ),
        Comparison(
            f"{page.SOURCE}section 4.1",
            f"mean over the rounds, over K and the steps, {users}",
            "1,000 steps; K and the optimiser are not stated",
            f"{means} bits, where the Gaussian truth is {most['gaussian']:.2f} "
            f"({found[what.draws[0], what.steps[0]]['gaussian']:.2f} for K = {what.draws[0]}, "
            "whose draws allow fewer directions)",
            "held-out values are at most the information on average, and more draws bring them "
            "nearer. More steps do not: critics of 8 draws learn them by heart, and a round can "
            "come out far below zero",
        ),
    )


def _trend(values: Sequence[float]) -> str:
    """Say whether a straight line through the rounds rises or falls."""
    fit = linregress(range(len(values)), values)
    words = f"slope {fit.slope:+.3f} ± {fit.stderr:.3f} bits per round"
    return f"{words}, so {'a trend' if fit.pvalue < 0.05 else 'no trend'} is shown"
