"""Random streams named by a seed and a path, so that order and thread never matter."""

from __future__ import annotations

import hashlib
from operator import index

import numpy as np

__all__ = ["stream"]


def stream(seed: int, *path: str | int) -> np.random.Generator:
    """Return the generator that belongs to `seed` and a path of names and numbers.

    Two different paths give independent streams and the same path gives the same stream again,
    whatever was drawn elsewhere. Philox is counter based: creating a stream is cheap.

    >>> bool(stream(1, "batches", 3, 7).random() == stream(1, "batches", 3, 7).random())
    True
    """
    return np.random.Generator(np.random.Philox(key=derive(seed, *path)))


def derive(seed: int, *path: str | int) -> int:
    """Return a 128-bit number that names this path; for generators that are not numpy's."""
    # repr keeps 1 and "1", and ("a", "b") and ("ab",), apart; index makes numpy's integers plain,
    # which repr would not, and refuses floats.
    names = tuple(part if isinstance(part, str) else index(part) for part in path)
    digest = hashlib.sha256(repr((index(seed), names)).encode()).digest()
    return int.from_bytes(digest[:16], "little")
