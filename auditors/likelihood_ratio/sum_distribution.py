"""A Gaussian model of a sum of updates, fitted from samples, in the form that fits their number.

With samples well above the dimension the covariance is factored (`DenseGaussian`); with fewer it
is never formed (`DualGaussian`, the matrix inversion lemma). Ledoit and Wolf (2004), A
Well-conditioned Estimator for Large-dimensional Covariance Matrices, Lemmas 3.2-3.4, say how far to
shrink. Ours shrinks correlations towards zero and leaves the variances alone: the coordinates of an
update have very different scales, and a target of equal variances would drown the small ones.
Coordinates that never move in the samples are left out: the model knows nothing of them.

Samples of `DualGaussian` and candidates may be in a file (`RowStore`). Products over all
coordinates are then added up block by block; in memory there is one block.

The span condition (`SampleSpan`): a change that the others' updates cannot make is visible by
support alone. Source: Zhang and Psounis 2024, Differentially Private Federated Learning without
Noise Addition: When is it Possible? (arXiv:2405.04551), Theorem 1: a sum hides a change only if the
change is in the span of what the others may add. Ours differs:

1. By default the span is of the samples' differences. A sum of updates is in a fixed point plus
   the span of their differences, and two candidates are separated by support exactly if their
   difference leaves that span; the linear span also holds the fixed point and hides such pairs.
   The paper's own case, gradients with free random weights, is `affine=False`.
2. Finitely many samples show only part of the span. A component outside counts as separation if
   the samples had stopped adding directions, or if it is in a column that none ever touched.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_solve, eigh, solve_triangular
from scipy.linalg.lapack import get_lapack_funcs

from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.sampling.sampler import ROUNDING, Moments, RowStore
from leakmeter.auditors.values import AnyFloats, Floats, Indices, Vector


class NothingMovesError(ValueError):
    """The samples are all the same."""


@dataclass(frozen=True)
class SumDistribution(ABC):
    """Gaussian model of the others' sum.

    Attributes:
        kept: Coordinates that the model covers.
        samples: How many samples it was fitted from.
        shrinkage: How far correlations were shrunk, in [0, 1].
        condition: Condition number of the shrunk correlations, estimated.
        form: Which form this is, in words.
    """

    kept: Indices
    samples: int
    shrinkage: float
    condition: float
    form: str = field(default="shrunk covariance", kw_only=True)

    @abstractmethod
    def gram(self, rows: AnyFloats | RowStore, centre: AnyFloats | None = None) -> Floats:
        """Return rows Σ⁻¹ rowsᵀ, (m, m), for rows (m, dim), less a centre (dim,) if given."""

    @abstractmethod
    def solve(self, vector: AnyFloats) -> Vector:
        """Return Σ⁻¹ vector, zero outside `kept`."""

    def facts(self) -> dict[str, Any]:
        """Return how good the model can be."""
        return {
            "form": self.form,
            "samples": self.samples,
            "dimension": int(self.kept.size),
            "dimension_per_sample": self.kept.size / self.samples,
            "shrinkage": self.shrinkage,
            "condition_number": self.condition,
        }


@dataclass(frozen=True)
class DenseGaussian(SumDistribution):
    """Shrunk covariance matrix, factored once.

    The factor has the precision of the moments. Entries of correlations and of their factor are at
    most 1, so single precision adds less to them than the sums over the samples already have.
    """

    std: Vector
    factor: AnyFloats  # lower Cholesky factor of the shrunk correlations; above it is rubbish

    @classmethod
    def fit(
        cls,
        moments: Moments,
        *,
        free: Indices | None = None,
        noise_std: float = 0.0,
        shrinkage: float | None = None,
        overwrite: bool = False,
    ) -> DenseGaussian:
        """Return the model of these moments.

        Args:
            moments: Of the sum.
            free: Coordinates to consider; None for all. Moments of some columns are those already.
            noise_std: Standard deviation of noise that is added to every coordinate of the sum.
            shrinkage: In [0, 1]; None lets Ledoit and Wolf decide.
            overwrite: Whether the moments may be used up, which saves a copy of their matrix.
        """
        own = moments.squares / (moments.count - 1)
        own = np.where(own > (ROUNDING * moments.mean) ** 2, own, 0.0)
        places = _moving(own + noise_std**2, free if moments.columns is None else None)
        kept = places if moments.columns is None else moments.columns[places]
        std = np.sqrt(own[places] + noise_std**2)
        matrix = moments.scatter
        if places.size < len(matrix):
            matrix = np.asarray(matrix[np.ix_(places, places)])
        elif not overwrite:  # indices would cost five times a plain copy
            matrix = matrix.copy()
        scale = (std if moments.unit is None else std / moments.unit[places]).astype(matrix.dtype)
        matrix /= (moments.count - 1) * scale
        matrix /= scale[:, None]
        if shrinkage is None:
            share = kept.size / max(int((own > 0).sum()), 1)  # of the coordinates in the quartic
            quartic = None if moments.quartic is None or noise_std else moments.quartic * share**2
            square = float(np.einsum("ij,ij->", matrix, matrix, dtype=np.float64))
            diagonal = np.diagonal(matrix).astype(np.float64)
            shrinkage = _intensity(square, diagonal, moments.count, quartic)
        np.fill_diagonal(matrix, 1.0)
        factor, shrinkage, condition = _factor(matrix, shrinkage)
        return cls(kept, moments.count, shrinkage, condition, std, factor)

    def gram(self, rows: AnyFloats | RowStore, centre: AnyFloats | None = None) -> Floats:
        """Return rows Σ⁻¹ rowsᵀ, (m, m)."""
        rows = self._scaled(_take(RowStore.of(rows), self.kept, centre))
        # Only the rows are looked through: a factor that LAPACK has found is finite.
        white = solve_triangular(
            self.factor, rows, lower=True, overwrite_b=True, check_finite=False
        )  # (kept, m)
        return np.asarray(white.T @ white, dtype=np.float64)

    def solve(self, vector: AnyFloats) -> Vector:
        """Return Σ⁻¹ vector, zero outside `kept`; of every row if there are several."""
        out = np.zeros(vector.shape)
        scaled = self._scaled(vector[..., self.kept])
        solved = cho_solve((self.factor, True), scaled, check_finite=False)
        out[..., self.kept] = solved.T / self.std
        return out

    def _scaled(self, rows: AnyFloats) -> AnyFloats:
        """Return finite rows in standard deviations, transposed, in the factor's precision."""
        kind = self.factor.dtype
        return np.asarray_chkfinite(rows.astype(kind, copy=False) / self.std.astype(kind)).T


