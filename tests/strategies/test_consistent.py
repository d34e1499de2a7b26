"""Plain FedAvg under `Chosen`: one reply unlike the others is a dropout, and ends no run."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leakmeter.auditors.hook import wire
from leakmeter.strategies import Chosen, FixedSize
from tests.helpers import lies
from tests.helpers.federation import Federation

pytestmark = pytest.mark.usefixtures("flower_task")


def run(lie: Any, who: tuple[int, ...] = (2,), rounds: int = 1) -> tuple[Any, Federation]:
    def mod(message: Message, context: Context, call_next: Any) -> Message:
        reply: Message = call_next(message, context)
        is_training = wire.CONFIG in message.content
        if not is_training or int(context.node_config["partition-id"]) not in who:
            return reply
        one = lie[wire.server_round(message.content) - 1] if isinstance(lie, list) else lie
        changed: Message = one(reply)
        return changed

    clients = Federation(6, mods=[mod])
    inner = FedAvg()
    inner.fraction_evaluate = 0.0
    strategy = Chosen(inner, FixedSize(6), num_clients=6, seed=1)
    return strategy.start(clients.grid, clients.arrays(), num_rounds=rounds), clients


def with_records(**records: Any) -> Any:
    def lie(reply: Message) -> Message:
        reply.content = RecordDict({**reply.content, **records})
        return reply

    return lie


WEIGHTS = [-450.0, -1, math.nan, math.inf]
LIES = {
    "another array": with_records(arrays=ArrayRecord({"x": Array(np.zeros(3))})),
    "two records": with_records(more=ArrayRecord({"x": Array(np.zeros(3))})),
    "another metric": with_records(metrics=MetricRecord({"num-examples": 3, "other": 1.0})),
    "no weight": with_records(metrics=MetricRecord({"train-loss": 1.0})),
    "a list": with_records(metrics=MetricRecord({"num-examples": 3, "train-loss": [1.0]})),
    **{
        f"weight {w}": with_records(metrics=MetricRecord({"num-examples": w, "train-loss": 1.0}))
        for w in WEIGHTS
    },
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_a_reply_unlike_the_others_is_a_dropout(lie: Any, caplog: Any) -> None:
    result, clients = run(lie)
    honest = [c for c in range(6) if c != 2]
    weights = np.array([clients.weight(c) for c in honest])
    sent = clients.arrays()
    expected = np.average([clients.trained(c, sent)["b"] for c in honest], axis=0, weights=weights)
    np.testing.assert_allclose(result.arrays["b"].numpy(), expected, atol=1e-12)
    assert "drops out, its reply cannot be used" in caplog.text


def test_a_round_in_which_nobody_counts_leaves_the_model_as_it_is(caplog: Any) -> None:
    zero = with_records(metrics=MetricRecord({"num-examples": 0, "train-loss": 1.0}))
    result, _ = run(zero, who=tuple(range(6)))
    assert not result.arrays
    assert "all weights 'num-examples' are zero" in caplog.text


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(lies.malformed, min_size=10, max_size=10))
def test_no_reply_of_one_client_ends_a_plain_run(plan: Any) -> None:
    logging.disable(logging.CRITICAL)
    try:
        result, _ = run(plan, rounds=10)
    finally:
        logging.disable(logging.NOTSET)
    assert set(result.arrays) == {"w", "n", "b"}
