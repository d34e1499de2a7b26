"""Fresh local updates by the ten thousand, for audits that need the distribution of an update.

Where a redraw of the clients gets their data from is a `Source`, one class for each game that an
audit can play. A call is cut into pieces whose bounds depend on nothing but the call, and every
client of every draw has generators of its own, each a Philox of its own key (Salmon, Moraes, Dror,
Shaw 2011, Parallel Random Numbers: As Easy as 1, 2, 3). So a number depends neither on the workers
nor on who else was asked for, save for the last bits of single precision, which depend on the
piece.
"""

from __future__ import annotations

import copy
import math
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar, Final, Self, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Game
from leakmeter.auditors.rng import derive, of_key
from leakmeter.auditors.sampling.moments import RUNNING_FROM, sum_moments
from leakmeter.auditors.sampling.sampler import (
    HOLDING_OUT,
    Along,
    Clients,
    Moments,
    Stream,
    UpdateSampler,
    taken,
)
from leakmeter.auditors.values import Indices, require, within
from leakmeter.clients.cohort import Cohort
from leakmeter.clients.protection.noise_mod import clip

# Splits a pool of records into this many parts, or takes one such part out of it.
Deal = Callable[[Indices, int, np.random.Generator], Sequence[Indices]]
Draw = Callable[[Indices, int, np.random.Generator], Indices]
Rngs = Sequence[np.random.Generator]
Shared = Callable[[], np.random.Generator]

_WORD = (1 << 64) - 1


class Generators:
    """The generators of one stream: one for each draw and client, whoever asks and when."""

    def __init__(self, seed: int, *path: str | int) -> None:
        key = derive(seed, *path)
        self._low, self._high = key & _WORD, key >> 64

    def __call__(
        self, draw: int, client: int = 0, spare: np.random.Generator | None = None
    ) -> np.random.Generator:
        """Return the generator at its beginning.

        Args:
            draw: Which draw.
            client: Whose.
            spare: One of these generators that nobody needs any longer; it becomes this one, which
                takes a sixth of the time.
        """
        low, high = (self._low + client) & _WORD, (self._high + draw) & _WORD
        if spare is None:
            return of_key(high << 64 | low)
        spare.bit_generator.state = _BEGINNING | {
            "state": {"counter": _BEGINNING["buffer"], "key": (low, high)}
        }
        return spare


# The state of a Philox that has drawn nothing, but for its key.
_BEGINNING: Final[dict[str, Any]] = {
    "bit_generator": "Philox",
    "buffer": np.zeros(4, np.uint64),
    "buffer_pos": 4,
    "has_uint32": 0,
    "uinteger": 0,
}


@dataclass(frozen=True)
class EqualParts(Sequence[Indices]):
    """Consecutive records, equally many for each client, listed when a client is asked for.

    Attributes:
        clients: How many clients there are.
        size: Records of each.
    """

    clients: int
    size: int

    @overload
    def __getitem__(self, client: int) -> Indices: ...
    @overload
    def __getitem__(self, client: slice) -> list[Indices]: ...
    def __getitem__(self, client: int | slice) -> Indices | list[Indices]:
        if isinstance(client, slice):
            return [self[one] for one in range(self.clients)[client]]
        first = range(self.clients)[client] * self.size  # raises as a list does
        return np.arange(first, first + self.size)

    def __len__(self) -> int:
        return self.clients


def typical(parts: Sequence[Indices]) -> Sequence[Indices]:
    """Return parts whose sizes have the mean, median and extremes of all, as few as are known."""
    return parts[:1] if isinstance(parts, EqualParts) else parts