@dataclass(frozen=True)
class DualGaussian(SumDistribution):
    """The same from fewer samples than dimensions: Σ = D + UᵀU with D diagonal.

    In units of D, Σ⁻¹ weighs a vector's part along each row of an orthonormal basis by `inside`
    and the rest by `outside`, which is 0 for a model of the leading directions alone. The basis
    is `mix` @ `white`, which is never formed.
    """

    root: NDArray[np.float32]  # (kept,): √D
    white: RowStore  # (samples, kept): centred samples in units of √D
    mix: Floats  # (rank, samples)
    inside: Vector  # (rank,), ascending
    freedom: int  # directions that the samples could have shown
    outside: float = 1.0

    @classmethod
    def fit(
        cls,
        sums: AnyFloats | RowStore,
        *,
        free: Indices | None = None,
        noise_std: float = 0.0,
        shrinkage: float | None = None,
        freedom: int | None = None,
    ) -> DualGaussian:
        """Return the model of the rows of `sums`, (samples, dim).

        Args:
            sums: Samples of the sum. Those in a file are overwritten.
            free: Coordinates to consider; None for all.
            noise_std: Standard deviation of noise that is added to every coordinate of the sum.
            shrinkage: In [0, 1]; None lets Ledoit and Wolf decide.
            freedom: Degrees of freedom of the samples, where they are fewer than one less than
                the samples; they decide about the shrinkage.
        """
        rows = RowStore.of(sums)
        if (count := len(rows)) < 3:
            raise BadValueError("sums", "at least 3 samples", count)
        mean, own = _mean_and_variance(rows)
        kept = _moving(own + noise_std**2, free)
        own = own[kept]
        std = np.sqrt(own + noise_std**2)
        white = rows.changed(partial(_whiten, kept=kept, mean=mean, std=std))
        ratio = own / std**2
        products = _products(white)
        if shrinkage is None:
            square = float((products**2).sum()) / (count - 1) ** 2
            quartic = float((np.diagonal(products) ** 2).sum())
            free_count = count if freedom is None else freedom + 1
            shrinkage = _intensity(square, ratio, free_count, quartic * free_count / count)
        shrinkage = min(max(shrinkage, _MIN_SHRINKAGE), 1.0)
        rest = np.sqrt(1 - (1 - shrinkage) * ratio)  # √D in units of std
        units = rest.astype(np.float32)
        white = white.changed(lambda at, block: np.divide(block, units[at], out=block))
        # Without noise all ratios are 1 and these units are all √shrinkage: no second product.
        values, vectors = eigh(_products(white) if noise_std else products / shrinkage)
        values, vectors = values[::-1], vectors[:, ::-1]
        rank = int((values > values[0] * 1e-6).sum())
        spread = 1 + (1 - shrinkage) / (count - 1) * values[:rank]  # of Σ along the basis
        return cls(
            kept,
            count,
            shrinkage,
            condition=float(spread[0]),
            root=(rest * std).astype(np.float32),
            white=white,
            mix=(vectors[:, :rank] / np.sqrt(values[:rank])).T,
            inside=1 / spread,
            freedom=count - 1 if freedom is None else freedom,
        )

    @property
    def is_saturated(self) -> bool:
        """Whether the samples have stopped to add directions."""
        return len(self.mix) < 0.9 * self.freedom

    def leading(self, rank: int) -> DualGaussian:
        """Return the model of this many leading directions, blind to all outside them."""
        rank = min(max(rank, 1), len(self.mix))
        return replace(
            self,
            condition=float(self.inside[rank - 1] / self.inside[0]),
            mix=self.mix[:rank],
            inside=self.inside[:rank],
            outside=0.0,
            form=f"{rank} leading directions",
        )

    def gram(self, rows: AnyFloats | RowStore, centre: AnyFloats | None = None) -> Floats:
        """Return rows Σ⁻¹ rowsᵀ, (m, m)."""
        return self.gram_of(*self.looked(rows, centre))

    def looked(self, rows: AnyFloats | RowStore, centre: AnyFloats | None) -> tuple[Floats, Floats]:
        """Return rows' products with samples, (m, samples), and rows, (m, m), in units of √D."""
        rows = RowStore.of(rows)
        crossed, products = np.zeros((len(rows), self.samples)), np.zeros((len(rows),) * 2)
        for at, white in self.white.blocks():
            scaled = _take(rows, self.kept[at], centre).astype(np.float32, copy=False)
            scaled /= self.root[at]
            crossed += scaled @ white.T
            products += scaled @ scaled.T
        return crossed, products

    def gram_of(self, crossed: Floats, products: Floats) -> Floats:
        """Return rows Σ⁻¹ rowsᵀ from what `looked` returned, of any form of the same fit."""
        along = crossed @ self.mix.T
        within = (along * (self.inside - self.outside)) @ along.T
        return np.asarray(within + products * self.outside)

    def solve(self, vector: AnyFloats) -> Vector:
        """Return Σ⁻¹ vector, zero outside `kept`."""
        out = np.zeros(vector.size)
        # Single precision throughout, or numpy would make a double of all samples.
        scaled = (vector[self.kept] / self.root).astype(np.float32)
        crossed = np.zeros(self.samples)
        for at, white in self.white.blocks():
            crossed += white @ scaled[at]
        along = (self.inside - self.outside) * (self.mix @ crossed)
        weights = (along @ self.mix).astype(np.float32)
        for at, white in self.white.blocks():
            within = weights @ white
            out[self.kept[at]] = (self.outside * scaled[at] + within) / self.root[at]
        return out


