"""Do all bounds of 1,000 + 1,000 scores take less than 50 ms?

The peer is the usual way to the first of them: `scipy.stats.beta.ppf` of both error counts at
all distinct scores, in one call, with the band's level given, so that the answer is the same.
A first call has to find that level; later ones remember it.

Yes. The peer takes 10.8 times as long as a later call and 0.2 times as long as a first one, which
also finds the level. Median (least to most) of 15 interleaved repetitions, ms: band 0.37 (0.30 to
0.55), first call 19.6 (18.8 to 31.4), known null 0.36 (0.32 to 0.62), Gaussian family 1.99 (1.86
to 4.04); fixed 0.17 (0.15 to 0.45); pilot, first call 10.0 (9.4 to 18.1); Bonferroni 1.28 (1.20 to
2.09); one run 2.02 (1.87 to 3.07), f-DP 4.88 (4.65 to 7.49); peer 3.95 (3.76 to 4.95). With the
other core busy, finding the level alone took up to 37. Two shared cores, 2026-11-16.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import numpy as np
from scipy.stats import beta, norm

from auditors import band
from auditors.bounds import (
    Bonferroni,
    Fixed,
    PilotSplit,
    epsilon_lower_bound,
    guess_by_rank,
    one_run_epsilon,
    one_run_gaussian_epsilon,
)
from auditors.rng import stream

NUM_SCORES, NUM_REPETITIONS, DELTA = 1000, 15, 1e-6
LEVEL = band.band_level(NUM_SCORES, 0.025)
RNG = stream(0, "benchmark")
INS, OUTS = RNG.normal(2, 1, NUM_SCORES), RNG.normal(0, 1, NUM_SCORES)


def forget() -> None:
    """Empty the caches, as at the first call of a process."""
    band.band_level.cache_clear()
    band.limit_table.cache_clear()


def cold(call: Callable[[], float]) -> Callable[[], float]:
    """Return `call` as if nothing had been computed before."""

    def first() -> float:
        forget()
        return call()

    return first


def plain() -> float:
    """Return the simultaneous band's bound from scipy's quantiles."""
    at = np.concatenate([INS, OUTS])
    passed = NUM_SCORES - np.searchsorted(np.sort(OUTS), at)
    missed = np.searchsorted(np.sort(INS), at)
    fpr, fnr = (beta.ppf(1 - LEVEL, k + 1, NUM_SCORES - k) for k in (passed, missed))
    fpr, fnr = np.nan_to_num(fpr, nan=1.0), np.nan_to_num(fnr, nan=1.0)
    with np.errstate(divide="ignore"):
        hits, rejections = (np.log(np.maximum(0, 1 - DELTA - rate)) for rate in (fnr, fpr))
    return float(max((hits - np.log(fpr)).max(), (rejections - np.log(fnr)).max()))


def bound(**kwargs: object) -> Callable[[], float]:
    """Return a call for the bound with these options."""
    return lambda: epsilon_lower_bound(INS, OUTS, delta=DELTA, **kwargs).value  # type: ignore[arg-type]


CALLS: dict[str, Callable[[], float]] = {
    "band": bound(),
    "band, first call": cold(bound()),
    "band, known null": lambda: epsilon_lower_bound(INS, null_logsf=norm.logsf, delta=DELTA).value,
    "band, Gaussian family": bound(family="gaussian"),
    "fixed": bound(rule=Fixed(2.0)),
    "pilot, first call": cold(bound(rule=PilotSplit())),
    "Bonferroni": bound(rule=Bonferroni()),
    "one run": lambda: one_run_epsilon(2000, 500, guess_by_rank(INS, OUTS, 500), DELTA).value,
    "one run, f-DP": lambda: (
        one_run_gaussian_epsilon(2000, 500, guess_by_rank(INS, OUTS, 500), DELTA).value
    ),
    "plain": plain,
}


def main() -> None:
    """Time all in turns and print the ratio first."""
    assert math.isclose(CALLS["band"](), plain(), rel_tol=1e-9)
    times: dict[str, list[float]] = {name: [] for name in CALLS}
    values = {}
    for _ in range(NUM_REPETITIONS):
        for name, call in CALLS.items():
            if not name.endswith("first call"):
                call()
            start = time.perf_counter()
            values[name] = call()
            times[name].append(1e3 * (time.perf_counter() - start))
    medians = {name: statistics.median(t) for name, t in times.items()}
    print(f"plain / ours (first call): {medians['plain'] / medians['band, first call']:.1f}")
    print(f"plain / ours (later calls): {medians['plain'] / medians['band']:.1f}")
    for name, t in times.items():
        spread = f"{min(t):.2f} to {max(t):.2f}"
        print(f"{name}: {medians[name]:.2f} ms ({spread}), epsilon {values[name]:.2f}")


if __name__ == "__main__":
    main()
