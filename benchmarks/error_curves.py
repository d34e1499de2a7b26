"""How long do the error rates at all thresholds take, and the epsilon at 20 deltas from them?

Ours looks all counts up in one table of limits and takes every delta at once, at each of the
10,000 distinct scores of 5,000 trials; the table is made once for a number of trials, before. The
peer is a loop over 1,000 thresholds, each with two Clopper-Pearson limits and an epsilon for every
delta. One thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from benchmarks.measure import Row, Scale, compare, timer
from leakmeter.auditors.bounds.lower_bound import TradeoffBound
from leakmeter.auditors.rng import stream

DELTAS = np.logspace(-6, math.log10(0.5), 20)
Floats = NDArray[np.float64]


def looped(inside: Floats, outside: Floats, thresholds: int) -> Floats:
    """Return the largest epsilon over the thresholds at each delta, one after the other."""
    n, best = len(inside), np.zeros(len(DELTAS))
    scores = np.concatenate([inside, outside])
    for threshold in np.quantile(scores, np.linspace(0, 1, thresholds)):
        missed, passed = int((inside < threshold).sum()), int((outside >= threshold).sum())
        fnr = float(beta.ppf(0.975, missed + 1, n - missed)) if missed < n else 1.0
        fpr = float(beta.ppf(0.975, passed + 1, n - passed)) if passed < n else 1.0
        for i, delta in enumerate(DELTAS):
            for top, bottom in ((1 - delta - fpr, fnr), (1 - delta - fnr, fpr)):
                if top > 0:
                    best[i] = max(best[i], math.log(top / bottom))
    return best


def measure(scale: Scale) -> Iterator[Row]:
    """Yield the row of one number of trials."""
    trials, thresholds, repetitions = (200, 50, 2) if scale == "quick" else (5_000, 1_000, 5)
    rng = stream(0, "benchmark")
    inside, outside = rng.normal(3, 1, trials), rng.normal(0, 1, trials)
    yield compare(
        f"{trials:,} trials, 20 deltas",
        timer(lambda: TradeoffBound.of(inside, outside).epsilons(DELTAS), calls=9),
        timer(lambda: looped(inside, outside, thresholds)),
        peer=f"a loop over {thresholds:,} thresholds",
        repetitions=repetitions,
    )
