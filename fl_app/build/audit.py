"""Builds the auditors of a run from its configuration, each by the name that a user types."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, Literal, cast

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector

from leakmeter.auditors import Auditor, MutualInformation, NeuralInformation, RoundView
from leakmeter.auditors.auditor import share_confidence
from leakmeter.auditors.bounds.anytime import Anytime
from leakmeter.auditors.finding import Game
from leakmeter.auditors.information.theory import UpdateEntropy, update_entropy
from leakmeter.auditors.planting.generators import Generator
from leakmeter.auditors.rng import derive
from leakmeter.auditors.sampling.sampler import RoundSampler
from leakmeter.auditors.values import Vector, Watch
from leakmeter.clients.cohort import Cohort
from leakmeter.clients.sampler import CohortSampler
from leakmeter.clients.source import Dealt, Endless, Fresh, Kept, Source
from leakmeter.clients.update import LocalSteps, UpdateRule
from leakmeter.fl_app.build.records import SimulatedRecords
from leakmeter.fl_app.build.strategy import participation
from leakmeter.fl_app.config.audits import AUDITORS
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError, out_of_range
from leakmeter.fl_app.config.field import option
from leakmeter.fl_app.config.settings import TaskConfig
from leakmeter.fl_app.data.partition import Scheme
from leakmeter.fl_app.data.planted import generator_of
from leakmeter.fl_app.deployment import cohort_seed, is_deployed
from leakmeter.fl_app.engines.cluster import RayExecutor
from leakmeter.fl_app.task import Task, build_model, device_of, load_task, update_rule


@dataclass(frozen=True)
class AuditRun:
    """What auditors of one run are built from: its settings, and what follows from them.

    Attributes:
        config: The settings.
    """

    config: Config

    @property
    def is_deployed(self) -> bool:
        """Whether clients are real machines."""
        return is_deployed()

    @property
    def task(self) -> Task:
        """Data, partition and model."""
        return load_task(self.config)

    @property
    def device(self) -> torch.device:
        """Where torch computes."""
        return device_of(self.config.device)

    @property
    def observer(self) -> Literal["server", "outsider"]:
        """Whom a sum is shown to: whoever sees it after the noise of the server."""
        return "outsider" if self.config.noise_kind.added_by == "server" else "server"

    @property
    def game(self) -> Game:
        """What audits of sums resample."""
        return cast(Game, self.config.game)

    @property
    def game_without_pair(self) -> Game:
        """The game of an audit without a pair of updates whose records could be held out."""
        return "independent" if self.game == "independent-held-out" else self.game

    @property
    def anytime_confidence(self) -> float | Anytime:
        """Confidence of auditors that may have bounds after every round."""
        level = self.config.confidence
        return Anytime(level) if self.config.bounds == "anytime" else level

    @property
    def least_batch(self) -> int:
        """Records of the smallest batch of any client: with it a bound holds for all."""
        least = self.task.sizes.smallest
        return min(self.config.batch_size or least, least)

    @cached_property
    def records(self) -> SimulatedRecords:
        """What a simulation knows of the records that trained."""
        pattern, seed = participation(self.config), cohort_seed(self.config)
        cohort_of = partial(pattern.cohort, seed, num_clients=self.config.clients)
        return SimulatedRecords(self.config, cohort_of)

    def generator(self, name: str) -> Generator:
        """Return what draws records to plant."""
        return generator_of(self.task.dataset, name)

    def one_client(self, target: int) -> int | None:
        """Return the client of a setting; None where it leaves the choice to the audit."""
        return None if target < 0 else target

    @cached_property
    def sampler(self) -> Callable[[Game], RoundSampler]:
        """What draws updates in a game; auditors of one run that play the same one share it."""
        return cache(lambda game: partial(self.sampler_of, game))

    def sampler_of(self, game: Game, view: RoundView) -> CohortSampler:
        """Return what draws updates as the clients of this round compute and clip them.

        It works on Ray where this process has it.
        """
        config = self.config
        # Noise for records clips gradients, in the rule itself.
        clips = config.noise_kind.unit == "client"
        sampler = sampler_for(
            self.task,
            config.task,
            update_rule(config),
            game,
            clip_norm=(view.facts.clip_norm or config.clip_norm) if clips else None,
            weighted=config.noise == "none",  # the accounting of noise knows no other weight than 1
            device=self.device,
            # Ray's workers are as many as there are processors already, and a GPU takes turns.
            threads=1 if _has_ray() or self.device.type != "cpu" else min(os.cpu_count() or 1, 4),
        )
        return sampler.through(self._ray) if config.engine == "ray" and _has_ray() else sampler

    @cached_property
    def _ray(self) -> RayExecutor:
        # The data are the same in all rounds and travel once.
        return RayExecutor(self.task.records(self.device))

    def other_initial(self, index: int) -> Vector:
        """Return an initial model as the run draws its own, from another seed, as a vector."""
        data, seed = self.task.dataset, derive(self.config.seed, "initial model", index) % 2**31
        drawn = build_model(self.config.model, data.input_shape, data.num_classes, seed)
        vector = parameters_to_vector(drawn.parameters()).detach().numpy()
        return np.asarray(vector, dtype=np.float64)

    def entropy_of(self, client: int) -> UpdateEntropy | None:
        """Return the entropy of a client's update; None where more is random than whole records.

        The audit draws records and batches. Clients that add noise draw that too, those that are
        generated draw every number of a record, and with the partition dirichlet-labels the number
        of records is itself random. With the partition
        dirichlet a client has a fixed number of records: no distribution of them has more entropy
        than a uniform choice, so the same limit holds.
        """
        config, rule = self.config, update_rule(self.config)
        # With water filling the weights are Gaussian.
        if not isinstance(rule, LocalSteps) or config.noise_kind.added_by == "clients":
            return None
        parts = self.task.parts
        own = len(parts[client])
        if config.game == "rerun":  # the records are known
            return update_entropy(own, own, rule.batch_sizes(own), epochs=rule.passes)
        if config.partition not in ("iid", "dirichlet") or config.generates_clients:
            return None
        records = sum(len(part) for part in parts)
        if config.game != "partition":  # every client draws an equal share
            own = round(records / len(parts))
        return update_entropy(records, own, rule.batch_sizes(own), epochs=rule.passes)


def _has_ray() -> bool:
    """Whether this process has started or joined Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def auditors(config: Config, dim: int, watch: Watch | None = None) -> list[Auditor]:
    """Return the auditors by name; what they cannot do with this model is an error now.

    Args:
        config: Says which, and how they are set.
        dim: Number of parameters of the model.
        watch: Told which stage of a long audit is how far.
    """
    run = AuditRun(config)
    made = [AUDITORS[name].make(run) for name in config.auditor_names]
    for name, auditor in zip(config.auditor_names, made, strict=True):
        if AUDITORS[name].every:
            auditor.fewer = f"{option(AUDITORS[name].every)} -1"
    # The audits of information draw once: they have the same sampler and the same seed.
    drawing = next((one.drawing for one in made if isinstance(one, MutualInformation)), None)
    for one in made:
        if isinstance(one, NeuralInformation) and drawing is not None:
            one.drawing = drawing
    share_confidence(made)
    for auditor in made:
        auditor.watch = watch
        try:
            auditor.begin(dim, config.rounds)
        except ValueError as error:
            raise ConfigError(f"auditor {auditor.name}: {error}") from None
    return made


