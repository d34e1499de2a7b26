"""Mean and covariance of a stream of vectors, without keeping the vectors.

Chan, Golub, LeVeque (1983), Algorithms for Computing the Sample Variance, eq. 2.1, for matrices.
Each chunk is centred by its own mean and divided by its own standard deviations before the
products, so that single precision costs 1e-6 of each pair of deviations and no more: a coordinate
that hardly moves is as exact as one that moves a lot.
"""

from __future__ import annotations

import math
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk, ssyrk

from leakmeter.auditors._types import Vector
from leakmeter.auditors.sampler import Moments

# From this dimension on the products are taken in single precision; below they cost nothing.
_SINGLE_FROM = 1000


class Scatter:
    """Count, mean and scatter matrix of the rows seen so far.

    Example:
        scatter = Scatter(dim)
        for rows in chunks:
            scatter.add(rows)
        covariance = scatter.moments().covariance

    Attributes:
        count: Rows seen.
        mean: Their mean.
        quartic: Sum over the rows of the fourth power of their length, in standard deviations
            of their chunk; what Ledoit-Wolf shrinkage needs.
    """

    def __init__(self, dim: int) -> None:
        if dim < 1:
            raise ValueError(f"dim must be at least 1, got {dim}")
        self.count = 0
        self.mean: Vector = np.zeros(dim)
        self.quartic = 0.0
        self._scatter: NDArray[np.float64] = np.zeros((dim, dim))  # upper triangle only
        self._products: NDArray[np.floating] | None = None

    def add(self, rows: NDArray[np.floating]) -> Self:
        """Take up a chunk of rows, (rows, dim)."""
        if rows.ndim != 2 or rows.shape[1] != self.mean.size:
            raise ValueError(f"rows must have shape (any, {self.mean.size}), got {rows.shape}")
        if not len(rows):
            return self
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

    def _buffer(self, kind: type[np.floating]) -> NDArray[np.floating]:
        if self._products is None or self._products.dtype != kind:
            self._products = np.zeros((self.mean.size, self.mean.size), kind, order="F")
        return self._products

    def __getstate__(self) -> dict[str, object]:
        """Travel without the buffer."""
        return {**self.__dict__, "_products": None}

    def merge(self, other: Scatter) -> Self:
        """Take up what another has seen; to the last bit as if its rows had been added here."""
        if other.count:
            self._join(other.count, other.mean, other._scatter, other.quartic)
        return self

    def _join(
        self,
        count: int,
        mean: Vector,
        products: NDArray[np.floating],
        quartic: float,
        unit: NDArray[np.floating] | None = None,
    ) -> None:
        """Add centred products, in these units, and what the distance of the means adds."""
        total = self.count + count
        between = math.sqrt(self.count * count / total) * (mean - self.mean)
        for i in range(0, self.mean.size, _BLOCK):  # a few rows at a time stay in the cache
            block, new = self._scatter[i : i + _BLOCK, i:], products[i : i + _BLOCK, i:]
            if unit is not None:
                new *= unit[i : i + _BLOCK, None]
                new *= unit[i:]
            block += new
            if self.count:
                block += between[i : i + _BLOCK, None] * between[i:]
        self.count = total
        self.mean = self.mean + (mean - self.mean) * (count / total)
        self.quartic += quartic

    def moments(self) -> Moments:
        """Return what was seen, with the full symmetric matrix; this empties the accumulator."""
        scatter, dim = self._scatter, self.mean.size
        for i in range(0, dim, _BLOCK):
            block = scatter[i : i + _BLOCK, i : i + _BLOCK]
            block[:] = np.triu(block) + np.triu(block, 1).T
            scatter[i + _BLOCK :, i : i + _BLOCK] = scatter[i : i + _BLOCK, i + _BLOCK :].T
        self._scatter, self._products = np.zeros((0, 0)), None
        return Moments(self.count, self.mean, scatter, self.quartic)


_BLOCK = 16
