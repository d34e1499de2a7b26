"""Skellam noise: the difference of two Poissons, P(k) = e^-μ·I_k(μ) at variance μ.

Agarwal, Kairouz, Liu (2021), The Skellam Mechanism for Differentially Private Federated Learning,
arXiv:2110.04995. Sums of shares are Skellam again. The price is their bound of the multidimensional
mechanism, for integer orders from 2. No worst pair of updates is known above one dimension, so
there is no exact composition as for the Gaussian.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import ClassVar

import numpy as np

from leakmeter.auditors._types import Vector
from leakmeter.auditors.noise.distribution import Shift
from leakmeter.auditors.noise.integer import BITS, TAIL_BITS, IntegerDistribution

_SPARE_BITS = 60  # by which the backward recurrence starts further out


class Skellam(IntegerDistribution):
    """Integers whose sum over clients has the same distribution."""

    name: ClassVar[str] = "skellam"

    def weights(self, variance: Fraction) -> list[int]:
        """Return multiples of I_k(μ), by I_{k-1} = I_{k+1} + (2k/μ)·I_k from far out inwards.

        Inwards this recurrence is stable (Miller's algorithm): what the start gets wrong vanishes.
        Errors are far below 2^-140 of the total.
        """
        last = _far_out(float(variance), TAIL_BITS + _SPARE_BITS)
        unit = (2 << BITS) * variance.denominator // variance.numerator  # 2/μ
        beyond, weight = 0, 1 << BITS
        weights = [weight]
        for k in range(last, 0, -1):
            beyond, weight = weight, beyond + (k * unit * weight >> BITS)
            weights.append(weight)
        weights.reverse()
        least = weights[0] >> TAIL_BITS
        return [weight for weight in weights if weight > least]

    def divergence(self, shift: Shift, orders: Vector) -> Vector:
        """Return the bound for Skellam noise; infinite where it is not proved."""
        l2, l1, variance = shift.l2, shift.l1, shift.variance
        main = orders * l2**2 / (2 * variance)
        fine = ((2 * orders - 1) * l2**2 + 6 * l1) / (4 * variance**2)
        bound = main + np.minimum(fine, 3 * l1 / (2 * variance))
        return np.where((orders >= 2) & (orders == np.round(orders)), bound, math.inf)


def _far_out(variance: float, bits: int) -> int:
    """Return a k beyond which a Skellam has at most 2^-bits (Chernoff's bound)."""

    def exponent(k: int) -> float:
        return k * math.asinh(k / variance) - math.hypot(k, variance) + variance

    k = 1
    while exponent(k) < bits * math.log(2):
        k *= 2
    low = k // 2
    while k - low > 1:
        middle = (k + low) // 2
        k, low = (k, middle) if exponent(middle) < bits * math.log(2) else (middle, low)
    return k
