"""Integer noise of the server, and what releases on a grid are, as data for the accountant."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from leakmeter.auditors._types import Vector
from leakmeter.auditors.noise.grid import RoundedNorms
from leakmeter.auditors.noise.integer import MOST_STD, IntegerLaw, IntegerNoise
from leakmeter.clients.protection.integers import Sampler
from leakmeter.strategies.accounting.integer_noise import GridNoise

_MOST_STEPS = 2.0**60  # sums beyond it are clipped, which moves no two of them apart
_FLOAT_ERROR = 1e-9  # relative; quotients of float64 err by far less


@dataclass(frozen=True)
class IntegerShare:
    """Integer noise that each client adds to its own update.

    Attributes:
        law: Its law.
        noise_std: Its standard deviation, in an update's units.
    """

    law: IntegerLaw
    noise_std: float


def noised_sum(
    total: Vector, std: float, law: IntegerLaw, rng: np.random.Generator | None
) -> Vector:
    """Return a sum rounded to the server's grid, with integer noise on it.

    What is released follows from these integers, so no bit of a floating-point sample is in it.

    Args:
        total: The sum, of any precision.
        std: Standard deviation of the noise, in the same units.
        law: Its law.
        rng: Its source; None for the operating system's.
    """
    step = _server_step(std)
    steps = np.clip(np.rint(total / step), -_MOST_STEPS, _MOST_STEPS).astype(np.int64)
    noise = Sampler.of(IntegerNoise(law, (std / step) ** 2)).draw(total.size, rng)
    return np.asarray((steps + noise) * step)


def of_server(law: IntegerLaw, std: float, moved: float, dim: int) -> dict[str, Any]:
    """Return sensitivity and grid of a sum that the server rounds and noises.

    Rounding two sums to the nearest step moves them apart by at most √d steps.

    Args:
        law: Law of the noise.
        std: Its standard deviation.
        moved: Most that one client moves the sum before it is rounded, in L2 norm.
        dim: Coordinates.
    """
    step = _server_step(std)
    l2 = moved / step * (1 + _FLOAT_ERROR) + math.sqrt(dim)
    norms = RoundedNorms.within(l2**2, dim)
    return {"sensitivity": norms.l2 * step, "grid": GridNoise(law, step, norms.l1, dim)}


def of_clients(law: IntegerLaw, clip_norm: float, step: float, dim: int) -> dict[str, Any]:
    """Return sensitivity and grid of a sum of updates that clients round and noise."""
    if not step > 0:
        raise ValueError(
            f"step must be above 0 with noise of the law {law}, got {step:g}: give the rounding "
            "step of the secure sum, Masked.step"
        )
    norms = RoundedNorms.of(clip_norm / step, dim)
    return {"sensitivity": norms.l2 * step, "grid": GridNoise(law, step, norms.l1, dim)}


def _server_step(std: float) -> float:
    """Return the finest grid that the sampler can do for this noise."""
    return std / MOST_STD
