"""One test from the evidence of many canaries, at its full level.

Each canary gives *evidence* x against an ε. If the ε is true, then given everything before,
P(x ≥ a) ≤ 1/(1 + e^a) for every a (`coin_bound` says why). Most canaries may be seen a little, or a
few of them clearly. So the statistic is a mixture of likelihood ratios, as in Cover's universal
portfolio, with one part for each way of being seen:

    T = mean over l of Π_i f_l(x_i), where f_l rises, and its mean is 1 if P(x ≥ a) = 1/(1 + e^a)

1. T rises with every x. So T ≥ t is most likely for independent x with exactly that tail, whatever
   noise the canaries share.
2. That probability is simulated by draws that have the density T, so that each of them counts 1/T
   (importance sampling): small levels need no more draws than large ones. Three standard errors
   are added to it, so the level is kept for the draws that are used and not just on average.
3. No f_l depends on ε, and x falls as ε grows. So data that refute an ε refute every smaller one.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr, ndtri_exp

from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Floats

# Mean scores of visible canaries, in standard deviations of the null.
_MEANS: Final = 2.0 ** (np.arange(-2, 8) / 2)
# Evidence is counted in bins of 0.1, from −3 on. In k canaries, more than ln k + 6 is rare: bins of
# 1 beyond it serve small levels.
_LOWEST, _FINE, _RARE, _COARSE, _HIGHEST = -3.0, 0.1, 6.0, 1.0, 26.0
_NATS: Final = 6.0  # information of all canaries in the weakest case that a part is made for
_DRAWS: Final = 8000
_FEWEST: Final = 50  # draws behind a standard error
_ERRORS: Final = 3.0  # standard errors that are paid for
_TIE: Final = 1e-9


def shares(num_canaries: int) -> Floats:
    """Return which shares of the included canaries may be visible, (shares,).

    1, 1/4, 1/16 and so on, as long as at least one visible canary is expected.
    """
    return np.asarray(0.25 ** np.arange(max(int(math.log(num_canaries / 2, 4)), 0) + 1))


@dataclass(frozen=True, eq=False)
class Combination:
    """The statistic for a number of canaries, and its distribution in the worst case.

    Attributes:
        edges: Evidence at which the next bin begins, ascending, (bins - 1,).
        log_ratios: ln f of every bin, (bins, parts).
        drawn: ln T of draws, descending; those where a standard error means something.
        chances: Upper limit on P(T ≥ t) at each of these, ascending.
    """

    edges: Floats
    log_ratios: Floats
    drawn: Floats
    chances: Floats

    def log_statistic(self, reached: NDArray[Any], num_canaries: int) -> Floats:
        """Return ln T from how many canaries reach each edge, (..., bins - 1)."""
        ends = np.zeros((*reached.shape[:-1], 1))
        counts = -np.diff(reached, axis=-1, prepend=ends + num_canaries, append=ends)
        return log_mean(counts @ self.log_ratios)

    def threshold(self, level: float) -> float:
        """Return a ln t that T exceeds with probability at most `level` if ε is true."""
        # The mean of T is 1, so P(T ≥ t) ≤ 1/t without any draw. A tie with a draw, up to rounding,
        # exceeds nothing.
        kept = int(np.searchsorted(self.chances, level, side="right"))
        from_draws = float(self.drawn[kept - 1]) + _TIE if kept else math.inf
        return min(from_draws, -math.log(level))


@functools.lru_cache(maxsize=64)
def combination(num_canaries: int) -> Combination:
    """Return the statistic for so many canaries: 40 ms for a hundred, 80 ms for a thousand."""
    rare = math.log(num_canaries) + _RARE
    edges = np.append(
        np.arange(_LOWEST, rare, _FINE), rare + np.arange(0, _HIGHEST - _RARE, _COARSE)
    )
    null = -np.diff(expit(-edges), prepend=1.0, append=0.0)  # (bins,)
    ratios = _parts(num_canaries, edges, null)
    log_ratios, num_parts = np.log(ratios.T), len(ratios)
    rng = stream(0, "combination", num_canaries)
    numbers = rng.multinomial(_DRAWS, np.full(num_parts, 1 / num_parts))
    drawn = np.empty(0)
    for part, number in zip(ratios * null, numbers, strict=True):
        counts = rng.multinomial(num_canaries, part / part.sum(), number)
        drawn = np.append(drawn, log_mean(counts @ log_ratios))
    drawn = np.sort(drawn)[::-1]
    weight = np.exp(-drawn)
    mean, square = np.cumsum(weight) / _DRAWS, np.cumsum(weight**2) / _DRAWS
    chances = mean + _ERRORS * np.sqrt((square - mean**2) / _DRAWS)
    kept = slice(_FEWEST - 1, None)
    return Combination(edges, log_ratios, drawn[kept], np.maximum.accumulate(chances[kept]))


def _parts(num_canaries: int, edges: Floats, null: Floats) -> Floats:
    """Return f of every part and bin, (parts, bins).

    A share of the included canaries is visible: with Gaussian scores of one of `_MEANS`, or, in the
    last rows, with equal scores. The ε of a part is where such canaries begin to refute it.
    """
    some, tails = shares(num_canaries), expit(-edges)
    mean = np.repeat(_MEANS, some.size)[:, None]
    share = np.tile(some, _MEANS.size + 1)[:, None]

    def ratios(at: Floats) -> Floats:
        # Evidence a against a large ε needs the score ε + a. Equal scores are equal evidence; the
        # nearest rising density is uniform from there on.
        gaussian, equal = np.split(at, [mean.size])
        z = -ndtri_exp(-np.maximum(gaussian + edges, 0.0))
        visible = np.concatenate([ndtr(mean - z), np.minimum(tails / expit(equal), 1.0)])
        reached = share / 2 * visible  # coins are fair, (parts, bins - 1)
        # The nearest rising density has one value below some edge: that edge where the mean of all
        # below is smallest. Canaries that are out are in the lowest bin.
        raw = -np.diff(reached, prepend=1.0, append=0.0) / null
        below = (1 - np.append(reached, np.zeros_like(share), axis=1)) / np.cumsum(null)
        edge = below.argmin(axis=1)[:, None]
        pooled = np.where(np.arange(null.size) <= edge, below.min(axis=1, keepdims=True), raw)
        rising = np.minimum.accumulate(pooled[:, ::-1], axis=1)[:, ::-1]  # whatever rounding does
        return np.asarray(rising / (rising @ null)[:, None])

    low = np.repeat([0.0, -20.0], [mean.size, some.size])[:, None]
    high = np.full_like(low, 200.0)
    for _ in range(18):
        middle = (low + high) / 2
        found = ratios(middle)
        is_much = num_canaries * (found * null * np.log(found)).sum(axis=1, keepdims=True) > _NATS
        low, high = np.where(is_much, middle, low), np.where(is_much, high, middle)
    return ratios(low)


def log_mean(logs: NDArray[Any]) -> Floats:
    """Return ln of the mean of e^logs along the last axis."""
    most = logs.max(axis=-1, keepdims=True)  # so that no exponential overflows
    return np.asarray(most[..., 0] + np.log(np.exp(logs - most).mean(axis=-1)))
