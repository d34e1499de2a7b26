"""A sampler whose work Ray's workers do, on one machine or on all nodes of a cluster."""

from __future__ import annotations

import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from leakmeter.auditors._types import Indices
from leakmeter.auditors.auditor import RoundView
from leakmeter.auditors.finding import Game
from leakmeter.auditors.sampler import Stream
from leakmeter.auditors.sampling.moments import SumMoments
from leakmeter.auditors.sampling.scatter import RUNNING_FROM
from leakmeter.clients.sampling.chunks import Array, Job, Piece, Sampling
from leakmeter.clients.sampling.sampler import CohortSampler
from leakmeter.fl_app.engines import cluster


class RaySampler(Sampling):
    """Lets Ray's workers do the work of a `CohortSampler`; every number is the same.

    The data travel once. Workers send back projections, sums or moments; rows themselves only
    where they are asked for, or are smaller than their moments.

    Args:
        sampler: What to spread.
        workers: Pieces worked on at a time; None takes one a processor of the cluster.
        crew: Workers that have the data already; see `around`.

    Example:
        with RaySampler(sampler, workers=2) as spread:
            moments = spread.moments(model, clients, draws=25_000, stream=("fit", 1))
    """

    def __init__(
        self, sampler: CohortSampler, *, workers: int | None = None, crew: _Crew | None = None
    ) -> None:
        self._crew = _Crew(sampler.data, workers) if crew is None else crew
        self._owns_crew = crew is None
        import ray

        self._sampler = sampler
        self._bare = ray.put(sampler.on(*(part[:0] for part in sampler.data)))

    @property
    def game(self) -> Game:
        return self._sampler.game

    @property
    def scale(self) -> float:
        return self._sampler.scale

    @property
    def free(self) -> Indices | None:
        return self._sampler.free

    @property
    def sends_gradient(self) -> bool | None:
        return self._sampler.sends_gradient

    @property
    def chunk(self) -> int:
        return self._sampler.chunk

    def keeping(self, stream: Stream) -> RaySampler:
        """Return the sampler whose clients hold, in draw t of any call, what this stream says."""
        return self.around(self._sampler.keeping(stream))

    def holding(self, client: int, stream: Stream, draw: int) -> RaySampler:
        """Return the sampler in which `client` always has the records of one draw of a stream."""
        return self.around(self._sampler.holding(client, stream, draw))

    def shares(self, clients: Sequence[int], draw: int, stream: Stream) -> NDArray[np.float64]:
        """Return the clients' weights over `scale` in one draw, (clients,)."""
        return self._sampler.shares(clients, draw, stream)

    def one(self, model: Array, clients: Sequence[int], draw: int, stream: Stream) -> Array:
        """Return one draw, computed here: a worker would cost more than the draw."""
        return self._sampler.one(model, clients, draw, stream)

    def excluding_drawn(self, client: int, stream: Stream, draws: Sequence[int]) -> RaySampler:
        """Return the sampler of the others, given the records of `client` in these draws."""
        return self.around(self._sampler.excluding_drawn(client, stream, draws))

    def around(self, sampler: CohortSampler) -> RaySampler:
        """Return a sampler that spreads another with the same data, which do not travel again."""
        return RaySampler(sampler, crew=self._crew)

    def excluding_real(self, client: int) -> RaySampler | None:
        """Return the sampler of the other clients, given the real records of `client`."""
        inner = self._sampler.excluding_real(client)
        return None if inner is None else self.around(inner)

    @property
    def has_noise(self) -> bool:
        """Whether rows carry noise that the clients add to hide themselves."""
        return self._sampler.has_noise

    def close(self) -> None:
        """Stop Ray if this sampler has started it."""
        if self._owns_crew:
            self._crew.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check(self, clients: Sequence[int]) -> None:
        self._sampler._check(clients)

    def _run(self, job: Job, pieces: Sequence[Piece]) -> Iterator[Array]:
        # A copy, since Ray's own view cannot be written and keeps the shared memory.
        return (np.array(rows) for rows in self._crew.work("rows", self._bare, job, pieces))

    def _fold(
        self, job: Job, pieces: Sequence[Piece], new: Callable[[], SumMoments]
    ) -> list[SumMoments]:
        dim = job.model.shape[-1]
        if self.chunk < dim or dim >= RUNNING_FROM:  # rows are smaller than a matrix, or must be
            return super()._fold(job, pieces, new)
        totals = [new() for _ in job.model]
        for parts in self._crew.work("moments", self._bare, job, pieces, new):
            for total, part in zip(totals, parts, strict=True):
                total.merge(part)
        return totals


# Workers that a piece of work may lose before the audit is given up.
_TRIES = 4


