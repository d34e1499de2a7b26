"""Samplers for a run's own task."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from leakmeter.auditors._types import Indices
from leakmeter.auditors.finding import Game
from leakmeter.clients.cohort.cohort import Cohort
from leakmeter.clients.sampling.postprocess import Clip, Postprocess
from leakmeter.clients.sampling.sampler import CohortSampler
from leakmeter.clients.sampling.source import Dealt, Fresh, Kept, Source
from leakmeter.clients.update import UpdateRule
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import out_of_range
from leakmeter.fl_app.config.task_config import TaskConfig
from leakmeter.fl_app.data.partition import deal, draw
from leakmeter.fl_app.task import Task


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
    config: TaskConfig,
    rule: UpdateRule,
    game: Game,
    *,
    postprocess: Postprocess | None = None,
    weighted: bool = True,
    threads: int = 1,
    chunk: int | None = None,
) -> CohortSampler:
    """Return the sampler that plays `game` on a run's own task.

    Args:
        task: Data, partition and model.
        config: Says how records are partitioned.
        rule: What a client does with its data.
        game: What each draw resamples; see `UpdateSampler.game`.
        postprocess: What happens to an update before the sum; see `postprocess_for`.
        weighted: Whether clients weigh as many as their records, or all the same.
        threads: Threads that train.
        chunk: Most updates held at once; None decides by the size of the model.
    """
    x, y = torch.from_numpy(task.dataset.train_x), torch.from_numpy(task.dataset.train_y)
    return CohortSampler(
        Cohort(task.new_model(), rule, threads=threads),
        (x, y),
        _source(task, config, game),
        seed=config.seed,
        postprocess=postprocess,
        chunk=chunk,
        weighted=weighted,
        holdings=[part.numpy() for part in task.parts],
    )


def _source(task: Task, config: TaskConfig, game: Game) -> Source:
    if game == "rerun":
        return Kept(tuple(part.numpy() for part in task.parts))
    if config.partition == "natural":
        schemes = "iid, dirichlet or dirichlet-labels"
        allowed = f"{schemes} for --lrt-game {game}: the records of a person are given"
        raise out_of_range("--partition", allowed, config.partition)
    scheme = _Scheme(task.dataset.train_y, config.partition, config.dirichlet)
    pool = np.arange(len(task.dataset.train_y))
    if game == "partition":
        return Dealt(pool=pool, num_clients=config.clients, deal=scheme.deal)
    holds_out = game == "independent-held-out"
    return Fresh(pool=pool, num_clients=config.clients, draw=scheme.draw, holds_out=holds_out)


def postprocess_for(config: Config, *, clip_norm: float | None = None) -> Postprocess | None:
    """Return what the run's clients do to an update between training and the sum.

    Args:
        config: Says whether updates are clipped.
        clip_norm: The round's clip norm, if it differs from the configuration's.
    """
    if config.noise == "none" or config.hides_records:  # that clips gradients, in the rule itself
        return None
    return Clip(clip_norm or config.clip_norm)
