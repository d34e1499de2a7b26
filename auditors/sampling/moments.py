"""Moments of a sum over clients from redraws of single updates, one way for each game.

A draw costs as many updates as there are clients and gives one sum, so the covariance of the sum is
computed from single updates wherever the game allows it. Every class (`SumMoments`) takes chunks
(draws, clients, dim) in order, and then returns the moments of the sum. `count` - 1 is always the
degrees of freedom of the covariance.

`Scatter` has mean and covariance of a stream of vectors, without keeping the vectors: Chan, Golub,
LeVeque (1983), Algorithms for Computing the Sample Variance, eq. 2.1, for matrices. Rows are
centred and divided by standard deviations before the products, so that single precision costs 3e-6
of each pair of deviations and no more: a coordinate that hardly moves is as exact as one that moves
a lot.

Up to 2,048 dimensions every chunk is centred by its own mean and joined in double precision. Above,
joining would cost a fifth of the products, so one matrix in single precision takes up chunk after
chunk (`_Run`), shifted by the first one's mean, until a chunk is too far from that mean. If none
is, this matrix is the result, in units of the first chunk's deviations. From 4,000 dimensions on it
takes 15 % fewer multiplications for chunks whose coordinates are about as large as in the first
one.

These are saved by `ColumnProducts`, the products of all columns with all columns, added up over
chunks of rows: X = Σ zᵀz. Strassen (1969), Gaussian Elimination is not Optimal, in Winograd's form
(Higham 2002, Accuracy and Stability of Numerical Algorithms, eq. 23.6): halves of two matrices take
seven products in place of eight. Ours differs in two points:
1. The seven are sums over all chunks and are put together once, at the end. A chunk pays for sums
   of its own blocks only.
2. Blocks on the diagonal of X are symmetric, which saves half of their products.

With 8 blocks of columns, 109 products of blocks do the work of 128. Single precision then errs by
about five times as much as with all products: 3e-8 of two standard deviations for 2,048 rows in
units of these deviations. Without such units small columns would lose digits to large ones.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk, sgemm, ssyrk

from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Game
from leakmeter.auditors.sampling.sampler import Moments
from leakmeter.auditors.values import Vector, require

# From this many columns on, sums of blocks cost less than the products that they save.
_BLOCKED_FROM = 4000
_BLOCKS = 8  # of columns; more of them would save less than they cost in memory
_ROWS = 64  # of a tile, which stays in the cache from one pass to the next
_TILE = 256  # rows and columns of the result that do, with their mirror image

Singles = NDArray[np.float32]


class ColumnProducts:
    """Σ zᵀz over chunks of rows z, (rows, dim).

    Example:
        products = ColumnProducts(dim)
        for rows in chunks:
            products.open(len(rows))
            for at, columns, tile, _ in products.tiles():
                tile[:] = rows[at, columns]
            products.add(is_even=True)
        total = products.total(np.zeros(dim), np.zeros(dim))
    """

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self._blocks = _BLOCKS if dim >= _BLOCKED_FROM else 1
        self._width = -(-dim // self._blocks)
        # (row blocks, column blocks, rows, columns). The same memory for all chunks: the first
        # touch of new pages costs more than a pass.
        self._room: Singles = self._empty(0)
        self._chunk, self._count, self._sums = self._room, 0, self._room.ravel()
        self._sum = _Symmetric(self._width, self._blocks)

    def _empty(self, height: int) -> Singles:
        return np.zeros((-(-self._blocks // 2), self._blocks, height, self._width), np.float32)

    def open(self, count: int) -> None:
        """Make room for a chunk of this many rows."""
        height = -(-count // len(self._room))
        if self._room.shape[2] < height:
            self._room = self._empty(height)
            self._sums = np.empty(self._room.size // 3, np.float32)
        self._chunk = self._room[:, :, :height]
        self._chunk[count // height :] = 0.0  # where the last rows do not fill their blocks
        self._count = count

    def tiles(self) -> Iterator[tuple[slice, slice, Singles, Singles]]:
        """Yield rows and columns of the open chunk, what contains them, and as much spare room."""
        count, height = self._count, self._chunk.shape[2]
        spare = np.empty((_ROWS, self._width), np.float32)
        for begin in range(0, count, height):
            for first in range(begin, min(begin + height, count), _ROWS):
                rows = slice(first, min(first + _ROWS, begin + height, count))
                own = slice(rows.start - begin, rows.stop - begin)
                for j, block in enumerate(self._chunk[begin // height]):
                    ends = (min(at * self._width, self._dim) for at in (j, j + 1))
                    columns = slice(*ends)  # the last blocks may lack columns
                    tile = block[own, : columns.stop - columns.start]
                    yield rows, columns, tile, spare[: len(tile), : len(tile.T)]

    def add(self, is_even: bool) -> None:
        """Add the products of the open chunk.

        Args:
            is_even: Whether all columns are about as large. If not, all products are taken: sums
                of blocks would lose the digits of small columns.
        """
        self._sum.add(self._chunk, self._sums if is_even else None)

    def total(self, left: Vector, right: Vector) -> Singles:
        """Return the sum less the outer product of two vectors, symmetric; it is used up."""
        self._room = self._chunk = self._empty(0)
        self._sums = self._room.ravel()
        out = np.empty((self._dim, self._dim), np.float32)
        for first, second, block in self._sum.used_up(0):
            found = block[: max(self._dim - first, 0), : max(self._dim - second, 0)]
            for i in range(0, len(found), _TILE):
                own = slice(first + i, first + min(i + _TILE, len(found)))
                for j in range(i if first == second else 0, len(found.T), _TILE):
                    to = slice(second + j, second + min(j + _TILE, len(found.T)))
                    tile = found[i : i + _TILE, j : j + _TILE] - np.outer(left[own], right[to])
                    out[own, to] = np.triu(tile) + np.triu(tile, 1).T if own == to else tile
                    out[to, own] = out[own, to].T
        return out


class _Symmetric:
    """Σ zᵀz of some blocks of columns: two such halves, and what is between them."""

    def __init__(self, width: int, blocks: int) -> None:
        self._width, self._half = width, blocks // 2
        if self._half:
            self._halves = [_Symmetric(width, self._half) for _ in range(2)]
            self._between = _Between(width, self._half)
        else:
            self._sum = np.zeros((width, width), np.float32, order="F")

    def add(self, z: Singles, room: Singles | None) -> None:
        """Add a chunk, (row blocks, column blocks, rows, columns).

        Sums of blocks go into `room`; without it there are none.
        """
        if not self._half:
            for block in z[:, 0]:
                # Fortran sees the rows transposed; its lower triangle is our upper one.
                ssyrk(1.0, block.T, beta=1.0, c=self._sum, lower=1, overwrite_c=1)
            return
        left, right = z[:, : self._half], z[:, self._half :]
        for half, own in zip(self._halves, (left, right), strict=True):
            half.add(own, room)
        if room is None:
            self._between.add_plainly(left, right)
        else:
            self._between.add(left, right, room)

    def used_up(self, first: int) -> Iterator[tuple[int, int, Singles]]:
        """Yield row, column and values of all parts above the diagonal, which starts here.

        A part on the diagonal has an upper triangle and rubbish.
        """
        if not self._half:
            yield first, first, self._sum.T
            return
        second = first + self._half * self._width
        yield first, second, self._between.used_up()
        for at in (first, second):
            yield from self._halves.pop(0).used_up(at)


class _Between:
    """Σ xᵀy of as many blocks of columns on both sides, by seven products of halves.

    An eighth part has what four of them would have to share where all products are taken.
    """

    def __init__(self, width: int, blocks: int) -> None:
        self._parts = [_Between(width, blocks // 2) for _ in range(8 if blocks > 1 else 0)]
        self._sum = np.zeros((width,) * 2 if blocks == 1 else (0, 0), np.float32, order="F")

    def add(self, x: Singles, y: Singles, room: Singles) -> None:
        """Add chunks, (row blocks, column blocks, rows, columns); sums of blocks go into `room`."""
        if not self._parts:
            self.add_plainly(x, y)
            return
        k, n = len(x) // 2, x.shape[1] // 2
        # Names are those of xᵀ = (x11 x12; x21 x22) and y, in blocks.
        x11, x21, x12, x22 = x[:k, :n], x[:k, n:], x[k:, :n], x[k:, n:]
        y11, y12, y21, y22 = y[:k, :n], y[:k, n:], y[k:, :n], y[k:, n:]
        s, t = room[: 2 * x11.size].reshape(2, *x11.shape)
        rest = room[2 * x11.size :]
        m1, m2, m3, m4, m5, m6, m7, _ = (partial(part.add, room=rest) for part in self._parts)
        m1(x11, y11)
        m2(x12, y21)
        m7(np.subtract(x11, x21, out=s), np.subtract(y22, y12, out=t))
        m5(np.add(x21, x22, out=s), np.subtract(y12, y11, out=t))
        m6(np.subtract(s, x11, out=s), np.subtract(y22, t, out=t))
        m3(np.subtract(x12, s, out=s), y22)
        m4(x22, np.subtract(t, y21, out=t))

    def add_plainly(self, x: Singles, y: Singles, sign: float = 1.0) -> None:
        """Add chunks by all eight products, or subtract them."""
        if not self._parts:
            for own, to in zip(x[:, 0], y[:, 0], strict=True):
                sgemm(sign, to.T, own.T, beta=1.0, c=self._sum, trans_b=1, overwrite_c=1)
            return
        n = x.shape[1] // 2
        # The parts that enter one quarter of the sum only; see `used_up`.
        _, m2, m3, m4, *_, m8 = self._parts
        m2.add_plainly(x[:, :n], y[:, :n], sign)
        m3.add_plainly(x[:, :n], y[:, n:], sign)
        m4.add_plainly(x[:, n:], y[:, :n], -sign)
        m8.add_plainly(x[:, n:], y[:, n:], sign)

    def used_up(self) -> Singles:
        """Return the sum, (columns of x, columns of y)."""
        if not self._parts:
            return self._sum.T
        m1, m2, m3, m4, m5, m6, m7, m8 = (self._parts.pop(0).used_up() for _ in range(8))
        m2 += m1
        m1 += m6
        m7 += m1
        m1 += m5
        m1 += m3
        m5 += m7
        m5 += m8
        m7 -= m4
        return np.block([[m2, m1], [m7, m5]])


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
            raise BadValueError("rows", f"of shape (any, {self.mean.size})", rows.shape)
        if not len(rows):
            return self
        if self.mean.size >= RUNNING_FROM:
            if self._run is None or not self._run.takes(rows):
                self._end_run()
                self._run = _Run(rows)
            self.quartic += self._run.add()
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
        if self._products is None:
            self._products = np.zeros((self.mean.size, self.mean.size), kind, order="F")
        products = syrk(1.0, centred.T, c=self._products, lower=1, overwrite_c=1).T
        self._join(len(rows), mean, products, unit.astype(kind))
        self.quartic += float((lengths**2).sum())
        return self

    def _end_run(self) -> None:
        """Join what the run has seen, in double precision."""
        run, self._run = self._run, None
        if run is None:
            return
        self._join(run.count, run.mean, run.scatter(), run.unit.astype(np.float64))

    def _join(
        self,
        count: int,
        mean: Vector,
        products: NDArray[np.floating],
        unit: NDArray[np.floating],
    ) -> None:
        """Add centred products in these units, and what the distance of the means adds."""
        dim, total = self.mean.size, self.count + count
        between = math.sqrt(self.count * count / total) * (mean - self.mean)
        if is_first := self._scatter is None:
            self._scatter = np.empty((dim, dim))
        assert self._scatter is not None
        for i in range(0, dim, _BLOCK):
            into = self._scatter[i : i + _BLOCK, i:]
            new = products[i : i + _BLOCK, i:] * unit[i : i + _BLOCK, None] * unit[i:]
            if is_first:
                into[:] = new  # what is not there yet is not added to zeros
            else:
                into += new
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


# With fewer partitions ("deals") than this many times the dimension, the covariance of their sums
# alone is poor.
DEALS_PER_DIMENSION = 5

Rows = NDArray[np.floating]


class SumMoments(ABC):
    """Collects redraws and returns the moments of the sum over the clients."""

    def __init__(self, dim: int) -> None:
        self._scatter = Scatter(dim)

    @abstractmethod
    def add(self, rows: Rows) -> Self:
        """Add the next redraws, (draws, clients, dim)."""

    @abstractmethod
    def moments(self) -> Moments:
        """Return mean and covariance of the sum; this empties the accumulator."""


class Interchangeable(SumMoments):
    """Independent clients of one distribution: n times mean and covariance of a single update.

    Args:
        dim: Length of an update.
        num_clients: Clients in the sum; a draw has one of them.
    """

    def __init__(self, dim: int, num_clients: int) -> None:
        super().__init__(dim)
        self._num_clients = num_clients

    def add(self, rows: Rows) -> Self:
        self._scatter.add(rows.reshape(-1, rows.shape[-1]))
        return self

    def moments(self) -> Moments:
        single, n = self._scatter.moments(), self._num_clients
        np.multiply(single.scatter, n, out=single.scatter)
        return replace(single, mean=n * single.mean)


class Reruns(SumMoments):
    """Independent clients, each with its own distribution: the sum of means and covariances.

    Args:
        dim: Length of an update.
        draws: Redraws of each client. Clients come in blocks: all draws of one block, in one
            chunk or several, then all of the next.
    """

    def __init__(self, dim: int, draws: int) -> None:
        require("at least 2", draws=draws)
        super().__init__(dim)
        self._draws = draws
        self._num_clients = 0
        self._mean: Vector = np.zeros(dim)
        self._seen = 0
        self._means: NDArray[np.float64] | None = None  # of the open block, (clients, dim)

    def add(self, rows: Rows) -> Self:
        means = rows.mean(axis=0, dtype=np.float64)  # (clients, dim)
        # Centred for each client: what differs between clients is no variance of the sum.
        self._scatter.add((rows - means.astype(rows.dtype)).reshape(-1, rows.shape[-1]))
        self._close(len(rows), means)
        return self

    def _close(self, draws: int, means: NDArray[np.float64]) -> None:
        """Join the block's means; a finished block leaves nothing but its sum."""
        if self._means is None:
            self._seen, self._means = draws, means
        else:
            total = self._seen + draws
            step = means - self._means
            # Chan, Golub, LeVeque (1983), eq. 2.1, for each client; the two signs keep the mean 0.
            between = np.sqrt(self._seen * draws / total / 2) * step
            self._scatter.add(np.concatenate([between, -between]))
            self._seen, self._means = total, self._means + step * (draws / total)
        if self._seen == self._draws:
            self._num_clients += len(self._means)
            self._mean = self._mean + self._means.sum(axis=0)
            self._means = None

    def moments(self) -> Moments:
        assert self._means is None, "a block lacks draws"
        inside = self._scatter.moments()
        n = self._num_clients
        # Each of the n covariances, scatter / (draws - 1), adds its draws - 1 degrees of freedom.
        np.multiply(inside.scatter, n, out=inside.scatter)
        return replace(inside, count=n * (self._draws - 1) + 1, mean=self._mean)


