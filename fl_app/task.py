"""A learning task: data partitioned among clients, a model, its evaluation, a client's training.

Trained together, clients share each operation of a step: the numbers are the same bit for bit, and
the time is a fraction. Only the in-process engine knows the other messages, and only networks of
linear layers can train this way; every other client trains alone.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import dropwhile, pairwise
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from leakmeter.auditors import PlantPlan, RandomLabel, RandomPattern
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.layout import numbers_in, to_array
from leakmeter.auditors.planting.plan import Generator, batch
from leakmeter.auditors.rng import derive, stream
from leakmeter.auditors.values import Indices
from leakmeter.clients.protection.record_rule import GaussianSampling, Isotropic, WaterFilling
from leakmeter.clients.sampler import Generated, Listed, Records
from leakmeter.clients.update import (
    LocalSteps,
    Trained,
    UpdateRule,
    fast_forward,
    is_classified,
    layers_of,
)
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import out_of_range, unknown_name
from leakmeter.fl_app.config.settings import ALGORITHMS, MODELS, Layers, TaskConfig
from leakmeter.fl_app.data.dataset import Dataset, dealt
from leakmeter.fl_app.data.partition import Sizes, sizes
from leakmeter.strategies.flower import Delivery, current_delivery

# Bytes of models that train together, and of a batch of their inputs: as many stay in the cache.
_CACHE = 2**22
_TESTED = 500  # records at a time
# Bytes that a number of a generated record takes at most, with copies on its way to a client.
_GENERATING = 16


@dataclass(frozen=True)
class Task:
    """Data, partition and model of a run; the same in the server and in every client."""

    dataset: Dataset
    parts: Sequence[Indices]
    initial: nn.Module

    @cached_property
    def sizes(self) -> Sizes:
        """Smallest, median and largest number of records at a client."""
        return sizes(self.parts)

    @property
    def dim(self) -> int:
        """Number of parameters of the model."""
        return sum(parameter.numel() for parameter in self.initial.parameters())

    def examples(self, client: int) -> tuple[Tensor, Tensor]:
        """Return one client's inputs and labels."""
        x, y = self.dataset.rows(self.parts[client])
        return torch.from_numpy(x), torch.from_numpy(y)

    def records(self, device: torch.device | str = "cpu") -> Records:
        """Return all training records on a device, to which those in memory move once."""
        kind = torch.device(device).type  # a model on "cuda" says that it is on "cuda:0"
        if kind not in self._moved:
            self._moved[kind] = self._made().to(device)
        return self._moved[kind]

    @cached_property
    def _moved(self) -> dict[str, Records]:
        return {}

    def _made(self) -> Records:
        data = self.dataset
        if data.population is None:
            return Listed(torch.from_numpy(data.train_x), torch.from_numpy(data.train_y))
        numbers = math.prod(data.input_shape) * data.population.size
        return Generated(data.rows, bytes_each=_GENERATING * numbers)

    def new_model(self) -> nn.Module:
        """Return a new model with the initial parameters."""
        return copy.deepcopy(self.initial)

    def initial_arrays(self) -> ArrayRecord:
        """Return the initial parameters as Flower sends them."""
        return ArrayRecord(self.initial.state_dict())

    def evaluate(self, arrays: ArrayRecord) -> MetricRecord:
        """Return accuracy and loss of a model on the test set."""
        net = self.new_model()
        net.load_state_dict(arrays.to_torch_state_dict())
        x, y = torch.from_numpy(self.dataset.test_x), torch.from_numpy(self.dataset.test_y)
        forward = fast_forward(net)
        with torch.no_grad():  # a few at a time stay in the cache
            logits = torch.cat([forward(part) for part in torch.split(x, _TESTED)])
        return MetricRecord(
            {
                "accuracy": float((logits.argmax(dim=1) == y).double().mean()),
                "loss": float(cross_entropy(logits, y)),
            }
        )


def load_task(config: Config | TaskConfig) -> Task:
    """Return the task of a configuration, loaded once per process."""
    return _load(config.task if isinstance(config, Config) else config)


@lru_cache(maxsize=4)
def _load(config: TaskConfig) -> Task:
    dataset, parts = dealt(config)
    if config.planted is not None:
        dataset, parts = with_planted(dataset, parts, *config.planted)
    initial = build_model(config.model, dataset.input_shape, dataset.num_classes, config.seed)
    return Task(dataset, parts, initial)