@dataclass(frozen=True)
class _Work:
    """A piece that a worker was given, with all that it takes to give it to another."""

    desk: int
    worker: Any
    work: str
    given: tuple[object, ...]
    future: Any


class _Crew:
    """Ray's workers with the data, shared by samplers of the same data."""

    def __init__(self, data: tuple[torch.Tensor, torch.Tensor], workers: int | None) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self._is_ours = cluster.join("local", workers=workers)
        import ray

        self._data = tuple(ray.put(part.cpu().numpy()) for part in data)
        places = cluster.places()
        self._workers = [
            self._hired(places[i % len(places)]) for i in range(workers or len(places))
        ]

    def close(self) -> None:
        """Stop Ray if this crew has started it."""
        if self._is_ours:
            import ray

            ray.shutdown()
            self._is_ours = False

    def work(
        self, work: str, sampler: Any, job: Job, pieces: Sequence[Piece], *more: object
    ) -> Iterator[Any]:
        """Yield what comes of each piece in order, with a bounded number under way."""
        import ray

        shared = ray.put(job)
        under_way: deque[_Work] = deque()
        try:
            for i, piece in enumerate(pieces):
                desk = i % len(self._workers)
                under_way.append(self._sent(desk, work, sampler, shared, piece, *more))
                if len(under_way) >= len(self._workers):
                    yield self._got(under_way.popleft())
            while under_way:
                yield self._got(under_way.popleft())
        finally:
            for left in under_way:
                ray.cancel(left.future)

    def _hired(self, place: Any) -> Any:
        """Return a new worker."""
        import ray

        # No processor is claimed: Flower's workers may hold them all while they wait for a round.
        worker = ray.remote(num_cpus=0)(_Worker)
        return worker.options(scheduling_strategy=place).remote(*self._data)

    def _sent(self, desk: int, work: str, *given: object) -> _Work:
        worker = self._workers[desk]
        return _Work(desk, worker, work, given, getattr(worker, work).remote(*given))

    def _got(self, sent: _Work) -> Any:
        """Return what came of a piece, from another worker if its own has died.

        With a node also go results that were ready there and not fetched yet. Ray's own retries
        are too hasty: they are used up before it knows that a node is dead.
        """
        import ray

        for attempt in range(_TRIES):
            try:
                return ray.get(sent.future)
            except Exception as error:
                if not ray.is_initialized():
                    # An interrupted run, and no failure of an auditor, which would be recorded.
                    raise SystemExit("interrupted") from None
                lost = ray.exceptions.RayActorError, ray.exceptions.ObjectLostError
                if attempt + 1 == _TRIES or not isinstance(error, lost):
                    raise
                if self._workers[sent.desk] is sent.worker:  # and nobody has replaced it yet
                    # Near the driver, which lives.
                    self._workers[sent.desk] = self._hired("DEFAULT")
                sent = self._sent(sent.desk, sent.work, *sent.given)
        raise AssertionError("the last try returns or raises")


class _Worker:
    """Lives in Ray for as long as the sampler: a new process would import torch every time."""

    def __init__(self, x: NDArray[Any], y: NDArray[Any]) -> None:
        # One thread: the last bits of a sum depend on it.
        torch.set_num_threads(1)
        threadpool_limits(limits=1)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not writable.*")  # and is never written
            self._data = torch.from_numpy(x), torch.from_numpy(y)

    def rows(self, sampler: CohortSampler, job: Job, piece: Piece) -> Array:
        """Work on one piece."""
        return sampler.on(*self._data).rows(job, piece)

    def moments(
        self, sampler: CohortSampler, job: Job, piece: Piece, new: Callable[[], SumMoments]
    ) -> list[SumMoments]:
        """Work on one piece and return only what the moments need, for each model."""
        return [new().add(rows) for rows in self.rows(sampler, job, piece)]


class WhereRayRuns:
    """Makes a round's sampler, spread over Ray where this process has joined it.

    Args:
        sampler_of: Makes the sampler for this process.
    """

    def __init__(self, sampler_of: Callable[[RoundView], CohortSampler]) -> None:
        self._sampler_of = sampler_of
        self._last: RaySampler | None = None

    def __call__(self, view: RoundView) -> CohortSampler | RaySampler:
        """Return the sampler for one round."""
        sampler = self._sampler_of(view)
        if not is_live():
            return sampler
        # The data are the same in all rounds and travel once.
        self._last = self._last.around(sampler) if self._last else RaySampler(sampler)
        return self._last


def is_live() -> bool:
    """Whether this process has started or joined Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def threads() -> int:
    """Return how many threads a sampler should train with."""
    # Ray's workers are as many as there are processors already.
    return 1 if is_live() else min(os.cpu_count() or 1, 4)
