"""A client's local training: its update rule, and training with clients whose messages come next.

Trained together, clients share each operation of a step: the numbers are the same bit for bit, and
the time is a fraction. Only the in-process engine knows the other messages, and only networks of
linear layers can train this way; every other client trains alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message
from numpy.typing import NDArray
from torch import nn

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.values import shaped
from leakmeter.auditors.rng import stream
from leakmeter.clients.arrays import packed
from leakmeter.clients.layers import dense_layers
from leakmeter.clients.protection.record_rule import GaussianSampling, Isotropic, WaterFilling
from leakmeter.clients.update import LocalSteps, Trained, UpdateRule
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.settings import TaskConfig
from leakmeter.fl_app.config.tables import ALGORITHMS
from leakmeter.fl_app.engines.delivery import Delivery, current
from leakmeter.fl_app.task import Task, load_task

# Bytes of models that train together, and of a batch of their inputs: as many stay in the cache.
_CACHE = 2**22


def update_rule(config: Config) -> LocalSteps | GaussianSampling:
    """Return what a client does with its data."""
    if config.hides_records:
        return record_rule(config)
    steps: LocalSteps = ALGORITHMS[config.algorithm](config)
    return steps


def record_rule(config: Config) -> GaussianSampling:
    """Return the rule of a noise for single records.

    With wfna it is Gaussian sampling, filled to the floor; with the others, isotropic noise of that
    variance on a minibatch, on the full gradient or on Gaussian sampling.
    """
    make = partial(GaussianSampling, config.lr, config.clip_norm, simulated=True)
    noise = Isotropic(config.wfna_floor)
    match config.noise:
        case "record-sgd":
            return make(config.batch_size, "minibatch", noise)
        case "record-gd":
            return make(0, "full", noise)
        case "record-isotropic":
            return make(config.batch_size, "gaussian", noise)
    filling = WaterFilling(config.wfna_floor, config.wfna_blocks)
    steps = 1 if config.algorithm == "fedsgd" else config.epochs
    return make(config.batch_size, "gaussian", filling, steps)


@dataclass(frozen=True)
class _Job:
    """What a train message asks for: clients with equal jobs may train together."""

    kind: str
    server_round: int
    replay: int | None  # an auditor's, which is to draw new batches
    model: tuple[tuple[str, bytes], ...]

    @classmethod
    def of(cls, message: Message) -> _Job:
        content = message.content
        model = tuple((name, array.data) for name, array in wire.arrays(content).items())
        about = wire.server_round(content), wire.replay_number(content)
        return cls(message.metadata.message_type, *about, model)

    def rng(self, seed: int, client: int) -> np.random.Generator:
        """Return from where a client's batches are drawn."""
        again = () if self.replay is None else ("replay", self.replay)
        return stream(seed, "train", self.server_round, client, *again)


@dataclass(frozen=True)
class _Done:
    """What a client answers to a job."""

    job: _Job
    arrays: dict[str, NDArray[Any]]
    told: Trained

    def answer(self) -> tuple[ArrayRecord, Trained]:
        record = ArrayRecord()
        for name, array in self.arrays.items():
            record[name] = packed(array)  # one by one: the constructor would make each array again
        return record, self.told


@dataclass(frozen=True)
class _Local:
    """A job and all that clients need for it; `net` has the model that was sent."""

    job: _Job
    seed: int
    rule: UpdateRule
    task: Task
    net: nn.Module

    def alone(self, client: int) -> _Done:
        """Train one client, which changes `net`."""
        rng = self.job.rng(self.seed, client)
        told = self.rule(self.net, *self.task.examples(client), rng)
        state = self.net.state_dict().items()
        return _Done(self.job, {name: value.numpy() for name, value in state}, told)

    def together(self, find: Callable[[int], Mapping[str, int]]) -> dict[str, _Done]:
        """Train clients that are found, at most so many, and return what each answers, if any."""
        data = self.task.dataset
        x, y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
        rule, layers = self.rule, dense_layers(self.net, x, y)
        if not isinstance(rule, LocalSteps) or layers is None:
            return {}
        examples = max(len(own) for own in self.task.parts)
        batch = rule.width(examples) * layers[0].fan_in
        group = find(min(_CACHE // (4 * self.task.dim), max(_CACHE // (4 * batch), 2)))
        if len(group) < 2:
            return {}
        records = [self.task.parts[client].numpy() for client in group.values()]
        rngs = [self.job.rng(self.seed, client) for client in group.values()]
        stacks, told = rule.train_together(layers, self.net, x, y, records, rngs)
        named = dict(zip(self.net.state_dict(), (stack.numpy() for stack in stacks), strict=True))
        return {
            key: _Done(self.job, {name: stack[i] for name, stack in named.items()}, told[i])
            for i, key in enumerate(group)
        }


def trained(
    config: Config, rule: UpdateRule, task: Task, message: Message, client: int
) -> tuple[ArrayRecord, Trained]:
    """Return a client's model after its training, and what it tells beside it."""
    job, delivery, own = _Job.of(message), current(), message.metadata.message_id
    known: _Done | None = None if delivery is None else delivery.ahead.pop(own, None)
    if known is not None and known.job == job:  # no mod has changed the message on its way
        return known.answer()
    net = _net(config.task)
    arrays = wire.arrays(message.content)
    net.load_state_dict({name: torch.tensor(shaped(a)) for name, a in arrays.items()})
    local = _Local(job, config.seed, rule, task, net)
    if delivery is not None:
        delivery.ahead.update(local.together(partial(_group, delivery, own, job, task)))
        known = delivery.ahead.pop(own, None)
    return (known or local.alone(client)).answer()


def _group(delivery: Delivery, own: str, job: _Job, task: Task, most: int) -> dict[str, int]:
    """Return clients that can train together by message: this one, and some that come after it."""
    ids = [message.metadata.message_id for _, message in delivery.messages]
    left = delivery.messages[ids.index(own) :] if own in ids else []
    group: dict[str, int] = {}
    for client, message in left:
        has_same_size = len(task.parts[client]) == len(task.parts[left[0][0]])
        if len(group) < most and has_same_size and _asks(message, job):
            group[message.metadata.message_id] = client
    return group


def _asks(message: Message, job: _Job) -> bool:
    try:
        return _Job.of(message) == job
    except ValueError:  # it has no model or no round
        return False


_nets = threading.local()


def _net(config: TaskConfig) -> nn.Module:
    """Return a model of this thread's, made once: a copy takes as long as some training steps."""
    if getattr(_nets, "config", None) != config:
        _nets.config, _nets.net = config, load_task(config).new_model()
    made: nn.Module = _nets.net
    return made
