"""How long do the products of 1,000 canaries with a change of a million parameters take?

Nothing of size k·d is kept: canaries are made again each round, 32,768 numbers at a time. The peer
keeps all of them as a matrix, 8 GB at this size, and multiplies once a round; it is timed on 50
canaries, which fit beside a budget of 1 GB, and scaled up. Making its matrix is left out.

The stored matrix is 38 times as fast (16 s of one core against 0.43 s a round) for 200 times the
memory. Nearly all of ours is drawing normals. Two shared cores, 2026-11-16.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.measure import Row, Scale, compare, timer
from benchmarks.memory import grown
from benchmarks.script import main
from leakmeter.auditors.canary import canary_products, canary_vector
from leakmeter.auditors.rng import stream

STORED = 50


def products(canaries: int, dim: int) -> None:
    """Make a change and take its products."""
    canary_products(0, range(canaries), stream(0, "benchmark").standard_normal(dim))


def measure(scale: Scale) -> Iterator[Row]:
    """Yield the row of one size."""
    canaries, dim, repetitions = (100, 10**4, 2) if scale == "quick" else (1000, 10**6, 5)
    change = stream(0, "benchmark").standard_normal(dim)
    matrix = np.stack([canary_vector(0, i, dim) for i in range(STORED)])
    assert np.allclose(matrix @ change, canary_products(0, range(STORED), change), atol=1e-9)
    yield compare(
        f"{canaries:,} canaries, d = {dim:,}",
        timer(lambda: canary_products(0, range(canaries), change)),
        timer(lambda: matrix @ change, calls=20, size=STORED / canaries),
        peer=f"stored matrix, scaled up from {STORED} canaries",
        repetitions=repetitions,
        warm_up=False,
        memory=grown(partial(products, dim=dim), 1, canaries)[0],
        note=f"the matrix takes {canaries * dim * 8 / 1e6:,.0f} MB",
    )


if __name__ == "__main__":
    main(measure, __doc__)
