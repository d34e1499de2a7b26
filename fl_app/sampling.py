"""Samplers for a run's own task, in this process or spread over Ray."""

from __future__ import annotations

import logging
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from auditors.base import Game, Stream
from auditors.sum_moments import SumMoments
from clients.cohort import Cohort
from clients.finish import Clip, ClipAndNoise, Finish, InTurn, Rounded
from clients.piece import Array, Job, Piece, Sampling
from clients.quantise import Quantiser
from clients.sampler import CohortSampler
from clients.source import Dealt, Fresh, Indices, Kept, Source
from clients.update import UpdateRule
from fl_app.config import Config
from fl_app.errors import out_of_range
from fl_app.partition import deal, draw
from fl_app.task import Task


@dataclass(frozen=True)
class _Scheme:
    """How records are shared out, with all but pool, shares and randomness settled."""

    labels: Indices
    scheme: str
    concentration: float

    def deal(self, pool: Indices, clients: int, rng: np.random.Generator) -> list[Indices]:
        return deal(self.labels, pool, clients, self.scheme, self.concentration, rng)

    def draw(self, pool: Indices, clients: int, rng: np.random.Generator) -> Indices:
        return draw(self.labels, pool, clients, self.scheme, self.concentration, rng)


def sampler_for(
    task: Task,
    config: Config,
    rule: UpdateRule,
    game: Game,
    *,
    finish: Finish | None = None,
    threads: int = 1,
    chunk: int | None = None,
) -> CohortSampler:
    """Return the sampler that plays `game` on a run's own task.

    Args:
        task: Data, partition and model.
        config: Says how records are dealt, and whether all clients weigh the same.
        rule: What a client does with its data.
        game: "rerun", "partition" or "independent".
        finish: What happens to an update before the sum; see `finish_for`.
        threads: Threads that train.
        chunk: Most updates held at once; None decides by the size of the model.
    """
    x, y = torch.from_numpy(task.dataset.train_x), torch.from_numpy(task.dataset.train_y)
    return CohortSampler(
        Cohort(task.new_model(), rule, threads=threads),
        x,
        y,
        _source(task, config, game),
        seed=config.seed,
        finish=finish,
        chunk=chunk,
        weighted=config.noise == "none",  # the accounting of noise knows no other weight than 1
        holdings=[part.numpy() for part in task.parts],
    )


def _source(task: Task, config: Config, game: Game) -> Source:
    if game == "rerun":
        return Kept(tuple(part.numpy() for part in task.parts))
    if config.partition == "natural":
        allowed = "iid or dirichlet where data are drawn anew: a person's records are given"
        raise out_of_range("partition", allowed, config.partition)
    scheme = _Scheme(task.dataset.train_y, config.partition, config.dirichlet)
    pool = np.arange(len(task.dataset.train_y))
    if game == "partition":
        return Dealt(pool=pool, num_clients=config.clients, deal=scheme.deal)
    return Fresh(pool=pool, num_clients=config.clients, draw=scheme.draw)


def finish_for(
    config: Config,
    *,
    clip_norm: float | None = None,
    share_std: float = 0.0,
    quantiser: Quantiser | None = None,
) -> Finish | None:
    """Return what the run's clients do to an update between training and the sum.

    Args:
        config: Says whether updates are clipped.
        clip_norm: The round's clip norm, if it differs from the configuration's.
        share_std: Noise that each client adds.
        quantiser: The grid of the secure sum; None leaves the rounding out.
    """
    steps: list[Finish] = []
    if config.noise not in ("none", "wfna"):  # which clips gradients, in the rule itself
        norm = clip_norm or config.clip_norm
        steps.append(ClipAndNoise(norm, share_std) if share_std else Clip(norm))
    if quantiser is not None:
        steps.append(Rounded(quantiser))
    if len(steps) > 1:
        return InTurn(tuple(steps))
    return steps[0] if steps else None


