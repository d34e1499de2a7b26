"""Random canaries: unit vectors that are regenerated when needed and never stored.

Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar (2024), One-shot Empirical Privacy Estimation
for Federated Learning, arXiv:2302.03098, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors._types import Vector
from leakmeter.auditors.rng import stream


def canary_vector(seed: int, canary: int, dim: int) -> Vector:
    """Return canary number `canary`, uniform on the unit sphere in `dim` dimensions.

    A pure function: clients and auditor each make the vector for themselves.
    """
    # float32 normals are drawn twice as fast; the direction needs no more digits than a model has.
    normal = _stream(seed, canary).standard_normal(dim, dtype=np.float32)
    vector = normal.astype(np.float64)
    return vector / np.linalg.norm(vector)


def canary_products(
    seed: int, canaries: Iterable[int], vector: Vector, block: int = 2**15
) -> NDArray[np.float64]:
    """Return the inner product of each canary with `vector`, holding `block` numbers at a time."""
    return np.array([_product(_stream(seed, i), vector, block) for i in canaries], dtype=np.float64)


def _product(rng: np.random.Generator, vector: Vector, block: int) -> float:
    """Return the product with one canary, whose numbers stay in the processor's cache."""
    product = square = 0.0
    block = min(block, vector.size)
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


def schedule(k: int, repetitions: int, num_rounds: int, seed: int) -> dict[int, list[int]]:
    """Return round to canaries: each plays `repetitions` times, never twice in a round.

    Always taking those with most repetitions left keeps the rest playable; ties are drawn.
    """
    left = np.full(k, repetitions)
    total = k * repetitions
    plan = {}
    for server_round in range(1, num_rounds + 1):
        take = total * server_round // num_rounds - total * (server_round - 1) // num_rounds
        order = stream(seed, "schedule", server_round).permutation(k)
        ids = order[np.argsort(-left[order], kind="stable")][:take]
        left[ids] -= 1
        plan[server_round] = ids.tolist()
    assert not left.any()
    return plan


def null_maxima(
    gram: NDArray[np.float64],
    dim: int,
    draws: int,
    rng: np.random.Generator,
    block: int = 2**22,
) -> NDArray[np.float64]:
    """Return largest cosines over rounds of canaries that never took part, drawn exactly.

    Given the transcript, the cosines of a fresh canary with all T round deltas are
    R g / √(‖g‖² + χ²), where R factors the Gram matrix of the *normalised* deltas (rank r),
    g ~ N(0, I_r), and χ² has dim − r degrees of freedom: the rest of the canary, which no delta
    sees. Costs O(draws·T·r), not O(draws·T·dim).

    Args:
        gram: Inner products of the round deltas (T, T).
        dim: Length of the deltas.
        draws: Number of fresh canaries.
        rng: Source of randomness.
        block: Numbers to hold at a time.
    """
    lengths = np.sqrt(np.diag(gram))
    moved = lengths > 0
    if not moved.any():
        return np.zeros(draws)
    values, vectors = np.linalg.eigh(
        gram[np.ix_(moved, moved)] / np.outer(lengths, lengths)[np.ix_(moved, moved)]
    )
    kept = values > values[-1] * values.size * np.finfo(np.float64).eps
    factor = vectors[:, kept] * np.sqrt(values[kept])  # (T, r)
    rank = factor.shape[1]
    maxima = np.empty(draws)
    step = max(block // len(gram), 1)
    for start in range(0, draws, step):
        part = maxima[start : start + step]
        normal = rng.standard_normal((part.size, rank))
        rest = rng.chisquare(dim - rank, part.size) if dim > rank else 0.0
        part[:] = (normal @ factor.T).max(axis=1) / np.sqrt((normal**2).sum(axis=1) + rest)
    # A round that changed nothing shows a cosine of zero.
    return maxima if moved.all() else np.maximum(maxima, 0.0)
