"""Vectors of a run in a file, such as the changes of its model: memory does not grow with them."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.auditor import DamagedError, UnableError
from leakmeter.auditors.canary_draws import BLOCK
from leakmeter.auditors.codec import CodecError, Kept, Resumable, codec
from leakmeter.auditors.wording import counted

Rows = NDArray[np.float32]

_BYTES: Final = np.dtype(np.float32).itemsize
_SHARE: Final = 0.9  # of the free disk that may be used: the project itself needs some


class RowFile(Resumable):
    """Rows of `dim` numbers in single precision in a file, written and read part by part.

    Args:
        dim: Length of a row.
        path: The file. None takes an unnamed temporary file, deleted with this object.
    """

    what: ClassVar[str]  # what the rows are, in words
    counted: ClassVar[tuple[str, str]]  # how their number is said: what goes before it, and a noun
    same: ClassVar[float] = 1e-9  # a norm that differs by more belongs to another row

    def __init__(self, dim: int, path: Path | None) -> None:
        self._dim, self._path = dim, path
        self._file: FileIO | None = None
        self._release: Callable[[], object] | None = None

    def close(self) -> None:
        """Delete the file and with it the rows."""
        if self._release is not None:
            self._release()
        self._file = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _write(self, row: int, start: int, part: Rows) -> None:
        """Write a part of a row, from coordinate `start` on."""
        with self._in_words():
            file = self._opened()
            file.seek(_BYTES * (row * self._dim + start))
            left = part.data.cast("B")
            while left:  # the system may take less than it is given
                left = left[file.write(left) :]

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

    def _sync(self) -> None:
        """Wait until all rows are on disk: a checkpoint may follow."""
        if self._path is not None and self._file is not None:
            with self._in_words():
                os.fsync(self._file.fileno())

    def _whole(self, rows: Sequence[int]) -> Rows:
        """Return rows for the state of a temporary file."""
        found = np.empty((len(rows), self._dim), dtype=np.float32)
        for row, numbers in zip(rows, found, strict=True):
            self._read(row, 0, numbers)
        return found

    def _of_state(self, state: Mapping[str, Any], count: int) -> Rows | None:
        """Return the rows of such a state; None if they are in a file with a name."""
        if "rows" not in state:
            return None
        rows: Rows = codec(Rows).read(state["rows"], "rows")
        if rows.shape != (count, self._dim):
            raise CodecError(f"rows must have shape {(count, self._dim)}, got {rows.shape}")
        return rows

    def _reopen(self, rows: Sequence[int], lengths: Sequence[float]) -> None:
        """Open the file of the interrupted run and check the rows in it; drop what follows them."""
        wanted = self._wanted(len(rows))
        if self._path is None or not self._path.is_file():
            raise DamagedError(f"{wanted}, but there is none; {_START_AGAIN}")
        size, whole = self._path.stat().st_size, _BYTES * self._dim * (max(rows) + 1)
        if size < whole:
            raise DamagedError(f"{wanted}, {whole:,} bytes, but it has {size:,}; {_START_AGAIN}")
        file = self._held(self._path.open("r+b", buffering=0))
        file.truncate(whole)  # a round beyond the checkpoint, or half of one
        self._check(lengths, [self._measured(row) for row in rows])

    def _check(self, lengths: Sequence[float], measured: Iterable[float]) -> None:
        """Raise if a row in the file has another norm than the row that was written."""
        for number, (length, found) in enumerate(zip(lengths, measured, strict=True), 1):
            if not math.isclose(length, found, rel_tol=self.same):
                raise DamagedError(
                    f"{self._wanted(len(lengths))}, but number {number} in it has been altered; "
                    f"{_START_AGAIN}"
                )

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

    def _measured(self, row: int) -> float:
        """Return the length of a row in the file."""
        square, buffer = 0.0, np.empty(min(BLOCK, self._dim), dtype=np.float32)
        for start in range(0, self._dim, BLOCK):
            part = buffer[: self._dim - start]
            self._read(row, start, part)
            exact = part.astype(np.float64)
            square += float(exact @ exact)
        return math.sqrt(square)

    def _wanted(self, count: int) -> str:
        where = self._path or "a file in the folder of the run"
        before, noun = self.counted
        return f"{where} must have {before}{counted(count, noun)}"

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """Turn an error of the disk into advice what to do."""
        try:
            yield
        except OSError as error:
            raise UnableError(
                f"{self.what} cannot be written to {_place(self._path)}: "
                f"{error.strerror or error}; {_ELSEWHERE}"
            ) from error


class Changes(RowFile):
    """The changes of a model, appended once and read by blocks of columns.

    A row is written part by part and counts once its norm is noted. A row that fails leaves nothing
    behind: the next row takes its place.
    """

    what = "the changes of the model"
    counted = ("the changes of ", "round")

    _lengths: Kept[list[float]]

    def __init__(self, dim: int, path: Path | None) -> None:
        super().__init__(dim, path)
        self._lengths = []

    @property
    def lengths(self) -> NDArray[np.float64]:
        """L2 norm of each row."""
        return np.array(self._lengths)

    def write(self, start: int, part: Rows) -> None:
        """Write a part of the next row, from coordinate `start` on."""
        self._write(len(self._lengths), start, part)

    def note(self, length: float) -> None:
        """Count the row that was written, once it is on disk."""
        self._sync()
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

    def check(self, measured: Iterable[float]) -> None:
        """Raise if a row in the file has another norm than the row that was written.

        Raises:
            DamagedError: One of them has.
        """
        self._check(self._lengths, measured)

    def state(self) -> dict[str, Any]:
        """Return the norms of the rows; for a temporary file, the rows themselves."""
        if self._path is not None:
            return super().state()
        return {**super().state(), "rows": self._whole(range(len(self._lengths)))}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with the rows of an interrupted run; drop what follows them in the file.

        Raises:
            DamagedError: The file does not contain these rows.
        """
        super().restore(state)
        lengths, self._lengths = self._lengths, []
        if (rows := self._of_state(state, len(lengths))) is not None:
            for row, length in zip(rows, lengths, strict=True):
                self.write(0, row)
                self.note(length)
        elif lengths:
            self._reopen(range(len(lengths)), lengths)
        self._lengths = lengths

    def close(self) -> None:
        """Delete the file and with it the rows."""
        super().close()
        self._lengths = []


