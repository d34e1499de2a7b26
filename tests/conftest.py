"""What all tests share: no telemetry, one thread, no stray settings, and a small federation."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

# Before anything imports numpy, flwr, ray or torch: on one thread sums have the same last bits in
# this process and in those that tests start.
os.environ.update(
    {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
)

import numpy as np
import pytest

if TYPE_CHECKING:
    from flwr.app import ArrayRecord
    from flwr.clientapp import ClientApp

    from leakmeter.fl_app.engines.inline import InlineGrid

Fails = Callable[[int, int], bool]  # of round and client


@pytest.fixture
def flower_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let messages be made outside a run, which Flower refuses from release 1.38 on."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    for name, value in {"_run_id": 1, "_node_id": 0, "_task_id": 1}.items():
        monkeypatch.setattr(TaskIdentity, name, value)


@pytest.fixture
def federation(flower_task: None) -> type[Federation]:  # noqa: ARG001
    """Return the maker of federations, inside a task of Flower's."""
    return Federation


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
        from leakmeter.fl_app.engines.inline import InlineGrid

        self.mods, self.identity = mods, identity
        self.fails = fails or (lambda *_: False)
        self.weight_key = weight_key
        self.seen: list[tuple[str, int, int]] = []  # message type, round, client
        self.grid: InlineGrid = InlineGrid(self._app(), num_nodes)

    def arrays(self) -> ArrayRecord:
        """Return the initial model: 132 float parameters and an integer counter between them."""
        from flwr.app import Array, ArrayRecord

        weights = np.linspace(-1, 1, 120, dtype=np.float32).reshape(10, 12)
        counter, bias = np.array(3, dtype=np.int64), np.ones(12)
        return ArrayRecord({"w": Array(weights), "n": Array(counter), "b": Array(bias)})

    def trained(self, client: int, arrays: ArrayRecord) -> dict[str, np.ndarray]:
        """Return what the client makes of the model."""
        from leakmeter.auditors.rng import stream

        rng = stream(0, "target", client)
        models = {name: array.numpy() for name, array in arrays.items()}
        models["n"] = np.asarray(models["n"] + 1)
        for name in "wb":
            target = rng.standard_normal(models[name].shape)
            models[name] = (0.5 * models[name] + 0.5 * target).astype(models[name].dtype)
        return models

    def _app(self) -> ClientApp:
        from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
        from flwr.clientapp import ClientApp

        from leakmeter.auditors import canary_mod, tap_mod
        from leakmeter.clients.identity import add_identity

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
            metrics = {self.weight_key: 10 * (client + 1), **more.pop("metrics")}
            return Message(RecordDict({**more, "metrics": MetricRecord(metrics)}), reply_to=message)

        @app.train(mods=[tap_mod, canary_mod] if self.mods is None else self.mods)
        def train(message: Message, context: Context) -> Message:
            client, arrays = open_message(message, context)
            trained = self.trained(client, arrays)
            record = ArrayRecord({name: Array(a) for name, a in trained.items()})
            return answer(message, client, arrays=record, metrics={"train-loss": float(client)})

        @app.evaluate()
        def evaluate(message: Message, context: Context) -> Message:
            client, _ = open_message(message, context)
            return answer(message, client, metrics={"accuracy": client / 100})

        return app