def device_of(name: str) -> torch.device:
    """Return the device that a setting names; auto takes cuda, then mps, else the CPU.

    Raises:
        ConfigError: This machine does not have it.
    """
    if name == "cpu":  # every message asks
        return torch.device(name)
    gpus = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    found = [*(gpu for gpu, is_there in gpus.items() if is_there), "cpu"]
    if name != "auto" and name not in found:
        allowed = f"one that torch finds on this machine ({', '.join(found)})"
        raise out_of_range("--device", allowed, name, fix="Try --device auto")
    return torch.device(found[0] if name == "auto" else name)


def device_line(name: str) -> str:
    """Return in one line which device a run takes; empty for the CPU that it asks for."""
    if name == "cpu":
        return ""
    found = device_of(name).type
    return f"device    {'cpu: auto finds neither cuda nor mps' if found == 'cpu' else found}"


def build_model(name: str, input_shape: Sequence[int], num_classes: int, seed: int) -> nn.Module:
    """Return the model `name`, from (batch, *input_shape) to logits (batch, num_classes).

    Args:
        name: One of `fl_app.config.settings.MODELS`.
        input_shape: Shape of one record.
        num_classes: Number of logits.
        seed: The run's seed; the same seed gives the same initial parameters, drawn as torch's own
            layers would draw them, but never from the global generator.

    Raises:
        ConfigError: The name is unknown or the model cannot fit such data.
    """
    if name not in MODELS:
        raise unknown_name("--model", name, MODELS)
    row = MODELS[name]
    widths = row.widths(name, input_shape, num_classes)
    # torch wants at most 64 bits; the sign bit stays clear.
    generator = torch.Generator().manual_seed(derive(seed, "model") % 2**63)
    layers = _convolutions(row, input_shape, generator) if row.channels else []
    layers.append(nn.Flatten())
    for fan_in, fan_out in pairwise(widths):
        layers += [_drawn(partial(nn.Linear, fan_in, fan_out), fan_in, generator), nn.ReLU()]
    if not row.ends_in_relu:
        layers.pop()
    return nn.Sequential(*layers)


def _convolutions(
    row: Layers, input_shape: Sequence[int], generator: torch.Generator
) -> list[nn.Module]:
    """Return the layers up to the last pool."""
    layers: list[nn.Module] = []
    if len(input_shape) == 2:
        layers.append(nn.Unflatten(1, (1, input_shape[0])))  # grey images have no channel axis
    for place, (fan_in, fan_out) in enumerate(pairwise(row.filters(input_shape))):
        convolution = partial(nn.Conv2d, fan_in, fan_out, 3, padding=1)
        layers += [_drawn(convolution, 9 * fan_in, generator), nn.ReLU()]
        if place in row.pooled:
            layers.append(nn.MaxPool2d(3, stride=2))
    return layers


def _drawn(make: Callable[[], nn.Module], fan_in: int, generator: torch.Generator) -> nn.Module:
    """Return a layer initialised as torch does, uniform on ±1/√fan_in, from `generator`."""
    # A layer draws from the global generator as it is made; the device "meta" would prevent it,
    # but takes a second of imports.
    with torch.random.fork_rng(devices=[]):
        layer = make()
    bound = 1 / math.sqrt(fan_in)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    return layer


@lru_cache(maxsize=4)  # every message asks
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
            # One by one: the constructor would make each array again.
            record[name] = to_array(array)
        return record, self.told


