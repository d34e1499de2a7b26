"""A distribution that the package does not have, in one file: Laplace noise, priced by Rényi DP."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from leakmeter.auditors.noise import Distribution, Reach, RoundingGrid, Shift


class Laplace(Distribution):
    """Laplace noise in every coordinate: the price is by the L1 norm (Mironov 2017, Table II)."""

    name: ClassVar[str] = "laplace"

    def noised(self, vector: np.ndarray, std: float, rng: np.random.Generator | None) -> np.ndarray:
        assert rng is not None
        return vector + rng.laplace(scale=std / math.sqrt(2), size=vector.size)

    def of_server(self, moved: float, std: float, dim: int) -> Reach:
        return Reach(moved, RoundingGrid(1.0, moved * math.sqrt(dim), dim))

    def of_clients(self, clip_norm: float, step: float, dim: int) -> Reach:
        return self.of_server(clip_norm, 1.0, dim)

    def divergence(self, shift: Shift, orders: np.ndarray) -> np.ndarray:
        # One share of a client is enough: the others' noise only helps. ε-DP is an order of ∞.
        scale = math.sqrt(shift.variance / shift.shares / 2)
        return np.minimum(shift.l1 / scale, orders * (shift.l1 / scale) ** 2 / 2)

    def longest(self, std: float, dim: int) -> float:
        return std * (math.sqrt(dim) + 50.0)
