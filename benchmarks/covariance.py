"""How long does the covariance of thousands of updates of 7,850 parameters take, streamed?

Ours takes the rows in chunks of 2,048 and never holds them all. Products and their sum are in
single precision, of rows in units of the first chunk's deviations, so that each entry is exact to
3e-6 of its two deviations. The peer is `numpy.cov` on all rows at once: as it is, which is in
double precision, and in single precision. One thread. A likelihood-ratio round at full size has
25,000 rows; three chunks are measured here, and the long scale takes all.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import OURS, Row, Scale, interleave, timer
from benchmarks.memory import grown
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling.moments import Scatter
from leakmeter.auditors.sampling.sampler import Moments

CHUNK, TARGET = 2_048, 2.0
SIZES = {"quick": (300, 200, 2), "full": (3 * CHUNK, 7_850, 5), "long": (25_000, 7_850, 5)}


def drawn(rows: int, dim: int) -> NDArray[np.float32]:
    """Return updates."""
    return stream(0, "benchmark", rows).standard_normal((rows, dim), dtype=np.float32)


def streamed(rows: NDArray[np.float32]) -> Moments:
    """Return the moments from chunks, as an auditor uses them."""
    scatter = Scatter(rows.shape[1])
    for first in range(0, len(rows), CHUNK):
        scatter.add(rows[first : first + CHUNK])
    return scatter.moments()


def held(rows: int, dim: int) -> None:
    """Take rows that are made chunk by chunk, as an auditor does."""
    scatter = Scatter(dim)
    for first in range(0, rows, CHUNK):
        scatter.add(drawn(min(CHUNK, rows - first), dim))
    scatter.moments()


def measure(scale: Scale) -> Iterator[Row]:
    """Yield the rows of one size."""
    rows, dim, repetitions = SIZES[scale]
    data = drawn(rows, dim)
    small = data[:, :50]
    twin = np.cov(small.astype(np.float64), rowvar=False)
    assert np.allclose(streamed(small).covariance, twin, atol=1e-5)
    peers = {
        "numpy.cov": timer(lambda: np.cov(data, rowvar=False)),
        "numpy.cov in single precision": timer(
            lambda: np.cov(data, rowvar=False, dtype=np.float32)
        ),
    }
    timers = {OURS: timer(lambda: streamed(data)), **peers}
    times = interleave(timers, repetitions, warm_up=False)
    memory = grown(partial(held, dim=dim), 2, min(rows, 2 * CHUNK))[0]
    for peer, target in zip(peers, (TARGET, None), strict=True):
        yield Row(
            f"{rows:,} rows, d = {dim:,}",
            times[OURS],
            times[peer],
            peer,
            memory=memory,
            target=target,
            note="memory: streamed, with its chunk",
        )