def grams(
    fits: Sequence[SumDistribution], rows: AnyFloats | RowStore, centre: AnyFloats | None = None
) -> list[Floats]:
    """Return the rows' `gram` in each form of one fit: dual forms share all that is large."""
    first = fits[0]
    if not isinstance(first, DualGaussian):
        return [fit.gram(rows, centre) for fit in fits]
    seen, duals = first.looked(rows, centre), [f for f in fits if isinstance(f, DualGaussian)]
    assert len(duals) == len(fits)
    assert all(dual.white is first.white for dual in duals)
    return [dual.gram_of(*seen) for dual in duals]


# Without any shrinkage D vanishes where there is no noise.
_MIN_SHRINKAGE = 1e-4
# Below this smallest eigenvalue of the correlations, estimated, their factor is made in double: the
# rounding of single precision moves eigenvalues by 1e-5.
_MIN_SINGLE = 1e-3


def _mean_and_variance(rows: RowStore) -> tuple[Vector, Vector]:
    """Return both for each coordinate, without a centred copy; what is rounding counts as 0."""
    mean, own = np.empty(rows.shape[1]), np.zeros(rows.shape[1])
    for at, block in rows.blocks():
        mean[at] = block.mean(axis=0, dtype=np.float64)
        for row in block:
            own[at] += (row - mean[at]) ** 2
        own[at] /= len(rows) - 1
        own[at] = np.where(own[at] > (ROUNDING * mean[at]) ** 2, own[at], 0.0)
    return mean, own


