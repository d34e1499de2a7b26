"""The cosines of each canary with every change of the model, and their nulls.

`Transcript` is for canaries on the sphere. The changes are in a file, so memory does not grow with
them. `SignTranscript` is for canaries of random signs; ours differs there:
1. No change is stored. A canary that is in is searched for in the changes of the rounds that the
   plan gives it, and at the end in the change since the start. At 10⁷ parameters, 100 rounds and
   1,000 canaries, of which half are in, that takes 4 s of one core; the products of all canaries
   with all changes would take 45 s and 4 GB of disk. No bound needs those that are out.
2. The largest cosine is over the rounds of a canary, R of them, and the union bound pays ln R. The
   joint null of several rounds, which the sphere has in closed form, is not known for signs.
3. The change since the start is summed in single precision. That is a function of the transcript,
   so it costs no validity, whatever is rounded.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.auditor import DamagedError, DivergedError, UnableError
from leakmeter.auditors.bounds.lower_bound import Bonferroni, RateLimits
from leakmeter.auditors.canary_draws import (
    BLOCK,
    KINDS,
    CanaryBlocks,
    DrawnCanaries,
    SignStream,
    canary_key,
    cosine_logsf,
)
from leakmeter.auditors.codec import CodecError, Kept, Resumable, codec
from leakmeter.auditors.values import Sliceable, Vector, Watch
from leakmeter.auditors.wording import counted

Rows = NDArray[np.float32]
_BYTES: Final = np.dtype(np.float32).itemsize
_SHARE: Final = 0.9  # of the free disk that may be used: the project itself needs some


class RowFile(Resumable, ABC):
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

    @abstractmethod
    def _counted(self) -> list[tuple[int, float]]:
        """Return place and norm of each row that counts."""

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

    def state(self) -> dict[str, Any]:
        """Return which rows count; for a temporary file, the rows themselves as well."""
        if self._path is not None:
            return super().state()
        return {**super().state(), "rows": self._whole([place for place, _ in self._counted()])}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with the rows of an interrupted run; drop what follows them in the file.

        Raises:
            DamagedError: The file does not contain these rows.
        """
        super().restore(state)
        places = [place for place, _ in self._counted()]
        if "rows" in state:
            rows: Rows = codec(Rows).read(state["rows"], "rows")
            if rows.shape != (len(places), self._dim):
                raise CodecError(
                    f"rows must have shape {(len(places), self._dim)}, got {rows.shape}"
                )
            for place, row in zip(places, rows, strict=True):
                self._write(place, 0, row)
        elif places:
            self._reopen(places)

    def _reopen(self, rows: Sequence[int]) -> None:
        """Open the file of the interrupted run and check the rows in it; drop what follows them."""
        wanted = self._wanted(len(rows))
        if self._path is None or not self._path.is_file():
            raise DamagedError(f"{wanted}, but there is none; {_START_AGAIN}")
        size, whole = self._path.stat().st_size, _BYTES * self._dim * (max(rows) + 1)
        if size < whole:
            raise DamagedError(f"{wanted}, {whole:,} bytes, but it has {size:,}; {_START_AGAIN}")
        file = self._held(self._path.open("r+b", buffering=0))
        file.truncate(whole)  # a round beyond the checkpoint, or half of one
        self.check([self._measured(row) for row in rows])

    def check(self, measured: Sequence[float] | NDArray[np.float64]) -> None:
        """Raise if a row in the file has another norm than the row that was written.

        Raises:
            DamagedError: One of them has.
        """
        for number, ((_, length), found) in enumerate(
            zip(self._counted(), measured, strict=True), 1
        ):
            if not math.isclose(length, found, rel_tol=self.same):
                raise DamagedError(
                    f"{self._wanted(len(measured))}, but number {number} in it has been altered; "
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

    def _counted(self) -> list[tuple[int, float]]:
        return list(enumerate(self._lengths))

    def close(self) -> None:
        """Delete the file and with it the rows."""
        super().close()
        self._lengths = []


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


Scores = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Largest:
    """The largest cosine of each canary over several rounds.

    Attributes:
        cosines: These, (canaries,).
        log_p: Upper limits on ln of their p-values.
        directions: Among how many rounds the largest was taken.
        null: Draws from their null; None where there are none.
        spent: Probability that any of the limits fails.
    """

    cosines: Scores
    log_p: Scores
    directions: int
    null: Scores | None = None
    spent: float = 0.0


def log_p_of_largest(maxima: Scores, pool: Scores, dim: int, rounds: int, level: float) -> Scores:
    """Return upper limits on ln P(largest cosine over rounds ≥ value) of canaries left out.

    The smaller of two: the union bound, `rounds` times the tail of one cosine, which needs no
    simulation and has no floor; and a limit from draws of the exact null (`null_maxima`), which is
    sharper where the changes of rounds are correlated. The plain share of draws above a value is
    not enough: all canaries are compared with the same draws, and if these are too small by chance,
    they are so for every canary.

    Args:
        maxima: Largest cosines.
        pool: Draws from their null, given the transcript.
        dim: Length of the vectors.
        rounds: Rounds that the maxima are over.
        level: Probability that any limit from the pool fails.
    """
    larger = pool.size - np.searchsorted(np.sort(pool), maxima, side="left")
    # Bonferroni limits hold for all canaries at once, whichever counts they reach.
    drawn = np.log(RateLimits(Bonferroni(), level, "clopper-pearson")(larger, pool.size))
    union = cosine_logsf(maxima, dim) + math.log(rounds)
    return np.minimum(np.minimum(drawn, union), 0.0)


_GONE = 1e-9  # a total change this small, relative to the sum of all changes, is rounding
# Numbers in memory at a time, whatever the size of the run: 64 MB of changes in double precision
# and 32 MB as they are read, 32 MB of canaries and 64 MB of products. The Gram matrix takes 8 MB
# more for 1,000 rounds.
_CHANGES: Final = 2**23
_CANARIES: Final = 2**22
_PRODUCTS: Final = 2**23
_NORMALS: Final = 2**18  # of the null, 2 MB; drawing all at once took 2.4 MB per round
_TILE: Final = 768  # a multiple of the tiles that BLAS libraries use, such as 4, 12 and 16
_COLUMNS: Final = 2**16  # most columns of a block: a matrix product prefers more rows


@dataclass(frozen=True, eq=False)
class Seen:
    """What all changes of a run show about canaries.

    Attributes:
        gram: Inner products of the changes, (rounds, rounds).
        length: Norm of the change since the start.
        final: Products of unit canaries with that change, (canaries,).
        largest: Largest cosines over the rounds in which the model changed, (canaries,).
    """

    gram: NDArray[np.float64]
    length: float
    final: Scores
    largest: Scores


class Transcript(Resumable):
    """The changes of a model, round by round, and the products of canaries on the sphere with them.

    Each round is appended to a file. Products with all canaries are computed at the end, by blocks
    of coordinates, so that memory does not depend on the model size or the number of rounds.

    Args:
        seed: The seed that all canaries share.
        canaries: Their numbers.
        dim: Length of the model.
        path: File of the changes; None takes a temporary one.
        watch: Called with the progress of the products.

    Attributes:
        canaries: Their numbers; those of the end are searched for.
    """

    _changes: Kept[Changes]

    def __init__(
        self,
        seed: int,
        canaries: Sequence[int],
        dim: int,
        path: Path | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._seed, self.canaries, self._dim = seed, canaries, dim
        self._watch = watch
        self._changes = Changes(dim, path)

    @property
    def num_rounds(self) -> int:
        """Rounds added so far."""
        return len(self._changes.lengths)

    def add(
        self,
        before: Sliceable,
        after: Sliceable,
        canaries: Sequence[int] = (),
        remembered: DrawnCanaries | None = None,
        planned: Sequence[int] = (),
    ) -> Scores:
        """Add a round and return the cosines of some canaries with it, 0 if nothing changed.

        Args:
            before: The model that the round began with.
            after: The model that it released.
            canaries: Canaries whose cosines are returned.
            remembered: Remembers them for another auditor of the round; None if there is none.
            planned: Not used: all canaries are looked for in all rounds.
        """
        vars(self).pop("_seen", None)  # which was before this round
        drawn = CanaryBlocks(self._seed, canaries, remembered, self._dim)
        products, square = np.zeros((1, len(drawn))), 0.0
        for start in range(0, self._dim, BLOCK):
            part = slice(start, start + BLOCK)
            with np.errstate(over="ignore", invalid="ignore"):
                kept = (after[part] - before[part]).astype(np.float32)
            if not np.isfinite(
                kept
            ).all():  # otherwise a diverged model would seem to hide everyone
                raise DivergedError
            # Use the rounded change that is stored: the null is then exact to the last digit.
            exact = kept.astype(np.float64)
            square += float(exact @ exact)
            drawn.add_products(exact[None], products)
            self._changes.write(start, kept)
        self._changes.note(math.sqrt(square))
        return np.asarray(products[0] / drawn.norms() / (math.sqrt(square) or 1.0))

    def final(self) -> tuple[Scores, Scores]:
        """Return the cosines with the change since the start, and ln of their p-values."""
        seen = self._seen
        if seen.length <= _GONE * np.sqrt(np.diag(seen.gram)).sum():
            # Without a change there is no direction: ln p = 0 is no evidence for any canary.
            return np.zeros(len(self.canaries)), np.zeros(len(self.canaries))
        cosines = seen.final / seen.length
        return cosines, cosine_logsf(cosines, self._dim)

    def largest(self, draws: int, level: float, rng: np.random.Generator) -> Largest:
        """Return the largest cosines over rounds, upper limits on ln p, and draws of their null.

        Args:
            draws: Number of draws of the null.
            level: Probability that any of the limits fails.
            rng: Source of the draws.
        """
        seen = self._seen
        moved = np.diag(seen.gram) > 0
        if not moved.any():
            nothing = np.zeros(len(self.canaries))
            return Largest(nothing, nothing, self.num_rounds, np.zeros(1), level)
        pool = null_maxima(seen.gram[np.ix_(moved, moved)], self._dim, draws, rng)
        log_p = log_p_of_largest(seen.largest, pool, self._dim, int(moved.sum()), level)
        return Largest(seen.largest, log_p, self.num_rounds, pool, level)

    def log_p(self, canaries: Sequence[int], rows: Sequence[Sequence[int]]) -> Scores:
        """Return ln of the p-values of `together`."""
        return cosine_logsf(self.together(canaries, rows), self._dim)

    def together(self, canaries: Sequence[int], rows: Sequence[Sequence[int]]) -> Scores:
        """Return the cosine of each canary with the sum of some normalised changes.

        Args:
            canaries: Their numbers.
            rows: For each of them, which changes, from 0; those without length are left out.

        Returns:
            Cosines, 0 where nothing changed, (canaries,).
        """
        used = sorted({row for some in rows for row in some if self._changes.lengths[row] > 0})
        if not used:
            return np.zeros(len(canaries))
        drawn, products = CanaryBlocks(self._seed, canaries), np.zeros((len(used), len(canaries)))
        gram = np.zeros((len(used), len(used)))
        for block in self._changes.blocks(max(min(_CHANGES // len(used), _COLUMNS), 1), used):
            exact = block.astype(np.float64)
            gram += exact @ exact.T
            drawn.add_products(exact, products, max(_CANARIES // exact.shape[1], 1))
        weights = np.array([[row in some for some in rows] for row in used], dtype=np.float64)
        weights /= np.sqrt(np.diag(gram))[:, None]  # (used, canaries)
        length = np.sqrt(np.maximum((weights * (gram @ weights)).sum(axis=0), 0.0))
        along = (weights * products).sum(axis=0) / drawn.norms()
        # Changes that cancel leave no direction, and a cosine with rounding would be no evidence.
        is_left = length > _GONE * len(used)
        return np.where(is_left, along / np.where(is_left, length, 1.0), 0.0)

    def close(self) -> None:
        """Delete the file of the changes; results that were computed from it stay."""
        self._changes.close()

    @cached_property
    def _seen(self) -> Seen:
        """The products of canaries and changes, computed once in one pass per group of canaries.

        Each block has the sum of the changes as one more row. Adding up the products of single
        rounds instead would lose digits where the changes cancel.
        """
        rows = len(self._changes.lengths) + 1
        size = max(_PRODUCTS // rows, 1)
        groups = [self.canaries[i : i + size] for i in range(0, len(self.canaries), size)]
        gram = np.zeros((rows, rows))  # the last row and column belong to the sum of all changes
        final, largest = [], []
        for i, group in enumerate(groups):
            drawn, products = CanaryBlocks(self._seed, group), np.zeros((rows, len(group)))
            for block, share in self._blocks():
                if i == 0:
                    gram += block @ block.T
                drawn.add_products(block, products, max(_CANARIES // block.shape[1], 1))
                if self._watch is not None:
                    self._watch("canaries", (i + share) / len(groups))
            lengths = np.sqrt(np.diag(gram)[:-1])
            self._changes.check(lengths)
            moved = lengths > 0
            norms = drawn.norms() if moved.any() else np.ones(len(group))
            final.append(products[-1] / norms)
            cosines = products[:-1][moved] / lengths[moved, None] / norms  # (moved rounds, group)
            largest.append(cosines.max(axis=0, initial=-1.0))
        length = math.sqrt(gram[-1, -1])
        return Seen(gram[:-1, :-1], length, np.concatenate(final), np.concatenate(largest))

    def _blocks(self) -> Iterator[tuple[Scores, float]]:
        """Yield blocks of all changes and their sum, (rounds + 1, columns), and the progress."""
        rows = len(self._changes.lengths) + 1
        columns = max(min(_CHANGES // rows, _COLUMNS, self._dim), 1)
        exact = np.empty((rows, columns))
        done = 0
        for block in self._changes.blocks(columns):
            part = exact[:, : block.shape[1]]
            part[:-1] = block
            part[:-1].sum(axis=0, out=part[-1])
            done += block.shape[1]
            yield part, done / self._dim


def null_maxima(
    gram: NDArray[np.float64],
    dim: int,
    draws: int,
    rng: np.random.Generator,
    block: int = 2**22,
) -> NDArray[np.float64]:
    """Return largest cosines over rounds of canaries that never took part, drawn exactly.

    Given the transcript, the cosines of a fresh canary with all T round deltas are
    R g / √(‖g‖² + χ²), where R is a factor of the Gram matrix of the *normalised* deltas (rank r),
    g ~ N(0, I_r) is the canary within their span, and χ², with dim − r degrees of freedom, is the
    squared norm of the rest. This costs O(draws·T·r), not O(draws·T·dim).

    Args:
        gram: Inner products of the round deltas (T, T).
        dim: Length of the deltas.
        draws: Number of fresh canaries.
        rng: Source of randomness.
        block: Normal numbers that are drawn before the other random numbers that belong to them.
    """
    lengths = np.sqrt(np.diag(gram))
    moved = lengths > 0
    if not moved.any():
        return np.zeros(draws)
    values, vectors = np.linalg.eigh(
        gram[np.ix_(moved, moved)] / np.outer(lengths, lengths)[np.ix_(moved, moved)]
    )
    # Eigenvalues at rounding level would add directions that no delta has.
    kept = values > values[-1] * values.size * np.finfo(np.float64).eps
    factor = vectors[:, kept] * np.sqrt(values[kept])  # (T, r)
    rank = factor.shape[1]
    maxima, squares = np.empty(draws), np.empty(draws)
    step = max(block // len(gram), 1)
    for start in range(0, draws, step):
        part = slice(start, min(start + step, draws))
        _fill_maxima(factor, rng, maxima[part], squares[part])
        if dim > rank:
            squares[part] += rng.chisquare(dim - rank, part.stop - start)
    maxima /= np.sqrt(squares)
    # A round that changed nothing has a cosine of zero.
    return maxima if moved.all() else np.maximum(maxima, 0.0)


def _fill_maxima(
    factor: NDArray[np.float64], rng: np.random.Generator, maxima: Scores, squares: Scores
) -> None:
    """Draw canaries g within the span, a few at a time: put max R g and ‖g‖² where they belong."""
    # Whole tiles of a matrix product: its last bits are then those of all draws at once.
    rows = max(_NORMALS // len(factor) // _TILE, 1) * _TILE
    for start in range(0, maxima.size, rows):
        some = slice(start, start + rows)
        normal = rng.standard_normal((maxima[some].size, factor.shape[1]))  # one row per draw
        maxima[some] = (normal @ factor.T).max(axis=1)
        squares[some] = (normal**2).sum(axis=1)


_NULL = KINDS["signs"]
_ROUNDED = 1e-6  # a total change this small, relative to the sum of all changes, is rounding
_LARGEST = 1e76  # squared norm of a block whose entries single precision can have


class SignTranscript(Resumable):
    """What canaries of random signs show of a run.

    Args:
        seed: The seed that all canaries share.
        dim: Length of the model.
        watch: Called with the progress of the products.
    """

    num_rounds: Kept[int]
    _total: Kept[NDArray[np.float32]]  # the change since the start; empty before the first round
    _travelled: Kept[float]  # summed norms of all changes
    _cosines: Kept[Scores]  # the largest of each canary in its rounds, (canaries,)
    _looks: Kept[NDArray[np.int64]]  # rounds of each canary in which the model changed

    def __init__(self, seed: int, dim: int, watch: Watch | None = None) -> None:
        self._seed, self._dim, self._watch = seed, dim, watch
        self.num_rounds, self._travelled = 0, 0.0
        self._total = np.empty(0, dtype=np.float32)
        self.look_for(np.zeros(0, dtype=bool))

    def look_for(self, included: NDArray[np.bool_]) -> None:
        """Look for the canaries that are in, and forget what was seen of others."""
        self._included = included
        self._cosines = np.full(included.size, -1.0)
        self._looks = np.zeros(included.size, dtype=np.int64)

    def add(
        self,
        before: Sliceable,
        after: Sliceable,
        canaries: Sequence[int] = (),
        remembered: DrawnCanaries | None = None,
        planned: Sequence[int] = (),
    ) -> Scores:
        """Add a round and return the cosines of some canaries with it, 0 if nothing changed.

        Args:
            before: The model that the round began with.
            after: The model that it released.
            canaries: Canaries whose cosines are returned.
            remembered: Not used: signs are drawn faster than they are read from memory.
            planned: Canaries that the plan gives this round.
        """
        ids = sorted({*canaries, *(i for i in planned if self._included[i])})
        signs, square = _Products(self._seed, ids), 0.0
        if not self._total.size:
            self._total = np.zeros(self._dim, dtype=np.float32)
        for start in range(0, self._dim, BLOCK):
            part = slice(start, start + BLOCK)
            with np.errstate(over="ignore", invalid="ignore"):
                change = after[part] - before[part]
                own = float(change @ change)
            if not own < _LARGEST:  # otherwise a diverged model would seem to hide everyone
                self._total[:start] -= after[:start] - before[:start]
                self._travelled += math.sqrt(square)  # rounding is left of it
                raise DivergedError
            square += own
            signs.add(change)
            with np.errstate(over="ignore"):  # of changes that are finite each
                self._total[part] += change
        self.num_rounds += 1
        length = math.sqrt(square)
        self._travelled += length
        cosines = signs.sums / (math.sqrt(self._dim) * (length or 1.0))
        if length:
            self._cosines[ids] = np.maximum(self._cosines[ids], cosines)
            self._looks[ids] += 1
        return cosines[np.searchsorted(ids, canaries)] if len(ids) else np.zeros(0)

    def final(self) -> tuple[Scores, Scores]:
        """Return the cosines with the change since the start, and limits on ln of their p-values.

        Both are 0 for canaries that are out. Each block of the change is multiplied with all others
        while it is in the cache.
        """
        inside = np.flatnonzero(self._included)
        cosines, log_p = np.zeros(self._included.size), np.zeros(self._included.size)
        signs, square = _Products(self._seed, inside.tolist()), 0.0
        for start in range(0, self._total.size, BLOCK):
            block = self._total[start : start + BLOCK].astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                square += float(block @ block)
                signs.add(block)
            if self._watch is not None:
                self._watch("canaries", min((start + BLOCK) / self._dim, 1.0))
        length = math.sqrt(square)
        if _ROUNDED * self._travelled < length < math.inf:
            # Without a change there is no direction: ln p = 0 is no evidence for any canary.
            cosines[inside] = signs.sums / (math.sqrt(self._dim) * length)
            log_p[inside] = _NULL.logsf(cosines[inside], self._dim)
        return cosines, log_p

    def largest(self, draws: int, level: float, rng: np.random.Generator) -> Largest:
        """Return the largest cosines over the rounds of each canary; nothing is simulated.

        They are 0 for canaries that are out.
        """
        cosines = np.where(self._looks > 0, self._cosines, 0.0)
        return Largest(cosines, self._log_p(), directions=int(self._looks.max(initial=1)))

    def log_p(self, canaries: Sequence[int], rows: Sequence[Sequence[int]]) -> Scores:
        """Return limits on ln p of some canaries, from the rounds that have been added."""
        return self._log_p()[list(canaries)]

    def close(self) -> None:
        """Forget nothing: there is no file."""

    def _log_p(self) -> Scores:
        """Return ln of the union bound over the rounds of each canary, 0 before the first."""
        tails = _NULL.logsf(self._cosines, self._dim) + np.log(np.maximum(self._looks, 1))
        return np.where(self._looks > 0, np.minimum(tails, 0.0), 0.0)


class _Products:
    """Inner products of a vector with the signs of some canaries, part by part.

    A product of one vector is faster without a matrix: signs are used while they are in the cache.

    Attributes:
        sums: The products of the parts so far, (canaries,).
    """

    def __init__(self, seed: int, canaries: Iterable[int]) -> None:
        self._streams = [SignStream(canary_key(seed, canary)) for canary in canaries]
        self._signs = np.empty(BLOCK)
        self.sums = np.zeros(len(self._streams))

    def add(self, part: Vector) -> None:
        """Add the products with the next coordinates, at most `BLOCK` of them."""
        signs = self._signs[: part.size]
        for place, stream in enumerate(self._streams):
            stream.fill(signs)
            self.sums[place] += part @ signs
