"""Mods of an audit change what they must and nothing else."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
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

from leakmeter.auditors import canary_mod, tap_mod
from leakmeter.auditors.auditor import Canary
from leakmeter.auditors.canary_draws import canary_vector
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.canary_order import Answer, Order, take_answer, with_own_key
from leakmeter.auditors.hook.layout import Layout

pytestmark = pytest.mark.usefixtures("flower_task")

DIM = 7
CANARY = Canary(id=4, seed=11)


def model(value: float, counter: Any = np.int64(0)) -> ArrayRecord:  # noqa: B008
    return ArrayRecord(
        {
            "a": Array(np.full((2, 2), value, dtype=np.float32)),
            "n": Array(np.asarray(counter)),
            "b": Array(np.full(3, value)),
        }
    )


def message(canary: Canary | None = None, sent: ArrayRecord | None = None, **more: Any) -> Message:
    content = RecordDict({"arrays": sent or model(1.0), "config": ConfigRecord(), **more})
    if canary is not None:
        content[wire.CANARY] = Order(with_own_key(canary), left_out=(1,)).to_record()
    return Message(content, dst_node_id=1, message_type="train")


def context(**node_config: int) -> Context:
    return Context(run_id=1, node_id=1, node_config=node_config, state=RecordDict(), run_config={})


def train(message: Message, _: Context) -> Message:
    """Move every parameter by 0.5; the counter goes up by one."""
    content = {
        "model": model(1.5, np.int64(1)),
        "metrics": MetricRecord({"num-examples": 12, "train-loss": 0.25}),
        "note": ConfigRecord({"kept": True}),
    }
    return Message(RecordDict(content), reply_to=message)


def fail(message: Message, _: Context) -> Message:
    return Message(Error(0, "no"), reply_to=message)


def update(message: Message, reply: Message) -> np.ndarray:
    """Return the update in a reply, without the counter."""
    sent = wire.arrays(message.content)
    layout = Layout.of(sent, left_out=["n"])
    return layout.flatten(wire.arrays(reply.content)) - layout.flatten(sent)


@pytest.mark.parametrize("kind", ["sphere", "signs"])
@pytest.mark.parametrize(("sends", "trained"), [("models", 0.5), ("differences", 1.5)])
def test_a_canary_takes_the_place_of_the_update(kind: Any, sends: Any, trained: float) -> None:
    canary = with_own_key(replace(CANARY, kind=kind))
    order = Order(canary, left_out=(1,), sends=sends).to_record()
    question = message(**{wire.CANARY: order})
    reply = canary_mod(question, context(), train)
    expected = trained * np.sqrt(DIM) * canary_vector(11, 4, DIM, kind)
    base = 1.0 if sends == "differences" else 0.0
    np.testing.assert_allclose(update(question, reply) + base, expected, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("value", [0.0, 1.0, -300.0])
@pytest.mark.parametrize("sends", ["models", "differences"])
def test_a_canary_that_is_out_sends_next_to_nothing_with_its_weight(
    dtype: str, value: float, sends: Any
) -> None:
    arrays = {"e": np.ones((0, 3), "float64"), "w": np.full(5, value, dtype)}
    sent = ArrayRecord({name: Array(a) for name, a in arrays.items()})

    def move(question: Message, _: Context) -> Message:
        moved = {name: Array((a + 1).astype(a.dtype)) for name, a in arrays.items()}
        content = {"arrays": ArrayRecord(moved), "metrics": MetricRecord({"num-examples": 12})}
        return Message(RecordDict(content), reply_to=question)

    order = Order(Canary(id=4, seed=11, included=False), sends=sends).to_record()
    content = RecordDict({"arrays": sent, wire.CANARY: order})
    reply = canary_mod(Message(content, dst_node_id=1, message_type="train"), context(), move)
    base = arrays["w"] if sends == "models" else np.zeros(5, dtype)
    sent_back = wire.arrays(reply.content)["w"].numpy()
    # Not exactly nothing, also in the model's own precision: Flower's clipping divides by it.
    length = np.linalg.norm(sent_back - base)
    assert 0 < length <= 2 * np.spacing(np.asarray(abs(value) + 1, dtype))
    assert sent_back.dtype == dtype
    assert wire.weight(reply.content) == 12


def opened(value: float, sent: float = 1.0, **more: Any) -> tuple[Answer, np.ndarray]:
    """Return what a seat says and sends that is not told what its app replies with."""

    def reply_with(question: Message, ctx: Context) -> Message:
        return wire.replace_arrays(train(question, ctx), model(value))

    order = Order(with_own_key(CANARY), left_out=(1,), sends=None).to_record()
    question = message(sent=model(sent), **{wire.CANARY: order}, **more)
    reply = canary_mod(question, context(), reply_with)
    answer = take_answer(reply)
    assert answer is not None
    return answer, Layout.of(model(1.0)).flatten(wire.arrays(reply.content))


@pytest.mark.parametrize(
    ("value", "sends", "base"), [(1.2, "models", 1.0), (0.1, "differences", 0.0)]
)
def test_a_seat_that_is_not_told_finds_out_what_its_app_replies_with(
    value: float, sends: Any, base: float
) -> None:
    answer, sent_back = opened(value)
    assert (answer.outcome, answer.sends) == ("played", sends)
    length = abs(value - base) * np.sqrt(DIM)
    expected = base + length * canary_vector(11, 4, DIM)
    np.testing.assert_allclose(sent_back, expected, atol=1e-6)


@pytest.mark.parametrize("value", [0.5, 1.0, 3.0, -4.0])
def test_a_seat_that_cannot_tell_stays_honest_and_says_so(value: float) -> None:
    answer, sent_back = opened(value)
    assert (answer.outcome, answer.sends) == ("undecided", None)
    np.testing.assert_array_equal(sent_back, np.full(DIM, value))


def test_from_a_model_of_zeros_it_does_not_matter_what_is_sent() -> None:
    answer, sent_back = opened(2.0, sent=0.0)
    assert (answer.outcome, answer.sends) == ("played", None)
    expected = 2.0 * np.sqrt(DIM) * canary_vector(11, 4, DIM)
    np.testing.assert_allclose(sent_back, expected, atol=1e-6)


@pytest.mark.parametrize("key", [wire.MASK, wire.NOISE, wire.FILLED])
def test_under_our_masks_and_noise_the_answer_is_the_same_whatever_was_trained(key: str) -> None:
    told = {opened(value, **{key: ConfigRecord()})[0] for value in (1.2, 0.1, 0.5, 3.0, np.nan)}
    assert told == {Answer("played")}


def test_under_a_foreign_mod_that_hides_replies_the_answer_is_the_same_too() -> None:
    class LocalDpMod:
        """Has the name of Flower's, which takes replies for models."""

        def __call__(self, question: Message, ctx: Context, call_next: Any) -> Message:
            reply: Message = call_next(question, ctx)
            return reply

    order = Order(with_own_key(CANARY), left_out=(1,), sends=None).to_record()
    told = set()
    for value in (1.2, 0.1, 0.5):
        app = ClientApp(mods=[LocalDpMod(), canary_mod])

        @app.train()
        def trained(question: Message, ctx: Context, value: float = value) -> Message:
            return wire.replace_arrays(train(question, ctx), model(value))

        told.add(take_answer(app(message(**{wire.CANARY: order}), context())))
    assert told == {Answer("played", ("LocalDpMod",))}


