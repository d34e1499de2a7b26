"""What audits that resample updates are given: a sampler of each round, and its entropy."""

from __future__ import annotations

from functools import partial

import numpy as np
from torch.nn.utils import parameters_to_vector

from leakmeter.auditors import RoundView
from leakmeter.auditors._types import Vector
from leakmeter.auditors.finding import Game
from leakmeter.auditors.information import UpdateEntropy, update_entropy
from leakmeter.auditors.rng import derive
from leakmeter.auditors.sampler import PerRound
from leakmeter.clients import CohortSampler
from leakmeter.clients.update import LocalSteps
from leakmeter.fl_app import model
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.engines.ray_sampler import WhereRayRuns, threads
from leakmeter.fl_app.engines.samplers import postprocess_for, sampler_for
from leakmeter.fl_app.rule import update_rule
from leakmeter.fl_app.task import load_task


def each_round(config: Config, game: Game) -> PerRound:
    """Return what makes the sampler of each round."""
    in_process = partial(sampler_of, config, game)
    return PerRound(WhereRayRuns(in_process) if config.engine == "ray" else in_process)


def sampler_of(config: Config, game: Game, view: RoundView) -> CohortSampler:
    """Return what draws updates as the clients of this round compute and clip them."""
    return sampler_for(
        load_task(config),
        config.task,
        update_rule(config),
        game,
        postprocess=postprocess_for(config, clip_norm=view.facts.clip_norm),
        weighted=config.noise == "none",  # the accounting of noise knows no other weight than 1
        threads=threads(),
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
    if not isinstance(rule, LocalSteps) or config.noise not in ("none", "central"):
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