class RaySampler(Sampling):
    """Lets Ray's workers do the work of a `CohortSampler`; every number is the same.

    The data travel once. Workers send back projections, sums or moments; rows themselves only
    where they are asked for, or are smaller than their moments.

    Args:
        sampler: What to spread.
        workers: Pieces worked on at a time; None takes one a processor of the cluster.

    Example:
        with RaySampler(sampler, workers=2) as spread:
            moments = spread.moments(model, clients, draws=25_000, stream=("fit", 1))
    """

    def __init__(self, sampler: CohortSampler, *, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self._is_ours = _start(workers)
        import ray

        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        self._workers = workers or max(int(resources.get("CPU", 1)), 1)
        self._data = tuple(ray.put(part.cpu().numpy()) for part in sampler.data)
        self._take(sampler)

    def _take(self, sampler: CohortSampler) -> None:
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
    def chunk(self) -> int:
        return self._sampler.chunk

    def apart(self, client: int, stream: Stream, draws: Sequence[int]) -> RaySampler:
        """Return a sampler whose other clients never hold what `client` held in these draws."""
        return self._around(self._sampler.apart(client, stream, draws))

    def _around(self, sampler: CohortSampler) -> RaySampler:
        other = object.__new__(RaySampler)
        other.__dict__.update(self.__dict__)
        other._is_ours = False
        other._take(sampler)
        return other

    def beside(self, client: int) -> RaySampler | None:
        """Return a sampler whose other clients never hold what `client` really holds."""
        inner = self._sampler.beside(client)
        return None if inner is None else self._around(inner)

    @property
    def has_noise(self) -> bool:
        """Whether rows carry noise that the clients add to hide themselves."""
        return self._sampler.has_noise

    def close(self) -> None:
        """Stop Ray if this sampler has started it."""
        if self._is_ours:
            import ray

            ray.shutdown()
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

    def _check(self, clients: Sequence[int]) -> None:
        self._sampler._check(clients)

    def _run(self, job: Job, pieces: Sequence[Piece]) -> Iterator[Array]:
        # A copy, since Ray's own view cannot be written and keeps the shared memory.
        return (np.array(rows) for rows in self._ordered(_rows, job, pieces))

    def _fold(
        self, job: Job, pieces: Sequence[Piece], new: Callable[[], SumMoments]
    ) -> list[SumMoments]:
        if self.chunk < job.model.shape[-1]:  # rows are smaller than a matrix
            return super()._fold(job, pieces, new)
        totals = [new() for _ in job.model]
        for parts in self._ordered(_moments, job, pieces, new):
            for total, part in zip(totals, parts, strict=True):
                total.merge(part)
        return totals

    def _ordered(
        self, work: Callable[..., Any], job: Job, pieces: Sequence[Piece], *more: object
    ) -> Iterator[Any]:
        """Yield what comes of each piece in order, with a bounded number under way."""
        import ray

        # No processor is claimed: Flower's actors may hold them all while they wait for a round.
        task = ray.remote(num_cpus=0)(work)
        shared = ray.put(job)
        under_way: deque[Any] = deque()
        try:
            for piece in pieces:
                under_way.append(task.remote(self._bare, *self._data, shared, piece, *more))
                if len(under_way) >= self._workers:
                    yield ray.get(under_way.popleft())
            while under_way:
                yield ray.get(under_way.popleft())
        finally:
            for left in under_way:
                ray.cancel(left)


def _start(workers: int | None) -> bool:
    """Start Ray on this machine unless it runs already; return whether that was done."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of a change
    import ray

    if ray.is_initialized():
        return False
    # Without an address Ray would look for a cluster that was left behind, and hang if it is dead.
    ray.init(
        address="local",
        num_cpus=workers,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    return True


def _rows(
    sampler: CohortSampler, x: NDArray[Any], y: NDArray[Any], job: Job, piece: Piece
) -> Array:
    """Work on one piece in a worker."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")  # and is never written
        data = torch.from_numpy(x), torch.from_numpy(y)
    return sampler.on(*data).rows(job, piece)


def _moments(
    sampler: CohortSampler,
    x: NDArray[Any],
    y: NDArray[Any],
    job: Job,
    piece: Piece,
    new: Callable[[], SumMoments],
) -> list[SumMoments]:
    """Work on one piece and return only what the moments need, for each model."""
    return [new().add(rows) for rows in _rows(sampler, x, y, job, piece)]
