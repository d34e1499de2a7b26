"""Strategies of foreign projects: all of Flower's, and some that projects write themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg, FedMedian, FedTrimmedAvg, Strategy

from tests.guest.harness import NODES
from tests.guest.model import RATE, Model

Make = Callable[[], Strategy]
Outcome = tuple[ArrayRecord | None, MetricRecord | None]
ALL: dict[str, Any] = {
    "min_train_nodes": NODES,
    "min_evaluate_nodes": NODES,
    "min_available_nodes": NODES,
    "fraction_evaluate": 0.5,
}
_CLIP, _NOISE = 3.0, 0.05


def of(kind: type[Any], **options: Any) -> Make:
    """Return the maker of a strategy for all nodes."""
    return lambda: kind(**{**ALL, **options})


def dp(wrapper: type[Any], inner: Make | None = None, **options: Any) -> Make:
    """Return the maker of a privacy wrapper of Flower's around a strategy."""
    name = "initial_clipping_norm" if "Adaptive" in wrapper.__name__ else "clipping_norm"
    given = {"noise_multiplier": _NOISE, "num_sampled_clients": NODES, name: _CLIP, **options}

    def make() -> Strategy:
        made: Strategy = wrapper((inner or of(FedAvg))(), **given)
        return made

    return make


PLAIN: dict[str, Make] = {
    "FedAvg": of(FedAvg),
    "FedAvgM": of(flower.FedAvgM, server_momentum=0.9, server_learning_rate=0.5),
    "FedAdam": of(flower.FedAdam, eta=0.1),
    "FedAdagrad": of(flower.FedAdagrad, eta=0.1),
    "FedYogi": of(flower.FedYogi, eta=0.1),
    "FedProx": of(flower.FedProx, proximal_mu=0.1),
    "FedMedian": of(FedMedian),
    "FedTrimmedAvg": of(FedTrimmedAvg, beta=0.2),
    "QFedAvg": of(flower.QFedAvg, client_learning_rate=0.5, train_loss_key="train-loss"),
}
CHOOSING: dict[str, Make] = {
    "Krum": of(flower.Krum, num_malicious_nodes=1),
    "MultiKrum": of(flower.MultiKrum, num_malicious_nodes=1, num_nodes_to_select=3),
    "Bulyan": of(flower.Bulyan, num_malicious_nodes=0),
}
TREES: dict[str, Make] = {
    "FedXgbBagging": of(flower.FedXgbBagging),
    "FedXgbCyclic": lambda: flower.FedXgbCyclic(min_available_nodes=NODES),
}
SERVER_SIDE_KINDS = (
    flower.DifferentialPrivacyServerSideFixedClipping,
    flower.DifferentialPrivacyServerSideAdaptiveClipping,
)
SERVER_SIDE: dict[str, Make] = {kind.__name__: dp(kind) for kind in SERVER_SIDE_KINDS}
CLIENT_SIDE: dict[str, Make] = {
    kind.__name__: dp(kind)
    for kind in (
        flower.DifferentialPrivacyClientSideFixedClipping,
        flower.DifferentialPrivacyClientSideAdaptiveClipping,
    )
}
FLOWERS = {**PLAIN, **CHOOSING, **TREES, **SERVER_SIDE, **CLIENT_SIDE}


class Applies:
    """Takes the aggregate as a step of the server, since its clients send no models."""

    rate = 1.0

    def configure_train(self, *asked: Any) -> Iterable[Message]:
        """Keep the model that the step starts from."""
        self._before = {name: array.numpy() for name, array in asked[1].items()}
        messages: Iterable[Message] = super().configure_train(*asked)  # type: ignore[misc]
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Outcome:
        """Return the model after the step."""
        step, metrics = super().aggregate_train(server_round, replies)  # type: ignore[misc]
        if step is None:
            return None, metrics
        after = {
            name: np.asarray(before + self.rate * step[name].numpy()).astype(before.dtype)
            for name, before in self._before.items()
        }
        return ArrayRecord({name: Array(value) for name, value in after.items()}), metrics


def applying(kind: type[Any], rate: float = 1.0, **options: Any) -> Make:
    """Return the maker of a strategy that adds its aggregate, times a rate, to the model."""
    return of(type(f"Applying{kind.__name__}", (Applies, kind), {"rate": rate}), **options)


ADDS, DESCENDS = applying(FedAvg), applying(FedAvg, -RATE)  # differences; against gradients


class Own(FedAvg):
    """Averages in the project's own encoding, and asks for no metrics."""

    model: Model

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Outcome:
        """Return the plain mean."""
        records = [next(iter(m.content.array_records.values())) for m in replies if m.has_content()]
        if not records:
            return None, None
        values = [self.model.values(record) for record in records]
        mean = {
            name: np.asarray(np.mean([v[name] for v in values], axis=0)).astype(first.dtype)
            for name, first in values[0].items()
        }
        return self.model.record(mean), MetricRecord({"replies": len(records)})


def own(make_model: Callable[[], Model]) -> Make:
    """Return the maker of a strategy that reads the project's own encoding."""

    def make() -> Strategy:
        made = Own(**ALL)
        made.model = make_model()
        return made

    return make


class Controlled(FedAvg):
    """Keeps the second record of arrays that clients send to itself."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Outcome:
        """Aggregate the models alone."""
        replies = list(replies)
        for reply in replies:
            if reply.has_content():
                kept = {key: r for key, r in reply.content.items() if key != "control"}
                reply.content = RecordDict(kept)
        return super().aggregate_train(server_round, replies)


class Named(FedAvg):
    """Calls another train function of the app."""

    def _construct_messages(
        self, record: RecordDict, node_ids: list[int], message_type: str
    ) -> Iterable[Message]:
        named = "train.mine" if message_type == "train" else message_type
        return super()._construct_messages(record, node_ids, named)


class Personal(FedAvg):
    """Sends every client a model of its own."""

    def configure_train(self, *asked: Any) -> list[Message]:
        messages = list(super().configure_train(*asked))
        for message in messages:
            shift = 0.01 * message.metadata.dst_node_id
            own = {n: Array(np.asarray(a.numpy() + shift, a.dtype)) for n, a in asked[1].items()}
            message.content = RecordDict({**message.content, "arrays": ArrayRecord(own)})
        return messages


class Controlling(Controlled):
    """Sends a second record of arrays beside the model, as control variates are."""

    def configure_train(self, *asked: Any) -> list[Message]:
        messages = list(super().configure_train(*asked))
        control = ArrayRecord({"c": Array(np.zeros(4))})
        for message in messages:
            message.content = RecordDict({**message.content, "control": control})
        return messages


class Resting(FedAvg):
    """Sends nothing in round 2."""

    def configure_train(self, *asked: Any) -> Iterable[Message]:
        messages = super().configure_train(*asked)
        return [] if asked[0] == 2 else messages


class Lazy(FedAvg):
    """Makes its messages one by one."""

    def configure_train(self, *asked: Any) -> Iterable[Message]:
        yield from super().configure_train(*asked)


class Reusing(FedAvg):
    """Makes its messages once and fills them again in every round."""

    def configure_train(self, *asked: Any) -> list[Message]:
        server_round, arrays, config, _ = asked
        if server_round == 1:
            made = super().configure_train(*asked)
            self._mine = sorted(made, key=lambda message: message.metadata.dst_node_id)
        for message in self._mine:
            message.content["arrays"] = arrays
            message.content["config"] = ConfigRecord({**config, "server-round": server_round})
        return self._mine
