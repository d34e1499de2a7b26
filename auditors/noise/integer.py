"""Noise over integers: Skellam and discrete Gaussian, exact draws, and rounding to a grid.

Weights are fixed-point integers of `BITS` bits, so that no floating-point error is in them. A draw
compares 128 uniform bits with cumulative probabilities, 128-bit integers that were computed without
floating point. So its distribution is the stated one up to a total variation below 1e-32, which the
accountant adds to δ. Only 64 of the bits are drawn at first; the others where these do not decide,
with a chance below 1e-12 a draw.

Rounding is that of Kairouz, Liu, Steinke (2021), The Distributed Discrete Gaussian Mechanism for
Federated Learning with Secure Aggregation, arXiv:2102.06387, section 4.2. All lengths are in grid
steps.

1. Skellam: Agarwal, Kairouz, Liu (2021), The Skellam Mechanism for Differentially Private Federated
   Learning, arXiv:2110.04995. Sums of shares are Skellam again. The price is their bound of the
   multidimensional mechanism, for integer orders from 2. No worst pair of updates is known above
   one dimension, so there is no exact composition as for the Gaussian.
2. Discrete Gaussian: Canonne, Kamath, Steinke (2020), The Discrete Gaussian for Differential
   Privacy, arXiv:2004.00010. Sums of shares are not discrete Gaussian. One share costs, at integer
   distances, no more than a Gaussian of the same parameter (their Theorem 4); the price of a sum of
   n is Proposition 14 of Kairouz, Liu, Steinke.
"""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.noise.distribution import Distribution, Grid, Reach, Shift
from leakmeter.auditors.values import Vector

# Standard deviations of one draw in grid steps. Tables grow with them.
LEAST_STD, MAX_STD = 2.0**-6, 2.0**14
# Conditional rounding is drawn again with at most this probability (the papers' choice).
BETA = math.exp(-0.5)
# Squares of coordinates and their sum must fit 64 bits.
MAX_NORM = 2.0**30
BITS = 256
_SPARE_BITS = 60  # by which the backward recurrence of Skellam weights starts further out
TAIL_BITS = 140  # outcomes below 2^-140 of the peak are left out
_HIGH, _LOW = 63, 64  # bits of the magnitude's uniform; the 64th bit of the first word is the sign
_MAX_STEPS = 2.0**60  # sums beyond it are clipped, which moves no two of them apart
_FLOAT_ERROR = 1e-9  # relative; quotients of float64 err by far less


class IntegerDistribution(Distribution):
    """A distribution over integers, by its exact weights."""

    is_integer: ClassVar[bool] = True
    least_std: ClassVar[float] = LEAST_STD

    @abstractmethod
    def weights(self, variance: Fraction) -> list[int]:
        """Return integers in proportion to P(0), P(1), …; the other side is the same."""

    def noised(self, vector: Vector, std: float, rng: np.random.Generator | None) -> Vector:
        """Return a vector rounded to the finest grid of the sampler, with integer noise on it.

        What is released follows from these integers, so no bit of a floating-point sample is in it.
        """
        step = std / MAX_STD
        steps = np.clip(np.rint(vector / step), -_MAX_STEPS, _MAX_STEPS).astype(np.int64)
        noise = Sampler.of(self, (std / step) ** 2).draw(vector.size, rng)
        return np.asarray((steps + noise) * step)

    def of_server(self, moved: float, std: float, dim: int) -> Reach:
        """Return how far a client reaches; rounding moves two sums apart by at most √d steps."""
        step = std / MAX_STD
        l2 = moved / step * (1 + _FLOAT_ERROR) + math.sqrt(dim)
        norms = RoundedNorms.within(l2**2, dim)
        return Reach(norms.l2 * step, Grid(step, norms.l1, dim))

    def of_clients(self, clip_norm: float, step: float, dim: int) -> Reach:
        """Return how far a client reaches whose update is rounded within `RoundedNorms`."""
        if not step > 0:
            raise ValueError(
                f"step must be above 0 with noise of the distribution {self.name}, got {step:g}: "
                "give the rounding step of the secure sum, Masked.step"
            )
        norms = RoundedNorms.of(clip_norm / step, dim)
        return Reach(norms.l2 * step, Grid(step, norms.l1, dim))

    def total_variation(self, variance: float) -> float:
        """Return a bound for one draw.

        Each limit errs by less than 2^-127, the weights beneath it by far less, and the outcomes
        that are left out have less than 2^-130.
        """
        # Not from the table, which would have to be made: no distribution reaches further.
        outcomes = 16 * math.sqrt(variance) + 160
        return outcomes * 2.0**-126


