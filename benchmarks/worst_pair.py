"""How long does the most distinguishable pair among 1,000 updates of 7,850 parameters take?

Ours: one triangular solve and one product give all half a million squared distances. Both peers
start, like ours, from the Cholesky factor of the covariance. The first is what a user of numpy
writes: whiten all updates with the factor, in its precision, then ask scipy for the Euclidean
distances. The second is the literal call, `pdist(..., "mahalanobis")` with the inverse, on so few
updates that it ends, scaled up by the number of pairs. One thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import comb

import numpy as np
from scipy.linalg import cho_solve, solve_triangular
from scipy.spatial.distance import pdist, squareform

from benchmarks.measure import OURS, Row, Scale, interleave, timer
from leakmeter.auditors.likelihood_ratio.game import farthest_pair
from leakmeter.auditors.likelihood_ratio.sum_distribution import DenseGaussian
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling.moments import Scatter

FEW, CHUNK = 4, 2_000
EUCLID, LITERAL = (
    "whiten, then pdist",
    f"pdist with the inverse, scaled up from {comb(FEW, 2)} pairs",
)


def measure(scale: Scale) -> Iterator[Row]:
    """Yield the rows of one size; the covariance is made before."""
    candidates, dim = (50, 200) if scale == "quick" else (1_000, 7_850)
    rng = stream(0, "benchmark")
    scatter = Scatter(dim)
    for _ in range(0, dim + CHUNK, CHUNK):
        scatter.add(rng.standard_normal((CHUNK, dim), dtype=np.float32))
    others = DenseGaussian.fit(scatter.moments(), shrinkage=0.1)
    rows = rng.standard_normal((candidates, dim), dtype=np.float32)
    inverse = cho_solve((others.factor, True), np.eye(dim)) / np.outer(others.std, others.std)
    few, std = rows[:FEW].astype(np.float64), others.std.astype(others.factor.dtype)

    def euclid() -> tuple[int, ...]:
        white = solve_triangular(others.factor, (rows / std).T, lower=True).T
        distances = squareform(pdist(white))
        return tuple(map(int, np.unravel_index(distances.argmax(), distances.shape)))

    ours = [(a - b) @ others.solve(a - b) for i, a in enumerate(few) for b in few[i + 1 :]]
    assert np.allclose(pdist(few, "mahalanobis", VI=inverse) ** 2, ours, rtol=1e-4)
    assert euclid() == farthest_pair(others.gram(rows))
    times = interleave(
        {
            OURS: timer(lambda: farthest_pair(others.gram(rows))),
            EUCLID: timer(euclid),
            LITERAL: timer(
                lambda: pdist(few, "mahalanobis", VI=inverse),
                size=comb(FEW, 2) / comb(candidates, 2),
            ),
        },
        2 if scale == "quick" else 5,
    )
    for peer in (EUCLID, LITERAL):
        case = f"{candidates:,} updates, d = {dim:,}"
        yield Row(case, times[OURS], times[peer], peer=peer)
