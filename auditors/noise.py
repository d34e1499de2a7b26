"""Distributions of noise: what clients, the server and the accountant need of each, by name.

A new one is a subclass of `Distribution` and its row in `DISTRIBUTIONS`.

The Gaussian over the reals is the first. Float64 Gaussians are open to attacks on their lowest bits
(Mironov 2012, On Significance of the Least Significant Bits for Differential Privacy); the
guarantees here are about real numbers.

Skellam and discrete Gaussian noise is over integers, with exact draws. Weights are fixed-point
integers of `BITS` bits, so that no floating-point error is in them. A draw compares 128 uniform
bits with cumulative probabilities, 128-bit integers that were computed without floating point. So
its distribution is the stated one up to a total variation below 1e-32, which the accountant adds to
δ. Only 64 of the bits are drawn at first; the others where these do not decide, with a chance below
1e-12 a draw.

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
from abc import ABC, abstractmethod
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.values import Vector, require

# The norm of Gaussian noise exceeds σ·(√d + 10) with probability at most e^-50.
_TAIL = 10.0


@dataclass(frozen=True)
class RoundingGrid:
    """What a sum needs beside noise and L2 sensitivity, where its noise is not Gaussian.

    Attributes:
        step: The grid, in the units of an update; 1 for noise over the reals.
        l1: Most that adding or zeroing one client moves the sum, in L1 norm and steps.
        dim: Coordinates.
        shares: Shares that the noise is the sum of.
    """

    step: float
    l1: float
    dim: int
    shares: int = 1

    def __post_init__(self) -> None:
        require("(0, inf)", step=self.step, l1=self.l1)
        for name, least in (("dim", 1), ("shares", 0)):
            if type(getattr(self, name)) is not int or getattr(self, name) < least:
                raise BadValueError(name, f"at least {least}", getattr(self, name))


@dataclass(frozen=True)
class Reach:
    """How far one client moves a sum that is released.

    Attributes:
        sensitivity: Most that adding or zeroing it moves the sum, in L2 norm.
        grid: What noise other than Gaussian needs beside this.
    """

    sensitivity: float
    grid: RoundingGrid | None = None


@dataclass(frozen=True)
class Shift:
    """Two worlds of a sum with noise, in steps of its grid.

    Attributes:
        l2: Distance of the two sums in L2 norm.
        l1: Their distance in L1 norm.
        variance: Variance of the noise per coordinate, all shares together.
        dim: Coordinates.
        shares: Shares that the noise is the sum of.
    """

    l2: float
    l1: float
    variance: float
    dim: int
    shares: int


class Distribution(ABC):
    """Noise that is independent in every coordinate and has mean zero.

    Attributes:
        name: In settings, orders and releases.
        is_gaussian: Whether releases compose exactly, to one Gaussian. What has a proof for
            Gaussian noise alone (adaptive clipping, amplification) needs it.
        is_integer: Whether it is over integers. Clients then round to the grid of a secure sum and
            add it there, and the server rounds to a grid of its own.
        min_std: Least standard deviation of a client's share, in steps of that grid.
    """

    name: ClassVar[str]
    is_gaussian: ClassVar[bool] = False
    is_integer: ClassVar[bool] = False
    min_std: ClassVar[float] = 0.0

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    @abstractmethod
    def noised(self, vector: Vector, std: float, rng: np.random.Generator | None) -> Vector:
        """Return a vector with noise of this standard deviation.

        Args:
            vector: Of any length.
            std: Standard deviation, in the same units; above 0.
            rng: Source of the noise; None for the operating system's.
        """

    @abstractmethod
    def of_server(self, moved: float, std: float, dim: int) -> Reach:
        """Return how far a client reaches in a sum that `noised` is applied to.

        Args:
            moved: Most that one client moves the sum before that, in L2 norm.
            std: Standard deviation of the noise.
            dim: Coordinates.
        """

    @abstractmethod
    def of_clients(self, clip_norm: float, step: float, dim: int) -> Reach:
        """Return how far a client reaches in a sum of updates that clients have noised.

        Args:
            clip_norm: Largest norm of an update before noise.
            step: Rounding step of the secure sum; 0 without one.
            dim: Coordinates.
        """

    @abstractmethod
    def divergence(self, shift: Shift, orders: Vector) -> Vector:
        """Return a bound on the Rényi divergences of two worlds; infinite where none is proved."""

    def total_variation(self, variance: float) -> float:
        """Return how far one draw, of this variance in steps, may be from the distribution."""
        return 0.0

    def longest(self, std: float, dim: int) -> float:
        """Return a norm that noise does not exceed, up to a negligible probability."""
        return std * (math.sqrt(dim) + _TAIL)


class Gaussian(Distribution):
    """N(0, std²) in every coordinate."""

    name: ClassVar[str] = "gaussian"
    is_gaussian: ClassVar[bool] = True

    def noised(self, vector: Vector, std: float, rng: np.random.Generator | None) -> Vector:
        """Return a vector with Gaussian noise."""
        return np.asarray(vector + gaussian(vector.size, std, rng))

    def of_server(self, moved: float, std: float, dim: int) -> Reach:
        """Return how far a client moves the sum."""
        return Reach(moved)

    def of_clients(self, clip_norm: float, step: float, dim: int) -> Reach:
        """Return the clip norm: the grid must be fine against the noise instead."""
        return Reach(clip_norm)

    def divergence(self, shift: Shift, orders: Vector) -> Vector:
        """Return α Δ²/(2σ²), which is exact."""
        return orders * (shift.l2**2 / shift.variance / 2)


def gaussian(dim: int, std: float, rng: np.random.Generator | None) -> Vector:
    """Return N(0, std²) noise from `rng`, or from the operating system's source if it is None.

    The system's source serves where noise must be unpredictable. Its uniforms have 52 bits, so a
    coordinate is never beyond 8.3 standard deviations.
    """
    require("[0, inf)", std=std)
    if std == 0:
        return np.zeros(dim)
    if rng is not None:
        return std * rng.standard_normal(dim)
    from scipy.special import ndtri  # a tenth of a second, which simulations need not spend

    words = np.frombuffer(os.urandom(8 * dim), "<u8") >> np.uint64(12)
    # The half keeps 0 and 1 out, where the quantile function is infinite; with a 53rd bit the
    # largest word plus a half would be rounded up to 1.
    return np.asarray(std * ndtri((words + 0.5) * 2.0**-52))


# Standard deviations of one draw in grid steps. Tables grow with them.
MIN_STD, MAX_STD = 2.0**-6, 2.0**14
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
    min_std: ClassVar[float] = MIN_STD

    @abstractmethod
    def weights(self, variance: Fraction) -> list[int]:
        """Return integers in proportion to P(0), P(1), …; the other side is the same."""

    def noised(self, vector: Vector, std: float, rng: np.random.Generator | None) -> Vector:
        """Return a vector rounded to the finest grid of the sampler, with integer noise on it.

        What is released follows from these integers, so no bit of a floating-point sample is in it.
        """
        step = std / MAX_STD
        steps = np.clip(np.rint(vector / step), -_MAX_STEPS, _MAX_STEPS).astype(np.int64)
        noise = IntegerSampler.of(self, (std / step) ** 2).draw(vector.size, rng)
        return np.asarray((steps + noise) * step)

    def of_server(self, moved: float, std: float, dim: int) -> Reach:
        """Return how far a client reaches; rounding moves two sums apart by at most √d steps."""
        step = std / MAX_STD
        l2 = moved / step * (1 + _FLOAT_ERROR) + math.sqrt(dim)
        norms = RoundedNorms.within(l2**2, dim)
        return Reach(norms.l2 * step, RoundingGrid(step, norms.l1, dim))

    def of_clients(self, clip_norm: float, step: float, dim: int) -> Reach:
        """Return how far a client reaches whose update is rounded within `RoundedNorms`."""
        if not step > 0:
            raise ValueError(
                f"step must be above 0 with noise of the distribution {self.name}, got {step:g}: "
                "give the rounding step of the secure sum, Masked.step"
            )
        norms = RoundedNorms.of(clip_norm / step, dim)
        return Reach(norms.l2 * step, RoundingGrid(step, norms.l1, dim))

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
    if not 0.99 * MIN_STD**2 <= variance <= 1.01 * MAX_STD**2:
        raise ValueError(
            f"noise must have a standard deviation of {MIN_STD:g} to {MAX_STD:g} steps, "
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
            raise BadValueError("norm", f"in (0, {MAX_NORM:g}] steps", norm)
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
class IntegerSampler:
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
    def of(distribution: IntegerDistribution, variance: float) -> IntegerSampler:
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
        return IntegerSampler(tuple(limits), high, guide, guide_bits)

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
    min_std: ClassVar[float] = 0.5  # from which the proof for sums holds

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
        if share < self.min_std * (1 - 1e-9):
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


DISTRIBUTIONS: dict[str, Distribution] = {
    "gaussian": Gaussian(),
    "skellam": Skellam(),
    "discrete-gaussian": DiscreteGaussian(),
}


def distribution_named(name: object) -> Distribution:
    """Return the distribution of this name.

    Raises:
        ValueError: There is none.
    """
    if not isinstance(name, str) or name not in DISTRIBUTIONS:
        raise BadValueError("distribution", f"one of {', '.join(DISTRIBUTIONS)}", name)
    return DISTRIBUTIONS[name]
