"""How much faster is epsilon between two Gaussians than a plain search with scipy?

Ours solves 1,000 pairs in one call. The peer is `scipy.optimize.brentq` over the textbook formula
on `scipy.stats.norm.logcdf`, a pair at a time, and only for equal spreads, where one direction
and one root do; 20 pairs are timed. Both agree to 1e-9. Times are by the value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from benchmarks.measure import Row, Scale, interleave, timer
from leakmeter.auditors.bounds.gaussian import epsilon_between_gaussians
from leakmeter.auditors.rng import stream

FEW, DELTA, PEER = 20, 1e-6, "brentq, equal spreads"


def plain_epsilon(separation: float) -> float:
    """Return epsilon by a bracketed search in ln delta."""

    def gap(epsilon: float) -> float:
        first = norm.logcdf(separation / 2 - epsilon / separation)
        second = epsilon + norm.logcdf(-separation / 2 - epsilon / separation)
        return float(first + math.log1p(-math.exp(second - first)) - math.log(DELTA))

    highest = separation**2 / 2 - separation * norm.ppf(DELTA)
    return float(brentq(gap, 0, highest, xtol=1e-12))


def measure(scale: Scale) -> Iterator[Row]:
    """Yield a row a way to call ours."""
    count, repetitions = (100, 2) if scale == "quick" else (1000, 9)
    rng = stream(0, "benchmark")
    means, stds = rng.uniform(0.5, 8, count), rng.uniform(0.5, 2, count)
    some = means[:FEW]
    np.testing.assert_allclose(
        epsilon_between_gaussians(0, 1, some, 1, DELTA), [plain_epsilon(m) for m in some], rtol=1e-9
    )
    ours = {
        f"{count:,} equal spreads in one call": timer(
            lambda: epsilon_between_gaussians(0, 1, means, 1, DELTA), size=count
        ),
        f"{count:,} unequal spreads in one call": timer(
            lambda: epsilon_between_gaussians(0, 1, means, stds, DELTA), size=count
        ),
        "equal spreads, one at a time": timer(
            lambda: [epsilon_between_gaussians(0, 1, m, 1, DELTA) for m in some], size=FEW
        ),
    }
    plain = timer(lambda: [plain_epsilon(m) for m in some], size=FEW)
    times = interleave({**ours, PEER: plain}, repetitions)
    for name in ours:
        yield Row(name, times[name], times[PEER], peer=PEER, note="by the value")
