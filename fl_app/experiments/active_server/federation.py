"""Clients with real mods and real images, in this process; what they computed is kept as truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from leakmeter.auditors._types import Vector
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.mods import Call, canary_mod
from leakmeter.auditors.rng import stream
from leakmeter.clients import MaskMod
from leakmeter.clients.secure_sum.keys import KEY_BYTES
from leakmeter.clients.secure_sum.signing import Identity
from leakmeter.fl_app.data.dataset import Dataset
from leakmeter.fl_app.data.load import load
from leakmeter.fl_app.experiments.active_server.perceptron import (
    Batch,
    flat,
    from_record,
    initial,
    step,
    to_record,
)
from leakmeter.fl_app.experiments.active_server.transcript import Transcript

# What the clients check: nothing, as in the textbook; what they are told, by binding it into their
# masks (the default); also who tells them, by signatures.
Mode = Literal["unbound", "curious", "active"]
_SEED = 1908


@dataclass(frozen=True)
class Shape:
    """Size of a federation.

    Attributes:
        clients: Honest clients; the target is one of them. As many nodes again are the server's.
        threshold: Shares that open a secret. The least that clients accept is the most that an
            attacker can ask for.
        batch: Images of a client. All have equally many, so that they weigh the same.
        hidden: Units of the network.
        lr: Learning rate in an honest server's instructions.
        drawn: Images that a client draws from its own in each round; 0 for all of them, and then
            training is deterministic.
    """

    clients: int = 5
    threshold: int = 3
    batch: int = 4
    hidden: int = 32
    lr: float = 0.1
    drawn: int = 0

    @property
    def honest(self) -> list[int]:
        """Nodes of the honest clients."""
        return list(range(1, self.clients + 1))

    @property
    def invented(self) -> list[int]:
        """Nodes that the server runs itself."""
        return list(range(self.clients + 1, 2 * self.clients + 1))

    def puppet(self, node: int) -> int:
        """Return the node that the server runs in place of an honest client."""
        return node + self.clients


class Federation:
    """Clients that take one step of gradient descent on images of their own.

    Attributes:
        shape: Its size.
        weights: The model of an honest server.
        brightness: Mean pixel of images that the server has itself, for traps.
        mean_image: Mean of these images, a guess that needs no update, (1, pixels).
        batches: Node to the images it trains on; the server's own nodes have none.
        truth: Node to its plain update of the last round. Measures attacks; no attack reads it.
        app: What runs on every node.
    """

    def __init__(self, shape: Shape, mode: Mode) -> None:
        data = _digits()
        self.shape, self.mode = shape, mode
        self._images = data.train_x.reshape(len(data.train_x), -1)
        self._labels = data.train_y
        self.weights = initial(self._images.shape[1], shape.hidden, _SEED)
        own = data.test_x.reshape(len(data.test_x), -1)  # images that the server has itself
        self.brightness, self.mean_image = own.mean(axis=1), own.mean(axis=0, keepdims=True)
        self.batches: dict[int, Batch] = {}
        self.truth: dict[int, Vector] = {}
        self._rng = stream(_SEED, "drawn")
        self._folder = TemporaryDirectory()  # of keys, and of steps that were taken
        self._masks = self._mask_mods()
        self.app = ClientApp(mods=[self._mask, canary_mod])
        self.app.train()(self._train)

    @property
    def known(self) -> list[str] | None:
        """Public lines of all nodes, the server's own among them; None if nobody signs."""
        if self.mode != "active":
            return None
        keys = [mod.identity for mod in self._masks.values()]
        return [key.line for key in keys if isinstance(key, Identity)]

    def transcript(self) -> Transcript:
        """Return the empty transcript of a round."""
        is_bound = self.mode != "unbound"
        return Transcript(flat(self.weights).size, float(self.shape.batch), is_bound)

    def deal(self, trial: int) -> None:
        """Give every honest client other images."""
        size = self.shape.batch
        order = stream(_SEED, "images", trial).permutation(len(self._images))
        for place, node in enumerate(self.shape.honest):
            own = order[place * size : (place + 1) * size]
            self.batches[node] = Batch(self._images[own], self._labels[own])

    def _mask_mods(self) -> Mapping[int, MaskMod]:
        if self.mode == "active":
            return signing_mods(self.shape, Path(self._folder.name))
        mod = MaskMod() if self.mode == "curious" else Unbound()
        return dict.fromkeys([*self.shape.honest, *self.shape.invented], mod)

    def _mask(self, message: Message, context: Context, call_next: Call) -> Message:
        return self._masks[context.node_id](message, context, call_next)

    def _train(self, message: Message, context: Context) -> Message:
        """Train as told, and state the weight; a node of the server's returns what it got."""
        sent = from_record(wire.arrays(message.content), self.weights)
        lr = wire.get_float(message.content.config_records[wire.CONFIG], "lr")
        batch = self.batches.get(context.node_id)
        trained = sent if batch is None else step(sent, self._drawn(batch), lr)
        self.truth[context.node_id] = flat(trained) - flat(sent)
        metrics = MetricRecord({wire.WEIGHT: self.shape.batch})
        return Message(
            RecordDict({"arrays": to_record(trained), "metrics": metrics}), reply_to=message
        )

    def _drawn(self, batch: Batch) -> Batch:
        """Return the images of one round."""
        if not self.shape.drawn:
            return batch
        chosen = self._rng.permutation(len(batch.labels))[: self.shape.drawn]
        return Batch(batch.images[chosen], batch.labels[chosen])


@lru_cache(maxsize=1)
def _digits() -> Dataset:
    return load("digits")


@dataclass(frozen=True)
class Unbound(MaskMod):
    """A client of the textbook's protocol: it masks, and binds nothing of what it was told."""

    def _told(self, *_: object) -> bytes:
        """Return the same for every message."""
        return bytes(KEY_BYTES)

    def _seats(self, *_: object) -> tuple[int, ...]:
        """Count no canary seats."""
        return ()


def signing_mods(shape: Shape, folder: Path) -> dict[int, MaskMod]:
    """Return node to a mod with a key of its own, whose owner trusts the honest clients alone.

    The nodes of the server have keys too, and trust everybody.
    """
    nodes = [*shape.honest, *shape.invented]
    keys = {node: Identity.create(folder / str(node)) for node in nodes}
    everybody = [keys[node].line for node in nodes]
    honest = [keys[node].line for node in shape.honest]
    return {
        node: MaskMod(identity=keys[node], trusted=honest, min_threshold=shape.threshold)
        if node in shape.honest
        else MaskMod(identity=keys[node], trusted=everybody)
        for node in nodes
    }
