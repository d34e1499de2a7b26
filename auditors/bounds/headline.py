"""The first bound of canaries for an attacker: from their p-values, for any dependence of them.

`headline` gives the bound, `detectable_epsilon` says beforehand how far it can see: what a
mechanism must leak for a claim to be refuted.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

from leakmeter.auditors.bounds.combined import combination
from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.bounds.one_run import (
    asked_shares,
    coin_bound,
    has_level,
    scores_at,
    share_bound,
)
from leakmeter.auditors.canary_draws import MAX_SCORE, SEED_BITS
from leakmeter.auditors.finding import Bound
from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Floats, Indices, within


def headline(
    scores: Floats,
    is_in: NDArray[np.bool_],
    log_p: Floats,
    *,
    delta: float,
    confidence: float,
    guesses: int | None,
    spent: float = 0.0,
    most: float = MAX_SCORE,
) -> tuple[Bound, dict[str, float]]:
    """Return the bound that does not need independent scores, and how many canaries made it.

    With fair coins it is `coin_bound`. Without them, or where k·δ takes nearly all of the failure
    probability, it is `share_bound`.

    Args:
        scores: Scores of all canaries; larger means more likely in.
        is_in: Whether the coin said in, also if the seat failed to deliver.
        log_p: ln of each score's p-value if the canary is out, or upper limits on it.
        delta: The delta of ε.
        confidence: Of the bound.
        guesses: None for canaries that were not included by fair coins.
        spent: Probability that any of `log_p` is too small, which the bound pays for.
        most: The largest −ln p that the null can show: the cap of the bound follows from it.

    Returns:
        The bound, and as facts `threshold`, a score −ln p, `share_at_threshold`, the share of
        included canaries that reach it, and `median_score` of the included ones. The threshold is
        the lowest at which this share is at least e^(ε − threshold): from 50:50, an attacker who
        says "in" there is right with odds of e^ε. Without a positive bound there is only the last.
    """
    shown = surprise(log_p)
    takes_coins = guesses is not None and has_level(scores.size, delta, confidence + spent)

    def from_scores(s: Floats) -> Bound:
        if takes_coins:
            return coin_bound(-s, is_in, delta=delta, confidence=confidence + spent)
        return share_bound(s[is_in], delta=delta, confidence=confidence + spent)

    bound = capped(shown, from_scores, most)
    own = np.sort(shown[is_in])
    facts = {"median_score": float(np.median(own))}
    if bound.value > 0:
        reach = 1 - np.searchsorted(own, own) / own.size  # the share that reaches each score
        made = own + np.log(reach) >= bound.value
        threshold = own[made.argmax()] if made.any() else own[-1]
        share = float((own >= threshold).mean())
        facts |= {"threshold": float(threshold), "share_at_threshold": share}
    return replace(bound, confidence=confidence, rule=bound.rule + paid(spent, most)), facts


def surprise(log_p: Floats) -> Floats:
    """Return −ln p, at most 128·ln 2: canaries from seeds of 128 bits show no smaller p-value."""
    return np.minimum(-log_p, MAX_SCORE)


def capped(shown: Floats, bound_of: Callable[[Floats], Bound], most: float = MAX_SCORE) -> Bound:
    """Return a bound with its cap: its value if every score were the largest possible."""
    bound, cap = bound_of(shown), bound_of(np.full_like(shown, most)).value
    return replace(bound, cap=cap, saturated=bound.value >= cap)


def paid(spent: float = 0.0, most: float = MAX_SCORE) -> str:
    """Return in words what was done to the p-values."""
    if most < MAX_SCORE:
        return f" (null from decoys, at a chance of {spent:.2g} to fail: scores up to {most:.1f})"
    simulated = f"null simulated, at a chance of {spent:.2g} to fail, " if spent else ""
    return f" ({simulated}scores capped at {MAX_SCORE:.1f}, seeds of {SEED_BITS} bits)"


_POWER: Final = 0.8  # share of runs that refute a claim
_RUNS: Final = 1000
_TINY: Final = 1e-9


@functools.lru_cache(maxsize=256)
def detectable_epsilon(
    epsilon: float,
    *,
    canaries: int,
    dim: int,
    delta: float,
    confidence: float,
    directions: int = 1,
    tail_factor: float = 1.0,
    has_coins: bool = True,
) -> float:
    """Return the ε at which a Gaussian mechanism is refuted in four of five runs.

    The claim of `epsilon` is refuted if the headline bound of canaries exceeds it: `coin_bound`
    with fair coins, else `share_bound`. Each canary is scored by its cosine with itself in Gaussian
    noise; other canaries do not hide it. The answer is simulated with 1,000 runs in less than half
    a second, and always the same.

    Args:
        epsilon: The claim.
        canaries: Number of canaries; with coins, half of them take part.
        dim: Length of the vectors.
        delta: In [0, 1), of the claim and of what is returned.
        confidence: In (0, 1), of the bound.
        directions: Each p-value is the smallest of so many, times their number.
        tail_factor: Each p-value is so many times that of a canary on the sphere.
        has_coins: Whether a fair coin decides about each canary; otherwise all take part.

    Returns:
        The smallest such ε at `delta`; infinity if no mechanism would be refuted so often.

    >>> found = detectable_epsilon(8.0, canaries=100, dim=10**6, delta=1e-5, confidence=0.95)
    >>> 15 < found < 20
    True
    """
    within("epsilon", epsilon, lowest=0.0, below=math.inf)
    within("canaries", canaries, lowest=1)
    within("dim", dim, lowest=2)
    within("delta", delta, lowest=0.0, below=1.0)
    within("confidence", confidence, above=0.0, below=1.0)
    within("directions", directions, lowest=1)
    within("tail_factor", tail_factor, lowest=1.0, below=math.inf)
    if has_coins and has_level(canaries, delta, confidence):
        number, chance, test = canaries, 0.5, combination(canaries)
        level = 1 - confidence - (1 + math.exp(-epsilon)) * canaries * delta / 2
        needed, scores = test.threshold(level), scores_at(test.edges, epsilon)

        def refuted(reached: Indices) -> NDArray[np.bool_]:
            return np.asarray(test.log_statistic(reached, canaries) > needed)
    else:
        number, chance = max(canaries // 2, 1) if has_coins else canaries, 1.0
        asked, log_chances = asked_shares(number, delta, confidence)
        scores = epsilon - log_chances

        def refuted(reached: Indices) -> NDArray[np.bool_]:
            return np.asarray((reached >= asked).any(axis=-1))

    reach = _reach(scores, dim, directions * tail_factor)

    def is_enough(mean: float) -> bool:
        bins = -np.diff(chance * reach(mean), prepend=1.0, append=0.0)
        counts = stream(0, "detectable").multinomial(number, bins, _RUNS)
        return bool(refuted(number - counts.cumsum(axis=1)[:, :-1]).mean() >= _POWER)

    if not is_enough(math.inf):
        return math.inf
    low, high = 0.0, 1.0
    while not is_enough(high):
        low, high = high, 2 * high
    for _ in range(10):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return epsilon_gaussian(delta, high)


def _reach(scores: Floats, dim: int, times: float) -> Callable[[float], Floats]:
    """Return how likely a canary in Gaussian noise has each score or more, given its mean.

    A p-value is so many `times` that of a cosine.

    From its cosine t follows t·√(d − 1)/√(1 − t²): Student's t with d − 1 degrees of freedom if the
    canary is out, the noncentral t if it is in.
    """
    # The tail of the noncentral t by Johnson and Welch 1940, as if the length of the noise were
    # normal. A score of at least 0 needs no evidence; a p-value of exactly 1 would be at −∞.
    freedom = dim - 1
    p = np.exp(-np.clip(scores, _TINY, MAX_SCORE)) / times
    at = -stdtrit(freedom, p)
    scale = np.sqrt(1 + at**2 / (2 * freedom))

    def tails(mean: float) -> Floats:
        visible = ndtr((mean - at * (1 - 1 / (4 * freedom))) / scale)
        visible = np.select([scores <= 0, scores > MAX_SCORE], [1.0, 0.0], visible)
        return np.minimum.accumulate(visible)

    return tails
