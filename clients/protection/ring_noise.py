"""Integer noise in the ring of a secure sum: round a clipped update, add integers, nothing else.

Agarwal, Kairouz, Liu (2021), arXiv:2110.04995, and Kairouz, Liu, Steinke (2021), arXiv:2102.06387.
Ours differs: no random rotation before rounding, so that a client needs no common seed; therefore
few bits cost more here than there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from leakmeter.auditors._types import Vector
from leakmeter.auditors.hook import wire
from leakmeter.auditors.noise.grid import RoundedNorms
from leakmeter.auditors.noise.integer import IntegerNoise
from leakmeter.clients.protection.integers import Sampler
from leakmeter.clients.protection.rounding import to_integers
from leakmeter.clients.secure_sum.wire import get_quantiser


@dataclass(frozen=True)
class RingNoise:
    """A client's share of integer noise, as the orders of a train message describe it.

    Attributes:
        step: Grid that updates are rounded to.
        clip_range: Coordinates are clipped to ± this value before rounding.
        limits: Norms of a rounded update, in steps.
        noise: The share, in steps.
    """

    step: float
    clip_range: float
    limits: RoundedNorms
    noise: IntegerNoise

    @classmethod
    def ordered(cls, content: RecordDict, clip_norm: float, std: float, dim: int) -> Self | None:
        """Return the integer noise that a message asks for; None if it asks for another law.

        Raises:
            ValueError: The law is unknown, there is no secure sum, or the two orders differ.
        """
        law = wire.noise_law(content)
        if law == "gaussian":
            return None
        order = wire.config(content, wire.SUM_ORDER)
        if order is None:
            raise ValueError(
                f"noise of the law {law} needs the order of a secure sum, {wire.SUM_ORDER!r}, "
                "beside it: list mask_mod before noise_mod"
            )
        quantiser = get_quantiser(order)
        if (quantiser.law, quantiser.noise_std) != (law, std):
            raise ValueError(
                f"{wire.SUM_ORDER!r} must have the noise of {wire.NOISE!r}, {law} of {std:g}, got "
                f"{quantiser.law} of {quantiser.noise_std:g}"
            )
        limits = RoundedNorms.of(clip_norm / quantiser.step, dim)
        noise = IntegerNoise(law, (std / quantiser.step) ** 2)
        return cls(quantiser.step, quantiser.clip_range, limits, noise)

    @property
    def norm(self) -> float:
        """Largest L2 norm of an update after rounding, in the update's units."""
        return self.limits.l2 * self.step

    def applied(self, update: Vector, rng: np.random.Generator | None) -> NDArray[np.int64]:
        """Return a clipped update in steps, with noise; no floating point touches the noise."""
        inside = np.clip(update, -self.clip_range, self.clip_range)
        rounded = to_integers(inside / self.step, self.limits, rng)
        return rounded + Sampler.of(self.noise).draw(len(update), rng)