def test_a_reply_with_other_names_keeps_them() -> None:
    def renamed(question: Message, ctx: Context) -> Message:
        reply = train(question, ctx)
        arrays = wire.arrays(reply.content)
        return wire.replace_arrays(
            reply, ArrayRecord(dict(zip("xyz", arrays.values(), strict=True)))
        )

    question = message(CANARY)
    replied = wire.arrays(canary_mod(question, context(), renamed).content)
    assert list(replied) == ["x", "y", "z"]
    layout = Layout.of(model(1.0))
    direction = layout.flatten(replied) - layout.flatten(model(1.0))
    cosine = direction @ canary_vector(11, 4, DIM) / np.linalg.norm(direction)
    assert cosine == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("canary", [CANARY, Canary(id=4, seed=11, included=False)])
def test_what_cannot_be_replaced_is_sent_as_trained(canary: Canary) -> None:
    def masked(question: Message, _: Context) -> Message:
        upload = ArrayRecord({"upload": Array(np.arange(9, dtype=np.uint32))})
        return Message(RecordDict({"arrays": upload}), reply_to=question)

    def diverged(question: Message, ctx: Context) -> Message:
        return wire.replace_arrays(train(question, ctx), model(np.nan))

    for app, outcome in ((masked, "other-arrays"), (diverged, "played")):
        question = message(canary)
        reply, alone = canary_mod(question, context(), app), app(question, context())
        answer = take_answer(reply)
        assert answer is not None
        assert answer.outcome == outcome
        assert {k: a.data for k, a in wire.arrays(reply.content).items()} == {
            k: a.data for k, a in wire.arrays(alone.content).items()
        }


