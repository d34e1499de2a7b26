"""Random canaries: unit vectors that are regenerated when needed and never stored.

Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar (2024), One-shot Empirical Privacy Estimation
for Federated Learning, arXiv:2302.03098, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors._types import Vector
from leakmeter.auditors.rng import stream

__all__ = ["canary_vector"]

SEED_BITS: Final = 128  # of a seed; p-values below 2^-128 mean nothing
_BLOCK = 2**15  # numbers of a canary held at a time


def canary_vector(seed: int, canary: int, dim: int) -> Vector:
    """Return canary number `canary`, uniform on the unit sphere in `dim` dimensions.

    A pure function: clients and auditor each make the vector for themselves.
    """
    # float32 normals are drawn twice as fast; the direction needs no more digits than a model has.
    normal = _stream(seed, canary).standard_normal(dim, dtype=np.float32)
    vector = normal.astype(np.float64)
    return vector / np.linalg.norm(vector)


def canary_products(seed: int, canaries: Iterable[int], vector: Vector) -> NDArray[np.float64]:
    """Return the inner product of each canary with `vector`; no canary is ever held whole."""
    return np.array([_product(_stream(seed, i), vector) for i in canaries], dtype=np.float64)


def _product(rng: np.random.Generator, vector: Vector) -> float:
    """Return the product with one canary, whose numbers stay in the processor's cache."""
    product = square = 0.0
    block = min(_BLOCK, vector.size)
    short, long = np.empty(block, dtype=np.float32), np.empty(block)
    for start in range(0, vector.size, block):
        part = vector[start : start + block]
        rng.standard_normal(dtype=np.float32, out=short[: part.size])
        normal = long[: part.size]
        normal[:] = short[: part.size]
        product += float(normal @ part)
        square += float(normal @ normal)
    return product / math.sqrt(square)


def _stream(seed: int, canary: int) -> np.random.Generator:
    return stream(seed, "canary", canary)
