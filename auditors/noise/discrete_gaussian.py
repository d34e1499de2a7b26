"""Discrete Gaussian noise, P(k) ∝ e^(-k²/2σ²).

Canonne, Kamath, Steinke (2020), The Discrete Gaussian for Differential Privacy, arXiv:2004.00010.
Sums of shares are not discrete Gaussian. One share costs, at integer distances, no more than a
Gaussian of the same parameter (their Theorem 4); the price of a sum of n is Proposition 14 of
Kairouz, Liu, Steinke (2021), arXiv:2102.06387.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

import numpy as np

from leakmeter.auditors._types import Vector
from leakmeter.auditors.noise.distribution import Shift
from leakmeter.auditors.noise.integer import BITS, TAIL_BITS, IntegerDistribution


class DiscreteGaussian(IntegerDistribution):
    """Integers with the weights of a Gaussian density."""

    name: ClassVar[str] = "discrete-gaussian"
    least_std: ClassVar[float] = 0.5  # from which the proof for sums holds

    def weights(self, variance: Fraction) -> list[int]:
        """Return e^(-k²/2σ²) in units of 2^-256: each is the one before times e^-(2k+1)/2σ²."""
        with localcontext() as context:
            context.prec = 100
            exponent = -Decimal(variance.denominator) / (2 * Decimal(variance.numerator))
            ratio = int(exponent.exp() * Decimal(2) ** BITS)
        weights, square = [1 << BITS], ratio * ratio >> BITS
        while (weight := weights[-1] * ratio >> BITS) >> (BITS - TAIL_BITS):
            weights.append(weight)
            ratio = ratio * square >> BITS
        return weights

    def divergence(self, shift: Shift, orders: Vector) -> Vector:
        """Return the bound for a sum of shares that have this variance together."""
        l2, l1, dim, shares = shift.l2, shift.l1, shift.dim, shift.shares
        share, root = math.sqrt(shift.variance / shares), math.sqrt(shift.variance)
        if shares == 1:
            return orders * (l2**2 / (2 * shift.variance))
        if share < self.least_std * (1 - 1e-9):
            return np.full(len(orders), math.inf)
        extra, half = _distance_from_gaussian(share, shares), orders / 2
        return np.minimum(
            half * (l2 / root) ** 2 + extra * dim,
            half
            * min(
                (l2 / root) ** 2 + 2 * (l1 / root) * extra + extra**2 * dim,
                (l2 / root + extra * math.sqrt(dim)) ** 2,
            ),
        )


@lru_cache(maxsize=64)
def _distance_from_gaussian(share: float, shares: int) -> float:
    """Return τ, which bounds how far a sum of shares is from one discrete Gaussian."""
    k = np.arange(1, shares)
    return 10 * float(np.exp(-2 * (math.pi * share) ** 2 * (k / (k + 1))).sum())
