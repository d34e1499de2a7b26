"""Clients with real mods and real images, in this process; what they computed is kept as truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.mods import Call, canary_mod
from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Vector
from leakmeter.clients import MaskMod, NoiseMod
from leakmeter.clients.secure_sum.keys import KEY_BYTES
from leakmeter.clients.secure_sum.signing import Identity
from leakmeter.fl_app.data.dataset import load
from leakmeter.papers.active_server.perceptron import Batch, Perceptron, Weights

# What the clients check: nothing, as in the textbook; what they are told, by binding it into their
# masks (the default); also who tells them, by signatures.
Mode = Literal["unbound", "curious", "active"]
SEED = 1908
_ARRAY = "weights"
_load = lru_cache(maxsize=1)(load)


@dataclass(frozen=True)
class Shape:
    """Size of a federation."""

    clients: int = 5  # honest ones, the target among them; as many nodes again are the server's
    # Shares that open a secret: the least that clients accept is the most an attacker can ask for.
    threshold: int = 3
    batch: int = 4  # images of a client; all have equally many, so that they weigh the same
    hidden: int = 32  # units of the network
    lr: float = 0.1  # in an honest server's instructions
    # Images that a client draws in each round; 0 for all, and then training is deterministic.
    drawn: int = 0

    @property
    def honest(self) -> list[int]:
        """Nodes of the honest clients."""
        return list(range(1, self.clients + 1))

    @property
    def invented(self) -> list[int]:
        """Nodes that the server runs itself, one in place of each honest client."""
        return list(range(self.clients + 1, 2 * self.clients + 1))


def to_record(weights: Weights) -> ArrayRecord:
    """Return the weights as Flower sends them."""
    return ArrayRecord({_ARRAY: Array(weights)})


class Federation:
    """Clients that take one step of gradient descent on images of their own.

    Attributes:
        network: What they train; `weights` is the model of an honest server.
        brightness: Mean pixel of images that the server has itself, for traps.
        mean_image: Mean of these images, a guess that needs no update, (1, pixels).
        batches: Node to the images it trains on; the server's own nodes have none.
        truth: Node to its plain update of the last round. Measures attacks; no attack reads it.
        known: Public lines of all nodes, the server's own among them; None if nobody signs.
        app: What runs on every node.
    """

    def __init__(self, shape: Shape, mode: Mode) -> None:
        data = _load("digits")
        self.shape, self.mode = shape, mode
        self._images = data.train_x.reshape(len(data.train_x), -1)
        self._labels = data.train_y
        self.network = Perceptron(self._images.shape[1], shape.hidden)
        self.weights = self.network.initial(SEED)
        own = data.test_x.reshape(len(data.test_x), -1)  # images that the server has itself
        self.brightness, self.mean_image = own.mean(axis=1), own.mean(axis=0, keepdims=True)
        self.batches: dict[int, Batch] = {}
        self.truth: dict[int, Vector] = {}
        self._rng = stream(SEED, "drawn")
        self._folder = TemporaryDirectory()  # of keys, and of steps that were taken
        self.known: list[str] | None = None
        masks = self._mask_mods()

        def mask(message: Message, context: Context, call_next: Call) -> Message:
            return masks[context.node_id](message, context, call_next)

        self.app = ClientApp(mods=[mask, NoiseMod(required=False), canary_mod])
        self.app.train()(self._train)

    def deal(self, trial: int) -> None:
        """Give every honest client other images."""
        size = self.shape.batch
        order = stream(SEED, "images", trial).permutation(len(self._images))
        for place, node in enumerate(self.shape.honest):
            own = order[place * size : (place + 1) * size]
            self.batches[node] = Batch(self._images[own], self._labels[own])

    def _mask_mods(self) -> Mapping[int, MaskMod]:
        """Return node to its mod; an owner that signs trusts the honest clients alone.

        The nodes of the server have keys too, and trust everybody.
        """
        nodes = [*self.shape.honest, *self.shape.invented]
        if self.mode != "active":
            return dict.fromkeys(nodes, MaskMod() if self.mode == "curious" else Unbound())
        keys = {node: Identity.create(Path(self._folder.name) / str(node)) for node in nodes}
        self.known = [keys[node].line for node in nodes]
        honest, least = self.known[: self.shape.clients], self.shape.threshold
        return {
            node: MaskMod(identity=key, trusted=honest, min_threshold=least)
            if node in self.shape.honest
            else MaskMod(identity=key, trusted=self.known)
            for node, key in keys.items()
        }

    def _train(self, message: Message, context: Context) -> Message:
        """Train as told, and state the weight; a node of the server's returns what it got."""
        sent = wire.arrays(message.content)[_ARRAY].numpy()
        lr = wire.get_float(message.content.config_records[wire.CONFIG], "lr")
        trained, batch = sent, self.batches.get(context.node_id)
        if batch is not None:
            if self.shape.drawn:
                chosen = self._rng.permutation(len(batch.labels))[: self.shape.drawn]
                batch = Batch(batch.images[chosen], batch.labels[chosen])
            trained = self.network.step(sent, batch, lr)
        self.truth[context.node_id] = trained.astype(np.float64) - sent
        metrics = MetricRecord({wire.WEIGHT: self.shape.batch})
        content = RecordDict({"arrays": to_record(trained), "metrics": metrics})
        return Message(content, reply_to=message)


@dataclass(frozen=True)
class Unbound(MaskMod):
    """A client of the textbook's protocol: it masks, and binds nothing of what it was told."""

    def _digest_of(self, *_: object) -> bytes:
        """Return the same for every message."""
        return bytes(KEY_BYTES)

    def _seats(self, *_: object) -> tuple[int, ...]:
        """Count no canary seats."""
        return ()
