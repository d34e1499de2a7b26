"""Integer noise in the ring of a secure sum: round a clipped update, add integers, nothing else.

Agarwal, Kairouz, Liu (2021), arXiv:2110.04995, and Kairouz, Liu, Steinke (2021), arXiv:2102.06387.
Ours differs: no random rotation before rounding, so that a client needs no common seed; therefore
few bits cost more here than there.

Rounding is that of the second paper, section 4.2: each coordinate is rounded up with probability
its fraction, and everything is drawn again until the norm is within a bound that most draws meet.
What depends on the draw is only the bias; the bound always holds.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Self

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from leakmeter.auditors._types import Vector
from leakmeter.auditors.hook import wire
from leakmeter.auditors.noise import IntegerNoise
from leakmeter.auditors.noise.integer import RoundedNorms
from leakmeter.clients.secure_sum.masking import Ring, mask_stream
from leakmeter.clients.secure_sum.quantise import round_up_at_random
from leakmeter.clients.secure_sum.wire import get_quantiser

_TRIES = 64  # of rounding; all fail with a chance below e^-32
_CHUNK = 1 << 14


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
        """Return the integer noise that a message asks for; None if it asks for other noise.

        Raises:
            ValueError: It is unknown, there is no secure sum, or the two orders differ.
        """
        distribution = wire.noise_distribution(content)
        if not distribution.is_integer:
            return None
        name = distribution.name
        order = wire.config(content, wire.SUM_ORDER)
        if order is None:
            raise ValueError(
                f"{name} noise needs the order of a secure sum, {wire.SUM_ORDER!r}, beside it: "
                "list mask_mod before noise_mod"
            )
        quantiser = get_quantiser(order)
        if (quantiser.noise_distribution, quantiser.noise_std) != (name, std):
            raise ValueError(
                f"{wire.SUM_ORDER!r} must have the noise of {wire.NOISE!r}, {name} of {std:g}, got "
                f"{quantiser.noise_distribution} of {quantiser.noise_std:g}"
            )
        limits = RoundedNorms.of(clip_norm / quantiser.step, dim)
        noise = IntegerNoise(name, (std / quantiser.step) ** 2)
        return cls(quantiser.step, quantiser.clip_range, limits, noise)

    @property
    def norm(self) -> float:
        """Largest L2 norm of an update after rounding, in the update's units."""
        return self.limits.l2 * self.step

    def applied(self, update: Vector, rng: np.random.Generator | None) -> NDArray[np.int64]:
        """Return a clipped update in steps, with noise; no floating point touches the noise."""
        inside = np.clip(update, -self.clip_range, self.clip_range)
        rounded = to_integers(inside / self.step, self.limits, rng)
        return rounded + self.noise.sampler.draw(len(update), rng)


def to_integers(
    values: Vector, limits: RoundedNorms, rng: np.random.Generator | None
) -> NDArray[np.int64]:
    """Return the values, in steps, as integers within the limits.

    Args:
        values: Flat, within the norm that the limits are for.
        limits: Norms of the result.
        rng: Source of the rounding; None for the operating system's.
    """
    for _ in range(_TRIES):
        whole = _rounded(values, os.urandom(32) if rng is None else rng.bytes(32))
        if int(whole @ whole) <= limits.l2**2:
            return whole
    return np.trunc(values).astype(np.int64)  # never longer than the values


def _rounded(values: Vector, key: bytes) -> NDArray[np.int64]:
    whole = np.empty(len(values), np.int64)
    for start in range(0, len(values), _CHUNK):
        part = slice(start, min(start + _CHUNK, len(values)))
        bits = mask_stream(key, part.stop - start, Ring(32), start)
        whole[part] = round_up_at_random(values[part].copy(), bits)
    return whole
