"""How long do the products of 1,000 canaries with a change of a million parameters take?

Nothing of size k·d is kept: canaries are made again each round, 32,768 numbers at a time. The peer
keeps all of them as a matrix, 8 GB at this size, and multiplies once a round; it is timed on 50
canaries, which fit beside a budget of 1 GB, and scaled up. Making its matrix is left out.

16 s of one core a round (15.8 to 16.2, 3 repetitions) and 41 MB, all but 1 MB of which Python and
its libraries take; the stored matrix would need 0.43 s (0.39 to 0.49) and 8,000 MB: 38 times as
fast, for 200 times the memory. Nearly all of ours is drawing normals. Two shared cores, 2026-11-16.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable

import numpy as np

from auditors.canary import canary_products, canary_vector
from auditors.rng import stream

CANARIES, DIM, STORED, REPETITIONS = 1000, 10**6, 50, 3


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes the processor: others share the cores."""
    start = time.process_time()
    call()
    return time.process_time() - start


def peak() -> float:
    """Return the most memory that this process has held so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Time ours first, so that the peak of memory is ours."""
    change = stream(0, "benchmark").standard_normal(DIM)
    before = peak()
    ours = [
        seconds(lambda: canary_products(0, range(CANARIES), change)) for _ in range(REPETITIONS)
    ]
    ours_peak = peak()
    matrix = np.stack([canary_vector(0, i, DIM) for i in range(STORED)])
    assert np.allclose(matrix @ change, canary_products(0, range(STORED), change), atol=1e-9)
    stored = [CANARIES / STORED * seconds(lambda: matrix @ change) for _ in range(5 * REPETITIONS)]
    ratio = statistics.median(ours) / statistics.median(stored)
    print(f"ours / stored matrix: {ratio:.0f}")
    print(f"ours: {statistics.median(ours):.1f} s ({min(ours):.1f} to {max(ours):.1f})")
    print(f"peak memory {ours_peak:.0f} MB, {before:.0f} MB of it before")
    print(f"stored: {statistics.median(stored):.2f} s ({min(stored):.2f} to {max(stored):.2f})")
    print(f"stored matrix: {CANARIES * DIM * 8 / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
