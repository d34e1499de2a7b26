"""How long does the covariance of 25,000 updates of 7,850 parameters take, streamed?

Ours takes the rows in chunks of 2,048 and never holds them all; products are in single precision,
of rows in units of their own deviations, and added up in double. The peer is `numpy.cov` on all
rows at once, in double precision. One thread.

1.7 to 1.9 times as fast with chunks of 1,000 (25 against 45 s of a core, single products at 83
GFLOP/s are 19 of them); 2.0 with chunks of 2,048 (22 against 44 s). Two shared cores, 2026-11-16.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from auditors.rng import stream
from auditors.scatter import Scatter

ROWS, DIM, CHUNK, REPETITIONS = 25_000, 7_850, 2_048, 3


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes the processor: others share the cores."""
    start = time.process_time()
    call()
    return time.process_time() - start


def streamed(rows: np.ndarray) -> np.ndarray:
    """Return the covariance from chunks."""
    scatter = Scatter(rows.shape[1])
    for first in range(0, len(rows), CHUNK):
        scatter.add(rows[first : first + CHUNK])
    return scatter.moments().covariance


def main(rows: int = ROWS, dim: int = DIM, repetitions: int = REPETITIONS) -> None:
    """Time both in turn."""
    rng = stream(0, "benchmark")
    data = rng.standard_normal((rows, dim), dtype=np.float32)
    ours, peer = [], []
    for _ in range(repetitions):
        ours.append(seconds(lambda: streamed(data)))
        peer.append(seconds(lambda: np.cov(data.astype(np.float64), rowvar=False)))
    ratio = statistics.median(peer) / statistics.median(ours)
    print(f"numpy.cov / ours: {ratio:.1f}")
    print(f"ours: {statistics.median(ours):.1f} s ({min(ours):.1f} to {max(ours):.1f})")
    print(f"numpy.cov: {statistics.median(peer):.1f} s ({min(peer):.1f} to {max(peer):.1f})")


if __name__ == "__main__":
    main()