def _whiten(
    at: slice, block: AnyFloats, *, kept: Indices, mean: Vector, std: Vector
) -> NDArray[np.float32]:
    """Return the kept ones of some columns, centred and in units of `std`, (samples, kept)."""
    here = slice(*np.searchsorted(kept, (at.start, at.stop)))
    columns = kept[here]
    centre, places = mean[columns], columns - at.start
    white = np.empty((len(block), columns.size), dtype=np.float32)  # no second copy of `block`
    for row, out in zip(block, white, strict=True):
        out[:] = (row.take(places) - centre) / std[here]  # `row[places]` takes twice as long
    return white


def _products(rows: RowStore) -> Floats:
    """Return rows rowsᵀ, (samples, samples)."""
    total = np.zeros((len(rows), len(rows)))
    for _, block in rows.blocks():
        total += block @ block.T
    return total


def _take(rows: RowStore, columns: Indices, centre: AnyFloats | None) -> AnyFloats:
    """Return a copy of these columns of all rows, (m, columns), less the centre."""
    found = rows.take(columns)
    if centre is not None:
        found -= centre[columns]
    return found


def _moving(variance: Vector, free: Indices | None) -> Indices:
    """Return the coordinates that the samples move at all."""
    kept = np.flatnonzero(variance > 0) if free is None else np.sort(free[variance[free] > 0])
    if not kept.size:
        raise NothingMovesError("samples must move at least one coordinate, got none that moves")
    return np.asarray(kept, dtype=np.int64)


def _intensity(square: float, diagonal: Vector, count: int, quartic: float | None) -> float:
    """Return how much of the correlations' distance from zero is sampling error.

    Args:
        square: Squared Frobenius norm of the sample correlations.
        diagonal: Their diagonal; below 1 where noise is part of the unit.
        count: Samples.
        quartic: Sum of the fourth powers of the samples' lengths in these units; None takes that
            of a Gaussian.
    """
    own = float((diagonal**2).sum())
    if quartic is None:
        quartic = count * (float(diagonal.sum()) ** 2 + 2 * square)
    # Of the error of all entries the diagonal's, that of Gaussian variances, does not count.
    error = (quartic / count - square - 2 * own) / count
    distance = square - own
    return 1.0 if distance <= 0 else float(min(max(error / distance, 0.0), 1.0))


def _factor(
    matrix: AnyFloats, shrinkage: float, done: float = 0.0
) -> tuple[AnyFloats, float, float]:
    """Return the lower Cholesky factor of the shrunk correlations, their shrinkage and condition.

    Where rounding has left a matrix without a factor, it is shrunk a little further. What single
    precision cannot factor well is tried in double first. The matrix is overwritten: a second one
    of this size would cost as much as a third of the factorisation.

    Args:
        matrix: The correlations.
        shrinkage: How far they are to be shrunk.
        done: How far they are already.
    """
    potrf, pocon = get_lapack_funcs(("potrf", "pocon"), (matrix,))
    is_single = matrix.dtype == np.float32
    for least in (0.0, 1e-6, 1e-4, 1e-2, 1e-1):
        used = max(shrinkage, least)
        matrix *= (1 - used) / (1 - done)
        np.fill_diagonal(matrix, 1.0)
        size = np.zeros(len(matrix))
        for row in matrix:
            size += np.abs(row)
        norm = float(size.max())
        # The transpose of a symmetric matrix is itself, in the order that LAPACK wants.
        factor, info = potrf(matrix.T, lower=1, clean=0, overwrite_a=1)
        if info == 0:
            reciprocal, _ = pocon(factor, norm, uplo="L")
            if not is_single or reciprocal * norm > _MIN_SINGLE:
                return factor, used, 1 / reciprocal if reciprocal > 0 else math.inf
        if info < 0 or used == 1:
            break
        for i in range(len(matrix)):  # LAPACK has left one triangle as it was
            matrix[i, i:] = matrix[i:, i]
        done = used
        if is_single:
            return _factor(matrix.astype(np.float64), shrinkage, done)
    raise BadValueError("samples", "finite numbers", "a covariance without a Cholesky factor")


