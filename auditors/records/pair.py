"""The two Gaussians that differ by one record, in the few directions where they differ.

A client samples its D gradients with Gaussian weights and fills the covariance Σ = GᵀG/(BD) to a
floor. A secure sum adds such updates of other clients. With one record replaced, mean and
covariance differ, so the log-ratio of the two densities is quadratic, not linear. Outside the span
of the D + 1 gradients in question both worlds have the same mean and variance, so only coordinates
in that span matter. These come from the Gram matrix: nothing of size dim × dim is formed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from leakmeter.auditors import finding
from leakmeter.auditors.values import Floats, Indices

_RANK = 1e-12  # relative to the largest eigenvalue; smaller ones are rounding
# Least variance, relative to the largest: with none at all the ratio may be infinite or undefined.
_NO_NOISE = 1e-10


class GradientRows(Protocol):
    """Gradients G of some records, (count, dim), however they are stored."""

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
    def of(
        cls, gradients: Floats, batch: int, floor: float, rest: float, excess: Floats | None = None
    ) -> World:
        """Return the distribution of the sum in coordinates.

        Args:
            gradients: The client's, (records, rank).
            batch: B; 0 for the full gradient, which has no sampling.
            floor: σ², to which the client fills its covariance.
            rest: Variance that the other clients add in every direction.
            excess: Covariance that they add beyond `rest`, (rank, rank).
        """
        if batch:
            values, axes = np.linalg.eigh(gradients.T @ gradients / (batch * len(gradients)))
        else:
            values, axes = np.zeros(gradients.shape[1]), np.eye(gradients.shape[1])
        variances = np.maximum(values, floor) + rest  # raised eigenvalues: filled to the floor
        if excess is not None:  # it has other eigenvectors, so the sum is diagonalised again
            variances, axes = np.linalg.eigh((axes * variances) @ axes.T + excess)
        least = _NO_NOISE * float(variances.max(initial=np.finfo(np.float64).tiny))
        return cls(gradients.mean(axis=0), axes, np.maximum(variances, least))

    def log_density(self, points: Floats) -> Floats:
        """Return the log-density up to a constant that all worlds share, for (..., rank) points."""
        moved = (points - self.mean) @ self.axes  # in the eigenbasis, where coordinates decouple
        squares = (moved**2 / self.variances).sum(axis=-1)
        return np.asarray(-0.5 * (squares + np.log(self.variances).sum()))

    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        """Return independent points, (count, rank)."""
        normals = rng.standard_normal((count, len(self.mean)))
        return np.asarray(self.mean + (np.sqrt(self.variances) * normals) @ self.axes.T)


@dataclass(frozen=True, eq=False)
class PairDistribution:
    """Both worlds of one pair of records.

    Attributes:
        worlds: With the client's own record, and with the other one in its place.
        used: Rows that span the coordinates.
        lift: (rank, len(used)): maps inner products with these rows to coordinates.
        root: (rank, rank): factor R of the covariance RRᵀ that the other clients add beyond `rest`;
            None if they add nothing more.
    """

    worlds: tuple[World, World]
    used: Indices
    lift: Floats
    root: Floats | None = None

    @classmethod
    def of(
        cls,
        gram: Floats,
        own: Indices,
        other: Indices,
        *,
        batch: int,
        floor: float,
        rest: float,
        excess: Floats | None = None,
    ) -> PairDistribution:
        """Return both distributions for two sets of records that differ in one.

        Args:
            gram: Inner products of all gradients.
            own: Rows of the client's records.
            other: The same with one of them replaced.
            batch: B; 0 for the full gradient.
            floor: σ², to which the client fills its covariance; 0 for no filling.
            rest: Variance that all other clients add in every direction.
            excess: G E Gᵀ for the covariance E that they add beyond `rest`; None for none.
        """
        # Gram = V diag(ℓ²) Vᵀ. With the orthonormal basis Gᵀ V diag(1/ℓ) of the span, gradients
        # have the coordinates V diag(ℓ), and v has diag(1/ℓ) Vᵀ (G v): dim never appears.
        used = np.union1d(own, other)
        squares, vectors = np.linalg.eigh(gram[np.ix_(used, used)])
        keep = squares > _RANK * max(float(squares[-1]), 0.0)  # none if all gradients vanish
        lengths = np.sqrt(squares[keep])
        rows = vectors[:, keep] * lengths  # gradients in coordinates, (len(used), rank)
        lift = vectors[:, keep].T / lengths[:, None]
        # Noise of the other clients outside the span is ignored. This takes the marginal of a
        # Gaussian, so the log-ratio is exact for the coordinates that are used.
        more = None if excess is None else lift @ excess[np.ix_(used, used)] @ lift.T
        own_rows, other_rows = (rows[np.searchsorted(used, which)] for which in (own, other))
        worlds = (
            World.of(own_rows, batch, floor, rest, more),
            World.of(other_rows, batch, floor, rest, more),
        )
        return cls(worlds, used, lift, None if more is None else _root(more))

    def coordinates(self, products: Floats) -> Floats:
        """Return the coordinates of a vector, (rank,), from its inner products with all rows."""
        return self.lift @ products[self.used]

    def excess(self, rng: np.random.Generator) -> Floats | float:
        """Return a draw of what the other clients add beyond `rest`, (rank,)."""
        return 0.0 if self.root is None else self.root @ rng.standard_normal(len(self.root))

    def log_ratio(self, points: Floats) -> Floats:
        """Return ln of the density with the own record over that with the other."""
        own, other = self.worlds
        return own.log_density(points) - other.log_density(points)


def _root(covariance: Floats) -> Floats:
    """Return a factor R with RRᵀ the covariance, which may be singular."""
    values, axes = np.linalg.eigh(covariance)
    return np.asarray(axes * np.sqrt(np.maximum(values, 0.0)))


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of a low-rank covariance Σ, and the floor that it is raised to: a diagnostic.

    Zhang and Psounis 2024, Differentially Private Federated Learning without Noise Addition: When
    is it Possible? (arXiv:2405.04551), Assumption 3 and Fig. 4. The eigenvalues depend on the data:
    a measured smallest one says nothing about other data, so none of this is a guarantee, and none
    of it should leave a simulation.

    Attributes:
        eigenvalues: Those that may be positive, ascending; the other dim - len are zero.
        dim: Number of directions in all.
        floor: Eigenvalues below it are raised to it; 0 adds nothing.
    """

    eigenvalues: Floats
    dim: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < len(self.eigenvalues) <= self.dim:
            raise ValueError(f"eigenvalues must be 1 to {self.dim}, got {len(self.eigenvalues)}")
        if not 0 <= self.floor < math.inf:
            raise ValueError(f"floor must be in [0, inf), got {self.floor}")

    @classmethod
    def of_gram(cls, gram: Floats, dim: int, *, batch: int, floor: float = 0.0) -> Self:
        """Return the spectrum of Σ = GᵀG/(BD) from G Gᵀ, for D gradients of length `dim`."""
        if batch < 1:
            raise ValueError(f"batch must be at least 1, got {batch}")
        # G is (D, dim). GᵀG and G Gᵀ have the same positive eigenvalues, and the second is (D, D).
        return cls.of_eigenvalues(np.linalg.eigvalsh(gram) / (batch * len(gram)), dim, floor)

    @classmethod
    def of_eigenvalues(cls, eigenvalues: Floats, dim: int, floor: float = 0.0) -> Self:
        """Return the spectrum of ascending eigenvalues, of which rounding may make some negative.

        Those of a Gram matrix may be more than `dim`; the lowest are then zero.
        """
        return cls(np.maximum(eigenvalues[-dim:], 0.0), dim, floor)

    @property
    def smallest(self) -> float:
        """Least eigenvalue of Σ over all directions: zero unless gradients span the space."""
        return float(self.eigenvalues[0]) if len(self.eigenvalues) == self.dim else 0.0

    @property
    def rank(self) -> int:
        """Number of eigenvalues above rounding level."""
        # numpy's rule for matrix_rank: rounding errors grow with the size and the largest one.
        top = float(self.eigenvalues[-1])
        tol = top * max(self.dim, len(self.eigenvalues)) * float(np.finfo(np.float64).eps)
        return int((self.eigenvalues > tol).sum())

    @property
    def num_covered(self) -> int:
        """Number of directions in which sampling alone reaches a positive floor."""
        return int((self.eigenvalues >= self.floor).sum()) if self.floor else 0

    @property
    def added(self) -> Floats:
        """Variance that the floor adds in each of these directions; it is the floor in others."""
        return np.maximum(self.floor - self.eigenvalues, 0.0)

    @property
    def added_variance(self) -> float:
        """Expected squared norm of the added noise."""
        # The directions without an eigenvalue get the whole floor.
        return float(self.added.sum()) + self.floor * (self.dim - len(self.eigenvalues))

    @property
    def share_saved(self) -> float:
        """Share of isotropic noise of the same floor that is saved."""
        return 1 - self.added_variance / (self.floor * self.dim) if self.floor else 0.0

    def drawn(self) -> finding.Spectrum:
        """Return what a report needs for its figure."""
        index, variance, added = zip(*self.curve(25), strict=True)
        return finding.Spectrum(index, variance, added, self.dim, self.floor, self.share_saved)

    def curve(self, points: int = 100) -> tuple[tuple[int, float, float], ...]:
        """Return (index, eigenvalue, what is added) from the largest down, at most `points`.

        Indices are spread evenly in their logarithm over all directions, as Fig. 4 wants them.
        """
        if points < 1:
            raise ValueError(f"points must be at least 1, got {points}")
        spread = np.geomspace(1, self.dim, points) if self.dim > 1 else np.ones(1)
        largest_first = self.eigenvalues[::-1]

        def at(index: int) -> float:
            return float(largest_first[index]) if index < len(largest_first) else 0.0

        chosen = [int(i) - 1 for i in np.unique(np.round(spread))]
        return tuple((i + 1, at(i), max(self.floor - at(i), 0.0)) for i in chosen)
