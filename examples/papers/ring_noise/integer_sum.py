"""Which of two updates is in a released sum of integers? The exact likelihood ratio decides.

The attacker is the worst that a guarantee of integer noise is about: a server that sees the sum of
a round and knows everything in it but the noise of honest clients. That is the rounded updates of
all others, the noise of colluders, and the two rounded updates that the client under attack may
have sent. After subtraction one of these two is left, plus independent noise of a known
distribution on each coordinate. So the score is a sum of exact log-ratios, and no test is better
(Neyman and Pearson).

The distribution of the noise is exact, too: `IntegerNoise.log_pmf`, of one share or of a sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.audited_round import Claims, Trials
from leakmeter.auditors.finding import Adjacency, Finding, ThreatModel
from leakmeter.auditors.noise import (
    IntegerDistribution,
    IntegerSampler,
    check_variance,
    distribution_named,
)
from leakmeter.auditors.values import Vector
from leakmeter.auditors.wording import Assumption

Integers = NDArray[np.int64]
# Given a number of coordinates, draws this many integers of one share, as a client does.
DrawShare = Callable[[int], Integers]


@dataclass(frozen=True)
class IntegerNoise:
    """One client's share of integer noise, or the server's noise, per coordinate.

    Attributes:
        distribution: Name of its distribution, which is over integers.
        variance: Variance of a Skellam, or the parameter σ² of a discrete Gaussian, in squared
            steps.
    """

    distribution: str
    variance: float

    def __post_init__(self) -> None:
        if not isinstance(distribution_named(self.distribution), IntegerDistribution):
            raise ValueError(f"distribution must be over integers, got {self.distribution!r}")
        check_variance(self.variance)

    @property
    def family(self) -> IntegerDistribution:
        """Its distribution."""
        found = distribution_named(self.distribution)
        assert isinstance(found, IntegerDistribution)
        return found

    @property
    def sampler(self) -> IntegerSampler:
        """Draws it."""
        return IntegerSampler.of(self.family, self.variance)

    def weights(self) -> list[int]:
        """Return integers in proportion to P(0), P(1), …; the other side is the same."""
        return self.family.weights(Fraction(self.variance))

    def log_pmf(self, shares: int = 1) -> Vector:
        """Return ln P(|k|) of the sum of `shares` independent draws, for k = 0, 1, …

        Relative errors of P are about 1e-13; outcomes below 1e-40 are left out.
        """
        return _log_pmf_of_sum(self, shares)


@lru_cache(maxsize=16)
def _log_pmf_of_sum(noise: IntegerNoise, shares: int) -> Vector:
    if noise.distribution == "skellam":  # sums of shares are Skellam again
        return _log_side(noise.family.weights(Fraction(noise.variance) * shares))
    side = np.exp(_log_side(noise.weights()))
    both = np.concatenate([side[:0:-1], side])
    total, left = np.ones(1), shares
    while left:  # powers by squaring; sums of positive numbers lose no digits
        if left & 1:
            total = _trimmed(np.convolve(total, both))
        both, left = (_trimmed(np.convolve(both, both)) if left > 1 else both), left >> 1
    side = total[len(total) // 2 :]
    return np.asarray(np.log(side / (side[0] + 2 * side[1:].sum())))


def _log_side(weights: list[int]) -> Vector:
    """Return ln P(0), ln P(1), … from weights of one side."""
    total = weights[0] + 2 * sum(weights[1:])
    # math.log takes integers of any size.
    return np.array([math.log(weight) for weight in weights]) - math.log(total)


def _trimmed(pmf: Vector) -> Vector:
    """Return a symmetric pmf without outcomes that are too rare to matter."""
    kept = np.flatnonzero(pmf > 1e-44 * pmf.max())
    return pmf[kept[0] : kept[-1] + 1]


@dataclass(frozen=True, eq=False)
class IntegerSum:
    """One client's two possible updates in a sum with integer noise.

    Attributes:
        noise: One share, per coordinate and in steps.
        shares: Shares of honest clients in the sum.
        first: One rounded update, in steps.
        second: The other; zeros if the client stays out.
        colluders: Clients whose noise the attacker knows; they are not among `shares`.
    """

    noise: IntegerNoise
    shares: int
    first: Integers
    second: Integers
    colluders: int = 0

    def __post_init__(self) -> None:
        if self.shares < 1:
            raise ValueError(f"shares must be at least 1, got {self.shares}")
        for name in ("first", "second"):
            given = getattr(self, name)
            if given.dtype != np.int64 or given.shape != self.first.shape or given.ndim != 1:
                raise ValueError(
                    f"{name} must be a flat vector of int64 like first, got shape {given.shape} "
                    f"of {given.dtype}"
                )

    @property
    def adjacency(self) -> Adjacency:
        """Zero-out if one of the two updates is zero, else replace."""
        return "replace" if self.first.any() and self.second.any() else "zero-out"

    def scores(self, sums: Integers) -> Vector:
        """Return ln P(sum | first) − ln P(sum | second) of sums without what others contribute.

        Args:
            sums: (trials, dim), or (dim,) for one sum.
        """
        # ln P(|k|), k = 0, 1, …: both distributions are symmetric, and the sum of shares is one
        # table.
        table = self.noise.log_pmf(self.shares)
        # (trials, dim): coordinates are independent, so their log-ratios add up.
        ratios = _log_pmf(table, sums - self.first) - _log_pmf(table, sums - self.second)
        return np.atleast_1d(ratios.sum(axis=-1))

    def play(self, draw: DrawShare, trials: int) -> tuple[Vector, Vector]:
        """Return the scores of trials in the world of the first and of the second update."""
        if trials < 1:
            raise ValueError(f"trials must be at least 1, got {trials}")
        return (
            self.scores(self.first + self._noises(draw, trials)),
            self.scores(self.second + self._noises(draw, trials)),
        )

    def _noises(self, draw: DrawShare, trials: int) -> Integers:
        """Return the noise of this many sums, share by share."""
        total = np.zeros((trials, len(self.first)), np.int64)
        for _ in range(self.shares):
            # Drawn share by share, as clients do: a sampler's own errors are then part of the
            # audit.
            total += draw(total.size).reshape(total.shape)
        return total

    def finding(
        self, played: tuple[Vector, Vector], *, delta: float, confidence: float = 0.95
    ) -> Finding:
        """Return the lower bound on ε that the scores prove.

        Part of the confidence goes to the threshold 0, at which a likelihood ratio decides.
        """
        attacker = ThreatModel(
            observer="server",
            sees="round sum",
            holds="two updates",
            knows_cohort=True,
            participations=1,
            game="worst-data",
            colluders=self.colluders,
        )
        assumed = (Assumption.FROZEN_UPDATES, Assumption.KNOWN_REST, Assumption.TRIALS_BY_CODE)
        claims = Claims("likelihood-ratio", attacker, adjacency=self.adjacency, assumptions=assumed)
        facts = {
            "distribution": self.noise.distribution,
            "noise std of the sum in steps": math.sqrt(self.shares * self.noise.variance),
            "distance of the two updates in steps": float(np.linalg.norm(self.first - self.second)),
        }
        bound = Trials(*played, threshold=0.0).bound(delta, confidence)
        return claims.finding(claims.assuming(bound), facts)


def _log_pmf(table: Vector, at: Integers) -> Vector:
    """Return log-probabilities; beyond the table, which no trial reaches, those of its end."""
    return np.asarray(table[np.minimum(np.abs(at), len(table) - 1)])
