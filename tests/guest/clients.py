"""Client apps of foreign projects: how they train, what they keep and what they send."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp

from leakmeter.clients.node import add_identity
from tests.guest.frozen import Frozen, frozen
from tests.guest.model import MODELS, RATE, Model, Values, draws, moved, targets

REPLAY = "leakmeter.replay"


@dataclass
class Seen:
    """What the train function of an app was called with, by round and client."""

    received: list[tuple[int, int, Frozen]] = field(default_factory=list)
    replayed: int = 0


@dataclass(frozen=True)
class Call:
    """A call of the train function: by whom, in which round, and which replay of it."""

    client: int
    server_round: int
    draw: int
    context: Context


class Clients:
    """Trains towards a point of its own, with noise that client and round determine.

    A replay draws other noise, as a client would that shuffles without a seed. So a round is the
    same in every run, whatever was replayed before it.
    """

    weight_key = "num-examples"
    action = "default"  # which of its train functions the app has; Flower's own name for the first

    def __init__(self, model: Model | None = None) -> None:
        self.model = model or MODELS["floats"]()

    def arrays(self) -> ArrayRecord:
        """Return what the server starts from."""
        return self.model.record()

    def app(
        self, mods: Sequence[Any], train_mods: Sequence[Any] = (), seen: Seen | None = None
    ) -> ClientApp:
        """Return the app.

        Args:
            mods: Mods of the whole app.
            train_mods: Mods of its train function alone, which are inside of the others.
            seen: Notes what the train function gets.
        """
        app = ClientApp(mods=list(mods))
        add_identity(app)
        number = itertools.count(1)

        @app.train(self.action, mods=list(train_mods))
        def train(message: Message, context: Context) -> Message:
            draw = next(number) if REPLAY in message.content else 0
            of = Call(*_about(message, context), draw, context)
            if seen is not None:
                seen.replayed += draw > 0
                if not draw:
                    seen.received.append((of.server_round, of.client, frozen(message.content)))
            record = message.content["arrays"]
            assert isinstance(record, ArrayRecord)
            return Message(self.trained(of, record), reply_to=message)

        @app.evaluate()
        def evaluate(message: Message, context: Context) -> Message:
            client, server_round = _about(message, context)
            metrics = MetricRecord({self.weight_key: 10, "accuracy": client / 10 + server_round})
            return Message(RecordDict({"metrics": metrics}), reply_to=message)

        return app

    def trained(self, of: Call, record: ArrayRecord) -> RecordDict:
        """Return the content of a reply."""
        values = self.model.values(record)
        after = self.step(of, values)
        return self.reply(of.client, self.model.record(after), self.loss(after))

    def step(self, of: Call, values: Values) -> Values:
        """Return the model after one training."""
        goal = targets(values, of.client)
        noise = draws(values, "noise", of.client, of.server_round, of.draw)
        return {name: moved(value, goal[name], noise[name]) for name, value in values.items()}

    def loss(self, values: Values) -> float:
        """Return a metric that depends on all arrays."""
        return 1.0 + sum(float(np.abs(value).sum()) for value in values.values()) / 100

    def reply(self, client: int, arrays: ArrayRecord, loss: float) -> RecordDict:
        """Return arrays and metrics as this project names them."""
        metrics = MetricRecord({self.weight_key: self.weight(client), "train-loss": loss})
        return RecordDict({"arrays": arrays, "metrics": metrics})

    def weight(self, client: int) -> int:
        """Return the number of examples of a client."""
        return 10 * (client % 3 + 1)


def _about(message: Message, context: Context) -> tuple[int, int]:
    config = message.content["config"]
    assert isinstance(config, ConfigRecord)
    return int(context.node_config["partition-id"]), int(str(config["server-round"]))


class Failing(Clients):
    """Client 1 raises in round 2, client 2 in every round but the first."""

    def step(self, of: Call, values: Values) -> Values:
        if (of.client, of.server_round) == (1, 2) or (of.client == 2 and of.server_round > 1):
            raise RuntimeError(f"client {of.client} fails in round {of.server_round}")
        return super().step(of, values)


class FailingFirst(Clients):
    """Everybody raises in round 1."""

    def step(self, of: Call, values: Values) -> Values:
        if of.server_round == 1:
            raise RuntimeError("the data are not there yet")
        return super().step(of, values)


class Refusing(Clients):
    """Client 1 answers with an error of its own."""

    def app(
        self, mods: Sequence[Any], train_mods: Sequence[Any] = (), seen: Seen | None = None
    ) -> ClientApp:
        def refusing_mod(message: Message, context: Context, call_next: Any) -> Message:
            if context.node_config["partition-id"] == 1:
                return Message(Error(100, "this client has not agreed"), reply_to=message)
            reply: Message = call_next(message, context)
            return reply

        return super().app(mods, [*train_mods, refusing_mod], seen)


class Diverging(Clients):
    """Client 1 sends a NaN in round 2."""

    def step(self, of: Call, values: Values) -> Values:
        after = super().step(of, values)
        if (of.client, of.server_round) == (1, 2):
            name = next(iter(after))
            after[name].flat[0] = np.nan
        return after


class DivergingAlways(Clients):
    """Client 1 sends infinity in every round."""

    def step(self, of: Call, values: Values) -> Values:
        after = super().step(of, values)
        if of.client == 1:
            next(iter(after.values())).flat[0] = np.inf
        return after


class Stateful(Clients):
    """Counts its trainings and keeps an array of its own, and both change what it sends."""

    def trained(self, of: Call, record: ArrayRecord) -> RecordDict:
        state = of.context.state
        counter = state["counter"] if "counter" in state else ConfigRecord({"trainings": 0})
        assert isinstance(counter, ConfigRecord)
        trainings = int(str(counter["trainings"])) + 1
        state["counter"] = ConfigRecord({"trainings": trainings})
        head = np.zeros(3)
        if "head" in state:
            kept = state["head"]
            assert isinstance(kept, ArrayRecord)
            head = kept["h"].numpy()
        head = head + trainings + of.client
        state["head"] = ArrayRecord({"h": Array(head)})
        state["last"] = MetricRecord({"loss": [float(of.server_round), 0.5]})
        after = self.step(of, self.model.values(record))
        shift = 0.01 * float(head.mean())
        after = {name: np.asarray(v + shift).astype(v.dtype) for name, v in after.items()}
        return self.reply(of.client, self.model.record(after), self.loss(after))


class MyTraining(Stateful):
    """Has its train function under another name."""

    action = "mine"


class Drawing(Clients):
    """Draws from the global generators of Python, numpy and torch, and seeds none of them."""

    def step(self, of: Call, values: Values) -> Values:
        after = super().step(replace(of, draw=0), values)
        shift = random.gauss() + np.random.normal() + float(torch.randn(()))  # noqa: NPY002
        return {name: np.asarray(v + 0.01 * shift).astype(v.dtype) for name, v in after.items()}


class Emptying(Clients):
    """Takes the arrays out of its message, to save memory."""

    def trained(self, of: Call, record: ArrayRecord) -> RecordDict:
        names = list(record)
        taken = record.to_numpy_ndarrays(keep_input=False)
        assert not record
        own = ArrayRecord({name: Array(a) for name, a in zip(names, taken, strict=True)})
        return super().trained(of, own)


class Keeping(Clients):
    """Keeps the very record that it sends, as its own model."""

    def trained(self, of: Call, record: ArrayRecord) -> RecordDict:
        content = super().trained(of, record)
        of.context.state["model"] = content["arrays"]
        return content


class Differences(Clients):
    """Sends how the model has changed."""

    def trained(self, of: Call, record: ArrayRecord) -> RecordDict:
        before = self.model.values(record)
        after = self.step(of, before)
        change = {name: self.send(before[name], after[name]) for name in before}
        return self.reply(of.client, self.model.record(change), self.loss(after))

    def send(self, before: Any, after: Any) -> Any:
        """Return what is sent of one array."""
        return after - before


class Gradients(Differences):
    """Sends gradients: the server takes the step."""

    def send(self, before: Any, after: Any) -> Any:
        return (before - after) / RATE


class Renamed(Clients):
    """Numbers the arrays of its reply, as `to_numpy_ndarrays` and back does."""

    def trained(self, of: Call, record: ArrayRecord) -> RecordDict:
        named = ArrayRecord(dict(zip(self.model.names, record.values(), strict=True)))
        content = super().trained(of, named)
        arrays = content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        content["arrays"] = ArrayRecord({str(i): a for i, a in enumerate(arrays.values())})
        return content


class OtherKeys(Clients):
    """Calls its records something else than the server does, and adds one of its own."""

    def reply(self, client: int, arrays: ArrayRecord, loss: float) -> RecordDict:
        content = super().reply(client, arrays, loss)
        return RecordDict(
            {
                "note": ConfigRecord({"device": f"phone {client}"}),
                "statistics": content["metrics"],
                "model": content["arrays"],
            }
        )


class NoMetrics(Clients):
    """Sends arrays and nothing else."""

    def reply(self, client: int, arrays: ArrayRecord, loss: float) -> RecordDict:
        return RecordDict({"arrays": arrays})


class OddMetrics(Clients):
    """Sends lists, and numbers that are not finite or very large."""

    def reply(self, client: int, arrays: ArrayRecord, loss: float) -> RecordDict:
        content = super().reply(client, arrays, loss)
        metrics = content["metrics"]
        assert isinstance(metrics, MetricRecord)
        metrics["losses"] = [float("nan"), loss]
        metrics["worst"] = float("inf")
        metrics["steps"] = 2**62
        return content


class OtherWeight(Clients):
    """Calls its number of examples something else."""

    weight_key = "records"


class NoExamples(Clients):
    """Client 0 has no examples."""

    def weight(self, client: int) -> int:
        return 10 * client


class Part(Clients):
    """Sends one array of the model only; the rest stays at home."""

    def trained(self, of: Call, record: ArrayRecord) -> RecordDict:
        whole = ArrayRecord({**self.model.record(), **record})
        content = super().trained(of, whole)
        arrays = content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        content["arrays"] = ArrayRecord({"w": arrays["w"]})
        return content


class Protecting(Clients):
    """Clips its update and adds noise, as a client does that trains by DP-SGD."""

    def step(self, of: Call, values: Values) -> Values:
        after = super().step(of, values)
        noise = draws(values, "privacy", of.client, of.server_round, of.draw)
        changed = {}
        for name, before in values.items():
            update = after[name] - before
            update = update / max(1.0, float(np.linalg.norm(update)))
            changed[name] = np.asarray(before + update + 0.1 * noise[name]).astype(before.dtype)
        return changed


class Twofold(Clients):
    """Sends a second record of arrays beside the model, as control variates are."""

    def reply(self, client: int, arrays: ArrayRecord, loss: float) -> RecordDict:
        content = super().reply(client, arrays, loss)
        content["control"] = ArrayRecord({"c": Array(np.full(4, float(client)))})
        return content


class Constant(Clients):
    """Sends back what it got: nothing is trained."""

    def step(self, of: Call, values: Values) -> Values:
        return values


class Trees(Clients):
    """Sends a model of trees as bytes, as Flower's example with XGBoost does."""

    def arrays(self) -> ArrayRecord:
        return ArrayRecord([np.frombuffer(b"", dtype=np.uint8)])

    def trained(self, of: Call, record: ArrayRecord) -> RecordDict:
        tree = {"id": 0, "leaf": of.client + of.server_round / 10 + of.draw}
        model = {
            "gbtree_model_param": {"num_trees": "1", "num_parallel_tree": "1"},
            "iteration_indptr": [0, 1],
            "tree_info": [0],
            "trees": [tree],
        }
        grown = json.dumps({"learner": {"gradient_booster": {"model": model}}}).encode()
        arrays = ArrayRecord([np.frombuffer(grown, dtype=np.uint8)])
        return self.reply(of.client, arrays, float(len(grown)))