def sampler_for(
    task: Task,
    config: TaskConfig,
    rule: UpdateRule,
    game: Game,
    *,
    threads: int = 1,
    device: torch.device | str = "cpu",
    **options: Any,
) -> CohortSampler:
    """Return the sampler that plays `game` on a run's own task.

    Args:
        task: Data, partition and model.
        config: Says how records are partitioned.
        rule: What a client does with its data.
        game: What each draw resamples; see `UpdateSampler.game`.
        threads: Threads that train.
        device: Where they train.
        options: `clip_norm`, `weighted` and `chunk` of `CohortSampler`.
    """
    return CohortSampler(
        Cohort(task.new_model().to(device), rule, threads=threads),
        task.records(device),
        _source(task, config, game),
        seed=config.seed,
        holdings=task.parts,
        **options,
    )


def _source(task: Task, config: TaskConfig, game: Game) -> Source:
    if game == "rerun":
        return Kept(task.parts)
    if config.partition == "natural":
        schemes = "iid, dirichlet or dirichlet-labels"
        allowed = f"{schemes} for --lrt-game {game}: the records of a person are given"
        raise out_of_range("--partition", allowed, config.partition)
    holds_out = game == "independent-held-out"
    if (population := task.dataset.population) is not None:
        return Endless(
            num_clients=config.clients,
            size=population.size,
            draw=population.another,
            holds_out=holds_out,
        )
    data = task.dataset
    own = data.train_y[: len(data.train_y) - data.num_planted]  # canaries stay where they are
    scheme, pool = Scheme(own, config.partition, config.dirichlet), np.arange(len(own))
    if game == "partition":
        return Dealt(pool=pool, num_clients=config.clients, deal=scheme.deal)
    return Fresh(pool=pool, num_clients=config.clients, draw=scheme.draw, holds_out=holds_out)
