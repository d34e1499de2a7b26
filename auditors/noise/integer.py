"""Distributions of integer noise: exact weights, and log-probabilities of a sum of shares.

Skellam: the difference of two Poissons, P(k) = e^-μ·I_k(μ) at variance μ (Agarwal, Kairouz, Liu
2021, The Skellam Mechanism for Differentially Private Federated Learning, arXiv:2110.04995). Sums
of shares are Skellam again. Discrete Gaussian: P(k) ∝ e^(-k²/2σ²) (Canonne, Kamath, Steinke 2020,
The Discrete Gaussian for Differential Privacy, arXiv:2004.00010). Sums of shares are not discrete
Gaussian.

Weights are fixed-point integers of `_BITS` bits, so that no floating-point error is in them. They
are computed by a recurrence over k, whose errors are far below 2^-140 of the total.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Literal, get_args

import numpy as np

from leakmeter.auditors._types import Vector

Law = Literal["gaussian", "skellam", "discrete-gaussian"]
IntegerLaw = Literal["skellam", "discrete-gaussian"]

# Standard deviations of one draw in grid steps. Tables grow with them.
LEAST_STD, MOST_STD = 2.0**-6, 2.0**14
_BITS = 256
_TAIL_BITS = 140  # outcomes below 2^-140 of the peak are left out
_SPARE_BITS = 60  # by which the backward recurrence starts further out


@dataclass(frozen=True)
class IntegerNoise:
    """One client's share of integer noise, or the server's noise, per coordinate.

    Attributes:
        law: Its law.
        variance: Variance of a Skellam, or the parameter σ² of a discrete Gaussian, in squared
            steps.
    """

    law: IntegerLaw
    variance: float

    def __post_init__(self) -> None:
        if self.law not in get_args(IntegerLaw):
            raise ValueError(f"law must be one of {get_args(IntegerLaw)}, got {self.law!r}")
        # A little room: the standard deviation comes from a quotient of floats.
        if not 0.99 * LEAST_STD**2 <= self.variance <= 1.01 * MOST_STD**2:
            raise ValueError(
                f"noise must have a standard deviation of {LEAST_STD:g} to {MOST_STD:g} steps, "
                f"got {math.sqrt(max(self.variance, 0.0)):g}"
            )

    def weights(self) -> list[int]:
        """Return integers in proportion to P(0), P(1), …; the other side is the same."""
        variance = Fraction(self.variance)  # a float is a fraction, exactly
        if self.law == "skellam":
            return _bessel(variance)
        return _squared_exponential(variance)

    def log_pmf(self, shares: int = 1) -> Vector:
        """Return ln P(|k|) of the sum of `shares` independent draws, for k = 0, 1, …

        Relative errors of P are about 1e-13; outcomes below 1e-40 are left out.
        """
        return _log_pmf(self, shares)


@lru_cache(maxsize=16)
def _log_pmf(noise: IntegerNoise, shares: int) -> Vector:
    if noise.law == "skellam":
        # Sums of Skellams are Skellam: no convolution.
        return _log_side(_bessel(Fraction(noise.variance) * shares))
    side = np.exp(_log_side(noise.weights()))
    both = np.concatenate([side[:0:-1], side])
    total, left = np.ones(1), shares
    while left:  # powers by squaring; sums of positive numbers lose no digits
        if left & 1:
            total = _trimmed(np.convolve(total, both))
        both, left = (_trimmed(np.convolve(both, both)) if left > 1 else both), left >> 1
    side = total[len(total) // 2 :]
    return np.asarray(np.log(side / (side[0] + 2 * side[1:].sum())))


def _trimmed(pmf: Vector) -> Vector:
    """Return a symmetric pmf without outcomes that are too rare to matter."""
    kept = np.flatnonzero(pmf > 1e-44 * pmf.max())
    return pmf[kept[0] : kept[-1] + 1]


def _log_side(weights: list[int]) -> Vector:
    total = weights[0] + 2 * sum(weights[1:])
    # math.log takes integers of any size.
    return np.array([math.log(weight) for weight in weights]) - math.log(total)


def _squared_exponential(variance: Fraction) -> list[int]:
    """Return e^(-k²/2σ²) in units of 2^-256: each is the one before times e^-(2k+1)/2σ²."""
    with localcontext() as context:
        context.prec = 100
        exponent = -Decimal(variance.denominator) / (2 * Decimal(variance.numerator))
        ratio = int(exponent.exp() * Decimal(2) ** _BITS)
    weights, square = [1 << _BITS], ratio * ratio >> _BITS
    while (weight := weights[-1] * ratio >> _BITS) >> (_BITS - _TAIL_BITS):
        weights.append(weight)
        ratio = ratio * square >> _BITS
    return weights


def _bessel(variance: Fraction) -> list[int]:
    """Return multiples of I_k(μ), by I_{k-1} = I_{k+1} + (2k/μ)·I_k from far out inwards.

    Inwards this recurrence is stable (Miller's algorithm): what the start gets wrong vanishes.
    """
    last = _far_out(float(variance), _TAIL_BITS + _SPARE_BITS)
    unit = (2 << _BITS) * variance.denominator // variance.numerator  # 2/μ
    beyond, weight = 0, 1 << _BITS
    weights = [weight]
    for k in range(last, 0, -1):
        beyond, weight = weight, beyond + (k * unit * weight >> _BITS)
        weights.append(weight)
    weights.reverse()
    least = weights[0] >> _TAIL_BITS
    return [weight for weight in weights if weight > least]


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
