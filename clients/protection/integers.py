"""Integers of an exact law, from the operating system's source or a simulation's stream.

A draw compares 128 uniform bits with the law's cumulative probabilities, 128-bit integers that were
computed without floating point. So the law is the stated one up to a total variation below 1e-32,
which the accountant adds to δ. Only 64 of the bits are drawn at first; the others where these do
not decide, with a chance below 1e-12 a draw.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.noise.integer import IntegerNoise

_HIGH, _LOW = 63, 64  # bits of the magnitude's uniform; the 64th bit of the first word is the sign


@dataclass(frozen=True, eq=False)
class Sampler:
    """Draws integers of one law by inversion.

    Attributes:
        limits: `limits[k]` of 2^127 is P(|X| ≤ k), rounded down.
        high: Their upper 63 bits.
        guide: Number of limits below each multiple of 2^(63 - guide_bits).
        guide_bits: Bits that the guide looks at.
    """

    limits: tuple[int, ...]
    high: NDArray[np.uint64]
    guide: NDArray[np.int32]
    guide_bits: int

    @staticmethod
    def of(noise: IntegerNoise) -> Sampler:
        """Return the sampler of a law; the tables of the last few are kept."""
        return _made(noise)

    def draw(self, dim: int, rng: np.random.Generator | None) -> NDArray[np.int64]:
        """Return independent draws from `rng`, or from the operating system's source if None."""
        words = np.frombuffer(_random_bytes(8 * dim, rng), "<u8")
        first = words >> np.uint64(1)
        bucket = (first >> np.uint64(_HIGH - self.guide_bits)).astype(np.int64)
        size = self.guide[bucket].astype(np.int64)
        open_ = np.flatnonzero(self.guide[bucket + 1] != size)  # a limit is in the same bucket
        size[open_] = self._searched(first[open_], rng)
        sign = (words & np.uint64(1)).astype(np.int64)
        return (size ^ -sign) + sign  # negated where the sign bit is set

    def _searched(
        self, first: NDArray[np.uint64], rng: np.random.Generator | None
    ) -> NDArray[np.int64]:
        """Return the magnitudes that belong to these first words."""
        found = np.searchsorted(self.high, first, side="right")
        # Where a limit begins with the same 63 bits, the next 64 decide.
        ties = np.flatnonzero(self.high[np.maximum(found - 1, 0)] == first)
        for i in ties:
            low = int.from_bytes(_random_bytes(8, rng), "little")
            uniform = (int(first[i]) << _LOW) + low
            found[i] = sum(limit <= uniform for limit in self.limits)
        return found


def total_variation(variance: float) -> float:
    """Return a bound on the total variation between one draw and the exact distribution.

    Each limit errs by less than 2^-127, the weights beneath it by far less, and the outcomes that
    are left out have less than 2^-130.
    """
    # Not from the table, which would have to be made: no law reaches further than this.
    outcomes = 16 * math.sqrt(variance) + 160
    return outcomes * 2.0**-126


@lru_cache(maxsize=4)
def _made(noise: IntegerNoise) -> Sampler:
    weights = noise.weights()
    total = weights[0] + 2 * sum(weights[1:])
    limits, below = [], weights[0]
    for weight in weights[1:]:
        limits.append((below << _HIGH + _LOW) // total)
        below += 2 * weight
    high = np.array([limit >> _LOW for limit in limits], np.uint64)
    # Several buckets for each outcome of the bulk, so that few draws need a search.
    guide_bits = min(max(10, math.ceil(math.log2(noise.variance) / 2) + 5), 20)
    edges = np.arange((1 << guide_bits) + 1, dtype=np.uint64) << np.uint64(_HIGH - guide_bits)
    guide = np.searchsorted(high, edges, side="left").astype(np.int32)
    return Sampler(tuple(limits), high, guide, guide_bits)


def _random_bytes(count: int, rng: np.random.Generator | None) -> bytes:
    return os.urandom(count) if rng is None else rng.bytes(count)
