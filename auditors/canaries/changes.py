"""The changes of a model, one per round, in a file: memory does not grow with the rounds."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.auditor import DamagedError, UnableError
from leakmeter.auditors.canary import BLOCK
from leakmeter.auditors.codec import CodecError, Kept, Resumable, codec
from leakmeter.auditors.wording import counted

Rows = NDArray[np.float32]

_BYTES: Final = np.dtype(np.float32).itemsize
_SAME: Final = 1e-9  # a norm that differs by more belongs to another change
_SHARE: Final = 0.9  # of the free disk that may be used: the project itself needs some


class Changes(Resumable):
    """Rows of `dim` numbers in single precision, appended once and read by blocks of columns.

    A row is written part by part and counts once its norm is noted. A row that fails leaves nothing
    behind: the next row takes its place.

    Args:
        dim: Length of a row.
        path: The file. None takes an unnamed temporary file, deleted with this object.
    """

    _lengths: Kept[list[float]]

    def __init__(self, dim: int, path: Path | None) -> None:
        self._dim, self._path = dim, path
        self._lengths = []
        self._file: FileIO | None = None
        self._release: Callable[[], object] | None = None

    @property
    def lengths(self) -> NDArray[np.float64]:
        """L2 norm of each row."""
        return np.array(self._lengths)

    def write(self, start: int, part: Rows) -> None:
        """Write a part of the next row, from coordinate `start` on."""
        with self._in_words():
            file = self._opened()
            file.seek(_BYTES * (len(self._lengths) * self._dim + start))
            left = part.data.cast("B")
            while left:  # the system may take less than it is given
                left = left[file.write(left) :]

    def note(self, length: float) -> None:
        """Count the row that was written, once it is on disk: a checkpoint may follow."""
        if self._path is not None:
            with self._in_words():
                os.fsync(self._opened().fileno())
        self._lengths.append(length)

    def blocks(self, columns: int, rows: Sequence[int] | None = None) -> Iterator[Rows]:
        """Yield rows, some columns at a time; the next block overwrites the previous one.

        Args:
            columns: Columns of a block.
            rows: Which rows; None for all.
        """
        rows = range(len(self._lengths)) if rows is None else rows
        if not rows:
            return
        buffer = np.empty((len(rows), min(columns, self._dim)), dtype=np.float32)
        for start in range(0, self._dim, columns):
            block = buffer[:, : self._dim - start]
            for row, numbers in zip(rows, block, strict=True):
                self._read(row, start, numbers)
            yield block

    def state(self) -> dict[str, Any]:
        """Return the norms of the rows; for a temporary file, the rows themselves."""
        if self._path is not None:
            return super().state()
        rows = np.empty((len(self._lengths), self._dim), dtype=np.float32)
        for i, row in enumerate(rows):
            self._read(i, 0, row)
        return {**super().state(), "rows": rows}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with the rows of an interrupted run; drop what follows them in the file.

        Raises:
            DamagedError: The file does not contain these rows.
        """
        super().restore(state)
        if "rows" in state:
            self._put(codec(Rows).read(state["rows"], "rows"))
        elif self._lengths:
            self._reopen()

    def _put(self, rows: Rows) -> None:
        """Write the rows of a state into the file."""
        lengths, self._lengths = self._lengths, []
        if rows.shape != (len(lengths), self._dim):
            wanted = f"must have shape {(len(lengths), self._dim)}"
            raise CodecError(f"rows {wanted}, got {rows.shape}")
        for row, length in zip(rows, lengths, strict=True):
            self.write(0, row)
            self.note(length)

    def _reopen(self) -> None:
        """Open the file of the interrupted run and check the rows in it."""
        if self._path is None or not self._path.is_file():
            raise DamagedError(f"{self._wanted()}, but there is none; {_START_AGAIN}")
        size, whole = self._path.stat().st_size, _BYTES * self._dim * len(self._lengths)
        if size < whole:
            raise DamagedError(
                f"{self._wanted()}, {whole:,} bytes, but it has {size:,}; {_START_AGAIN}"
            )
        file = self._held(self._path.open("r+b", buffering=0))
        file.truncate(whole)  # a round beyond the checkpoint, or half of one
        self.check([self._measured(row) for row in range(len(self._lengths))])

    def check(self, measured: Iterable[float]) -> None:
        """Raise if a row in the file has another norm than the row that was written.

        Raises:
            DamagedError: One of them has.
        """
        for number, (length, found) in enumerate(zip(self._lengths, measured, strict=True), 1):
            if not math.isclose(length, found, rel_tol=_SAME):
                raise DamagedError(
                    f"{self._wanted()}, but number {number} in it has been altered; {_START_AGAIN}"
                )

    def close(self) -> None:
        """Delete the file and with it the rows."""
        if self._release is not None:
            self._release()
        self._file, self._lengths = None, []
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _opened(self) -> FileIO:
        """Return the file; a new one at the first call, unless a run was resumed."""
        if self._file is not None:
            return self._file
        # Unbuffered: with a buffer, a full disk would raise in a later call, or never.
        if self._path is not None:
            return self._held(self._path.open("w+b", buffering=0))
        return self._held(tempfile.TemporaryFile(buffering=0))

    def _held(self, file: FileIO) -> FileIO:
        """Keep a file open for as long as this object is there."""
        self._file, self._release = file, weakref.finalize(self, file.close)
        return file

    def _read(self, row: int, start: int, into: Rows) -> None:
        """Read a part of a row."""
        file = self._opened()
        file.seek(_BYTES * (row * self._dim + start))
        left = into.data.cast("B")
        while left:
            count = file.readinto(left)
            if not count:
                raise DamagedError(f"{_place(self._path)} ends too early: it has been altered")
            left = left[count:]

    def _measured(self, row: int) -> float:
        """Return the length of a row in the file."""
        square, buffer = 0.0, np.empty(min(BLOCK, self._dim), dtype=np.float32)
        for start in range(0, self._dim, BLOCK):
            part = buffer[: self._dim - start]
            self._read(row, start, part)
            exact = part.astype(np.float64)
            square += float(exact @ exact)
        return math.sqrt(square)

    def _wanted(self) -> str:
        rows = counted(len(self._lengths), "round")
        return f"{self._path or 'a file in the folder of the run'} must have the changes of {rows}"

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """Turn an error of the disk into advice what to do."""
        try:
            yield
        except OSError as error:
            raise UnableError(
                f"the changes of the model cannot be written to {_place(self._path)}: "
                f"{error.strerror or error}; {_ELSEWHERE}"
            ) from error


_START_AGAIN = "put it back as it was, or start the run again in another folder"
_ELSEWHERE = "free some space, plan fewer rounds, or choose a folder on another disk with `out`"


def _place(path: Path | None) -> str:
    return f"a temporary file in {tempfile.gettempdir()}" if path is None else str(path)


def file_size(dim: int, rounds: int) -> int:
    """Return the bytes that the changes of all rounds take."""
    return _BYTES * dim * rounds


def check_room(path: Path | None, needed: int) -> None:
    """Raise if the disk has no room for a file of this size.

    Raises:
        UnableError: It has not, or the folder is not there.
    """
    folder = Path(tempfile.gettempdir()) if path is None else path.parent
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise UnableError(
            f"the changes of the model need a folder to be written to, got {folder}: "
            f"{error.strerror or error}"
        ) from error
    # A tenth stays free, so that the training has room for its own files.
    if needed > _SHARE * free:
        raise UnableError(
            f"the changes of the model need {needed:,} bytes in {folder}, which has {free:,} "
            f"bytes free: {_ELSEWHERE}"
        )
