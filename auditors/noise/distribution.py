"""What a distribution of noise is: how it is added, how far one client reaches, what it costs.

The Gaussian over the reals is the first. Float64 Gaussians are open to attacks on their lowest bits
(Mironov 2012, On Significance of the Least Significant Bits for Differential Privacy); the
guarantees here are about real numbers.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from leakmeter.auditors.values import Vector

# The norm of Gaussian noise exceeds σ·(√d + 10) with probability at most e^-50.
_TAIL = 10.0


@dataclass(frozen=True)
class Grid:
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
        for name in ("step", "l1"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be in (0, inf), got {getattr(self, name)}")
        for name, least in (("dim", 1), ("shares", 0)):
            if type(getattr(self, name)) is not int or getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


@dataclass(frozen=True)
class Reach:
    """How far one client moves a sum that is released.

    Attributes:
        sensitivity: Most that adding or zeroing it moves the sum, in L2 norm.
        grid: What noise other than Gaussian needs beside this.
    """

    sensitivity: float
    grid: Grid | None = None


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
        least_std: Least standard deviation of a client's share, in steps of that grid.
    """

    name: ClassVar[str]
    is_gaussian: ClassVar[bool] = False
    is_integer: ClassVar[bool] = False
    least_std: ClassVar[float] = 0.0

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
    if not 0 <= std < float("inf"):
        raise ValueError(f"std must be in [0, inf), got {std}")
    if std == 0:
        return np.zeros(dim)
    if rng is not None:
        return std * rng.standard_normal(dim)
    from scipy.special import ndtri  # a tenth of a second, which simulations need not spend

    words = np.frombuffer(os.urandom(8 * dim), "<u8") >> np.uint64(12)
    # The half keeps 0 and 1 out, where the quantile function is infinite; with a 53rd bit the
    # largest word plus a half would be rounded up to 1.
    return np.asarray(std * ndtri((words + 0.5) * 2.0**-52))