class DealSums(SumMoments):
    """Any dependence within a draw: the moments of the sums themselves."""

    def add(self, rows: Rows) -> Self:
        self._scatter.add(rows.sum(axis=1, dtype=np.float64))
        return self

    def moments(self) -> Moments:
        return self._scatter.moments()


class WithinDeals(SumMoments):
    """Interchangeable clients that share one partition, of which `DealSums` has too few.

    With V = Cov(x_i) and C = Cov(x_i, x_j), the scatter within partitions estimates V - C, and the
    sum has covariance n (V - C) + n² C. The second term is modelled as proportional to the first:
    one factor for all directions, the mean over coordinates of Var(sum) / (n (V - C)).

    Args:
        dim: Length of an update.
        num_clients: Clients in the sum, and in every draw; at least two.
    """

    def __init__(self, dim: int, num_clients: int) -> None:
        require("at least 2", num_clients=num_clients)
        super().__init__(dim)
        self._num_clients = num_clients
        self._deals = 0
        self._mean: Vector = np.zeros(dim)
        self._squares: Vector = np.zeros(dim)

    def add(self, rows: Rows) -> Self:
        sums = rows.sum(axis=1, dtype=np.float64)  # (partitions, dim)
        means = (sums / self._num_clients).astype(rows.dtype)
        self._scatter.add((rows - means[:, None]).reshape(-1, rows.shape[-1]))
        mean = sums.mean(axis=0)
        self._join(len(sums), mean, np.einsum("ij,ij->j", sums - mean, sums - mean))
        return self

    def _join(self, deals: int, mean: Vector, squares: Vector) -> None:
        total = self._deals + deals
        step = mean - self._mean
        # Chan, Golub, LeVeque (1983), eq. 2.1.
        self._squares = self._squares + (squares + step**2 * (self._deals * deals / total))
        self._mean = self._mean + step * (deals / total)
        self._deals = total

    def moments(self) -> Moments:
        n, deals = self._num_clients, self._deals
        if deals < 2:
            raise BadValueError("draws", f"at least {n + 1} for two partitions", n * deals)
        within = self._scatter.moments()
        freedom = deals * (n - 1)
        # What the variance of the sum would be if clients were independent: n (V - C), (dim,).
        predicted = n * within.squares / freedom
        moves = predicted > 0
        # Below 1: partitioning one data set makes the clients negatively correlated.
        ratios = self._squares[moves] / (deals - 1) / predicted[moves]
        factor = float(ratios.mean()) if moves.any() else 1.0
        np.multiply(within.scatter, n * factor, out=within.scatter)
        return replace(within, count=freedom + 1, mean=self._mean)


def sum_moments(game: Game, dim: int, num_clients: int, draws: int) -> SumMoments:
    """Return what puts the moments of a sum together in this game.

    Args:
        game: Which randomness each draw resamples.
        dim: Length of an update.
        num_clients: Clients in the sum.
        draws: In the game "rerun" redraws of each client, else single updates in all.
    """
    if game == "rerun":
        return Reruns(dim, draws)
    if game in ("independent", "independent-held-out"):
        return Interchangeable(dim, num_clients)
    deals = -(-draws // num_clients)
    if num_clients == 1 or deals >= DEALS_PER_DIMENSION * dim:
        return DealSums(dim)
    return WithinDeals(dim, num_clients)
