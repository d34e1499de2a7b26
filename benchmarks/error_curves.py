"""How long do the error rates at all thresholds take, and the epsilon at 20 deltas from them?

Ours looks all counts up in one table of limits and takes every delta at once, at each of the
10,000 distinct scores of 5,000 trials. The peer is a loop over 1,000 thresholds, each with two
Clopper-Pearson limits and an epsilon for every delta. One thread.

1.2 to 1.3 ms against 0.30 to 0.34 s: 250 to 262 times as fast. Two shared cores, 2026-11-16.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import numpy as np
from scipy.stats import beta

from auditors.curve import ErrorCurve
from auditors.rng import stream

TRIALS, THRESHOLDS, REPETITIONS = 5_000, 1_000, 5
DELTAS = np.logspace(-6, math.log10(0.5), 20)


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes the processor: others share the cores."""
    start = time.process_time()
    call()
    return time.process_time() - start


def looped(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """Return the largest epsilon over the thresholds at each delta, one after the other."""
    n, best = len(inside), np.zeros(len(DELTAS))
    scores = np.concatenate([inside, outside])
    for threshold in np.quantile(scores, np.linspace(0, 1, THRESHOLDS)):
        missed, passed = int((inside < threshold).sum()), int((outside >= threshold).sum())
        fnr = float(beta.ppf(0.975, missed + 1, n - missed)) if missed < n else 1.0
        fpr = float(beta.ppf(0.975, passed + 1, n - passed)) if passed < n else 1.0
        for i, delta in enumerate(DELTAS):
            for top, bottom in ((1 - delta - fpr, fnr), (1 - delta - fnr, fpr)):
                if top > 0:
                    best[i] = max(best[i], math.log(top / bottom))
    return best


def main() -> None:
    """Time both in turn; the table of limits is made once for a number of trials, before."""
    rng = stream(0, "benchmark")
    inside, outside = rng.normal(3, 1, TRIALS), rng.normal(0, 1, TRIALS)
    ErrorCurve.of(inside, outside)
    ours, peer = [], []
    for _ in range(REPETITIONS):
        many = [seconds(lambda: ErrorCurve.of(inside, outside).epsilons(DELTAS)) for _ in range(9)]
        ours.append(statistics.median(many))
        peer.append(seconds(lambda: looped(inside, outside)))
    ratio = statistics.median(peer) / statistics.median(ours)
    print(f"loop / ours: {ratio:.0f}")
    print(
        f"ours: {1e3 * statistics.median(ours):.2f} ms, the loop: {statistics.median(peer):.2f} s"
    )


if __name__ == "__main__":
    main()
