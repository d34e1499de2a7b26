"""What the models of a run showed of each canary: its cosine with every change, and their nulls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors._types import Vector
from leakmeter.auditors.auditor import DivergedError
from leakmeter.auditors.canaries.proofs import cosine_logsf, largest_cosine_log_p
from leakmeter.auditors.canary import canary_products

Scores = NDArray[np.float64]

_GONE = 1e-9  # a change this short against the way there is rounding


class Transcript:
    """The changes of a model, round by round, and the products of canaries with them.

    Args:
        seed: The seed that all canaries share.
        canaries: Their numbers.
        dim: Length of the model.
    """

    def __init__(self, seed: int, canaries: Sequence[int], dim: int) -> None:
        self._seed, self._canaries, self._dim = seed, canaries, dim
        self._products: list[Scores] = []  # (canaries) a round
        self._changes: list[NDArray[np.float32]] = []  # (dim) a round, for their Gram matrix

    def add(self, change: Vector) -> Scores:
        """Take up a round and return the cosines of all canaries with it, 0 if nothing changed."""
        with np.errstate(over="ignore"):
            kept = change.astype(np.float32)
        if not np.isfinite(kept).all():  # else a diverged model would seem to hide everyone
            raise DivergedError
        # Products are those of what is kept, so that their null is exact to the last digit.
        exact = kept.astype(np.float64)
        products = canary_products(self._seed, self._canaries, exact)
        self._changes.append(kept)
        self._products.append(products)
        return products / (np.linalg.norm(exact) or 1.0)

    def final(self) -> tuple[Scores, Scores]:
        """Return the cosines with the change since the start, and ln of their p-values."""
        changes, products = self._arrays()
        length = np.linalg.norm(changes.sum(axis=0))
        if length <= _GONE * np.linalg.norm(changes, axis=1).sum():
            # Nothing to compare with: all canaries look alike, which is no evidence of any.
            return np.zeros(len(self._canaries)), np.zeros(len(self._canaries))
        cosines = products.sum(axis=0) / length
        return cosines, cosine_logsf(cosines, self._dim)

    def largest(
        self, draws: int, level: float, rng: np.random.Generator
    ) -> tuple[Scores, Scores, Scores]:
        """Return the largest cosines over rounds, upper limits on ln p, and draws of their null.

        Args:
            draws: How many to draw.
            level: Chance that any of the limits fails.
            rng: Source of the draws.
        """
        changes, products = self._arrays()
        gram = changes @ changes.T
        moved = np.diag(gram) > 0
        if not moved.any():
            return np.zeros(len(self._canaries)), np.zeros(len(self._canaries)), np.zeros(1)
        gram = gram[np.ix_(moved, moved)]
        maxima = (products[moved] / np.sqrt(np.diag(gram))[:, None]).max(axis=0)
        pool = null_maxima(gram, self._dim, draws, rng)
        log_p = largest_cosine_log_p(maxima, pool, self._dim, int(moved.sum()), level)
        return maxima, log_p, pool

    def state(self) -> dict[str, Any]:
        """Return products and changes as two arrays."""
        products = np.array(self._products).reshape(-1, len(self._canaries))
        return {"products": products, "changes": np.array(self._changes).reshape(-1, self._dim)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up a state that `state` returned."""
        self._products = list(np.asarray(state["products"], dtype=np.float64))
        self._changes = list(np.asarray(state["changes"], dtype=np.float32))

    def _arrays(self) -> tuple[Scores, Scores]:
        """Return changes (rounds, dim) and products (rounds, canaries)."""
        state = self.state()
        return state["changes"].astype(np.float64), state["products"]


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
