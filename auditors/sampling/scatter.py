"""Mean and covariance of a stream of vectors, without keeping the vectors.

Chan, Golub, LeVeque (1983), Algorithms for Computing the Sample Variance, eq. 2.1, for matrices.
Rows are centred and divided by standard deviations before the products, so that single precision
costs 3e-6 of each pair of deviations and no more: a coordinate that hardly moves is as exact as one
that moves a lot.

Up to 2,048 dimensions every chunk is centred by its own mean and joined in double precision. Above,
joining would cost a fifth of the products, so one matrix in single precision takes up chunk after
chunk (`_Run`), shifted by the first one's mean, until a chunk is too far from that mean. If none
is, this matrix is the result, in units of the first chunk's deviations. From 4,000 dimensions on it
takes 15 % fewer multiplications (`ColumnProducts`) for chunks whose coordinates are about as large
as in the first one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk, ssyrk

from leakmeter.auditors.sampling.products import ColumnProducts
from leakmeter.auditors.sampling.sampler import Moments
from leakmeter.auditors.values import Vector, require

# From this dimension on the products are taken in single precision; below they cost nothing.
_SINGLE_FROM = 1000
# From this dimension on single precision also adds up over chunks.
RUNNING_FROM: Final = 2049
# A run ends with a chunk whose mean is this many standard deviations away: squares of the distance
# would cancel in the end, and with them digits.
_FAR = 4.0
# Up to this size of a coordinate in its units, blocks of columns may be added to each other.
_EVEN = 4.0
_BLOCK = 16  # rows of a large matrix that stay in the cache


class _Run:
    """Products of all rows about one fixed point, in fixed units: sum of z zᵀ with z = (x - m)/s.

    About the rows' own mean they are Σ z zᵀ - t tᵀ/n with t = Σ z, which is exact algebra for any m
    and s; that m is near the mean keeps t small.

    Args:
        rows: The first chunk, (rows, dim): its mean is m. The unit s of a coordinate is its
            deviation in the first chunk in which it moves, since all z before are 0.
    """

    def __init__(self, rows: NDArray[np.floating]) -> None:
        dim = rows.shape[1]
        self.count = 0
        self.total: Vector = np.zeros(dim)
        self._products = ColumnProducts(dim)
        # About its first row a chunk shows its mean; a coordinate that does not move stays there.
        self.shift, self.unit = rows[0].astype(np.float32), np.ones(dim, np.float32)
        self._moves = np.ones(dim, np.bool_)
        self._look(rows)
        mean, variance = self._moments_of_chunk()
        self.shift = (self.shift + mean).astype(np.float32)
        self._moves = variance > 0
        self.unit = np.sqrt(np.where(self._moves, variance, 1.0)).astype(np.float32)
        self._look(rows)

    def takes(self, rows: NDArray[np.floating]) -> bool:
        """Make rows, (rows, dim), the chunk to add, and return whether they are near enough."""
        self._look(rows)
        mean, variance = self._moments_of_chunk()
        return bool((np.abs(mean) <= _FAR * np.sqrt(np.maximum(self._moves, variance))).all())

    def _look(self, rows: NDArray[np.floating]) -> None:
        """Make these rows the chunk to add.

        Tile by tile, which stays in the cache: a pass over a whole chunk costs far more.
        """
        total, squares = np.zeros(self.total.size), np.zeros(self.total.size)
        ones, subtract = np.ones(len(rows), np.float32), partial(np.subtract, dtype=rows.dtype)
        self._products.open(len(rows))
        for at, columns, z, spare in self._products.tiles():
            subtract(rows[at, columns], self.shift[columns], out=z, casting="same_kind")
            z /= self.unit[columns]
            total[columns] += ones[at] @ z
            squares[columns] += ones[at] @ np.square(z, out=spare)
        self._chunk = (len(rows), total, squares)
        if (new := (squares > 0) & ~self._moves).any():
            self._moves |= new
            self.unit[new] = np.sqrt(squares[new] / len(rows))
            self._look(rows)

    def add(self) -> float:
        """Add the chunk, and return the sum of the fourth powers of its rows' lengths."""
        count, total, squares = self._chunk
        self.count += count
        self.total += total
        self._products.add(is_even=bool((squares <= _EVEN**2 * count).all()))
        mean, variance = self._moments_of_chunk()
        weights = np.divide(1, variance, out=np.zeros_like(variance), where=variance > 0)
        # Σ_j (z_j - m_j)² w_j, (rows,), without centred rows.
        lengths = np.full(count, mean**2 @ weights)
        squared, plain = weights.astype(np.float32), (-2 * mean * weights).astype(np.float32)
        for at, columns, z, spare in self._products.tiles():
            lengths[at] += np.square(z, out=spare) @ squared[columns]
            lengths[at] += z @ plain[columns]
        return float((lengths**2).sum())

    def _moments_of_chunk(self) -> tuple[Vector, Vector]:
        """Return mean and variance of the chunk in units; a variance that is rounding is 0."""
        count, total, squares = self._chunk
        mean, second = total / count, squares / count
        variance = second - mean**2
        return mean, np.where(variance > 1e-5 * second, variance, 0.0)

    @property
    def mean(self) -> Vector:
        """Of the rows."""
        return np.asarray(self.shift + self.unit * (self.total / self.count))

    def scatter(self) -> NDArray[np.float32]:
        """Return the centred products, symmetric and still in units; only once."""
        found = self._products.total(self.total / self.count, self.total)
        found[~self._moves] = found[:, ~self._moves] = 0.0  # sums of blocks leave their rounding
        return found


