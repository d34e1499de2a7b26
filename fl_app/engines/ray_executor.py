"""Ray's workers do the work of a sampler, on one machine or on all nodes of a cluster."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor

from leakmeter.clients.sampler import Array, CohortSampler, Job, Piece
from leakmeter.fl_app.engines import cluster

# Workers that a piece of work may lose before the audit is given up.
_TRIES = 4


@dataclass(frozen=True)
class _Sent:
    """A piece that a worker was given, with all that it takes to give it to another."""

    desk: int
    worker: Any
    given: tuple[object, ...]
    future: Any


class RayExecutor:
    """Ray's workers with the data, for samplers of these data; see `CohortSampler.through`.

    The data travel once. Workers send back rows, their projections or their sums.

    Args:
        data: Inputs and labels of all records.
        workers: Pieces worked on at a time; None takes one a processor of the cluster.

    Example:
        with RayExecutor(sampler.data, workers=2) as ray:
            moments = sampler.through(ray).moments(model, clients, 25_000, stream=("fit", 1))
    """

    def __init__(self, data: tuple[Tensor, Tensor], workers: int | None = None) -> None:
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
        """Stop Ray if this executor has started it."""
        if self._is_ours:
            cluster.leave()
            self._is_ours = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __call__(
        self, sampler: CohortSampler, job: Job, pieces: Sequence[Piece]
    ) -> Iterator[Array]:
        """Yield the rows of each piece in order, with a bounded number under way."""
        import ray

        shared = ray.put((sampler.on(*(part[:0] for part in sampler.data)), job))
        under_way: deque[_Sent] = deque()
        try:
            for i, piece in enumerate(pieces):
                under_way.append(self._sent(i % len(self._workers), shared, piece))
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

    def _sent(self, desk: int, *given: object) -> _Sent:
        worker = self._workers[desk]
        return _Sent(desk, worker, given, worker.rows.remote(*given))

    def _got(self, sent: _Sent) -> Array:
        """Return the rows of a piece, from another worker if its own has died.

        With a node also go results that were ready there and not fetched yet. Ray's own retries
        are too hasty: they are used up before it knows that a node is dead.
        """
        import ray

        for attempt in range(_TRIES):
            try:
                # A copy, since Ray's own view cannot be written and keeps the shared memory.
                return np.array(ray.get(sent.future))
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
                sent = self._sent(sent.desk, *sent.given)
        raise AssertionError("the last try returns or raises")


class _Worker:
    """Lives in Ray for as long as the executor: a new process would import torch every time."""

    def __init__(self, x: NDArray[Any], y: NDArray[Any]) -> None:
        # One thread: the last bits of a sum depend on it.
        torch.set_num_threads(1)
        threadpool_limits(limits=1)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not writable.*")  # and is never written
            self._data = torch.from_numpy(x), torch.from_numpy(y)

    def rows(self, shared: tuple[CohortSampler, Job], piece: Piece) -> Array:
        """Work on one piece."""
        sampler, job = shared
        return sampler.on(*self._data).rows(job, piece)
