"""What every kind of canary shares: keys, the largest score, and what a kind must be able to do."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.rng import derive

SEED_BITS: Final = 128  # of a seed; p-values below 2^-128 mean nothing
MAX_SCORE: Final = SEED_BITS * math.log(2)  # −ln of the smallest p-value that seeds can show
BLOCK: Final = 2**15  # coordinates of a canary in memory at a time: they fit in the cache

Block = NDArray[np.floating[Any]]
Add = Callable[[Block], None]  # adds the next coordinates of a vector to a block


def canary_key(seed: int, canary: int) -> int:
    """Return the key that a seat gets: it gives this canary, and reveals no other.

    A seat that knew the seed could send all canaries at once, and those of other seats would seem
    to be in the sum.
    """
    return derive(seed, "canary", canary)


class Numbers(Protocol):
    """The coordinates of a vector, one after the other."""

    def fill(self, out: Block) -> None:
        """Put the next coordinates into an array."""


class CanaryKind(ABC):
    """How canaries are drawn, and how likely one that nobody sent has a cosine.

    Attributes:
        name: As settings and orders spell it.
        dtype: Least precision in which a canary is added to a model.
        is_remembered: Whether drawing a canary again costs more than memory for it.
        assumed: What findings assume in place of what they assume of canaries on the sphere.
        tail_factor: By how much `logsf` is above the tail of a normal number, at most.
    """

    name: ClassVar[str]
    dtype: ClassVar[type[np.floating[Any]]]
    is_remembered: ClassVar[bool]
    assumed: ClassVar[Mapping[Assumption, Assumption]] = {}
    tail_factor: ClassVar[float] = 1.0

    @abstractmethod
    def numbers(self, key: int) -> Numbers:
        """Return the coordinates of the canary of a key, up to their common scale."""

    @abstractmethod
    def planted(self, key: int, dim: int, norm: float) -> Add:
        """Return what adds `norm` times the canary of a key to a vector, part by part."""

    @abstractmethod
    def logsf(self, cosine: ArrayLike, dim: int) -> NDArray[np.float64]:
        """Return ln P(cosine of a canary with a vector that does not contain it ≥ t), or more."""
