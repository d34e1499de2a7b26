"""Distributions of noise: what clients, the server and the accountant need of each, by name.

A new one is a subclass of `Distribution` in a file of its own, and its row in `DISTRIBUTIONS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from leakmeter.auditors._types import Vector
from leakmeter.auditors.noise.discrete_gaussian import DiscreteGaussian
from leakmeter.auditors.noise.distribution import Distribution
from leakmeter.auditors.noise.gaussian import Gaussian
from leakmeter.auditors.noise.integer import IntegerDistribution, Sampler, check_variance
from leakmeter.auditors.noise.skellam import Skellam

DISTRIBUTIONS: dict[str, Distribution] = {
    "gaussian": Gaussian(),
    "skellam": Skellam(),
    "discrete-gaussian": DiscreteGaussian(),
}


def distribution(name: object) -> Distribution:
    """Return the distribution of this name.

    Raises:
        ValueError: There is none.
    """
    if not isinstance(name, str) or name not in DISTRIBUTIONS:
        shown = f"{name:.40}" if isinstance(name, str) else type(name).__name__
        known = ", ".join(DISTRIBUTIONS)
        raise ValueError(f"distribution must be one of {known}, got {shown!r}")
    return DISTRIBUTIONS[name]


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
        _integer(self.distribution)
        check_variance(self.variance)

    @property
    def sampler(self) -> Sampler:
        """Draws it."""
        return Sampler.of(_integer(self.distribution), self.variance)

    def weights(self) -> list[int]:
        """Return integers in proportion to P(0), P(1), …; the other side is the same."""
        return _integer(self.distribution).weights(Fraction(self.variance))

    def log_pmf(self, shares: int = 1) -> Vector:
        """Return ln P(|k|) of the sum of `shares` independent draws, for k = 0, 1, …

        Relative errors of P are about 1e-13; outcomes below 1e-40 are left out.
        """
        return _log_pmf(self, shares)


@lru_cache(maxsize=16)
def _log_pmf(noise: IntegerNoise, shares: int) -> Vector:
    return _integer(noise.distribution).log_pmf(noise.variance, shares)


def _integer(name: str) -> IntegerDistribution:
    found = distribution(name)
    if not isinstance(found, IntegerDistribution):
        raise ValueError(f"distribution must be over integers, got {name!r}")
    return found
