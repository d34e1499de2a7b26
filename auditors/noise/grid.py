"""What rounding to a grid does to a clipped update: its norms afterwards.

Kairouz, Liu, Steinke (2021), The Distributed Discrete Gaussian Mechanism for Federated Learning
with Secure Aggregation, arXiv:2102.06387, section 4.2. All lengths are in grid steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

# Conditional rounding is drawn again with at most this probability (the papers' choice).
BETA = math.exp(-0.5)
# Squares of coordinates and their sum must fit 64 bits.
MOST_NORM = 2.0**30


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
        if not 0 < norm <= MOST_NORM:
            raise ValueError(f"norm must be in (0, {MOST_NORM:g}] steps, got {norm:g}")
        root = math.sqrt(dim)
        spread = math.sqrt(2 * math.log(1 / BETA)) * (norm + root / 2)
        return cls.within(min((norm + root) ** 2, norm**2 + dim / 4 + spread), dim)

    @classmethod
    def within(cls, square: float, dim: int) -> Self:
        """Return the limits of an integer vector with at most this square of the L2 norm."""
        # |v| ≤ v² for integers, and Cauchy and Schwarz.
        l2 = math.sqrt(square)
        return cls(l2, min(math.sqrt(dim) * l2, square))
