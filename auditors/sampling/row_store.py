"""Sampled updates that may be larger than memory: written row by row, read by blocks of columns.

Up to 64 MB (in single precision) are one array in memory, and one block. More are float32 in a
temporary file without a name, so nothing is left behind however the run ends. Whatever is computed
column by column is the same either way; sums over columns add up the blocks in double precision.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from leakmeter.auditors.auditor import UnableError
from leakmeter.auditors.values import AnyFloats, Indices, Vector

_MAX_IN_MEMORY = 2**26  # bytes in single precision
_MAX_IN_BLOCK = 2**25
_WIDTH: Final = 4  # bytes of a float32
_MAX_RUNS = 50  # of neighbouring columns that are worth a copy each

Change = Callable[[slice, AnyFloats], AnyFloats]


def file_bytes(count: int, dim: int) -> int:
    """Return how large the file of this many rows is; 0 if they stay in memory.

    Rows that are no fewer than the columns stay in memory too: their products, (count, count),
    would be as large.
    """
    size = _WIDTH * count * dim
    return 0 if size <= _MAX_IN_MEMORY or count >= dim else size


def check_room(needed: int) -> None:
    """Raise if the folder of temporary files has no room for this many bytes.

    Raises:
        UnableError: It has not.
    """
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UnableError(
            f"sampled updates need {needed / 1e9:.1f} GB in the temporary folder {folder}, which "
            f"has {free / 1e9:.1f} GB free: free some space, set TMPDIR to a larger folder, or "
            "sample fewer updates"
        )


def taken(rows: AnyFloats, columns: Indices, room: AnyFloats | None = None) -> AnyFloats:
    """Return a copy of single columns, which rise, of rows (..., dim).

    Args:
        rows: The rows.
        columns: Which columns.
        room: One for the copy, of the rows' precision: the first touch of new pages costs more
            than copying. None makes one.
    """
    shape = (*rows.shape[:-1], columns.size)
    out = None if room is None else room.reshape(-1)[: math.prod(shape)].reshape(shape)
    runs = np.split(columns, np.flatnonzero(np.diff(columns) != 1) + 1)
    if len(runs) > _MAX_RUNS:
        return rows.take(columns, axis=-1, out=out)
    # Neighbours together: single indices would cost four times as much.
    parts = [rows[..., run[0] : run[-1] + 1] for run in runs if run.size]
    return np.concatenate(parts, axis=-1, out=out)


class RowStore:
    """Rows (count, dim) in memory or in a temporary file.

    Args:
        count: How many rows will be added.
        dim: Their length.
        dtype: Of rows in memory; None takes that of the first one.

    Attributes:
        shape: (count, dim).
    """

    def __init__(self, count: int, dim: int, dtype: DTypeLike | None = None) -> None:
        self.shape = (count, dim)
        self._stride, self._added, self._dtype = dim, 0, dtype
        self._array: AnyFloats | None = None
        self._file = tempfile.TemporaryFile() if file_bytes(count, dim) else None  # noqa: SIM115
        if self._file is not None:
            weakref.finalize(self, self._file.close)

    @classmethod
    def of(cls, rows: AnyFloats | RowStore) -> RowStore:
        """Return rows that are in memory, or a store, as a store."""
        if isinstance(rows, RowStore):
            return rows
        store = cls(0, rows.shape[1])
        store.shape, store._array = (len(rows), rows.shape[1]), rows
        return store

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def is_in_memory(self) -> bool:
        """Whether all rows are one block, in the precision in which they came."""
        return self._file is None

    def add(self, row: AnyFloats) -> None:
        """Write the next row, (dim,)."""
        at, self._added = self._added, self._added + 1
        assert at < len(self), "more rows than there is room for"
        if self._file is not None:
            self._write(at, 0, np.asarray(row, dtype=np.float32))
            return
        if self._array is None:
            self._array = np.empty(self.shape, dtype=self._dtype or row.dtype)
        self._array[at] = row

    def row(self, index: int) -> AnyFloats:
        """Return one row, (dim,)."""
        if self._file is None:
            return np.asarray(self._whole[index])
        return np.asarray(self._read([index], slice(0, self.shape[1]))[0])

    def columns(self, at: slice) -> AnyFloats:
        """Return some columns of all rows, (count, columns)."""
        if self._file is None:
            return np.asarray(self._whole[:, at])
        return self._read(range(len(self)), at)

    def take(self, columns: Indices) -> AnyFloats:
        """Return a copy of single columns, which rise, of all rows, (count, columns)."""
        if self._file is None:
            return taken(self._whole, columns)
        at, found = slice(int(columns[0]), int(columns[-1]) + 1), []
        for index in range(len(self)):  # a row at a time: the columns may be far apart
            found.append(self._read([index], at)[0, columns - at.start])
        return np.stack(found)

    def blocks(self) -> Iterator[tuple[slice, AnyFloats]]:
        """Yield blocks of columns from left to right, and which columns they are."""
        count, dim = self.shape
        step = dim if self._file is None else max(1, _MAX_IN_BLOCK // (_WIDTH * count))
        for first in range(0, dim, step):
            at = slice(first, min(first + step, dim))
            yield at, self.columns(at)

    def changed(self, change: Change) -> RowStore:
        """Return rows whose blocks are what `change(columns, block)` makes of them.

        A block may be changed in place, and may lose columns. A file is overwritten: these rows
        themselves are then gone.
        """
        if self._file is None:
            return RowStore.of(change(slice(0, self.shape[1]), self._whole))
        done = 0  # never ahead of what was read
        for at, block in self.blocks():
            new = change(at, block)
            for index, row in enumerate(new):
                self._write(index, done, row)
            done += new.shape[1]
        self.shape = (len(self), done)
        return self

    def mean(self) -> AnyFloats:
        """Return the mean of the rows, (dim,)."""
        return np.concatenate([block.mean(axis=0) for _, block in self.blocks()])

    def times(self, vector: Vector, centre: AnyFloats) -> Vector:
        """Return the products of all rows less a centre with a vector, (count,)."""
        found = np.zeros(len(self))
        for at, block in self.blocks():  # in the rows' own precision, hence the centre
            found += (block - centre[at]) @ vector[at].astype(block.dtype)
        return found

    @property
    def _whole(self) -> AnyFloats:
        assert self._array is not None, "rows are read before one was added"
        return self._array

    def _read(self, indices: Sequence[int], at: slice) -> NDArray[np.float32]:
        assert self._file is not None
        found = np.empty((len(indices), at.stop - at.start), dtype=np.float32)
        for index, row in zip(indices, found, strict=True):
            self._file.seek(_WIDTH * (index * self._stride + at.start))
            if self._file.readinto(row) != row.nbytes:
                raise OSError("the file of sampled updates is shorter than what was written")
        return found

    def _write(self, index: int, first: int, row: AnyFloats) -> None:
        assert self._file is not None
        self._file.seek(_WIDTH * (index * self._stride + first))
        self._file.write(np.ascontiguousarray(row, dtype=np.float32).data)
