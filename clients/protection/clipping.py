"""Clipping and Gaussian noise on one flat update.

Float64 Gaussians are open to attacks on their lowest bits (Mironov 2012, On Significance of the
Least Significant Bits for Differential Privacy); the guarantees here are about real numbers.
"""

from __future__ import annotations

import os

import numpy as np
from scipy.special import ndtri

from leakmeter.auditors._types import Vector


def clip(update: Vector, norm: float) -> Vector:
    """Return the update scaled to at most `norm`, by one joint L2 norm; zero stays zero."""
    if not 0 < norm < float("inf"):
        raise ValueError(f"norm must be in (0, inf), got {norm}")
    if not np.isfinite(update).all():
        raise ValueError("update must be finite, got NaN or infinity")
    peak = float(np.abs(update).max(initial=0.0))
    if peak == 0:
        return update
    direction = update / peak  # squares of very large or tiny entries leave float64's range
    length = float(np.linalg.norm(direction))
    return update if length <= norm / peak else direction * (norm / length)


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
    words = np.frombuffer(os.urandom(8 * dim), "<u8") >> np.uint64(12)
    # The half keeps 0 and 1 out, where the quantile function is infinite; with a 53rd bit the
    # largest word plus a half would be rounded up to 1.
    return np.asarray(std * ndtri((words + 0.5) * 2.0**-52))
