"""Does Algorithm 1 at d = 10⁷ with k = 3,162 canaries run within seconds?

By exact simulation, which needs a k×k matrix instead of k·d numbers (253 GB in double precision).
The algorithm is that of Andrew et al. 2024 (arXiv:2302.03098). The peer draws the canaries: as many
as fit are timed, without their products, and scaled up.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.measure import Row, Scale, compare, timer
from benchmarks.memory import grown
from leakmeter.auditors.canaries.canary_auditor import one_fit
from leakmeter.auditors.rng import stream
from leakmeter.papers.andrew2024.gaussian_sum import simulate_cosines
from leakmeter.papers.gaussian import gaussian_sigma

DELTA, TRUTH = 1e-6, 10.0


def simulated(canaries: int, dim: int, seed: int = 0) -> float:
    """Return the epsilon that one audit of the Gaussian mechanism estimates."""
    sigma = gaussian_sigma(TRUTH, DELTA)
    cosines = simulate_cosines(dim, canaries, sigma, stream(seed, "benchmark"))
    return float(one_fit(np.sqrt(dim) * cosines[None], "known", DELTA)[0])


def measure(scale: Scale) -> Iterator[Row]:
    """Yield the row of one size."""
    dim, canaries, repetitions = (10**4, 100, 2) if scale == "quick" else (10**7, 3162, 5)
    values = [simulated(canaries, dim, seed) for seed in range(repetitions)]
    out, rng = np.empty(dim), stream(0, "canary")
    yield compare(
        f"k = {canaries:,}, d = {dim:,}",
        timer(lambda: simulated(canaries, dim)),
        timer(lambda: rng.standard_normal(out=out), size=1 / canaries),
        peer="drawing the canaries, scaled up from 1",
        repetitions=repetitions,
        memory=grown(partial(simulated, dim=dim), 2, canaries)[0],
        note=f"epsilon {np.mean(values):.2f} ± {np.std(values):.2f} over seeds, truth {TRUTH:g}",
    )
