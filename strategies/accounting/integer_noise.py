"""What integer noise on a grid guarantees, by Rényi divergences.

- Skellam: Agarwal, Kairouz, Liu (2021), arXiv:2110.04995, the bound of the
  multidimensional mechanism, for integer orders from 2.
- Discrete Gaussian: Canonne, Kamath, Steinke (2020), arXiv:2004.00010, Theorem 4: at integer
  distances no more than a Gaussian of the same parameter.
- Sums of n discrete Gaussians: Kairouz, Liu, Steinke (2021), arXiv:2102.06387, Proposition 14.

No worst pair of updates is known above one dimension, so there is no exact composition as for the
Gaussian. All lengths are in grid steps. Divergences hold for every pair of updates within both
norms, and for mixtures over the rounding, since they are quasi-convex in the pair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import get_args

import numpy as np

from leakmeter.auditors._types import Vector
from leakmeter.auditors.noise.integer import IntegerLaw
from leakmeter.clients.protection.integers import total_variation

# Orders of Rényi divergences: fractions, where the Skellam's has no proof, and integers, all of
# them at first and then fewer and fewer, for small ε.
_INTEGERS = np.geomspace(2, 2**20, 2000).round()
ORDERS: Vector = np.unique(
    [*(1 + np.geomspace(1e-3, 0.99, 60)), *np.arange(21, 200) / 10, *_INTEGERS]
)
ORDERS.setflags(write=False)
_LEAST_SHARE = 0.5  # standard deviation of a discrete Gaussian share from which the proof holds


@dataclass(frozen=True)
class GridNoise:
    """What a release with integer noise has beside its noise and its L2 sensitivity.

    Attributes:
        law: Law of each share.
        step: The grid, in the units of an update.
        l1: Most that adding or zeroing one client moves the sum, in L1 norm and steps.
        dim: Coordinates.
        shares: Shares that the noise is the sum of.
    """

    law: IntegerLaw
    step: float
    l1: float
    dim: int
    shares: int = 1

    def __post_init__(self) -> None:
        if self.law not in get_args(IntegerLaw):
            raise ValueError(f"law must be one of {get_args(IntegerLaw)}, got {self.law!r}")
        for name in ("step", "l1"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be in (0, inf), got {getattr(self, name)}")
        for name, least in (("dim", 1), ("shares", 0)):
            if type(getattr(self, name)) is not int or getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")

    def divergence(self, noise_std: float, moved: float, factor: float, orders: Vector) -> Vector:
        """Return the Rényi divergences of two worlds, at the given orders.

        Args:
            noise_std: Standard deviation of the noise on the sum.
            moved: Most that one client moves the sum, in L2 norm; both in an update's units.
            factor: 2 if a client is replaced, else 1.
            orders: Above 1.
        """
        if noise_std == 0 or self.shares == 0:
            return np.full(len(orders), math.inf)
        l1, l2 = factor * self.l1, factor * moved / self.step
        variance = (noise_std / self.step) ** 2
        if self.law == "skellam":
            return skellam_divergence(l2, l1, variance, orders)
        about = {"shares": self.shares, "dim": self.dim}
        return discrete_gaussian_divergence(l2, l1, variance, orders, **about)

    def total_variation(self, noise_std: float) -> float:
        """Return how far the sampler's noise may be from its law, over all draws of a sum."""
        if noise_std == 0 or self.shares == 0:
            return 0.0
        share = (noise_std / self.step) ** 2 / self.shares
        return self.dim * self.shares * total_variation(share)


def skellam_divergence(l2: float, l1: float, variance: float, orders: Vector) -> Vector:
    """Return the bound for Skellam noise of this variance; infinite where it is not proved."""
    main = orders * l2**2 / (2 * variance)
    fine = ((2 * orders - 1) * l2**2 + 6 * l1) / (4 * variance**2)
    bound = main + np.minimum(fine, 3 * l1 / (2 * variance))
    return np.where((orders >= 2) & (orders == np.round(orders)), bound, math.inf)


def discrete_gaussian_divergence(
    l2: float, l1: float, variance: float, orders: Vector, *, shares: int, dim: int
) -> Vector:
    """Return the bound for the sum of discrete Gaussians that have this variance together."""
    share, root = math.sqrt(variance / shares), math.sqrt(variance)
    if shares == 1:
        return orders * (l2**2 / (2 * variance))
    if share < _LEAST_SHARE * (1 - 1e-9):
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


def epsilon_of(divergences: Vector, delta: float, distance: float = 0.0) -> float:
    """Return ε at δ from Rényi divergences at `ORDERS`.

    Canonne, Kamath, Steinke (2020), Proposition 12. Noise whose law is off by `distance` in total
    variation costs another (1 + e^ε)·distance of δ.
    """
    found = _converted(divergences, delta)
    while math.isfinite(found):
        # The larger ε, the more δ the distance costs: from below, until nothing changes.
        left = delta - (1 + math.exp(min(found, 700.0))) * distance
        if left <= 0:
            return math.inf
        if (more := _converted(divergences, left)) <= found * (1 + 1e-12):
            return max(more, found)
        found = more
    return found


def _converted(divergences: Vector, delta: float) -> float:
    costs = divergences + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return max(float(costs.min()), 0.0)
