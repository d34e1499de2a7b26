"""Products of all columns with all columns, added up over chunks of rows: X = Σ zᵀz.

Strassen (1969), Gaussian Elimination is not Optimal, in Winograd's form (Higham 2002, Accuracy and
Stability of Numerical Algorithms, eq. 23.6): halves of two matrices take seven products in place of
eight. Ours differs in two points:
1. The seven are sums over all chunks and are put together once, at the end. A chunk pays for sums
   of its own blocks only.
2. Blocks on the diagonal of X are symmetric, which saves half of their products.

With 8 blocks of columns, 109 products of blocks do the work of 128. Single precision then errs by
about five times as much as with all products: 3e-8 of two standard deviations for 2,048 rows in
units of these deviations. Without such units small columns would lose digits to large ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import sgemm, ssyrk

from leakmeter.auditors.values import Vector

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
