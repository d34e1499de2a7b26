"""The two Gaussians between which one record decides, in the few directions where they differ.

A client samples its D gradients with Gaussian weights and fills the covariance Σ = GᵀG/(BD) to a
floor; a secure sum adds more of the same from others. With one record replaced, mean and covariance
differ, so the log-ratio of the two densities is quadratic, not linear. Outside of the span of the
D + 1 gradients in question both worlds have the same mean and variance, so coordinates in that span
are all that matters, and these come from the Gram matrix: nothing of size dim × dim is formed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from leakmeter.auditors._types import Floats, Indices

_RANK = 1e-12  # of the largest eigenvalue: what is below is rounding
# Of the largest variance: stands for none at all, where the true ratio is infinite or undefined.
_NO_NOISE = 1e-10


class GradientRows(Protocol):
    """Gradients G of some records, (count, dim), however they are kept."""

    @property
    def count(self) -> int: ...

    @property
    def dim(self) -> int: ...

    def gram(self) -> Floats:
        """Return G Gᵀ, (count, count)."""
        ...

    def products(self, vector: Floats) -> Floats:
        """Return G v, (count,)."""
        ...


@dataclass(frozen=True, eq=False)
class World:
    """A Gaussian in coordinates of the span.

    Attributes:
        mean: (rank,).
        axes: Eigenvectors of the covariance as columns, (rank, rank).
        variances: Its eigenvalues.
    """

    mean: Floats
    axes: Floats
    variances: Floats

    @classmethod
    def of(cls, gradients: Floats, batch: int, floor: float, rest: float) -> World:
        """Return the law of the sum, for a client's gradients in coordinates, (records, rank)."""
        values, axes = np.linalg.eigh(gradients.T @ gradients / (batch * len(gradients)))
        variances = np.maximum(values, floor) + rest
        least = _NO_NOISE * float(variances.max(initial=np.finfo(np.float64).tiny))
        return cls(gradients.mean(axis=0), axes, np.maximum(variances, least))

    def log_density(self, points: Floats) -> Floats:
        """Return the logarithm up to a constant that all worlds share, for (..., rank) points."""
        moved = (points - self.mean) @ self.axes
        squares = (moved**2 / self.variances).sum(axis=-1)
        return np.asarray(-0.5 * (squares + np.log(self.variances).sum()))

    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        """Return independent points, (count, rank)."""
        normals = rng.standard_normal((count, len(self.mean)))
        return np.asarray(self.mean + (np.sqrt(self.variances) * normals) @ self.axes.T)


@dataclass(frozen=True, eq=False)
class PairLaw:
    """Both worlds of one pair of records.

    Attributes:
        worlds: With the client's own record, and with the other in its place.
        used: Which rows span the coordinates.
        lift: (rank, len(used)): inner products with these rows to coordinates.
    """

    worlds: tuple[World, World]
    used: Indices
    lift: Floats

    @classmethod
    def of(
        cls, gram: Floats, own: Indices, other: Indices, *, batch: int, floor: float, rest: float
    ) -> PairLaw:
        """Return the laws of two sets of records that share most.

        Args:
            gram: Inner products of all gradients.
            own: Rows of the client's records.
            other: The same with one of them replaced.
            batch: B.
            floor: σ², which the client fills its covariance to; 0 for not at all.
            rest: Variance that all others add in every direction.
        """
        used = np.union1d(own, other)
        squares, vectors = np.linalg.eigh(gram[np.ix_(used, used)])
        keep = squares > _RANK * max(float(squares[-1]), 0.0)  # none if all gradients vanish
        lengths = np.sqrt(squares[keep])
        rows = vectors[:, keep] * lengths  # gradients in coordinates, (len(used), rank)
        own_rows, other_rows = (rows[np.searchsorted(used, which)] for which in (own, other))
        worlds = (
            World.of(own_rows, batch, floor, rest),
            World.of(other_rows, batch, floor, rest),
        )
        return cls(worlds, used, vectors[:, keep].T / lengths[:, None])

    def coordinates(self, products: Floats) -> Floats:
        """Return where a vector is, from its inner products with all rows."""
        return self.lift @ products[self.used]

    def log_ratio(self, points: Floats) -> Floats:
        """Return ln of the density with the own record over that with the other."""
        own, other = self.worlds
        return own.log_density(points) - other.log_density(points)
