"""Gaussian noise over the reals.

Float64 Gaussians are open to attacks on their lowest bits (Mironov 2012, On Significance of the
Least Significant Bits for Differential Privacy); the guarantees here are about real numbers.
"""

from __future__ import annotations

import os
from typing import ClassVar

import numpy as np

from leakmeter.auditors._types import Vector
from leakmeter.auditors.noise.distribution import Distribution, Reach, Shift


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