def test_the_app_does_not_see_the_order_and_the_message_can_be_sent_again() -> None:
    seen: list[list[str]] = []

    def look(question: Message, ctx: Context) -> Message:
        seen.append(list(question.content))
        return train(question, ctx)

    question = message(CANARY)
    for _ in range(2):
        assert take_answer(canary_mod(question, context(), look)) == Answer("played")
    assert seen == [["arrays", "config"]] * 2


def test_the_mod_names_those_before_and_behind_it() -> None:
    class Outer:
        def __call__(self, question: Message, ctx: Context, call_next: Any) -> Message:
            return call_next(question, ctx)

    def inner_mod(question: Message, ctx: Context, call_next: Any) -> Message:
        return call_next(question, ctx)

    outer = Outer()
    for mods, before, behind in (
        ([canary_mod], (), ()),
        ([outer, canary_mod], ("Outer",), ()),
        ([canary_mod, inner_mod], (), ("inner_mod",)),
        (
            [inner_mod, outer, canary_mod, outer, partial(inner_mod)],
            ("inner_mod", "Outer"),
            ("Outer", "inner_mod"),
        ),
    ):
        app = ClientApp(mods=mods)
        app.train()(train)
        answer = take_answer(app(message(CANARY), context()))
        assert answer == Answer("played", outer=before, inner=behind)


def test_after_a_replay_the_state_is_as_before() -> None:
    node = context()
    node.state["count"] = MetricRecord({"rounds": 1, "losses": [0.5]})
    node.state["head"] = model(1.0)

    def remember(question: Message, ctx: Context) -> Message:
        ctx.state["count"]["rounds"] += 1
        ctx.state["count"]["losses"].append(0.25)
        ctx.state["head"] = model(2.0)
        ctx.state["new"] = ConfigRecord({"x": 1})
        return train(question, ctx)

    replay = message(**{wire.REPLAY: wire.replay_record(7)})
    reply = canary_mod(replay, node, remember)
    assert take_answer(reply) == Answer("greeted")  # so the server knows that it is there
    assert dict(node.state["count"]) == {"rounds": 1, "losses": [0.5]}
    assert node.state["head"]["b"].numpy()[0] == 1.0
    assert list(node.state) == ["count", "head"]
    canary_mod(message(CANARY), node, remember)  # a round of the run itself does count
    assert node.state["count"]["rounds"] == 2


@pytest.mark.parametrize(
    ("own", "clip", "length"),
    [(None, None, 0.5 * np.sqrt(DIM)), (None, 3.0, 3.0), (2.0, 3.0, 2.0), (0.0, 3.0, 0.0)],
)
def test_the_length_is_the_orders_else_the_clip_norm_else_the_trained_one(
    own: float | None, clip: float | None, length: float
) -> None:
    noise = {} if clip is None else {wire.NOISE: ConfigRecord({"clip-norm": clip})}
    question = message(Canary(id=4, seed=11, norm=own), **noise)
    reply = canary_mod(question, context(), train)
    assert np.linalg.norm(update(question, reply)) == pytest.approx(length, abs=1e-6)


def test_a_counter_that_became_a_float_is_still_left_alone() -> None:
    # FedAvg turns integer arrays into floats after round 1; counting it in would shift the canary.
    later = message(CANARY, sent=model(1.0, np.float64(3.0)))
    reply = canary_mod(later, context(), train)
    assert wire.arrays(reply.content)["n"].numpy() == 1  # as trained
    direction = update(later, reply)
    cosine = direction @ canary_vector(11, 4, DIM) / np.linalg.norm(direction)
    assert cosine == pytest.approx(1.0, abs=1e-6)


