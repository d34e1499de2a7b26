"""How long does the mathematics of one likelihood-ratio round take, and how much memory?

d = 7,850: covariance of 25,000 updates, its factor, the worst pair among 1,000 candidates and the
statistics of 5,000 trials with 89 others. The model is a linear one with ten classes: the updates
of a class are what the others leave, so its 785 coordinates are dropped before the products, as the
sampler does. d = 89,610: the dual form of 2,000 updates, 1,000 candidates, and the trials. Updates
are random numbers, since their training is another question, and trials are single draws of the
sum: training projects where it trains. Updates that are looked at again are where the audit has
them: above 64 MB in a temporary file. One thread. Memory is of one round in a process of its own,
the random numbers it takes up included.

Most of the dense form are its products, so scipy's `ssyrk` of the same rows, and nothing else,
takes turns with it. Beside the products there are at least the Cholesky factor, a third of d³, and
one triangular solution for all candidates: together 15 % of the products.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import ssyrk

from benchmarks.measure import OURS, Row, Scale, interleave
from benchmarks.memory import grown
from leakmeter.auditors.likelihood_ratio.game import challenge
from leakmeter.auditors.likelihood_ratio.sum_distribution import (
    DenseGaussian,
    DualGaussian,
    SumDistribution,
)
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling.moments import Scatter
from leakmeter.auditors.sampling.sampler import RowStore, taken

CHUNK, PART, SMALL, CLASSES = 2_048, 250, 50, 10
PRODUCTS = "ssyrk of the same rows"


@dataclass(frozen=True)
class Size:
    """One shape of a round."""

    fit: int
    candidates: int
    trials: int
    is_dual: bool
    repetitions: int
    target: float | None = None  # bare products over all of it


SIZES = {
    "quick": {
        300: Size(1_000, 50, 250, False, 1),
        2_000: Size(100, 50, 250, True, 1),
    },
    "full": {
        7_850: Size(25_000, 1_000, 5_000, False, 3, 1 / 1.15),
        89_610: Size(2_000, 1_000, 5_000, True, 2),
    },
}


def drawn(dim: int, count: int, seed: int) -> NDArray[np.float32]:
    """Return updates; making them is not part of what is timed."""
    return stream(seed, "benchmark").standard_normal((count, dim), dtype=np.float32)


class Watch:
    """Adds up the time of the processor inside its `with` blocks."""

    def __init__(self) -> None:
        self.spent = 0.0

    def __enter__(self) -> None:
        self._start = time.process_time()

    def __exit__(self, *_: object) -> None:
        self.spent += time.process_time() - self._start


def stored(dim: int, count: int, seed: int, watch: Watch) -> RowStore:
    """Return updates as the audit keeps them."""
    rows = RowStore(count, dim, np.float32)
    for first in range(0, count, PART):
        part = drawn(dim, min(PART, count - first), seed + first)
        with watch:
            for row in part:
                rows.add(row)
    return rows


def free(dim: int) -> NDArray[np.int64]:
    """Return the coordinates of a linear model with ten classes that imply the others."""
    weights = dim - CLASSES
    kept = np.arange(weights - weights // CLASSES), np.arange(weights, dim - 1)
    return np.concatenate(kept)


def fitted(dim: int, size: Size, watch: Watch) -> SumDistribution:
    """Return the distribution of the others' sum, from chunks or in its dual form."""
    if size.is_dual:
        kept = stored(dim, size.fit, 0, watch)
        with watch:
            return DualGaussian.fit(kept)
    columns = free(dim)
    scatter, room = Scatter(columns.size), np.empty((CHUNK, dim), np.float32)
    for first in range(0, size.fit, CHUNK):
        rows = drawn(dim, min(CHUNK, size.fit - first), first)
        with watch:
            scatter.add(taken(rows, columns, room))
    with watch:
        return DenseGaussian.fit(replace(scatter.moments(), columns=columns), overwrite=True)


def one(dim: int, size: Size) -> float:
    """Play one round and return its seconds."""
    watch = Watch()
    distribution = fitted(dim, size, watch)
    candidates = stored(dim, size.candidates, 99, watch)
    with watch:
        test = challenge(candidates, distribution)
    for first in range(0, size.trials, PART):
        rows = drawn(dim, PART, 100 + first)
        with watch:
            rows @ test.direction.astype(np.float32)
    return watch.spent


def bare(dim: int, size: Size) -> float:
    """Return the seconds that the products of the fit's rows take by themselves."""
    watch, width = Watch(), free(dim).size
    total = np.zeros((width, width), np.float32, order="F")
    for first in range(0, size.fit, CHUNK):
        rows = drawn(width, min(CHUNK, size.fit - first), first)
        with watch:
            ssyrk(1.0, rows.T, beta=1.0, c=total, lower=1, overwrite_c=1)
    return watch.spent


def measure(scale: Scale) -> Iterator[Row]:
    """Yield a row a dimension, and one of the bare products of the dense form."""
    for dim, size in SIZES.get(scale, {}).items():
        form = "dual form" if size.is_dual else "dense form"
        case = f"d = {dim:,}, {form}, {size.fit:,} updates, {size.trials:,} trials"
        timers = {OURS: partial(one, dim, size)}
        if not size.is_dual:
            timers[PRODUCTS] = partial(bare, dim, size)
        times = interleave(timers, size.repetitions, warm_up=False)
        memory = grown(partial(one, size=size), SMALL, dim)[0]
        if size.is_dual:
            yield Row(case, times[OURS], memory=memory)
            continue
        alone = times[PRODUCTS]
        what = "the products alone"
        yield Row(case, times[OURS], alone, PRODUCTS, memory=memory, target=size.target, note=what)
