"""The one-shot audit of the Gaussian mechanism, simulated exactly without any long vector.

Andrew et al. (2024), arXiv:2302.03098, Algorithm 1: k canaries on the unit sphere are summed and
noised, and each is compared with the outcome. Only inner products matter. k rows uniform on the
sphere are C = LQ, with L the row-normalised Bartlett factor of a Wishart matrix (k×k, lower
triangular) and Q orthonormal; QZ is a standard normal of length k, and what Q does not see of Z has
length χ(d−k).
"""

from __future__ import annotations

import math

import numpy as np

from leakmeter.auditors.values import Floats, Vector


def simulate_cosines(dim: int, canaries: int, sigma: float, rng: np.random.Generator) -> Vector:
    """Return the cosines of canaries of unit length with their noised sum."""
    assert 1 <= canaries <= dim
    factor = _unit_rows(dim, canaries, rng)
    # Coordinates of the outcome in the span of the canaries, and the noise outside of it.
    inside = factor.sum(axis=0) + sigma * rng.standard_normal(canaries)
    outside = rng.chisquare(dim - canaries) if dim > canaries else 0.0
    length = math.sqrt(inside @ inside + sigma**2 * outside)
    return np.asarray(factor @ inside / length)


def simulate_rounds(
    dim: int, plays: Floats, drift: Floats, sigma: float, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return the products of canaries with the noised sum of each round, and these sums' products.

    `plays` is the weight of each canary in each round, 0 where it is out (rounds, canaries), and
    `drift` the honest clients' sum of each round, as weights of unit directions (rounds,
    directions). Canaries do not know these, so they may be drawn like canaries.

    Returns:
        Products (rounds, canaries) and the Gram matrix of the sums (rounds, rounds).
    """
    rounds, directions = drift.shape
    rows = directions + plays.shape[1]
    factor = _unit_rows(dim, rows, rng)  # (rows, min(rows, dim))
    seen = factor.shape[1]
    inside = np.hstack([drift, plays]) @ factor + sigma * rng.standard_normal((rounds, seen))
    outside = sigma * _gaussian_rows(dim - seen, rounds, rng)
    return inside @ factor[directions:].T, inside @ inside.T + outside @ outside.T


def _unit_rows(dim: int, rows: int, rng: np.random.Generator) -> Floats:
    """Return L of C = LQ for `rows` independent uniform directions in `dim` dimensions."""
    factor = _gaussian_rows(dim, rows, rng)
    unit: Floats = factor / np.linalg.norm(factor, axis=1, keepdims=True)
    return unit


def _gaussian_rows(dim: int, rows: int, rng: np.random.Generator) -> Floats:
    """Return L of G = LQ for a Gaussian matrix of `rows` rows in `dim` dimensions."""
    if rows > dim:
        return rng.standard_normal((rows, dim))
    # Row i of a Gaussian matrix: i coordinates along the rows before it, χ with dim − i beyond.
    factor = np.tril(rng.standard_normal((rows, rows)), -1)
    np.fill_diagonal(factor, np.sqrt(rng.chisquare(dim - np.arange(rows))))
    return factor