def test_a_seat_that_fails_to_train_hands_its_error_on() -> None:
    assert canary_mod(message(CANARY), context(), fail).has_error()


def tapped(action: str, server_round: int) -> Message:
    if action == "collect":
        order = wire.collect_record(server_round, wire.WEIGHT)
        return Message(RecordDict({wire.TAP: order}), dst_node_id=1, message_type="train")
    return message(**{wire.TAP: wire.keep_record(server_round)})


def test_a_client_that_nobody_wants_hands_out_its_weight_and_forgets_the_rest() -> None:
    node = context(**{"partition-id": 0})
    tap_mod(tapped("keep", 3), node, train)
    order = wire.collect_record(3, wire.WEIGHT, arrays=False)
    question = Message(RecordDict({wire.TAP: order}), dst_node_id=1, message_type="train")
    reply = tap_mod(question, node, fail)
    assert list(reply.content) == [wire.TAP]
    assert dict(reply.content[wire.TAP]) == {"round": 3, "weight": 12.0}
    assert not node.state


@pytest.mark.parametrize(
    "steps",
    [
        ["keep 3", "collect 3", "refuse 3, kept: None"],
        ["keep 3", "refuse 4, kept: .*3", "collect 3"],
        ["keep 3", "keep 4", "refuse 3, kept: .*4", "collect 4"],
        ["fail 3", "refuse 3, kept: None"],
        ["train", "refuse 3, kept: None"],
    ],
    ids="; ".join,
)
def test_the_update_of_the_last_round_is_kept_and_collected_once(steps: list[str]) -> None:
    node = context(**{"partition-id": 0})
    for step in steps:
        action, _, number = step.partition(" ")
        if action == "train":
            tap_mod(message(), node, train)
        elif action == "refuse":
            with pytest.raises(ValueError, match=f"nothing is kept for round {number}"):
                tap_mod(tapped("collect", int(number[0])), node, fail)
        elif action == "collect":
            collected = tap_mod(tapped("collect", int(number)), node, fail)
            assert np.array_equal(update(message(), collected), np.full(DIM, 0.5))
            assert not node.state
        else:
            app = train if action == "keep" else fail
            reply, plain = tap_mod(tapped("keep", int(number)), node, app), app(message(), node)
            assert reply.has_error() == plain.has_error()
            if reply.has_content():  # the copy does not ride on the reply, nor change with it
                assert list(reply.content) == list(plain.content)
                wire.arrays(reply.content).clear()


@pytest.mark.parametrize("action", ["keep", "collect"])
def test_a_supernode_keeps_and_gives_nothing_whatever_its_configuration_says(
    action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = context(**{"partition-id": 0, "num-partitions": 5})  # as Flower's guides start them
    tap_mod(tapped("keep", 3), node, train)
    monkeypatch.setitem(sys.modules, "flwr.supernode.cli", ModuleType("flwr.supernode.cli"))
    with pytest.raises(ValueError, match="simulated nodes only: this one is a SuperNode"):
        tap_mod(tapped(action, 3), node, train)


@pytest.mark.parametrize("action", ["keep", "collect"])
def test_a_deployed_node_refuses_to_be_tapped_before_it_trains(action: str) -> None:
    calls: list[str] = []

    def count(message: Message, context: Context) -> Message:
        calls.append("trained")
        return train(message, context)

    with pytest.raises(ValueError, match="simulated nodes only: node_config lacks 'partition-id'"):
        tap_mod(tapped(action, 3), context(), count)
    assert not calls


def test_the_tap_before_the_canary_keeps_what_the_seat_sends() -> None:
    node = context(**{"partition-id": 0})
    question = message(CANARY, **{wire.TAP: wire.keep_record(3)})

    def canary_then_train(message: Message, context: Context) -> Message:
        return canary_mod(message, context, train)

    reply = tap_mod(question, node, canary_then_train)
    collected = tap_mod(tapped("collect", 3), node, fail)
    assert np.array_equal(update(question, collected), update(question, reply))
    assert not np.array_equal(update(question, collected), np.full(DIM, 0.5))