class Scatter:
    """Count, mean and scatter matrix of the rows seen so far.

    Example:
        scatter = Scatter(dim)
        for rows in chunks:
            scatter.add(rows)
        covariance = scatter.moments().covariance

    Attributes:
        count: Rows seen, and
        mean: their mean; after `moments`, since a run of chunks is joined at its end.
        quartic: Sum over the rows of the fourth power of their length, in standard deviations
            of their chunk; what Ledoit-Wolf shrinkage needs.
    """

    def __init__(self, dim: int) -> None:
        require("at least 1", dim=dim)
        self.count = 0
        self.mean: Vector = np.zeros(dim)
        self.quartic = 0.0
        self._scatter: NDArray[np.float64] | None = None  # upper triangle only
        self._products: NDArray[np.floating] | None = None
        self._run: _Run | None = None

    def add(self, rows: NDArray[np.floating]) -> Self:
        """Add a chunk of rows, (rows, dim)."""
        if rows.ndim != 2 or rows.shape[1] != self.mean.size:
            raise ValueError(f"rows must have shape (any, {self.mean.size}), got {rows.shape}")
        if not len(rows):
            return self
        if self.mean.size >= RUNNING_FROM:
            return self._add_to_run(rows)
        mean = rows.mean(axis=0, dtype=np.float64)
        kind = np.float32 if self.mean.size >= _SINGLE_FROM else np.float64
        centred = (rows - mean.astype(rows.dtype)).astype(kind, copy=False)
        spread = np.sqrt(np.einsum("ij,ij->j", centred, centred, dtype=np.float64) / len(rows))
        unit = np.where(spread > 0, spread, 1.0)
        centred /= unit.astype(kind)
        lengths = np.einsum("ij,ij->i", centred, centred, dtype=np.float64)
        syrk = ssyrk if kind is np.float32 else dsyrk
        # Fortran sees the rows transposed; the lower triangle there is the upper one here.
        # One buffer for all chunks: fresh memory would cost a fifth of the products.
        products = syrk(1.0, centred.T, c=self._buffer(kind), lower=1, overwrite_c=1).T
        quartic = float((lengths**2).sum())
        self._join(len(rows), mean, products, quartic, unit.astype(kind))
        return self

    def _add_to_run(self, rows: NDArray[np.floating]) -> Self:
        """Add a chunk in single precision."""
        if self._run is None or not self._run.takes(rows):
            self._end_run()
            self._run = _Run(rows)
        self.quartic += self._run.add()
        return self

    def _end_run(self) -> None:
        """Join what the run has seen, in double precision."""
        run, self._run = self._run, None
        if run is None:
            return
        products, unit = run.scatter(), run.unit.astype(np.float64)

        def block(i: int) -> NDArray[np.float64]:
            return products[i : i + _BLOCK, i:] * unit[i : i + _BLOCK, None] * unit[i:]

        self._join_blocks(run.count, run.mean, block)

    def _buffer(self, kind: type[np.floating]) -> NDArray[np.floating]:
        if self._products is None or self._products.dtype != kind:
            self._products = np.zeros((self.mean.size, self.mean.size), kind, order="F")
        return self._products

    def _join(
        self,
        count: int,
        mean: Vector,
        products: NDArray[np.floating],
        quartic: float,
        unit: NDArray[np.floating] | None = None,
    ) -> None:
        """Add centred products, in these units."""

        def block(i: int) -> NDArray[np.floating]:
            new = products[i : i + _BLOCK, i:]
            if unit is not None:
                new *= unit[i : i + _BLOCK, None]
                new *= unit[i:]
            return new

        self._join_blocks(count, mean, block)
        self.quartic += quartic

    def _join_blocks(
        self, count: int, mean: Vector, block: Callable[[int], NDArray[np.floating]]
    ) -> None:
        """Add centred products, a few rows at a time, and what the distance of the means adds."""
        dim, total = self.mean.size, self.count + count
        between = math.sqrt(self.count * count / total) * (mean - self.mean)
        if is_first := self._scatter is None:
            self._scatter = np.empty((dim, dim))
        assert self._scatter is not None
        for i in range(0, dim, _BLOCK):
            into = self._scatter[i : i + _BLOCK, i:]
            if is_first:
                into[:] = block(i)  # what is not there yet is not added to zeros
            else:
                into += block(i)
            if self.count:
                into += between[i : i + _BLOCK, None] * between[i:]
        self.count = total
        self.mean = self.mean + (mean - self.mean) * (count / total)

    def moments(self) -> Moments:
        """Return what was seen, with the full symmetric matrix; this empties the accumulator.

        A run of chunks that nothing was joined to stays in single precision and in its units.
        """
        run = self._run
        if run is not None and self._scatter is None:
            self._run, self.count, self.mean = None, run.count, run.mean
            unit = run.unit.astype(np.float64)
            return Moments(run.count, run.mean, run.scatter(), self.quartic, unit=unit)
        self._end_run()
        dim = self.mean.size
        scatter = np.zeros((dim, dim)) if self._scatter is None else self._scatter
        for i in range(0, dim, _BLOCK):
            block = scatter[i : i + _BLOCK, i : i + _BLOCK]
            block[:] = np.triu(block) + np.triu(block, 1).T
            scatter[i + _BLOCK :, i : i + _BLOCK] = scatter[i : i + _BLOCK, i + _BLOCK :].T
        self._scatter, self._products = None, None
        return Moments(self.count, self.mean, scatter, self.quartic)
