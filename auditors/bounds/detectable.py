"""How far an audit with canaries can see: what a mechanism must leak for a claim to be refuted."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

from leakmeter.auditors._types import Floats, Indices, within
from leakmeter.auditors.bounds.combined import combination
from leakmeter.auditors.bounds.one_run import asked_shares, has_level, scores_at
from leakmeter.auditors.canary_draws.kind import MAX_SCORE
from leakmeter.auditors.gaussian.pair import epsilon_gaussian
from leakmeter.auditors.rng import stream

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