class Source(ABC):
    """Says which records each client trains on in a draw."""

    num_clients: int  # they are numbered from 0
    absent: tuple[int, ...] = ()

    @property
    @abstractmethod
    def game(self) -> Game:
        """Which game these draws play."""

    @abstractmethod
    def usual(self) -> Sequence[Indices]:
        """Return parts of the usual sizes; for the scale of weights."""

    @abstractmethod
    def records(self, clients: Sequence[int], deals: Shared, own: Rngs) -> list[Indices]:
        """Return the clients' records in one draw.

        Args:
            clients: Whose.
            deals: Makes the generator that all clients of the draw share.
            own: Each client's own generator, which draws its batches afterwards.
        """

    def without(self, client: int, held: Indices) -> Source:
        """Return the source for the others when `client` holds these records."""
        return self

    def settled(self) -> Source:
        """Return the source whose clients have their records whoever else is asked for."""
        return self

    def check(self, clients: Sequence[int]) -> None:
        """Raise if some of these are not there, or are named twice."""
        if not all(0 <= client < self.num_clients for client in clients):
            raise BadValueError("clients", f"in [0, {self.num_clients - 1}]", list(clients))
        if len(set(clients)) < len(clients):
            raise BadValueError("clients", "different ones", list(clients))
        if gone := sorted(set(clients) & set(self.absent)):
            raise BadValueError("clients", f"others than {list(self.absent)}", gone)


@dataclass(frozen=True)
class Kept(Source):
    """Each client keeps its data; only the batches are new.

    Attributes:
        parts: The records of each client.
    """

    parts: Sequence[Indices]
    game: ClassVar[Game] = "rerun"

    @property
    def num_clients(self) -> int:  # type: ignore[override]
        return len(self.parts)

    def usual(self) -> Sequence[Indices]:
        return typical(self.parts)

    def records(self, clients: Sequence[int], deals: Shared, own: Rngs) -> list[Indices]:
        return [self.parts[client] for client in clients]


@dataclass(frozen=True, kw_only=True)
class _Pool(Source):
    """Records to be shared out, and who is not among those who get some."""

    pool: Indices
    num_clients: int
    absent: tuple[int, ...] = ()
    size: float = 0.0  # of a share; 0 divides the pool evenly

    def __post_init__(self) -> None:
        if not 1 <= self.num_clients <= max(len(self.pool), self.num_clients * bool(self.size)):
            allowed = f"between 1 and the records ({len(self.pool)})"
            raise BadValueError("num_clients", allowed, self.num_clients)
        if not self.size:
            object.__setattr__(self, "size", len(self.pool) / self.num_clients)
        if len(self.pool) < max(self.size, 1):
            left = f"at least one client's share, {max(self.size, 1):g}"
            raise BadValueError("the records left", left, len(self.pool))

    @property
    def shares(self) -> int:
        """How many shares of the usual size the pool makes."""
        return max(round(len(self.pool) / self.size), 1)

    def usual(self) -> Sequence[Indices]:
        return np.array_split(self.pool, self.shares)

    def without(self, client: int, held: Indices) -> Self:
        rest = np.setdiff1d(self.pool, held)
        return replace(self, pool=rest, absent=tuple(sorted({*self.absent, client})))


@dataclass(frozen=True, kw_only=True)
class Dealt(_Pool):
    """All records are partitioned again among all clients, none to two of them.

    Attributes:
        pool: The records.
        num_clients: How many share them.
        deal: Splits a pool among a number of clients; a pure function of its generator.
        absent: Clients that get nothing, since their records were taken out of the pool.
        size: Records of a usual share. What is taken out of the pool makes fewer shares, not
            smaller ones, unless more clients are asked for than there are shares.
        is_settled: Whether every client has a share of its own, whoever else is asked for. All
            others than the absent may be asked for, one after the other.
    """

    deal: Deal
    is_settled: bool = False
    game: ClassVar[Game] = "partition"

    def records(self, clients: Sequence[int], deals: Shared, own: Rngs) -> list[Indices]:
        if not self.absent:
            parts = self.deal(self.pool, self.shares, deals())
            return [parts[client] for client in clients]
        if self.is_settled:
            present = [c for c in range(self.num_clients) if c not in self.absent]
            parts = self.deal(self.pool, max(self.shares, len(present)), deals())
            return [parts[present.index(client)] for client in clients]
        # Fewer shares than clients: those who are asked for take theirs in order.
        return list(self.deal(self.pool, max(self.shares, len(clients)), deals())[: len(clients)])

    def settled(self) -> Self:
        return replace(self, is_settled=True)


