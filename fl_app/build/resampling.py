"""What audits that resample updates are given: a sampler of each round, and its entropy."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from leakmeter.auditors import RoundView
from leakmeter.auditors._types import Vector
from leakmeter.auditors.finding import Game
from leakmeter.auditors.information import UpdateEntropy, update_entropy
from leakmeter.auditors.rng import derive
from leakmeter.clients.cohort import Cohort
from leakmeter.clients.sampler import CohortSampler
from leakmeter.clients.source import Dealt, Fresh, Kept, Source
from leakmeter.clients.update import LocalSteps, UpdateRule
from leakmeter.fl_app import model
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import out_of_range
from leakmeter.fl_app.config.settings import TaskConfig
from leakmeter.fl_app.data.partition import deal, draw
from leakmeter.fl_app.engines.ray_executor import RayExecutor, is_live
from leakmeter.fl_app.task import Task, load_task
from leakmeter.fl_app.training import update_rule


def each_round(config: Config, game: Game) -> Callable[[RoundView], CohortSampler]:
    """Return what makes the sampler of each round, which works on Ray where this process has it."""

    @cache  # the data are the same in all rounds and travel once
    def on_ray() -> RayExecutor:
        return RayExecutor(_data(load_task(config)))

    def of_round(view: RoundView) -> CohortSampler:
        sampler = sampler_of(config, game, view)
        return sampler.through(on_ray()) if config.engine == "ray" and is_live() else sampler

    return of_round


def sampler_of(config: Config, game: Game, view: RoundView) -> CohortSampler:
    """Return what draws updates as the clients of this round compute and clip them."""
    # Noise for records clips gradients, in the rule itself.
    clips = config.noise_kind.unit == "client"
    return sampler_for(
        load_task(config),
        config.task,
        update_rule(config),
        game,
        clip_norm=(view.facts.clip_norm or config.clip_norm) if clips else None,
        weighted=config.noise == "none",  # the accounting of noise knows no other weight than 1
        # Ray's workers are as many as there are processors already.
        threads=1 if is_live() else min(os.cpu_count() or 1, 4),
    )


def sampler_for(
    task: Task,
    config: TaskConfig,
    rule: UpdateRule,
    game: Game,
    *,
    clip_norm: float | None = None,
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
        clip_norm: Norm that clients clip an update to; None if they do not.
        weighted: Whether clients weigh as many as their records, or all the same.
        threads: Threads that train.
        chunk: Most updates held at once; None decides by the size of the model.
    """
    return CohortSampler(
        Cohort(task.new_model(), rule, threads=threads),
        _data(task),
        _source(task, config, game),
        seed=config.seed,
        clip_norm=clip_norm,
        chunk=chunk,
        weighted=weighted,
        holdings=[part.numpy() for part in task.parts],
    )


def _data(task: Task) -> tuple[Tensor, Tensor]:
    """Return inputs and labels of all training records."""
    return torch.from_numpy(task.dataset.train_x), torch.from_numpy(task.dataset.train_y)


def _source(task: Task, config: TaskConfig, game: Game) -> Source:
    if game == "rerun":
        return Kept(tuple(part.numpy() for part in task.parts))
    if config.partition == "natural":
        schemes = "iid, dirichlet or dirichlet-labels"
        allowed = f"{schemes} for --lrt-game {game}: the records of a person are given"
        raise out_of_range("--partition", allowed, config.partition)
    scheme = (task.dataset.train_y, config.partition, config.dirichlet)
    pool = np.arange(len(task.dataset.train_y))
    if game == "partition":
        return Dealt(pool=pool, num_clients=config.clients, deal=partial(deal, *scheme))
    holds_out = game == "independent-held-out"
    return Fresh(
        pool=pool, num_clients=config.clients, draw=partial(draw, *scheme), holds_out=holds_out
    )


def other_initial(config: Config, index: int) -> Vector:
    """Return an initial model as the run draws its own, from another seed, as a vector."""
    task = load_task(config)
    seed = derive(config.seed, "initial model", index) % 2**31
    drawn = model.build(config.model, task.dataset.input_shape, task.dataset.num_classes, seed)
    vector = parameters_to_vector(drawn.parameters()).detach().numpy()
    return np.asarray(vector, dtype=np.float64)


def entropy_of(config: Config, client: int) -> UpdateEntropy | None:
    """Return the entropy of a client's update; None where more is random than whole records.

    The audit draws records and batches. Clients that add noise draw that too, and with the
    partition dirichlet-labels the number of records is itself random. With the partition dirichlet
    a client has a fixed number of records: no distribution of them has more entropy than a uniform
    choice, so the same limit holds.
    """
    rule = update_rule(config)
    # With water filling the weights are Gaussian.
    if not isinstance(rule, LocalSteps) or config.noise_kind.added_by == "clients":
        return None
    parts = load_task(config).parts
    own = len(parts[client])
    if config.game == "rerun":  # the records are known
        return update_entropy(own, own, rule.batch_sizes(own), epochs=rule.passes)
    if config.partition not in ("iid", "dirichlet"):
        return None
    records = sum(len(part) for part in parts)
    if config.game != "partition":  # every client draws an equal share
        own = round(records / len(parts))
    return update_entropy(records, own, rule.batch_sizes(own), epochs=rule.passes)
