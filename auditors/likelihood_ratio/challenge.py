"""Two candidate updates and the best linear test between them, chosen before any trial is played.

Ngo, Östman, Durisi, Graell i Amat (2024), Secure Aggregation is Not Private Against Membership
Inference Attacks, arXiv:2403.17775, eq. 10 and 11: for a Gaussian sum of the others the most
distinguishable pair is the one that is farthest apart in units of their covariance, and the
log-likelihood ratio is linear in what the server sees. So a client enters a trial through a
single number, and a trial costs no more than its scalar.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leakmeter.auditors._types import AnyFloats, Floats, Vector
from leakmeter.auditors.likelihood_ratio.sum_law import SumLaw, grams
from leakmeter.auditors.sampling.row_store import RowStore


@dataclass(frozen=True)
class Challenge:
    """A pair of candidates and the direction that distinguishes them best.

    Attributes:
        pair: Which of the candidates; a large score favours the first.
        direction: Σ⁻¹(first - second) over the separation, (dim,): the model's scores have unit
            variance.
        shift: How far the first candidate's score is above the second's.
        total: Sum of the two candidates' scores.
        modelled: Separation of the pair in standard deviations, as the model of the fit has it.
        law: That model.
    """

    pair: tuple[int, int]
    direction: Vector
    shift: float
    total: float
    modelled: float
    law: SumLaw


def challenge(candidates: AnyFloats | RowStore, law: SumLaw) -> Challenge:
    """Return the pair of candidates, (m, dim), that the model sets farthest apart."""
    return Candidates.of(candidates, [law]).worst_pair(0)


@dataclass(frozen=True)
class Candidates:
    """Candidates and their inner products in each model of one fit.

    Attributes:
        rows: The candidates, (m, dim).
        centre: Their mean, (dim,).
        laws: The models.
        grams: Inner products of the candidates around their mean, (m, m), one for each model.
    """

    rows: RowStore
    centre: AnyFloats
    laws: Sequence[SumLaw]
    grams: Sequence[Floats]

    @classmethod
    def of(cls, candidates: AnyFloats | RowStore, laws: Sequence[SumLaw]) -> Candidates:
        """Return the candidates as the models see them."""
        if len(candidates) < 2:
            raise ValueError(f"candidates must be at least 2, got {len(candidates)}")
        rows = RowStore.of(candidates)
        # Around their own mean the products are small, and so is what cancels in the distances.
        centre = rows.mean()
        return cls(rows, centre, laws, grams(laws, rows, centre))

    def worst_pair(self, index: int) -> Challenge:
        """Return the test of the pair that a model sets farthest apart."""
        first, second = farthest(self.grams[index])
        return between(
            self.rows.row(first), self.rows.row(second), self.laws[index], (first, second)
        )

    def against(self, update: Vector) -> Challenge:
        """Return the test of an update against the candidate farthest from it in the first model.

        |x - c|² is |c|² - 2 x·c and what all candidates share, and Σ⁻¹x is solved for once.
        """
        toward = self.laws[0].solve(update - self.centre)
        # (m,): (c - centre)ᵀ Σ⁻¹ (x - centre) for each candidate c.
        products = self.rows.times(toward, self.centre)
        index = int((np.diagonal(self.grams[0]) - 2 * products).argmax())
        return between(update, self.rows.row(index), self.laws[0], (-1, index))


def between(
    first: AnyFloats, second: AnyFloats, law: SumLaw, pair: tuple[int, int] = (0, 1)
) -> Challenge:
    """Return the test between two given updates."""
    x, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    gap = x - other
    direction = law.solve(gap)  # Σ⁻¹(x - other), (dim,)
    # Mahalanobis distance: √(gapᵀ Σ⁻¹ gap). Rounding can make a 0 negative.
    # Equal candidates, or equal in all that the model knows of: nothing to distinguish.
    separation = math.sqrt(max(float(direction @ gap), 0.0))
    direction = direction / separation if separation > 0 else np.zeros_like(direction)
    shift, total = float(direction @ gap), float(direction @ (x + other))
    return Challenge(pair, direction, shift, total, separation, law)


def farthest(gram: Floats) -> tuple[int, int]:
    """Return the two rows farthest apart, from their inner products; the first pair if several.

    >>> farthest(np.array([[0.0, 0.0, 0.0], [0.0, 1.0, -2.0], [0.0, -2.0, 4.0]]))
    (1, 2)
    """
    lengths = np.diagonal(gram)
    # Polarisation: |a - b|² = |a|² + |b|² - 2 a·b, for all pairs at once, (m, m).
    squares = lengths[:, None] + lengths[None, :] - 2 * gram
    np.fill_diagonal(squares, -np.inf)
    first, second = np.unravel_index(int(squares.argmax()), squares.shape)
    return int(first), int(second)