@dataclass(frozen=True, kw_only=True)
class Fresh(_Pool):
    """Each client draws its records independently, so two clients may hold the same one.

    Attributes:
        pool: The records.
        num_clients: A client holds one of this many shares of them.
        draw: Takes one of a number of shares out of a pool; a pure function of its generator.
        holds_out: Whether the others draw from the records that the client under attack does not
            hold. This is a different game: their sum then varies less like the target's updates.
        absent: Clients that get nothing, since their records were taken out of the pool.
        size: Records of a usual share, also of a pool that records were taken out of.
    """

    draw: Draw
    holds_out: bool = False

    @property
    def game(self) -> Game:
        return "independent-held-out" if self.holds_out else "independent"

    def without(self, client: int, held: Indices) -> Self:
        return super().without(client, held) if self.holds_out else self

    def records(self, clients: Sequence[int], deals: Shared, own: Rngs) -> list[Indices]:
        return [self.draw(self.pool, self.shares, rng) for rng in own]


@dataclass(frozen=True, kw_only=True)
class Endless(Source):
    """Each draw of a client is another client of an endless population: none is drawn twice.

    Attributes:
        num_clients: Clients of the run.
        size: Records of each.
        draw: Returns the records of another client; a pure function of its generator.
        holds_out: Whether the game is the one in which others never hold the records of the client
            under attack. They do not in either.
    """

    num_clients: int
    size: int
    draw: Callable[[np.random.Generator], Indices]
    holds_out: bool = False

    @property
    def game(self) -> Game:
        return "independent-held-out" if self.holds_out else "independent"

    def usual(self) -> Sequence[Indices]:
        return [np.arange(self.size)]

    def records(self, clients: Sequence[int], deals: Shared, own: Rngs) -> list[Indices]:
        return [self.draw(rng) for rng in own]


Array = NDArray[np.floating]

# A piece holds at most this many updates, and at most this many bytes of them.
_MAX_UPDATES, _MAX_BYTES = 2048, 2**26
# Updates that tell how long one of many takes, unless so many would take more than so many seconds.
_FEW, _ENOUGH = 32, 0.5
_CPU = torch.device("cpu")


class Records(ABC):
    """The records that clients train on, by number.

    Attributes:
        bytes_each: Memory that the records of one client take while it trains, beside the list.
    """

    bytes_each: int = 0

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where inputs and labels are."""

    @abstractmethod
    def to(self, device: torch.device | str) -> Records:
        """Return the same records on a device; what is there already is not copied."""

    @abstractmethod
    def among(self, parts: Sequence[Indices]) -> tuple[Tensor, Tensor, Sequence[Indices]]:
        """Return inputs and labels that contain all parts, and where in them each part is."""


@dataclass(frozen=True)
class Listed(Records):
    """Records that are in memory, all of them.

    Attributes:
        x: Inputs.
        y: Labels.
    """

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"y must have one label per record ({len(self.x)}), got {len(self.y)}")

    @property
    def device(self) -> torch.device:
        return self.x.device

    def to(self, device: torch.device | str) -> Listed:
        return Listed(self.x.to(device), self.y.to(device))

    def among(self, parts: Sequence[Indices]) -> tuple[Tensor, Tensor, Sequence[Indices]]:
        return self.x, self.y, parts

    def __reduce__(self) -> tuple[Any, ...]:
        # Processes of one machine share numpy's arrays, and would each copy a tensor. Whatever the
        # device here, they arrive on the CPU.
        return _listed, (self.x.cpu().numpy(), self.y.cpu().numpy())


def _listed(x: NDArray[Any], y: NDArray[Any]) -> Listed:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")  # and is never written
        return Listed(torch.from_numpy(x), torch.from_numpy(y))


@dataclass(frozen=True)
class Generated(Records):
    """Records that are made when clients train on them, and nowhere kept.

    Attributes:
        rows: Returns inputs and labels of records; a pure function of their numbers.
        bytes_each: Memory that the records of one client take.
        device: Where they are moved when they are made.
    """

    rows: Callable[[Indices], tuple[NDArray[Any], NDArray[np.int64]]]
    bytes_each: int
    device: torch.device = _CPU

    def to(self, device: torch.device | str) -> Generated:
        return replace(self, device=torch.device(device))

    def among(self, parts: Sequence[Indices]) -> tuple[Tensor, Tensor, Sequence[Indices]]:
        x, y = self.rows(np.concatenate(parts))
        ends = accumulate(map(len, parts))
        places = [np.arange(end - len(own), end) for own, end in zip(parts, ends, strict=True)]
        return torch.from_numpy(x).to(self.device), torch.from_numpy(y).to(self.device), places


@dataclass(frozen=True)
class Piece:
    """Some draws of some clients: the unit of work."""

    clients: tuple[int, ...]
    first: int
    count: int


@dataclass(frozen=True)
class Job:
    """What to do with every piece of a call.

    Attributes:
        model: Global model, (dim,), or several, (models, dim), that share data and batches.
        stream: Names the randomness.
        project: Matrix that rows are multiplied with, (dim, k), or one a model, (models, dim, k).
        is_summed: Whether rows are summed over the clients.
    """

    model: Array
    stream: tuple[str | int, ...]
    project: Array | None = None
    is_summed: bool = False


# Works on pieces, wherever that is, and yields the rows of each in order; see `in_process`.
Executor = Callable[["CohortSampler", Job, Sequence[Piece]], Iterator[Array]]


def in_process(sampler: CohortSampler, job: Job, pieces: Sequence[Piece]) -> Iterator[Array]:
    """Work on one piece after the other, here."""
    return (sampler.rows(job, piece) for piece in pieces)


class _Spares(threading.local):
    """The generators of this thread's earlier pieces, which the next one uses again."""

    def __init__(self) -> None:
        self.generators: list[np.random.Generator] = []