def check_variance(variance: float) -> None:
    """Raise if noise of this variance, in squared steps, cannot be made."""
    # A little room: the standard deviation comes from a quotient of floats.
    if not 0.99 * LEAST_STD**2 <= variance <= 1.01 * MAX_STD**2:
        raise ValueError(
            f"noise must have a standard deviation of {LEAST_STD:g} to {MAX_STD:g} steps, "
            f"got {math.sqrt(max(variance, 0.0)):g}"
        )


@dataclass(frozen=True)
class RoundedNorms:
    """Most that a rounded update can be, as integers.

    Attributes:
        l2: Its L2 norm.
        l1: Its L1 norm.
    """

    l2: float
    l1: float

    @classmethod
    def of(cls, norm: float, dim: int) -> Self:
        """Return the limits of an update of L2 norm `norm`, conditionally rounded.

        Rounding moves a coordinate by less than 1, so (c + √d)² always holds. On average it adds at
        most d/4 to the square; clients draw again until the second limit holds as well.
        """
        if not 0 < norm <= MAX_NORM:
            raise ValueError(f"norm must be in (0, {MAX_NORM:g}] steps, got {norm:g}")
        root = math.sqrt(dim)
        spread = math.sqrt(2 * math.log(1 / BETA)) * (norm + root / 2)
        return cls.within(min((norm + root) ** 2, norm**2 + dim / 4 + spread), dim)

    @classmethod
    def within(cls, square: float, dim: int) -> Self:
        """Return the limits of an integer vector with at most this square of the L2 norm."""
        # |v| ≤ v² for integers, and Cauchy and Schwarz.
        l2 = math.sqrt(square)
        return cls(l2, min(math.sqrt(dim) * l2, square))


@dataclass(frozen=True, eq=False)
class Sampler:
    """Draws integers of one distribution by inversion.

    Attributes:
        limits: `limits[k]` of 2^127 is P(|X| ≤ k), rounded down.
        high: Their upper 63 bits.
        guide: Number of limits below each multiple of 2^(63 - guide_bits).
        guide_bits: Bits that the guide looks at.
    """

    limits: tuple[int, ...]
    high: NDArray[np.uint64]
    guide: NDArray[np.int32]
    guide_bits: int

    @staticmethod
    @lru_cache(maxsize=4)
    def of(distribution: IntegerDistribution, variance: float) -> Sampler:
        """Return the sampler of a distribution; the tables of the last few are kept."""
        check_variance(variance)
        weights = distribution.weights(Fraction(variance))  # a float is a fraction, exactly
        total = weights[0] + 2 * sum(weights[1:])
        limits, below = [], weights[0]
        for weight in weights[1:]:
            limits.append((below << _HIGH + _LOW) // total)
            below += 2 * weight
        high = np.array([limit >> _LOW for limit in limits], np.uint64)
        # Several buckets for each outcome of the bulk, so that few draws need a search.
        guide_bits = min(max(10, math.ceil(math.log2(variance) / 2) + 5), 20)
        edges = np.arange((1 << guide_bits) + 1, dtype=np.uint64) << np.uint64(_HIGH - guide_bits)
        guide = np.searchsorted(high, edges, side="left").astype(np.int32)
        return Sampler(tuple(limits), high, guide, guide_bits)

    def draw(self, dim: int, rng: np.random.Generator | None) -> NDArray[np.int64]:
        """Return independent draws from `rng`, or from the operating system's source if None."""
        words = np.frombuffer(_random_bytes(8 * dim, rng), "<u8")
        first = words >> np.uint64(1)
        bucket = (first >> np.uint64(_HIGH - self.guide_bits)).astype(np.int64)
        size = self.guide[bucket].astype(np.int64)
        open_ = np.flatnonzero(self.guide[bucket + 1] != size)  # a limit is in the same bucket
        size[open_] = self._searched(first[open_], rng)
        sign = (words & np.uint64(1)).astype(np.int64)
        return (size ^ -sign) + sign  # negated where the sign bit is set

    def _searched(
        self, first: NDArray[np.uint64], rng: np.random.Generator | None
    ) -> NDArray[np.int64]:
        """Return the magnitudes that belong to these first words."""
        found = np.searchsorted(self.high, first, side="right")
        # Where a limit begins with the same 63 bits, the next 64 decide.
        ties = np.flatnonzero(self.high[np.maximum(found - 1, 0)] == first)
        for i in ties:
            low = int.from_bytes(_random_bytes(8, rng), "little")
            uniform = (int(first[i]) << _LOW) + low
            found[i] = sum(limit <= uniform for limit in self.limits)
        return found


def _random_bytes(count: int, rng: np.random.Generator | None) -> bytes:
    return os.urandom(count) if rng is None else rng.bytes(count)


class Skellam(IntegerDistribution):
    """Skellam noise, P(k) = e^-μ·I_k(μ): the difference of two Poissons; sums of it are Skellam."""

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


class DiscreteGaussian(IntegerDistribution):
    """Integers with the weights of a Gaussian density, P(k) ∝ e^(-k²/2σ²)."""

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