# Rounding relative to the longest sample. Updates are differences of models, so a float32 update
# is less precise than its own last digit.
_TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float64): 1e-7}
_WEAK = 10.0  # times the tolerance: directions that barely stand out of rounding are as inexact
_CHUNK = 128  # samples at a time
_BLOCK = 512  # directions in one array
_MAX_RANK = 2048  # directions that are kept; beyond them the span is incomplete


@dataclass(frozen=True)
class Span:
    """Share of a vector outside the span of the other clients' updates.

    Attributes:
        dim: Length of the vector.
        samples: How many samples the span was built of.
        rank: Its dimension, as far as it was seen.
        complete: Whether the last tenth of the samples added no direction.
        norm: Length of the vector.
        residual_norm: Length of its part outside of the span.
        idle_columns: Columns in which every sample is zero.
        idle_norm: Length of the vector's part in these columns.
        noise: Lengths up to this may be rounding.
    """

    dim: int
    samples: int
    rank: int
    complete: bool
    norm: float
    residual_norm: float
    idle_columns: int
    idle_norm: float
    noise: float

    @property
    def share(self) -> float:
        """The part outside relative to the vector, 0 for the zero vector."""
        return self.residual_norm / self.norm if self.norm > 0 else 0.0

    @property
    def outside(self) -> bool:
        """Whether more than rounding is outside the span of these samples."""
        return self.residual_norm > self.noise

    @property
    def separated(self) -> bool:
        """Whether the pair seems separated by support; samples cannot prove that it is."""
        return (self.outside and self.complete) or self.idle_norm > self.noise

    @property
    def words(self) -> str:
        """One sentence for a report."""
        seen = f"{self.samples} samples span {self.rank} of {self.dim} dimensions"
        if not self.outside and not self.separated:
            return f"{seen}; the difference is inside"
        found = f"{seen}; {self.share:.2g} of the difference is outside"
        if self.idle_norm > self.noise:
            part = self.idle_norm / self.norm
            found += f", {part:.2g} in {self.idle_columns} columns that no sample touches"
        if self.separated:
            return f"{found}: separated by support"
        return f"{found}, but more samples would still add directions: not decided"