@dataclass(frozen=True)
class _Local:
    """A job and all that clients need for it; `net` has the model that was sent."""

    job: _Job
    seed: int
    rule: UpdateRule
    task: Task
    net: nn.Module

    @property
    def device(self) -> torch.device:
        """Where the model is, and so where everything else is made."""
        return next(self.net.parameters()).device

    def alone(self, client: int) -> _Done:
        """Train one client, which changes `net`."""
        rng = self.job.rng(self.seed, client)
        x, y = (part.to(self.device) for part in self.task.examples(client))
        told = self.rule(self.net, x, y, rng)
        state = self.net.state_dict().items()
        return _Done(self.job, {name: value.cpu().numpy() for name, value in state}, told)

    def together(self, find: Callable[[int], Mapping[str, int]]) -> dict[str, _Done]:
        """Train clients that are found, at most so many, and return what each answers, if any."""
        task, rule, layers = self.task, self.rule, layers_of(self.net)
        if not isinstance(rule, LocalSteps) or layers is None:
            return {}
        batch = rule.width(task.sizes.largest) * layers[0].fan_in
        group = find(min(_CACHE // (4 * task.dim), max(_CACHE // (4 * batch), 2)))
        if len(group) < 2:
            return {}
        parts = [task.parts[client] for client in group.values()]
        x, y, records = task.records(self.device).among(parts)
        if not is_classified(self.net, x, y, layers[-1].fan_out):
            return {}
        rngs = [self.job.rng(self.seed, client) for client in group.values()]
        stacks, told = rule.train_together(layers, self.net, x, y, records, rngs)
        arrays = (stack.cpu().numpy() for stack in stacks)
        named = dict(zip(self.net.state_dict(), arrays, strict=True))
        return {
            key: _Done(self.job, {name: stack[i] for name, stack in named.items()}, told[i])
            for i, key in enumerate(group)
        }


def train_client(
    config: Config, rule: UpdateRule, task: Task, message: Message, client: int
) -> tuple[ArrayRecord, Trained]:
    """Return a client's model after its training, and what it tells beside it."""
    job, delivery, own = _Job.of(message), current_delivery(), message.metadata.message_id
    known: _Done | None = None if delivery is None else delivery.ahead.pop(own, None)
    if known is not None and known.job == job:  # no mod has changed the message on its way
        return known.answer()
    net = _net(config.task, device_of(config.device))
    arrays = wire.arrays(message.content)
    net.load_state_dict({name: torch.tensor(numbers_in(a)) for name, a in arrays.items()})
    local = _Local(job, config.seed, rule, task, net)
    if delivery is not None:
        delivery.ahead.update(local.together(partial(_group, delivery, own, job, task)))
        known = delivery.ahead.pop(own, None)
    return (known or local.alone(client)).answer()


def _group(delivery: Delivery, own: str, job: _Job, task: Task, most: int) -> dict[str, int]:
    """Return clients that can train together by message: this one, and some that come after it."""
    left = list(dropwhile(lambda sent: sent[1].metadata.message_id != own, delivery.messages))
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


def _net(config: TaskConfig, device: torch.device) -> nn.Module:
    """Return a model of this thread's, made once: a copy takes as long as some training steps."""
    if getattr(_nets, "key", None) != (config, device):
        _nets.key, _nets.net = (config, device), load_task(config).new_model().to(device)
    made: nn.Module = _nets.net
    return made


def generator_of(dataset: Dataset, name: str) -> Generator:
    """Return what draws canaries for a data set.

    Args:
        dataset: Its test records, which no client has, are the inputs of random-label.
        name: random-label or random-pattern.
    """
    if name == "random-label":
        return RandomLabel(dataset.test_x, dataset.num_classes)
    low, high = float(dataset.test_x.min()), float(dataset.test_x.max())
    return RandomPattern(dataset.input_shape, dataset.num_classes, low=low, high=high)


def with_planted(
    dataset: Dataset, parts: Sequence[Indices], plan: PlantPlan, generator: str
) -> tuple[Dataset, list[Indices]]:
    """Return a data set and each client's records in it, with the records of a plan.

    They are a function of the plan alone, so all processes of a run have the same.
    """
    numbers = [plan.planted(client) * plan.copies for client in range(len(parts))]
    records = generator_of(dataset, generator).draw(plan.seed, [n for own in numbers for n in own])
    if not records:
        return dataset, list(parts)
    x, y = (np.asarray(part) for part in batch(records))
    ends = len(dataset.train_y) + np.cumsum([0, *map(len, numbers)])
    grown = replace(
        dataset,
        train_x=np.concatenate([dataset.train_x, x.astype(dataset.train_x.dtype)]),
        train_y=np.concatenate([dataset.train_y, y.astype(dataset.train_y.dtype)]),
        users=None,
        users_lack="nobody is behind planted records",
        num_planted=len(records),
    )
    own = (np.append(p, np.arange(*ends[i : i + 2])) for i, p in enumerate(parts))
    return grown, [np.asarray(part) for part in own]
