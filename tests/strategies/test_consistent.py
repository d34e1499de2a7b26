"""Plain FedAvg under `Chosen`: one reply unlike the others is a dropout, and ends no run."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leakmeter.auditors import Audited, Auditor, Finding, RoundView
from leakmeter.auditors.hook import wire
from leakmeter.strategies import Chosen, Clipped
from leakmeter.strategies.chosen import FixedSize
from leakmeter.strategies.flower import GridWrapper
from tests.helpers import lies
from tests.helpers.federation import Federation
from tests.helpers.numbers import num_examples

pytestmark = pytest.mark.usefixtures("flower_task")


def run(
    lie: Any,
    who: tuple[int, ...] = (2,),
    rounds: int = 1,
    *,
    num: int = 6,
    evaluates: bool = False,
    wrap: Any = lambda inner: inner,
) -> tuple[Any, Federation]:
    asked = "evaluate" if evaluates else "train"

    class Lying(GridWrapper):
        def send_and_receive(
            self, messages: Iterable[Message], *, timeout: float | None = None
        ) -> Iterable[Message]:
            return [self._answered(message) for message in messages]

        def _answered(self, message: Message) -> Message:
            (reply,) = self.grid.send_and_receive([message])
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            if kind != asked or node - 1 not in who or reply.has_error():
                return reply
            one = lie[wire.server_round(message.content) - 1] if isinstance(lie, list) else lie
            try:
                changed: Message = one(reply)
            except RuntimeError as error:  # as Flower answers for an app that raises
                return Message(Error(2, str(error)), reply_to=message)
            return changed

    clients = Federation(num)
    inner = FedAvg(min_train_nodes=1, min_available_nodes=1, min_evaluate_nodes=1)
    inner.fraction_evaluate = float(evaluates)
    strategy = wrap(Chosen(inner, FixedSize(num), num_clients=num, seed=1))
    return strategy.start(Lying(clients.grid), clients.arrays(), num_rounds=rounds), clients


def with_records(**records: Any) -> Any:
    def lie(reply: Message) -> Message:
        reply.content = RecordDict({**reply.content, **records})
        return reply

    return lie


def with_arrays(change: Any) -> Any:
    def lie(reply: Message) -> Message:
        made = {name: change(a) for name, a in reply.content["arrays"].items()}
        reply.content = RecordDict({**reply.content, "arrays": ArrayRecord(made)})
        return reply

    return lie


def saying_the_shape_of(array: Array, numbers: Any) -> Array:
    """Return an array with these numbers that says it has the shape of another one."""
    return Array(array.dtype, array.shape, array.stype, Array(numbers).data)


def filled(array: Array, value: float) -> Array:
    """Return an array of the same type with this value; one of integers stays as it is."""
    numbers = array.numpy()
    return Array(np.full_like(numbers, value)) if numbers.dtype.kind == "f" else array


def saying_the_type(dtype: str, value: float, array: Array) -> Array:
    """Return an array with this value that says it has another type than it has."""
    made = filled(array, value)
    return Array(dtype, made.shape, made.stype, made.data)


WEIGHTS = [-450.0, -1, math.nan, math.inf]
LIES = {
    "another array": with_records(arrays=ArrayRecord({"x": Array(np.zeros(3))})),
    "two records": with_records(more=ArrayRecord({"x": Array(np.zeros(3))})),
    "another metric": with_records(metrics=MetricRecord({"num-examples": 3, "other": 1.0})),
    "a flat array": with_arrays(lambda a: saying_the_shape_of(a, a.numpy().ravel())),
    "a turned array": with_arrays(lambda a: saying_the_shape_of(a, a.numpy().T.copy())),
    "numbers of 128 bits": with_arrays(lambda a: Array(a.numpy().astype(np.longdouble))),
    "numbers of 16 bits": with_arrays(lambda a: Array(a.numpy().astype(np.float16))),
    "no number": with_arrays(lambda a: filled(a, np.nan)),
    "infinity": with_arrays(lambda a: filled(a, np.inf)),
    "no number of a type without": with_arrays(lambda a: saying_the_type("int64", np.nan, a)),
    "infinity of an unknown type": with_arrays(lambda a: saying_the_type("x", np.inf, a)),
    "a loss of 401 digits": with_records(
        metrics=MetricRecord({"num-examples": 3, "train-loss": 10**400})
    ),
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


@pytest.mark.parametrize("wrap", [lambda inner: inner, lambda inner: Clipped(inner, 0.1)])
@pytest.mark.parametrize(
    "arrays",
    [
        {"x": Array(np.zeros(3))},
        {"w": Array(np.zeros((10, 3))), "n": Array(np.array(1)), "b": Array(np.zeros(12))},
    ],
    ids=["names", "shapes"],
)
def test_a_client_that_is_alone_cannot_change_what_the_model_looks_like(
    arrays: dict[str, Array], wrap: Any
) -> None:
    result, clients = run(with_records(arrays=ArrayRecord(arrays)), num=1, who=(0,), wrap=wrap)
    assert not result.arrays  # no round has made a model
    assert len(clients.seen) == 1


@pytest.mark.parametrize(
    "lie", ["a flat array", "a turned array", "numbers of 128 bits", "no number", "infinity"]
)
def test_a_reply_of_one_client_alone_must_be_one_that_can_be_averaged(lie: str) -> None:
    result, _ = run(LIES[lie], num=1, who=(0,))  # no other reply is there to compare it with
    assert not result.arrays


def test_a_reply_of_an_evaluation_unlike_the_others_is_a_dropout(caplog: Any) -> None:
    for lie in (
        with_records(metrics=MetricRecord({"num-examples": 3, "other": 1.0})),
        with_records(metrics=MetricRecord({"num-examples": -3, "accuracy": 1.0})),
        with_records(metrics=ConfigRecord({"num-examples": 3})),
        with_records(more=MetricRecord({"num-examples": 3, "accuracy": 1.0})),
    ):
        result, clients = run(lie, evaluates=True)
        honest = [c for c in range(6) if c != 2]
        weights = [clients.weight(c) for c in honest]
        expected = np.average([c / 100 for c in honest], weights=weights)
        found = result.evaluate_metrics_clientapp[1]["accuracy"]
        assert found == pytest.approx(expected)
        assert "drops out, its reply cannot be used" in caplog.text


def test_the_audit_looks_at_the_mean_without_replies_that_were_dropped() -> None:
    class Watch(Auditor):
        name = "watch"

        def __init__(self) -> None:
            self.views: list[RoundView] = []

        def observe(self, view: RoundView) -> list[Finding]:
            self.views.append(view)
            return []

    for lie in ("weight nan", "another metric", "no number"):
        watch = Watch()
        result, _ = run(LIES[lie], wrap=lambda inner, one=watch: Audited(inner, [one]))
        (view,) = watch.views
        assert 2 not in view.replies
        assert view.facts.num_clients == 5
        released = np.concatenate([result.arrays[n].numpy().ravel() for n in "wb"])
        np.testing.assert_allclose(view.sent + view.facts.aggregate, released, atol=1e-6)


def test_a_round_in_which_nobody_counts_leaves_the_model_as_it_is(caplog: Any) -> None:
    zero = with_records(metrics=MetricRecord({"num-examples": 0, "train-loss": 1.0}))
    assert not run(zero, who=tuple(range(6)))[0].arrays
    assert "the weights 'num-examples' add up to 0" in caplog.text


@settings(max_examples=num_examples(10), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(lies.malformed, min_size=10, max_size=10))
def test_no_reply_of_one_client_ends_a_plain_run(plan: Any) -> None:
    logging.disable(logging.CRITICAL)
    try:
        result, _ = run(plan, rounds=10)
    finally:
        logging.disable(logging.NOTSET)
    assert set(result.arrays) == {"w", "n", "b"}
