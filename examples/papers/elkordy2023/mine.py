"""What the paper's neural estimator finds: where the truth is known, and in the rounds of a run.

Elkordy et al. (2023), arXiv:2208.02304, section 4.1 and Appendix D: MINE, on updates of 7,850 to
89,610 coordinates.

- dimension: updates of N clients with independent standard Gaussian coordinates reveal
  (d/2) log₂(N/(N - 1)) bits about one of them. No estimate without assumptions on the distribution
  can certify more than about log₂ K (McAllester and Stratos 2020, arXiv:1811.04251).
- rounds: footnote 1 says that estimates hardly change over the rounds. Each run is one of the
  command line, masked, with the auditors `mine` and `mutual-information` on the same draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from scipy.stats import linregress

from leakmeter.auditors.information.theory import (
    NATS_PER_BIT,
    gaussian_information,
    logdet_information,
)
from leakmeter.auditors.rng import stream
from leakmeter.fl_app.config.config import Config
from leakmeter.papers.base import Cells, Comparison, audited_run
from leakmeter.papers.elkordy2023 import page
from leakmeter.papers.elkordy2023.measure import FEDERATION, SEED, Found, Point, in_bits
from leakmeter.papers.elkordy2023.mine_estimator.estimator import estimate
from leakmeter.papers.elkordy2023.mine_estimator.training import Training
from leakmeter.papers.elkordy2023.page import Kind, Points, Sweep
from leakmeter.papers.plot import Line, Panel

_MI = "mutual information"  # the quantity of a finding
_BY_CRITICS, _WHOLE = f"{_MI} by critics", f"{_MI} of all coordinates"
_USERS = 2
_DIMENSION = Sweep(
    FEDERATION,
    ({"d": (1, 10, 100, 1000, 7850)},),
    {"pairs": 1000, "critics": 3, "steps": 1000, "most": 200},
)
_ROUNDS = Sweep(
    replace(FEDERATION, rounds=10, auditors="mutual-information,mine", mi_rank=8),
    ({"mine_draws": (8, 32, 128), "mine_steps": (20, 200, 1000)},),
)
_DIGITS = replace(_ROUNDS.config, dataset="digits", clients=20, rounds=3, batch_size=8, mi_rank=2)
_FEW_ROUNDS = _ROUNDS.small(_DIGITS, mine_draws=(8, 32), mine_steps=(5, 20))
_LOW = _DIMENSION.small(FEDERATION, d=(1, 200), pairs=150, critics=2, steps=120, most=40)
_SCALES = {
    "dimension": {"paper": _DIMENSION, "small": _LOW},
    "rounds": {"paper": _ROUNDS, "small": _FEW_ROUNDS},
}


def _of_gaussians(cells: Cells, at: Point) -> Found:
    key = f"d{at['d']}-{at['pairs']}x{at['critics']}x{at['steps']}-rank{at['most']}"
    return dict(cells.get(key, _estimated, at)) | {"log_draws": math.log2(at["pairs"])}


def _estimated(at: Point) -> Found:
    """Return truth and findings of one dimension, in bits."""
    dim, count = at["d"], at["critics"]
    x, others = stream(SEED, "mine-dimension", dim).standard_normal((2, at["pairs"], dim))
    y = math.sqrt(_USERS - 1) * others
    training = Training(steps=at["steps"])
    neural = estimate(x, x + y, seed=SEED, training=training, seeds=count, nulls=count)
    rank = min(dim, at["most"])
    fixed = logdet_information((x + y)[:, :rank], y[:, :rank])
    return {
        "truth": gaussian_information(dim, _USERS).bits,
        **in_bits(neural),
        "rank": rank,
        "truth_there": gaussian_information(rank, _USERS).bits,
        "bits": fixed.bits,
        "error": (fixed.std_error or 0.0) / NATS_PER_BIT,
    }


def _audited(cells: Cells, at: Point) -> Found:
    config, draws = at.config, at["mine_draws"]
    key = f"{config.dataset}-N{config.sample}-T{config.rounds}-K{draws}-steps{config.mine_steps}"
    return dict(cells.get(key, _both, replace(config, mi_draws=draws)))


def _both(config: Config) -> Found:
    """Return what both auditors find in the rounds of a run, in bits."""
    by = {(one.quantity, one.server_round): one for one in audited_run(config)[0].findings}
    rounds = range(1, config.rounds + 1)
    whole, last = by[_BY_CRITICS, None], by[_BY_CRITICS, config.rounds]
    assert whole.null_band is not None
    assert last.cap is not None
    return {
        "mine": [by[_BY_CRITICS, t].value for t in rounds],
        "logdet": [by[_MI, t].value for t in rounds],
        "mean": whole.value,
        "error": whole.facts["std_error_bits"],
        "null": whole.null_band[1],
        "pairs": last.sample_sizes["pairs"],
        "cap": last.cap,
        "gaussian": gaussian_information(int(str(last.facts["rank"])), config.sample).bits,
        "free": by[_WHOLE, 1].facts["rank"],
    }


def _draw_dimension(points: Points) -> Iterator[Panel]:
    shown = {
        "truth": ("truth", "o-"),
        "MINE, training pairs": ("trained", "s--"),
        "MINE, shuffled pairs": ("shuffled", "x:"),
        "log₂ K": ("log_draws", "-."),
    }
    dims = [at["d"] for at in points]
    lines = tuple(
        # A logarithmic axis has no place for what is found to be nothing.
        Line(label, dims, [max(at[name], 1e-2) for at in points], color, style)
        for color, (label, (name, style)) in enumerate(shown.items())
    )
    yield Panel("Found and true", "coordinates d", "bits", lines, True, True)


def _draw_rounds(points: Points) -> Iterator[Panel]:
    most = points[-1]
    rounds = range(1, most.config.rounds + 1)
    lines = (
        *(Line(f"MINE, {_which(at)}", rounds, at["mine"], i, "o-") for i, at in enumerate(points)),
        Line(f"log-det, K = {most['mine_draws']}", rounds, most["logdet"], 9, "x-"),
        Line("Gaussian truth", rounds, [most["gaussian"]] * len(rounds), 7, "--"),
    )
    bits = f"bits along {most['mi_rank']} of {most['free']:,} directions"
    yield Panel("After each round", "round", bits, lines)


def _which(at: Point) -> str:
    return f"K = {at['mine_draws']}, {at['mine_steps']:,} steps"


def _mean(at: Point) -> str:
    return f"{at['mean']:.2f} ± {at['error']:.2f}"


def _compare_dimension(points: Points) -> Iterator[Comparison]:
    last = points[-1]
    yield Comparison(
        f"{page.SOURCE}Appendix D",
        f"a MINE of the paper's size, updates of d = {last['d']:,} coordinates, two Gaussian "
        f"users, {last['pairs']:,} pairs",
        "the state-of-the-art method to estimate mutual information, behind Fig. 3 to 16",
        f"finds {page.number(last['trained'])} bits on its training pairs, "
        f"{page.number(last['shuffled'])} on shuffled ones and {last['held_out']:.2f} held out, "
        f"where the truth is {page.number(last['truth'])} bits "
        f"({last['truth'] * NATS_PER_BIT:,.0f} nats)",
        "It memorises its training pairs, with information or without. No distribution-free "
        f"estimate can show more than about log₂ K = {last['log_draws']:.1f} bits",
    )


def _compare_rounds(points: Points) -> Iterator[Comparison]:
    first, most = points[0], points[-1]
    users = f"N = {most.config.sample}, FedSGD, linear model on MNIST"
    mine, logdet = (
        f"{min(most[name]):.2f} to {max(most[name]):.2f}" for name in ("mine", "logdet")
    )
    yield Comparison(
        f"{page.SOURCE}section 4.1",
        f"estimates after each of {most.config.rounds} rounds, {users}",
        "do not change significantly across training rounds (footnote 1)",
        f"{_which(most)}: {mine} bits; log-det on the same draws {logdet}",
        f"{_trend(most['mine'])}; along {most.config.mi_rank} of {most['free']:,} free directions, "
        "on draws that no critic was trained on",
    )
    yield Comparison(
        f"{page.SOURCE}section 4.1",
        f"mean over the rounds, over K and the steps, {users}",
        "1,000 steps; K and the optimiser are not stated",
        f"{page.joined(points, lambda at: f'{_mean(at)} ({_which(at)})')} bits, where the Gaussian "
        f"truth is {most['gaussian']:.2f} ({first['gaussian']:.2f} for K = {first['mine_draws']}, "
        "whose draws allow fewer directions)",
        "Held-out values are at most the information on average. More draws bring them nearer; "
        "more steps do not. Validation pairs choose the step, so from 32 draws on 200 and 1,000 "
        "steps give the same values. Critics memorise 8 draws, and one round can be far below zero",
    )


def _trend(values: Sequence[float]) -> str:
    """Say whether a straight line through the rounds rises or falls."""
    fit = linregress(range(len(values)), values)
    words = f"slope {fit.slope:+.3f} ± {fit.stderr:.3f} bits per round"
    return f"{words}, so {'a trend' if fit.pvalue < 0.05 else 'no trend'} is shown"


def _directions(at: Point) -> int:
    # Few draws allow fewer directions than were asked for.
    each = gaussian_information(1, at["pairs"] // at["mine_draws"]).bits
    return round(float(at["gaussian"]) / each)


def _short(name: str, of: Callable[[Any], Any] = float) -> page.Show:
    return lambda at: f"{of(at[name]):.2f}"


_KINDS = {
    "dimension": Kind(
        title="Two Gaussian updates in a sum: what is found from {first[pairs]:,} pairs",
        measure=_of_gaussians,
        columns=page.columns("d", "truth", "MINE trained", "MINE shuffled", "MINE held out")
        | page.columns("log₂ K", "log-det coordinates", "truth there", "log-det"),
        draw=_draw_dimension,
        compare=_compare_dimension,
        notes=(
            f"Bits that the sum of two Gaussian updates reveals about one. {page.MINE} Log-det: "
            "½ log₂|Σ(z)| - ½ log₂|Σ(y)| along the first coordinates, as many as stated, which is "
            "unbiased for Gaussians and an approximation otherwise.",
        ),
    ),
    "rounds": Kind(
        title="What MINE finds after each round: {first[dataset]}, {first[model]} "
        "model, {first[sample]} users",
        measure=_audited,
        columns={
            "draws K": itemgetter("mine_draws"),
            "pairs": itemgetter("pairs"),
            "directions": _directions,
            "steps": itemgetter("mine_steps"),
            "MINE": _mean,
            "smallest": _short("mine", min),
            "largest": _short("mine", max),
            "shuffled pairs": _short("null"),
            "log₂ pairs": _short("cap"),
            "log-det": _short("logdet", np.mean),
            "Gaussian truth": _short("gaussian"),
        },
        figure="mine-rounds",
        draw=_draw_rounds,
        compare=_compare_rounds,
        notes=(
            "Bits that the sum of a round reveals about a client's update, given the model, along "
            "{first[mi_rank]} of {first[free]:,} free directions, which were fixed on other "
            "draws. MINE: held-out value of four critics, each at the step that validation pairs "
            "choose, mean over the rounds ± its standard error, smallest and largest round. The "
            "paper's own figure, on training pairs, is in mi-users. Shuffled pairs: upper end of "
            "the 90 % band of that mean where there is nothing to find. Pairs: draws times users, "
            "recombined, since clients are independent. Log-det: the Gaussian figure from the same "
            "draws. Gaussian truth: (d*/2) log₂(N/(N - 1)).",
        ),
    ),
}
run = partial(page.tabled, _KINDS, _SCALES)
