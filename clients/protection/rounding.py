"""Rounding of a clipped update to integers whose norm is bounded.

Kairouz, Liu, Steinke (2021), arXiv:2102.06387, section 4.2: each coordinate is rounded up with
probability its fraction, and everything is drawn again until the norm is within a bound that most
draws meet. What depends on the draw is only the bias; the bound always holds.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors._types import Vector
from leakmeter.auditors.noise.grid import RoundedNorms
from leakmeter.clients.secure_sum.masking import Ring, mask_stream
from leakmeter.clients.secure_sum.quantise import round_up_at_random

_TRIES = 64  # all fail with a chance below e^-32
_CHUNK = 1 << 14


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