_spares = _Spares()


class CohortSampler(UpdateSampler):
    """Trains redraws of the clients, many at once: in this process, or elsewhere with `through`.

    Wherever a model is taken, several may be given, (models, dim): they share data and batches,
    and what comes back has a leading axis, or is a list, over them.

    Args:
        cohort: Trains clients; knows model, update rule and device.
        data: Inputs and labels of all records, or what makes them; moved to the cohort's device.
        source: Which client has which records in a draw, and so which game is played.
        seed: The run's seed.
        clip_norm: Joint L2 norm that clients clip an update to before the sum; None if they do not.
        chunk: Most updates in memory at once; None: as many as fit in 64 MB, at most 2048.
        weighted: Whether the server weights clients by their examples; False for equal weights.
        holdings: The records that each client really holds, where a round is to be judged.

    Example:
        sampler = CohortSampler(Cohort(module, rule), (x, y), Kept(parts), seed=0)
        moments = sampler.moments(model, clients=[1, 2, 3], draws=1000, stream=("fit", 1))
    """

    def __init__(
        self,
        cohort: Cohort,
        data: tuple[Tensor, Tensor] | Records,
        source: Source,
        *,
        seed: int,
        clip_norm: float | None = None,
        chunk: int | None = None,
        weighted: bool = True,
        holdings: Sequence[Indices] | None = None,
    ) -> None:
        require("at least 1", is_optional=True, chunk=chunk)
        if clip_norm is not None:
            within("clip_norm", clip_norm, above=0.0)
        records = data if isinstance(data, Records) else Listed(*data)
        self._cohort = cohort
        self._data: Records | None = records.to(cohort.device)
        self._source, self._seed, self._clip_norm = source, seed, clip_norm
        self._weighted, self._holdings = weighted, holdings
        self._executor: Executor = in_process
        self._kept: tuple[str | int, ...] | None = None  # names the data, if not the call's stream
        most = min(_MAX_BYTES // max(4 * cohort.dim, self._data.bytes_each), _MAX_UPDATES)
        self._chunk = chunk or max(most, 1)
        self._scale = float(cohort.weights(source.usual()).mean()) if weighted else 1.0

    @property
    def game(self) -> Game:
        return self._source.game

    @property
    def scale(self) -> float:
        return self._scale

    @property
    def free(self) -> Indices | None:
        return self._cohort.free if self._clip_norm is None else None

    @property
    def sends_gradient(self) -> bool | None:
        return self._cohort.sends_gradient

    def sample(
        self,
        model: Array,
        clients: Clients,
        draws: int,
        stream: Stream,
        *,
        project: Array | None = None,
        first: int = 0,
    ) -> Iterator[Array]:
        """Yield chunks (draws, clients, dim or k) of the draws from `first` on.

        Rows are in the model's precision, or in double if they were clipped; projections are always
        in double.
        """
        self._source.check(clients)
        job = Job(model, tuple(stream), project)
        return self._executor(self, job, self._pieces(tuple(clients), draws, first))

    def one(self, model: Array, clients: Clients, draw: int, stream: Stream) -> Array:
        """Return one draw of `sample`, (clients, dim), trained here: sending it would cost more."""
        self._source.check(clients)
        return np.asarray(self.rows(Job(model, tuple(stream)), Piece(tuple(clients), draw, 1))[0])

    def sums(
        self, model: Array, clients: Clients, draws: int, stream: Stream, *, project: Along = None
    ) -> Iterator[Array]:
        self._source.check(clients)
        job = Job(model, tuple(stream), project, is_summed=True)
        return self._executor(self, job, self._pieces(tuple(clients), draws))

    def moments(self, model: Array, clients: Clients, draws: int, stream: Stream) -> Moments:
        return self._moments(np.asarray(model)[None], clients, draws, stream)[0]

    def moments_each(
        self, models: Array, clients: Clients, draws: int, stream: Stream
    ) -> Iterable[Moments]:
        """Return the moments at each of several models, (models, dim), which share the batches."""
        if models.shape[-1] >= RUNNING_FROM:  # one matrix at a time, for their memory
            return super().moments_each(models, clients, draws, stream)
        return self._moments(models, clients, draws, stream)

    def _moments(
        self, models: Array, clients: Clients, draws: int, stream: Stream
    ) -> list[Moments]:
        self._source.check(clients)
        if not (n := len(clients)):
            raise ValueError("clients must be at least one, got none")
        # Redundant coordinates are a fifth of the products of a large matrix. Small ones have them,
        # and what a fit then leaves out.
        columns = self.free if models.shape[-1] >= RUNNING_FROM else None
        dim = models.shape[-1] if columns is None else columns.size
        totals = [sum_moments(self.game, dim, n, draws) for _ in models]
        pieces = self._pieces_of_moments(tuple(clients), draws)
        room = None
        for rows in self._executor(self, Job(models, tuple(stream)), pieces):
            for total, own in zip(totals, rows, strict=True):
                if columns is not None:
                    if room is None or room.size < own.size:
                        room = np.empty_like(own)
                    own = taken(own, columns, room)
                total.add(own)
        return [replace(total.moments(), columns=columns) for total in totals]

    def _pieces(self, clients: tuple[int, ...], draws: int, first: int = 0) -> list[Piece]:
        step = max(1, self._chunk // max(len(clients), 1))
        last = first + draws
        return [Piece(clients, at, min(step, last - at)) for at in range(first, last, step)]

    def _pieces_of_moments(self, clients: tuple[int, ...], draws: int) -> list[Piece]:
        """Return pieces with as few updates as the game needs."""
        if self.game in ("independent", "independent-held-out"):
            return self._pieces(clients[:1], draws)
        if self.game == "partition":
            return self._pieces(clients, -(-draws // len(clients)))
        block = max(1, self._chunk // draws)  # clients all of whose draws fit one piece
        starts = range(0, len(clients), block)
        return [piece for i in starts for piece in self._pieces(clients[i : i + block], draws)]

    def seconds(self, model: Array, client: int) -> float | None:
        """Return about how long one of many updates takes on an idle machine; None elsewhere.

        It trains one, once more since the first may have to load something, and then a few together
        if they are short. Their randomness is of a stream of its own.
        """
        if self._executor is not in_process:
            return None
        each = math.inf
        for draws in (1, 1, _FEW):
            if draws > 1 and draws * each > _ENOUGH:
                break
            begin = time.process_time()  # other work on the machine does not count
            for _ in self.sample(model, [client], draws, ("seconds",)):
                pass
            each = min(each, (time.process_time() - begin) / draws)
        return each

    def keeping(self, stream: Stream) -> CohortSampler:
        """Return the sampler whose clients hold, in draw t of any call, what this stream says."""
        return self._with(_kept=tuple(stream), _source=self._source.settled())

    def holding(self, client: int, stream: Stream, draw: int) -> CohortSampler:
        """Return the sampler in which `client` always has the records of one draw of a stream."""
        records = self.held(client, stream, [draw])
        # Nobody else is asked for.
        return self._with(_kept=None, _source=Kept((records,) * (client + 1)))

    def shares(self, clients: Clients, draw: int, stream: Stream) -> NDArray[np.float64]:
        """Return the clients' weights over `scale` in one draw, (clients,)."""
        records, _ = self._hand(tuple(clients), draw, tuple(stream))
        return self._factors(records)

    def _factors(self, records: Sequence[Indices]) -> NDArray[np.float64]:
        """Return the weights over `scale` of clients with these records."""
        if not self._weighted:
            return np.ones(len(records))
        return self._cohort.weights(records) / self._scale

    def excluding_drawn(self, client: int, stream: Stream, draws: Sequence[int]) -> CohortSampler:
        return self._with(_source=self._source.without(client, self.held(client, stream, draws)))

    def held(self, client: int, stream: Stream, draws: Sequence[int]) -> Indices:
        """Return all records that `client` held in any of these draws, in order."""
        self._source.check((client,))
        hands = [self._hand((client,), draw, tuple(stream))[0][0] for draw in draws]
        return np.unique(np.concatenate(hands)) if hands else np.zeros(0, np.int64)

    def excluding_real(self, client: int) -> CohortSampler | None:
        if self.game not in HOLDING_OUT:
            return self
        if self._holdings is None:
            return None
        return self._with(_source=self._source.without(client, self._holdings[client]))

    @property
    def data(self) -> Records:
        """The records that it draws from."""
        assert self._data is not None
        return self._data

    def through(self, executor: Executor) -> CohortSampler:
        """Return the same sampler whose work the executor does; every number is the same."""
        return self._with(_executor=executor)

    def on(self, data: Records | None) -> CohortSampler:
        """Return the same sampler with its data elsewhere, in another process or nowhere."""
        moved = None if data is None else data.to(self._cohort.device)
        return self._with(_data=moved, _executor=in_process)

    def _with(self, **changed: object) -> CohortSampler:
        other = copy.copy(self)
        other.__dict__.update(changed)
        return other

    def rows(self, job: Job, piece: Piece) -> Array:
        """Return what the clients of one piece add to the sum."""
        records: list[Indices] = []
        rngs: list[np.random.Generator] = []
        spares, _spares.generators = iter(_spares.generators), []
        for draw in range(piece.first, piece.first + piece.count):
            hand, own = self._hand(piece.clients, draw, job.stream, spares)
            records += hand
            rngs += own
        # Single updates never leave the cache where nothing is done to them but a projection.
        project = job.project if self._clip_norm is None else None
        along = None if project is None else torch.from_numpy(project)
        x, y, places = self.data.among(records)
        updates = self._cohort.updates(job.model, x, y, places, rngs, along)
        _spares.generators = [*rngs, *spares]  # nobody draws from them any longer
        rows = updates.cpu().numpy()
        if self._clip_norm is not None:
            rows = _clipped(rows, self._clip_norm)
            rows = rows if job.project is None else np.matmul(rows, job.project)
        factors = self._factors(records)
        if (factors != 1).any():
            rows *= factors.astype(rows.dtype)[:, None]
        rows = rows.reshape(*rows.shape[:-2], piece.count, len(piece.clients), -1)
        return rows.sum(axis=-2, dtype=np.float64) if job.is_summed else rows

    def _hand(
        self,
        clients: tuple[int, ...],
        draw: int,
        stream: tuple[str | int, ...],
        spares: Iterator[np.random.Generator] = iter(()),  # noqa: B008 - always empty
    ) -> tuple[list[Indices], list[np.random.Generator]]:
        """Return records and generator of each client in one draw; spare generators are used up."""
        data = stream if self._kept is None else self._kept
        shared = Generators(self._seed, *data, "deal")
        single = Generators(self._seed, *stream, "client")
        own = [single(draw, client, next(spares, None)) for client in clients]
        hold = own
        if self._kept is not None:
            kept = Generators(self._seed, *data, "client")
            hold = [kept(draw, client) for client in clients]
        return self._source.records(clients, partial(shared, draw), hold), own


def _clipped(rows: Array, norm: float) -> NDArray[np.float64]:
    """Return updates (…, dim), each clipped to one joint L2 norm, in double precision."""
    flat = rows.reshape(-1, rows.shape[-1]).astype(np.float64)
    return np.stack([clip(update, norm) for update in flat]).reshape(rows.shape)
