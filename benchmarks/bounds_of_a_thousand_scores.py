"""Do all bounds of 1,000 + 1,000 scores take less than 50 ms?

The peer is the usual way to the first of them: `scipy.stats.beta.ppf` of both error counts at
all distinct scores, in one call, with the band's level given, so that the answer is the same.
A first call has to find that level; later ones remember it. CPU time of one thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, norm

from benchmarks.measure import Row, Scale, Timer, interleave, timer
from leakmeter.auditors.bounds import lower_bound
from leakmeter.auditors.bounds.lower_bound import Bonferroni, Fixed, PilotSplit, epsilon_lower_bound
from leakmeter.auditors.bounds.one_run import (
    guess_by_rank,
    one_run_epsilon,
    one_run_gaussian_epsilon,
)
from leakmeter.auditors.rng import stream

REPETITIONS, DELTA, LIMIT = 15, 1e-6, 50e-3
PEER = "scipy's quantiles"
Floats = NDArray[np.float64]
Call = Callable[[], float]


@dataclass(frozen=True)
class Scores:
    """Scores of those who took part and of those who did not, and all that is asked of them."""

    ins: Floats
    outs: Floats

    @property
    def guesses(self) -> int:
        """Of one run: a quarter of all."""
        return len(self.ins) // 2

    def plain(self, level: float) -> float:
        """Return the simultaneous band's bound from scipy's quantiles."""
        count, at = len(self.ins), np.concatenate([self.ins, self.outs])
        passed = count - np.searchsorted(np.sort(self.outs), at)
        missed = np.searchsorted(np.sort(self.ins), at)
        fpr, fnr = (
            np.nan_to_num(beta.ppf(1 - level, k + 1, count - k), nan=1.0) for k in (passed, missed)
        )
        with np.errstate(divide="ignore"):
            hits, rejections = (np.log(np.maximum(0, 1 - DELTA - rate)) for rate in (fnr, fpr))
        return float(max((hits - np.log(fpr)).max(), (rejections - np.log(fnr)).max()))

    def bound(self, **options: object) -> Call:
        """Return a call for the bound with these options."""
        return lambda: (
            epsilon_lower_bound(self.ins, self.outs, delta=DELTA, **options).value  # type: ignore[arg-type]
        )

    def calls(self) -> dict[str, Call]:
        """Return one call a bound."""
        ranked = guess_by_rank(self.ins, self.outs, self.guesses)
        size = (2 * len(self.ins), self.guesses, ranked, DELTA)
        return {
            "band": self.bound(),
            "band, known null": lambda: (
                epsilon_lower_bound(self.ins, null_logsf=norm.logsf, delta=DELTA).value
            ),
            "band, Gaussian family": self.bound(family="gaussian"),
            "fixed threshold": self.bound(rule=Fixed(2.0)),
            "Bonferroni": self.bound(rule=Bonferroni()),
            "one run": lambda: one_run_epsilon(*size).value,
            "one run, f-DP": lambda: one_run_gaussian_epsilon(*size).value,
            "band, first call": first(self.bound()),
            "pilot, first call": first(self.bound(rule=PilotSplit())),
        }


def first(call: Call) -> Call:
    """Return `call` as the first of a process: nothing has been computed before."""

    def forgetful() -> float:
        lower_bound.band_level.cache_clear()
        lower_bound.limit_table.cache_clear()
        return call()

    return forgetful


def measure(scale: Scale) -> Iterator[Row]:
    """Yield a row a bound, the band beside the peer's."""
    count, repetitions = (100, 2) if scale == "quick" else (1000, REPETITIONS)
    rng = stream(0, "benchmark")
    scores = Scores(rng.normal(2, 1, count), rng.normal(0, 1, count))
    level, calls = lower_bound.band_level(count, 0.025), scores.calls()
    assert math.isclose(calls["band"](), scores.plain(level), rel_tol=1e-9)
    # First calls forget, so the others go before them, and once more before they are timed.
    warm = {name: warmed(call) for name, call in calls.items() if "first" not in name}
    cold = {name: timer(calls[name]) for name in calls if "first" in name}
    plain = timer(lambda: scores.plain(level))
    times = interleave({**warm, PEER: plain, **cold}, repetitions)
    found = {name: f"epsilon {call():.2f}" for name, call in calls.items()}
    for name in ("band", "band, first call"):
        yield Row(name, times[name], times[PEER], peer=PEER, note=found[name])
    for name in calls:
        if name not in ("band", "band, first call"):
            yield Row(name, times[name], note=found[name])
    slowest = [max(each) for each in zip(*(times[name] for name in calls), strict=True)]
    yield Row("the slowest of them", slowest, target=LIMIT)


def warmed(call: Call) -> Timer:
    """Return a timer of `call` right after another."""
    timed = timer(call)

    def second() -> float:
        call()
        return timed()

    return second
