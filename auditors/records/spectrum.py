"""The spectrum of a client's gradient noise, and what a floor adds to it: a diagnostic.

Zhang and Psounis 2024, Differentially Private Federated Learning without Noise Addition: When is it
Possible? (arXiv:2405.04551), Assumption 3 and Fig. 4. The eigenvalues depend on the data: a
measured smallest one says nothing about other data, so none of this is a guarantee, and none of it
should leave a simulation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from leakmeter.auditors import finding
from leakmeter.auditors._types import Floats
from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.finding import Bound

_RULE = "eigenvalues of the covariance by sampling, from the Gram matrix of clipped gradients"
_ASSUMED = (Assumption.MEASURED_EIGENVALUES,)


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of a low-rank covariance Σ, and the floor that it is raised to.

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

    def bounds(self) -> dict[str, Bound]:
        """Return the numbers by name, all of kind diagnostic."""
        sizes = {"eigenvalues": len(self.eigenvalues), "dim": self.dim}
        numbers = {
            "smallest eigenvalue": self.smallest,
            "rank": float(self.rank),
            "directions covered by sampling": float(self.num_covered),
            "variance added": self.added_variance,
            "share of isotropic noise saved": self.share_saved,
        }
        return {
            name: Bound(value, "diagnostic", _RULE, sample_sizes=sizes, assumptions=_ASSUMED)
            for name, value in numbers.items()
        }

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
