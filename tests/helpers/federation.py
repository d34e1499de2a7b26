"""Clients of a small model in this process, for strategies and auditors to work with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from leakmeter.auditors import canary_mod, tap_mod
from leakmeter.auditors.rng import stream
from leakmeter.clients.node import add_identity
from leakmeter.fl_app.engines.inline import InlineGrid

Fails = Callable[[int, int], bool]  # of round and client


def vanishing(gone: Fails) -> Any:
    """Return a mod, the first in the list, by which clients are gone before they train.

    A mod that masks must name it: `MaskMod(outside=["vanish"])`.
    """

    def vanish(message: Message, context: Context, call_next: Any) -> Message:
        client = int(context.node_config["partition-id"])
        config = message.content.get("config")
        if config is not None and gone(int(config["server-round"]), client):
            raise RuntimeError(f"client {client} is gone")
        reply: Message = call_next(message, context)
        return reply

    return vanish


class Federation:
    """Numpy clients in this process: each moves the model half way to a point of its own.

    Client c has 10 (c + 1) examples, evaluates to an accuracy of c / 100, adds 1 to every integer
    array, and raises where `fails(server_round, c)`.
    """

    def __init__(
        self,
        num_nodes: int = 6,
        *,
        mods: Sequence[Any] | None = None,
        identity: bool = True,
        fails: Fails | None = None,
        weight_key: str = "num-examples",
    ) -> None:
        self.mods, self.identity = mods, identity
        self.fails = fails or (lambda *_: False)
        self.weight_key = weight_key
        self.seen: list[tuple[str, int, int]] = []  # message type, round, client
        self.grid: InlineGrid = InlineGrid(self.app(), num_nodes)

    def arrays(self) -> ArrayRecord:
        """Return the initial model: 132 float parameters and an integer counter between them."""
        weights = np.linspace(-1, 1, 120, dtype=np.float32).reshape(10, 12)
        counter, bias = np.array(3, dtype=np.int64), np.ones(12)
        return ArrayRecord({"w": Array(weights), "n": Array(counter), "b": Array(bias)})

    def trained(self, client: int, arrays: ArrayRecord) -> dict[str, np.ndarray]:
        """Return what the client makes of the model."""
        rng = stream(0, "target", client)
        models = {name: array.numpy() for name, array in arrays.items()}
        if "n" in models:
            models["n"] = np.asarray(models["n"] + 1)
        for name in "wb":
            target = rng.standard_normal(models[name].shape)
            models[name] = (0.5 * models[name] + 0.5 * target).astype(models[name].dtype)
        return models

    def weight(self, client: int) -> float:
        """Return how much a client counts."""
        return 10 * (client + 1)

    def metrics(self, client: int) -> dict[str, Any]:
        """Return what a client reports beside its weight."""
        return {"train-loss": float(client)}

    def app(self) -> ClientApp:
        """Return the app of these clients."""
        app = ClientApp()
        if self.identity:
            add_identity(app)

        def open_message(message: Message, context: Context) -> tuple[int, ArrayRecord]:
            client = int(context.node_config["partition-id"])
            server_round = int(message.content["config"]["server-round"])
            self.seen.append((message.metadata.message_type, server_round, client))
            if self.fails(server_round, client):
                raise RuntimeError(f"client {client} fails in round {server_round}")
            return client, message.content["arrays"]

        def answer(message: Message, client: int, **more: Any) -> Message:
            metrics = {self.weight_key: self.weight(client), **more.pop("metrics")}
            return Message(RecordDict({**more, "metrics": MetricRecord(metrics)}), reply_to=message)

        @app.train(mods=[tap_mod, canary_mod] if self.mods is None else self.mods)
        def train(message: Message, context: Context) -> Message:
            client, arrays = open_message(message, context)
            trained = self.trained(client, arrays)
            record = ArrayRecord({name: Array(a) for name, a in trained.items()})
            return answer(message, client, arrays=record, metrics=self.metrics(client))

        @app.evaluate()
        def evaluate(message: Message, context: Context) -> Message:
            client, _ = open_message(message, context)
            return answer(message, client, metrics={"accuracy": client / 100})

        return app


class Drawing(Federation):
    """Clients that draw batches: what they make of a model differs from call to call."""

    scale = 1.0

    def __init__(self, num_nodes: int = 6, **more: Any) -> None:
        super().__init__(num_nodes, **more)
        self.draws = np.random.default_rng(0)

    def trained(self, client: int, arrays: ArrayRecord) -> dict[str, np.ndarray]:
        """Return what the client makes of the model this time."""
        models = super().trained(client, arrays)
        for name in "wb":
            noise = self.scale * self.draws.standard_normal(models[name].shape)
            models[name] = (models[name] + noise).astype(models[name].dtype)
        return models
