"""Fresh updates for audits: how they are drawn, for which game, and where many of them are kept.

See `UpdateSampler` for what a sampler has to do. Sampled updates may be larger than memory: a
`RowStore` is written row by row and read by blocks of columns. Up to 64 MB (in single precision)
are one array in memory, and one block. More are float32 in a temporary file without a name, so
nothing is left behind however the run ends. Whatever is computed column by column is the same
either way; sums over columns add up the blocks in double precision.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from leakmeter.auditors.auditor import DivergedError, Project, RoundMessages, RoundView, UnableError
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Game
from leakmeter.auditors.values import AnyFloats, Indices, Vector


@dataclass(frozen=True)
class Moments:
    """Sample count, mean and scatter matrix of a stream of vectors.

    Attributes:
        count: Samples, or as many as would be equally informative.
        mean: Their mean.
        scatter: Sum of the outer products of the centred samples; symmetric, in any precision.
        quartic: Sum of the fourth powers of the samples' lengths in standard deviations of each
            coordinate; None where unknown.
        columns: Coordinates of an update that these are of; None for all.
        unit: What rows and columns of the scatter are multiples of, (dim,); None for 1. In such
            units single precision holds every coordinate, however little it moves.
    """

    count: int
    mean: Vector
    scatter: AnyFloats
    quartic: float | None = None
    columns: NDArray[np.int64] | None = field(default=None, compare=False)
    unit: Vector | None = field(default=None, compare=False)

    @property
    def covariance(self) -> NDArray[np.float64]:
        """The unbiased covariance matrix."""
        if self.count < 2:
            raise BadValueError("count", "at least 2 for a covariance", self.count)
        return np.asarray(self.plain().scatter / (self.count - 1))

    @property
    def squares(self) -> Vector:
        """The diagonal of the scatter, without units, (dim,)."""
        own = np.diagonal(self.scatter).astype(np.float64, copy=False)
        return own if self.unit is None else own * self.unit**2

    def plain(self) -> Moments:
        """Return the same without units, in double precision."""
        if self.unit is None:
            return self
        scatter = self.unit[:, None] * self.scatter
        scatter *= self.unit
        return replace(self, scatter=scatter, unit=None)


Stream = Sequence[str | int]
Clients = Sequence[int]
Along = NDArray[np.float64] | None  # a projection of updates, (dim, k); None keeps all coordinates

# Updates may be in single precision: equal numbers may differ by this relative amount, but no more.
ROUNDING: Final = 4 * float(np.finfo(np.float32).eps)
# Games that resample data and never give other clients the records of the client under attack. In
# "rerun" everyone keeps their own data; in "independent" nothing is held out.
HOLDING_OUT: Final = frozenset[Game]({"partition", "independent-held-out"})


def finite(chunks: Iterable[AnyFloats]) -> Iterator[AnyFloats]:
    """Yield sampled updates; raise where one is not finite, since NaN compares as "no change".

    Raises:
        DivergedError: An update is not finite.
    """
    for chunk in chunks:
        if not np.isfinite(chunk).all():
            raise DivergedError
        yield chunk


class UpdateSampler(ABC):
    """Draws fresh local updates at a given model, for auditors that need their distribution.

    A row is what one client adds to the sum: its update times weight over `scale`. The server's
    mean update is then `scale` / total weight times the sum of the rows. Draw t of a stream is a
    function of the stream and t, whoever computes it and in whatever chunks.

    A new sampler writes `game`, `sample` and `moments`. If its game is "partition" or
    "independent-held-out", it also writes `excluding_drawn` and `excluding_real`. Everything else
    has a default.
    """

    @property
    @abstractmethod
    def game(self) -> Game:
        """Which randomness a draw resamples.

        "rerun" keeps each client's data and draws new batches. "partition" partitions one data set
        among all clients in each draw. "independent" draws each client's data from all records;
        "independent-held-out" does so too, but after `excluding_drawn` or `excluding_real` the
        other clients never draw the records of the client under attack.
        """

    @property
    def scale(self) -> float:
        """The weight that a factor of 1 corresponds to: a row is update times weight / scale."""
        return 1.0

    @property
    def free(self) -> NDArray[np.int64] | None:
        """Coordinates that determine the others; None if none are known to be redundant."""
        return None

    @property
    def has_noise(self) -> bool:
        """Whether rows contain noise that the clients add for privacy."""
        return False

    @property
    def sends_gradient(self) -> bool | None:
        """Whether an update is one gradient, as in FedSGD; None where that is not known."""
        return None

    @property
    def asks_clients(self) -> bool:
        """Whether every drawn update costs one more training of a client of the run."""
        return False

    def bind(self, messages: RoundMessages) -> None:
        """Take the train messages of a round before they are sent."""

    def limits(self, project: Project) -> Sequence[str]:
        """Return in words what cannot be drawn in this project.

        Raises:
            UnableError: No updates can be drawn there.
        """
        return ()

    def for_round(self, view: RoundView) -> UpdateSampler:
        """Return the sampler for the clients of one round."""
        return self

    @abstractmethod
    def sample(
        self, model: Vector, clients: Clients, draws: int, stream: Stream, *, project: Along = None
    ) -> Iterator[AnyFloats]:
        """Yield chunks (draws, clients, dim or k); one row is one joint redraw of all clients.

        Args:
            model: The global model that the clients start from.
            clients: Whose updates.
            draws: How many joint redraws.
            stream: Names the randomness.
            project: Matrix (dim, k) that each update is multiplied with where it is made.
        """

    def updates(
        self, model: Vector, clients: Clients, draws: int, stream: Stream
    ) -> Iterator[AnyFloats]:
        """Yield the same updates one by one, (dim,): all clients of a draw, then the next draw."""
        for chunk in self.sample(model, clients, draws, stream):
            for rows in chunk:
                yield from rows

    def sums(
        self, model: Vector, clients: Clients, draws: int, stream: Stream, *, project: Along = None
    ) -> Iterator[AnyFloats]:
        """Yield chunks (draws, dim or k) of the same draws, summed over the clients."""
        for rows in self.sample(model, clients, draws, stream, project=project):
            yield rows.sum(axis=1)

    @abstractmethod
    def moments(self, model: Vector, clients: Clients, draws: int, stream: Stream) -> Moments:
        """Return the moments of the sum over `clients`, fitted for the game that is played.

        A sampler may leave out coordinates that `free` calls redundant; see `Moments.columns`.

        Args:
            model: The global model.
            clients: Whose updates are summed.
            draws: In the game "rerun" redraws of each client, else single updates in all.
            stream: Names the randomness; no other call may use it.
        """

    def moments_each(
        self, models: AnyFloats, clients: Clients, draws: int, stream: Stream
    ) -> Iterable[Moments]:
        """Return the same at each of several models, (models, dim), which share the draws."""
        return (self.moments(model, clients, draws, stream) for model in models)

    def seconds(self, model: Vector, client: int) -> float | None:
        """Return about how long one of many updates takes; None if nothing tells."""
        return None

    def keeping(self, stream: Stream) -> UpdateSampler | None:
        """Return the sampler whose clients keep their data over models and batches.

        In draw t a client has the data that this stream gives, in every call; the stream of the
        call gives the rest. None if data and the rest cannot be drawn separately.
        """
        return None

    def holding(self, client: int, stream: Stream, draw: int) -> UpdateSampler | None:
        """Return the sampler in which `client` always has the data of one draw of a stream.

        Only this client may be asked for. None if data and the rest cannot be drawn separately.
        """
        return None

    def one(self, model: Vector, clients: Clients, draw: int, stream: Stream) -> AnyFloats:
        """Return one draw of `sample`, (clients, dim). Slow here; samplers may do it directly."""
        chunks = self.sample(model, clients, draw + 1, stream)
        return np.asarray(np.concatenate(list(chunks))[draw])

    def shares(self, clients: Clients, draw: int, stream: Stream) -> Vector:
        """Return the clients' weights over `scale` in one draw, (clients,); equal by default."""
        return np.ones(len(clients))

    def excluding_drawn(self, client: int, stream: Stream, draws: Sequence[int]) -> UpdateSampler:
        """Return the sampler of the other clients, given the records of `client` in these draws.

        They never hold these records, unless the game is "independent": there the data of the
        others do not depend on the pair, and this is the same sampler. In the game "rerun" they
        never hold them anyway.
        """
        return self._unchanged("excluding_drawn")

    def excluding_real(self, client: int) -> UpdateSampler | None:
        """Return the sampler of the other clients, given the real records of `client`.

        None if the game depends on these records and they are not known: the attacker then makes
        no guess about the sum that was really released.
        """
        return self._unchanged("excluding_real")

    def _unchanged(self, method: str) -> UpdateSampler:
        """Return this sampler where the game takes no records away from the others."""
        if self.game in HOLDING_OUT:
            raise NotImplementedError(f"{type(self).__name__} must define {method}")
        return self


# A sampler for all rounds, or a function of the round if the clients' mechanism changes.
RoundSampler = UpdateSampler | Callable[[RoundView], UpdateSampler]


def sampler_of_round(sampler: RoundSampler, view: RoundView) -> UpdateSampler:
    """Return the sampler for the clients of one round."""
    return sampler.for_round(view) if isinstance(sampler, UpdateSampler) else sampler(view)


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