@dataclass(frozen=True)
class KeptRow:
    """A row that counts: its name, its place in the file and its L2 norm."""

    name: str
    place: int
    length: float


class KeptRows(RowFile):
    """Rows by name, of which the last that was written under a name counts.

    Within a round nothing is overwritten that counted when it began: an interrupted round leaves
    the rows of the last checkpoint as they were. Memory does not depend on their number.
    """

    what = "the replies of seats"
    counted = ("", "kept row")
    same = 1e-5  # norms are those of rows in double precision

    _kept: Kept[list[KeptRow]]  # in the order in which they were written

    def __init__(self, dim: int, path: Path | None) -> None:
        super().__init__(dim, path)
        self._kept = []
        self._free: list[int] = []
        self._writing: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        """Names of the rows that count, the one that was written first in front."""
        return [row.name for row in self._kept]

    def begin_round(self) -> None:
        """Free the places of rows that do not count any more."""
        used = {row.place for row in self._kept}
        self._free = sorted(set(range(max(used, default=-1) + 1)) - used, reverse=True)
        self._writing.clear()

    def end_round(self) -> None:
        """Wait until the rows of this round are on disk."""
        self._sync()

    def read(self, name: str, start: int, into: Rows) -> None:
        """Read a part of the row of a name."""
        self._read(self._row(name).place, start, into)

    def write(self, name: str, start: int, part: Rows) -> None:
        """Write a part of the next row of a name; it counts from `note` on."""
        if name not in self._writing:
            taken = {row.place for row in self._kept} | set(self._writing.values())
            free = self._free.pop() if self._free else max(taken, default=-1) + 1
            self._writing[name] = free
        self._write(self._writing[name], start, part)

    def note(self, name: str, length: float) -> None:
        """Let the row that was written count under its name."""
        self.drop(name)
        self._kept.append(KeptRow(name, self._writing.pop(name), length))

    def drop(self, name: str) -> None:
        """Forget the row of a name, if there is one."""
        self._kept = [row for row in self._kept if row.name != name]

    def state(self) -> dict[str, Any]:
        """Return which rows count; for a temporary file, the rows themselves."""
        if self._path is not None:
            return super().state()
        return {**super().state(), "rows": self._whole([row.place for row in self._kept])}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with the rows of an interrupted run.

        Raises:
            DamagedError: The file does not contain these rows.
        """
        super().restore(state)
        if (rows := self._of_state(state, len(self._kept))) is not None:
            for kept, numbers in zip(self._kept, rows, strict=True):
                self._write(kept.place, 0, numbers)
        elif self._kept:
            self._reopen([row.place for row in self._kept], [row.length for row in self._kept])

    def close(self) -> None:
        """Delete the file and with it the rows."""
        super().close()
        self._kept = []

    def _row(self, name: str) -> KeptRow:
        return next(row for row in self._kept if row.name == name)


_START_AGAIN = "put it back as it was, or start the run again in another folder"
_ELSEWHERE = "free some space, plan fewer rounds, or choose a folder on another disk with `out`"


def _place(path: Path | None) -> str:
    return f"a temporary file in {tempfile.gettempdir()}" if path is None else str(path)


def file_size(dim: int, rounds: int) -> int:
    """Return the bytes that the changes of all rounds take."""
    return _BYTES * dim * rounds


def check_room(path: Path | None, needed: int, what: str = Changes.what) -> None:
    """Raise if the disk has no room for a file of this size.

    Args:
        path: The file; None for a temporary one.
        needed: Its bytes.
        what: What is in it, in words.

    Raises:
        UnableError: It has not, or the folder is not there.
    """
    folder = Path(tempfile.gettempdir()) if path is None else path.parent
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise UnableError(
            f"{what} need a folder to be written to, got {folder}: {error.strerror or error}"
        ) from error
    # A tenth stays free, so that the training has room for its own files.
    if needed > _SHARE * free:
        raise UnableError(
            f"{what} need {needed:,} bytes in {folder}, which has {free:,} bytes free: {_ELSEWHERE}"
        )
