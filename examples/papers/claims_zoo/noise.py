"""Noise on updates as apps add it: one client mod and one server strategy, with their mistakes.

What differs between mechanisms are arguments: how an update is clipped, where the noise comes from,
and what is done in which order. Nothing here makes a mechanism right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.layout import Layout
from leakmeter.auditors.hook.mods import Call
from leakmeter.auditors.values import Floats, Vector
from leakmeter.clients.protection.noise_mod import clip

Rng = np.random.Generator
Clip = Callable[[Vector], Vector]
# Generator of the noise of a client in a round, by their numbers.
Source = Callable[[int, int], Rng]
# What the server does with the updates of a round, (clients, dim): the change of the model.
Step = Callable[[Floats], Vector]


def per_layer(update: Vector, norm: float, layers: int) -> Vector:
    """Return an update whose layers, equally large, are clipped one by one: √layers in all."""
    return np.concatenate([clip(layer, norm) for layer in np.split(update, layers)])


def per_parameter(update: Vector, norm: float) -> Vector:
    """Return an update with every coordinate within ± norm: norm·√d in all."""
    return np.clip(update, -norm, norm)


@dataclass(frozen=True)
class NoisyMod:
    """Clips the update of a client and adds Gaussian noise to it.

    Attributes:
        clip: Clips an update.
        std: Standard deviation of the noise, per coordinate.
        source: Where the noise comes from.
        clips_last: Whether the noise is added first and clipped together with the update.
        in_float32: Whether the noise is added to the weights after these are in single precision.
    """

    clip: Clip
    std: float
    source: Source
    clips_last: bool = False
    in_float32: bool = False

    def __call__(self, message: Message, context: Context, call_next: Call) -> Message:
        """Train, then noise what the app replies with."""
        sent = wire.own_arrays(message.content)
        reply = call_next(message, context)
        layout = Layout.of(sent)
        start, trained = layout.flatten(sent), wire.arrays(reply.content)
        rng = self.source(
            wire.server_round(message.content), int(context.node_config["partition-id"])
        )
        noised = self.noised(start, layout.flatten(trained) - start, rng)
        return wire.replace_arrays(reply, layout.restore(noised, trained))

    def noised(self, start: Vector, update: Vector, rng: Rng) -> Vector:
        """Return the model that leaves the client, from the one that it was sent."""
        noise = self.std * rng.standard_normal(update.size)
        if self.clips_last:
            return np.asarray(start + self.clip(update + noise))
        weights = start + self.clip(update)
        if self.in_float32:
            # Rounds to the spacing of float32, which may be far above the noise.
            return np.asarray(np.float32(weights) + np.float32(noise), dtype=np.float64)
        return np.asarray(weights + noise)


class Stepping(FedAvg):
    """FedAvg whose server does something else with the updates than averaging them.

    Args:
        step: Turns the updates of a round into the change of the model.
        clients: All of them take part in every round.
    """

    def __init__(self, step: Step, clients: int) -> None:
        super().__init__(min_train_nodes=clients, min_available_nodes=clients)
        self.fraction_evaluate = 0.0  # as an argument Flower warns of it
        self._step, self._sent = step, ArrayRecord()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Keep the model that is sent: updates are differences from it."""
        self._sent = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the step."""
        layout = Layout.of(self._sent)
        start = layout.flatten(self._sent)
        updates = [layout.flatten(wire.arrays(one.content)) - start for one in replies]
        change = self._step(np.array(updates))
        return layout.restore(start + change, self._sent), MetricRecord()


def total(updates: Floats) -> Vector:
    """Return the sum, to which each client has added its share of the noise."""
    return np.asarray(updates.sum(axis=0))


@dataclass(frozen=True)
class MeanForSum:
    """Adds the noise of the mean to the sum, and divides both by the number of clients.

    Attributes:
        norm: Updates are clipped to it.
        multiplier: Noise that the sum should get, in units of the norm.
        rng: Source of the noise.
    """

    norm: float
    multiplier: float
    rng: Rng

    def __call__(self, updates: Floats) -> Vector:
        """Return the noised mean."""
        clipped, count = [clip(update, self.norm) for update in updates], len(updates)
        std = self.multiplier * self.norm / count
        noise = std * self.rng.standard_normal(updates.shape[1])
        return np.asarray((np.sum(clipped, axis=0) + noise) / count)


@dataclass
class RunawayClip:
    """Adapts the clip norm in the wrong direction, and keeps the noise of the first round.

    The rule is the geometric one of Andrew, Thakkar, McMahan, Ramaswamy (2021), arXiv:1905.03871,
    Algorithm 1, with the share of updates that were clipped in place of the share that was not: the
    fewer are clipped, the larger the norm becomes.

    Attributes:
        norm: Clip norm of the next round.
        multiplier: Noise on the sum, in units of the first norm.
        rng: Source of the noise.
        quantile: Share of updates that should be clipped.
        rate: Step of the geometric rule.
    """

    norm: float
    multiplier: float
    rng: Rng
    quantile: float = 0.5
    rate: float = 0.2
    _std: float = field(init=False)

    def __post_init__(self) -> None:
        self._std = self.multiplier * self.norm

    def __call__(self, updates: Floats) -> Vector:
        """Return the noised mean, and move the norm."""
        clipped = [clip(update, self.norm) for update in updates]
        noise = self._std * self.rng.standard_normal(updates.shape[1])
        share = float(np.mean(np.linalg.norm(updates, axis=1) > self.norm))
        self.norm *= math.exp(-self.rate * (share - self.quantile))
        return np.asarray((np.sum(clipped, axis=0) + noise) / len(updates))