class SampleSpan:
    """The span of samples, and the columns that they touch.

    Args:
        samples: All of them, (samples, dim).
        affine: Span of the differences (the first sample is subtracted) or of the samples.
    """

    def __init__(self, samples: AnyFloats, *, affine: bool = True) -> None:
        if samples.dtype != np.float32:
            samples = samples.astype(np.float64, copy=False)
        if samples.ndim != 2:
            raise BadValueError("rows", f"of shape (rows, {samples.shape[1]})", samples.shape)
        if not np.isfinite(samples).all():
            raise BadValueError("rows", "finite", samples[~np.isfinite(samples)][0])
        self.samples, self.dim = samples.shape
        self._tol = _TOLERANCE[samples.dtype]
        self._basis: list[AnyFloats] = []  # orthonormal rows
        self._touched = (samples != 0).any(axis=0)
        # Of the samples so far, how many had come with the last direction, and the rank.
        self._longest, self._grew_at, self.rank, self._full = 0.0, 0, 0, False
        # Small steps tell when the samples stopped adding directions.
        step = min(_CHUNK, max(1, len(samples) // 20))
        for start in range(0, len(samples), step):
            rows = samples[start : start + step]
            self._longest = max(self._longest, float(np.linalg.norm(rows, axis=1).max()))
            self._add(rows - samples[0] if affine else rows, start + len(rows))

    def outside(self, vector: ArrayLike) -> Span:
        """Return the part of a vector, the difference of two candidates, that is outside."""
        v = np.asarray(vector, dtype=np.float64)
        if v.shape != (self.dim,):
            raise BadValueError("vector", f"of shape ({self.dim},)", v.shape)
        if not np.isfinite(v).all():
            raise BadValueError("vector", "finite", v[~np.isfinite(v)][0])
        norm = float(np.linalg.norm(v))
        idle = ~self._touched
        return Span(
            dim=self.dim,
            samples=self.samples,
            rank=self.rank,
            complete=self._is_complete,
            norm=norm,
            residual_norm=float(np.linalg.norm(self._residual(v))),
            idle_columns=int(idle.sum()),
            idle_norm=float(np.linalg.norm(v[idle])),
            noise=_WEAK * self._tol * max(norm, self._longest),
        )

    def beyond(self, vector: Vector) -> Floats:
        """Return the part of a vector, (dim,), that separates it from the samples by support.

        This is the part outside the span if the span is complete, and else the part in columns that
        no sample touches.
        """
        return self._residual(vector) if self._is_complete else np.where(self._touched, 0.0, vector)

    @property
    def _is_complete(self) -> bool:
        """Whether the last tenth of the samples added no direction."""
        spare = self.samples - self._grew_at
        return not self._full and spare >= max(1, self.samples // 10)

    def _residual(self, vector: Floats) -> Floats:
        """Return a vector minus its part in the span."""
        residual: AnyFloats = vector
        for _ in range(2):  # the second time takes away what rounding left
            residual = self._without_span(residual[None])[0]
        return residual.astype(np.float64, copy=False)

    def _add(self, rows: AnyFloats, seen: int) -> None:
        """Add the directions of a few rows that are not there yet, after so many samples."""
        # Twice: a float32 product over many columns leaves more than a rounding error.
        fresh = self._without_span(self._without_span(rows)).astype(np.float64, copy=False)
        new = self._directions(fresh)
        if not len(new):
            return
        room = _MAX_RANK - self.rank
        self._full |= len(new) > room
        self._grew_at = seen
        new = new[:room].astype(rows.dtype)
        self.rank += len(new)
        # Blocks large enough for fast products.
        if self._basis and len(self._basis[-1]) < _BLOCK:
            new = np.concatenate([self._basis.pop(), new])
        self._basis.append(new)

    def _directions(self, fresh: Floats) -> Floats:
        """Return orthonormal rows for what is longer than rounding, the strongest first."""
        # Rounding of the origin is the same in all rows and adds up over them.
        floor = self._tol * self._longest * np.sqrt(len(fresh))
        squares, vectors = np.linalg.eigh(fresh @ fresh.T)
        keep = np.flatnonzero(squares > floor * floor)[::-1]
        if not keep.size:
            return fresh[:0]
        new = (vectors[:, keep] / np.sqrt(squares[keep])).T @ fresh
        # Weak directions hold remains of the span, and of strong ones beside them.
        new = self._without_span(new)
        squares, vectors = np.linalg.eigh(new @ new.T)
        return np.asarray((vectors / np.sqrt(squares)).T @ new)

    def _without_span(self, rows: AnyFloats) -> AnyFloats:
        """Return rows minus their part in the span."""
        for basis in self._basis:
            rows = rows - (rows.astype(basis.dtype, copy=False) @ basis.T) @ basis
        return rows


def outside_span(vector: ArrayLike, samples: ArrayLike, *, affine: bool = True) -> Span:
    """Return the share of a vector that is outside the span of samples.

    Args:
        vector: Difference of two candidate updates, (dim,).
        samples: Updates of the others, (samples, dim): all alike, or centred for each client.
        affine: See `SampleSpan`.

    >>> found = outside_span([3.0, 4.0], [[0.0, 1.0], [0.0, 2.0], [0.0, 5.0]])
    >>> found.share, found.separated
    (0.6, True)
    """
    return SampleSpan(np.atleast_2d(np.asarray(samples)), affine=affine).outside(vector)
