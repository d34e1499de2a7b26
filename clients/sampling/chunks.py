"""How a call for updates is cut into pieces, whoever works on them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors._types import Indices
from leakmeter.auditors.sampler import Moments, Stream, UpdateSampler
from leakmeter.auditors.sampling.moments import SumMoments, sum_moments
from leakmeter.auditors.sampling.scatter import RUNNING_FROM

Array = NDArray[np.floating]


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
        columns: Coordinates that moments are of; None for all.
    """

    model: Array
    stream: tuple[str | int, ...]
    project: Array | None = None
    is_summed: bool = False
    columns: Indices | None = None


class Sampling(UpdateSampler):
    """A sampler that cuts its work into pieces, whoever does them.

    Wherever a model is taken, several may be given, (models, dim): they share data and batches,
    and what comes back has a leading axis, or is a list, over them.
    """

    @property
    @abstractmethod
    def chunk(self) -> int:
        """Most updates in a piece."""

    @abstractmethod
    def _check(self, clients: Sequence[int]) -> None:
        """Raise if some of these cannot be asked for."""

    @abstractmethod
    def _run(self, job: Job, pieces: Sequence[Piece]) -> Iterator[Array]:
        """Yield the rows of each piece, in order."""

    def _fold(
        self, job: Job, pieces: Sequence[Piece], new: Callable[[], SumMoments]
    ) -> list[SumMoments]:
        """Return what has taken up all pieces, in order, for each of the job's models."""
        totals = [new() for _ in job.model]
        for rows in self._run(job, pieces):
            for total, own in zip(totals, rows, strict=True):
                total.add(own if job.columns is None else own[..., job.columns])
        return totals

    def sample(
        self,
        model: Array,
        clients: Sequence[int],
        draws: int,
        stream: Stream,
        *,
        project: Array | None = None,
        first: int = 0,
    ) -> Iterator[Array]:
        """Yield chunks (draws, clients, dim or k) of the draws from `first` on.

        Rows are in the model's precision, or in double if they were postprocessed; projections
        are always in double.
        """
        self._check(clients)
        job = Job(model, tuple(stream), project)
        return self._run(job, self._pieces(tuple(clients), draws, first))

    def one(self, model: Array, clients: Sequence[int], draw: int, stream: Stream) -> Array:
        """Return one draw of `sample`, (clients, dim)."""
        (rows,) = self.sample(model, clients, 1, stream, first=draw)
        return np.asarray(rows[0])

    def sums(
        self,
        model: Array,
        clients: Sequence[int],
        draws: int,
        stream: Stream,
        *,
        project: Array | None = None,
    ) -> Iterator[Array]:
        """Yield chunks (draws, dim or k) of the same draws, summed over the clients."""
        self._check(clients)
        job = Job(model, tuple(stream), project, is_summed=True)
        return self._run(job, self._pieces(tuple(clients), draws))

    def moments(self, model: Array, clients: Sequence[int], draws: int, stream: Stream) -> Moments:
        """Return the moments of the sum over `clients`, fitted for the game that is played.

        Args:
            model: The global model.
            clients: Whose updates are summed.
            draws: In the game "rerun" redraws of each client, else single updates in all.
            stream: Names the randomness; no other call may use it.
        """
        return self._moments(np.asarray(model)[None], clients, draws, stream)[0]

    def moments_each(
        self, models: Array, clients: Sequence[int], draws: int, stream: Stream
    ) -> Iterable[Moments]:
        """Return the moments at each of several models, (models, dim), which share the batches."""
        if models.shape[-1] >= RUNNING_FROM:  # one matrix at a time, for their memory
            return super().moments_each(models, clients, draws, stream)
        return self._moments(models, clients, draws, stream)

    def _moments(
        self, models: Array, clients: Sequence[int], draws: int, stream: Stream
    ) -> list[Moments]:
        self._check(clients)
        if not (n := len(clients)):
            raise ValueError("clients must be at least one, got none")
        # Redundant coordinates are a fifth of the products of a large matrix. Small ones have them,
        # and what a fit then leaves out.
        columns = self.free if models.shape[-1] >= RUNNING_FROM else None
        dim = models.shape[-1] if columns is None else columns.size
        new = partial(sum_moments, self.game, dim, n, draws)
        new()  # refuses what cannot be before anything is trained
        pieces = self._pieces_of_moments(tuple(clients), draws)
        totals = self._fold(Job(models, tuple(stream), columns=columns), pieces, new)
        return [replace(total.moments(), columns=columns) for total in totals]

    def _pieces(self, clients: tuple[int, ...], draws: int, first: int = 0) -> list[Piece]:
        step = max(1, self.chunk // max(len(clients), 1))
        last = first + draws
        return [Piece(clients, at, min(step, last - at)) for at in range(first, last, step)]

    def _pieces_of_moments(self, clients: tuple[int, ...], draws: int) -> list[Piece]:
        """Return pieces with as few updates as the game needs."""
        if self.game in ("independent", "independent-held-out"):
            return self._pieces(clients[:1], draws)
        if self.game == "partition":
            return self._pieces(clients, -(-draws // len(clients)))
        block = max(1, self.chunk // draws)  # clients all of whose draws fit one piece
        starts = range(0, len(clients), block)
        return [piece for i in starts for piece in self._pieces(clients[i : i + block], draws)]
