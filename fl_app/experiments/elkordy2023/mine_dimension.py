"""What the neural estimator finds in Gaussian updates, whose information is known.

Elkordy et al. (2023), arXiv:2208.02304, section 4.1 and Appendix D: MINE, two hidden layers of 100,
1,000 steps, read off as (38); it is used there on updates of 7,850 to 89,610 coordinates. The paper
states neither from how many pairs nor with which optimiser; here it is Adam.
Updates of N clients with independent standard Gaussian coordinates tell (d/2) log₂(N/(N - 1)) bits
of one of them. No estimate without assumptions on the law can certify more than about log₂ K from K
pairs (McAllester and Stratos 2020, arXiv:1811.04251).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from leakmeter.auditors.information import gaussian_information
from leakmeter.auditors.information.figure import NATS_PER_BIT
from leakmeter.auditors.information.logdet import logdet_information
from leakmeter.auditors.rng import stream
from leakmeter.fl_app.experiments.base import Cells, Comparison, Table
from leakmeter.fl_app.experiments.elkordy2023 import page
from leakmeter.fl_app.experiments.plot import Panel

_SEED = 2208
_USERS = 2


@dataclass(frozen=True)
class _Scale:
    dims: tuple[int, ...]
    pairs: int
    critics: int
    steps: int  # of ascent
    rank: int  # coordinates that the log-determinant looks at, at most


_SCALES = {
    "paper": _Scale((1, 10, 100, 1000, 7850), pairs=1000, critics=3, steps=1000, rank=200),
    "small": _Scale((1, 200), pairs=150, critics=2, steps=120, rank=40),
}
_NOTES = (
    "Bits that the sum of two Gaussian updates reveals about one. MINE: two layers of 100 and "
    "1,000 steps of Adam, read off on the pairs that it was trained on, as (38) has it; the same "
    "where pairs are shuffled and there is nothing to find; and its NWJ value on pairs that it has "
    "not seen, with a standard error over critics. "
    "Log-det: ½ log₂|Σ(z)| - ½ log₂|Σ(y)| along the first coordinates, as many as stated, which "
    "is unbiased for Gaussians and an approximation for other laws. Nothing distribution-free can "
    "show more than about log₂ K.",
)


def run(scale: str, cells: Cells) -> Table:
    """Draw Gaussians of every dimension and let both estimators look at them."""
    what = _SCALES[scale]
    found = {d: dict(cells.get(_key(what, d), partial(_cell, what, d))) for d in what.dims}
    dims = list(found)
    lines = [
        page.line("truth", dims, [f["truth"] for f in found.values()], 0, "o-"),
        page.line("MINE, training pairs", dims, _column(found, "trained"), 1, "s--"),
        page.line("MINE, shuffled pairs", dims, _column(found, "shuffled"), 2, "x:"),
        page.line("log₂ K", dims, [math.log2(what.pairs)] * len(dims), 3, "-."),
    ]
    return Table(
        title=f"Two Gaussian updates in a sum: what is found from {what.pairs:,} pairs",
        columns=(
            *("d", "truth", "MINE trained", "MINE shuffled", "MINE held out", "log₂ K"),
            *("log-det coordinates", "truth there", "log-det"),
        ),
        rows=tuple(_row(what, d, f) for d, f in found.items()),
        notes=_NOTES,
        figures={
            "dimension.svg": (
                Panel("Found and true", "coordinates d", "bits", tuple(lines), True, True),
            )
        },
        comparisons=_comparisons(what, found) if scale == "paper" else (),
    )


def _key(what: _Scale, dim: int) -> str:
    return f"d{dim}-{what.pairs}x{what.critics}x{what.steps}-rank{what.rank}"


def _cell(what: _Scale, dim: int) -> dict[str, Any]:
    """Return truth and findings of one dimension, in bits."""
    from leakmeter.auditors.information.mine.estimator import estimate
    from leakmeter.auditors.information.mine.training import Training

    rng = stream(_SEED, "mine-dimension", dim)
    x, others = rng.standard_normal((2, what.pairs, dim))
    y = math.sqrt(_USERS - 1) * others
    neural = estimate(
        x,
        x + y,
        seed=_SEED,
        training=Training(steps=what.steps),
        seeds=what.critics,
        nulls=what.critics,
    )
    rank = min(dim, what.rank)
    fixed = logdet_information((x + y)[:, :rank], y[:, :rank])
    return {
        "truth": gaussian_information(dim, _USERS).bits,
        "trained": neural.trained.mean / NATS_PER_BIT,
        "shuffled": neural.null_trained.mean / NATS_PER_BIT,
        "held_out": neural.nwj.mean / NATS_PER_BIT,
        "held_out_error": neural.nwj.std_error / NATS_PER_BIT,
        "rank": rank,
        "truth_there": gaussian_information(rank, _USERS).bits,
        "bits": fixed.bits,
        "error": (fixed.std_error or 0.0) / NATS_PER_BIT,
    }


def _column(found: dict[int, dict[str, Any]], name: str) -> list[float]:
    # A logarithmic axis has no place for what is found to be nothing.
    return [max(float(f[name]), 1e-2) for f in found.values()]


def _row(what: _Scale, dim: int, found: dict[str, Any]) -> tuple[Any, ...]:
    return (
        dim,
        page.number(found["truth"]),
        page.number(found["trained"]),
        page.number(found["shuffled"]),
        f"{found['held_out']:.2f} ± {found['held_out_error']:.2f}",
        page.number(math.log2(what.pairs)),
        found["rank"],
        page.number(found["truth_there"]),
        page.plus_minus(found),
    )


def _comparisons(what: _Scale, found: dict[int, dict[str, Any]]) -> tuple[Comparison, ...]:
    last = found[what.dims[-1]]
    nats = last["truth"] * NATS_PER_BIT
    return (
        Comparison(
            "Elkordy et al. 2023, Appendix D",
            "a MINE of the paper's size, updates of d = 7,850 coordinates, two Gaussian users, "
            "1,000 pairs",
            "the state-of-the-art estimate of mutual information, used in all of Fig. 3 to 16",
            f"reads {page.number(last['trained'])} bits off its training pairs, "
            f"{page.number(last['shuffled'])} on shuffled ones and {last['held_out']:.2f} held "
            f"out, where the truth is {page.number(last['truth'])} bits ({nats:,.0f} nats)",
            "it learns its training pairs by heart: what it finds is there without any "
            "information too, and nothing distribution-free can show more than log₂ K = "
            f"{math.log2(what.pairs):.1f} bits",
        ),
    )
