"""How long does the log-det figure of a linear MNIST model take, and how close is it?

d = 7,850 coordinates, K = 10,000 paired draws, Gaussian updates of N = 20 users. Drawing them
here is two calls of a generator; a federation's own sampling comes on top. The peer is the formula
as it stands: `numpy.cov` of sums and of others' sums and `numpy.linalg.slogdet` of both; it has no
standard error. One repetition at this size, since it takes minutes; five at d = 1,000, K = 2,500.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Row, Scale, compare, seconds, timer
from leakmeter.auditors.information.theory import (
    Information,
    gaussian_information,
    logdet_information,
)
from leakmeter.auditors.rng import stream

USERS = 20
Floats = NDArray[np.float32]


def pairs(dim: int, draws: int) -> tuple[Floats, Floats]:
    """Return sums over all users, and the same sums without the target."""
    others = stream(0, "others").standard_normal((draws, dim), dtype=np.float32)
    others *= np.float32(math.sqrt(USERS - 1))
    sums = stream(0, "target").standard_normal((draws, dim), dtype=np.float32)
    sums += others
    return sums, others


def plain(sums: Floats, others: Floats) -> float:
    """Return half the difference of the log-determinants; their biases cancel."""
    whole, rest = (
        np.linalg.slogdet(np.cov(rows.astype(np.float64), rowvar=False))[1]
        for rows in (sums, others)
    )
    return float(whole - rest) / 2


def measure(scale: Scale) -> Iterator[Row]:
    """Yield the row of a moderate size beside the peer, and that of the question alone."""
    dim, draws, repetitions = (50, 200, 2) if scale == "quick" else (1_000, 2_500, 5)
    sums, others = pairs(dim, draws)
    found = logdet_information(sums, others).nats
    assert math.isclose(found, plain(sums, others), rel_tol=1e-6)
    yield compare(
        f"d = {dim:,}, K = {draws:,}",
        timer(lambda: logdet_information(sums, others)),
        timer(lambda: plain(sums, others)),
        peer="numpy.cov and slogdet, without a standard error",
        repetitions=repetitions,
    )
    if scale != "quick":
        yield large(7_850, 10_000)


def large(dim: int, draws: int) -> Row:
    """Return the row of one run."""
    sums, others = pairs(dim, draws)
    values: list[Information] = []
    spent = seconds(lambda: values.append(logdet_information(sums, others)))
    truth, found = gaussian_information(dim, USERS).nats, values[0]
    note = f"{found.nats:.2f} nats, stated error {found.std_error:.2f}, truth {truth:.2f}"
    return Row(f"d = {dim:,}, K = {draws:,}", [spent], note=note)
