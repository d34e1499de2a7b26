"""The mod lets filled updates out and nothing else, and noise_mod leaves them alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from leakmeter.auditors.hook import wire
from leakmeter.clients import NoiseMod
from leakmeter.clients.protection.noise_mod import PROMISES, _compare, fill_mod, filled_record
from leakmeter.clients.protection.record_rule import GaussianSampling, Isotropic, WaterFilling
from tests.helpers.refusals import refuses

pytestmark = pytest.mark.usefixtures("flower_task")

RULE = GaussianSampling(0.1, 2.0, 4, noise=WaterFilling(0.5))


def order(**values: Any) -> ConfigRecord:
    given = {k.replace("_", "-"): v for k, v in values.items()}
    return ConfigRecord({**filled_record(RULE, 20), "weight-key": "num-examples", **given})


def message(asked: ConfigRecord | None = None, kind: str = "train") -> Message:
    content = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(3))})})
    if asked is not None:
        content[wire.FILLED] = asked
    return Message(content, dst_node_id=1, message_type=kind)


def context() -> Context:
    return Context(1, 1, {"partition-id": 0}, RecordDict(), {})


def app(asked: Message, _: Context, *, is_marked: bool = True) -> Message:
    """Answer like an app with twenty examples."""
    metrics = MetricRecord({"num-examples": 20, "train-loss": 0.7})
    content = RecordDict({"arrays": asked.content["arrays"], "metrics": metrics})
    if is_marked:
        content[wire.FILLED] = filled_record(RULE, 20)
    content["extra"] = ConfigRecord({"secret": 1})
    return Message(content, reply_to=asked)


def test_a_filled_update_weighs_one_and_takes_no_metrics_along() -> None:
    reply = fill_mod(message(order()), context(), app)
    assert set(reply.content) == {"arrays", "metrics", wire.FILLED}
    assert dict(reply.content["metrics"]) == {"num-examples": 1}
    assert reply.content[wire.FILLED]["examples"] == order()["examples"]  # not the client's own


def fails(*_: object) -> Message:
    raise ZeroDivisionError("no records")


def moved(reply: Message) -> np.ndarray[Any, Any]:
    """Return what a reply adds to the model."""
    return np.concatenate(
        [
            (reply.content["arrays"][name].numpy() - array.numpy()).ravel()
            for name, array in message().content["arrays"].items()
        ]
    )


def is_noise_alone(reply: Message) -> bool:
    """Whether a reply has the form of any other, and its update is noise of the floor's size."""
    assert set(reply.content) == {"arrays", "metrics", wire.FILLED}
    assert dict(reply.content["metrics"]) == {"num-examples": 1}
    return bool(np.all(moved(reply)))


def test_noise_in_place_of_an_update_has_the_variance_of_the_floor() -> None:
    asked = order(lr=0.5, sigma2=4.0, steps=1)
    many = [moved(fill_mod(message(asked), context(), fails)) for _ in range(400)]
    for training in (fails, lambda m, c: app(m, c, is_marked=False)):
        assert is_noise_alone(fill_mod(message(order()), context(), training))
    draws = np.concatenate(many)
    # lr² σ² = 1; relative standard error √(2/n); 5 of them are exceeded with chance below 1e-6.
    assert abs(draws.var() - 1) < 5 * np.sqrt(2 / draws.size)
    assert not abs(draws.var() - 0.5) < 5 * np.sqrt(2 / draws.size)


def test_owners_say_how_many_examples_orders_may_count_on() -> None:
    mod = NoiseMod(unit="record", examples=20)
    mod(message(order(examples=20)), context(), app)
    with pytest.raises(ValueError, match="examples must be at most what this client's owner") as e:
        mod(message(order(examples=21)), context(), fails)
    assert not set("0123456789") & set(str(e.value))


@pytest.mark.parametrize(
    ("promise", "kept", "broken"),
    [
        ("sigma2", 0.4, 0.6),
        ("batch_size", 3, 5),
        ("examples", 19, 21),
        ("clip_norm", 2.5, 1.5),
        ("lr", 0.1, 0.2),
        ("steps", 1, 2),
    ],
)
def test_a_client_is_never_counted_on_for_more_than_it_does(
    promise: str, kept: float, broken: float
) -> None:
    assert not moved(fill_mod(message(order(**{promise: kept})), context(), app)).any()
    assert is_noise_alone(fill_mod(message(order(**{promise: broken})), context(), app))
    assert set(PROMISES) == {"sigma2", "batch-size", "examples", "clip-norm", "lr", "steps"}


def test_an_order_is_required_unless_the_owner_says_otherwise() -> None:
    with pytest.raises(ValueError, match=wire.FILLED):
        fill_mod(message(), context(), app)
    assert "extra" in NoiseMod(required=False, unit="record")(message(), context(), app).content
    assert "extra" in fill_mod(message(kind="evaluate"), context(), app).content
    incomplete = ConfigRecord({"sigma2": 0.5})
    with pytest.raises(ValueError, match="weight-key"):
        fill_mod(message(incomplete), context(), app)


def test_noise_mod_sends_no_update_that_is_already_filled() -> None:
    asked = message()
    about = {"round": 1, "clip-norm": 1.0, "share-std": 0.1, "weight-key": "num-examples"}
    asked.content[wire.NOISE] = ConfigRecord(about)
    NoiseMod()(asked, context(), lambda m, c: app(m, c, is_marked=False))
    filled = NoiseMod(allow_tap=True)(asked, context(), app)
    assert wire.FILLED in str(wire.blank_reason(filled))


@pytest.mark.parametrize(
    ("rule", "mechanism"),
    [
        (GaussianSampling(0.1, 2.0, 4, noise=Isotropic(0.5)), "isotropic"),
        (GaussianSampling(0.1, 2.0, 0, "full", Isotropic(0.5)), "full"),
        (GaussianSampling(0.1, 2.0, 4, "minibatch", Isotropic(0.5)), "minibatch"),
        (GaussianSampling(0.1, 2.0, 4, noise=WaterFilling(0.5)), "water-filling"),
    ],
)
def test_a_client_is_not_counted_on_for_another_mechanism(
    rule: GaussianSampling, mechanism: str
) -> None:
    done = filled_record(rule, 20)
    assert done["mechanism"] == rule.mechanism == mechanism
    _compare(done, done)
    other = ConfigRecord({**done, "mechanism": "full" if mechanism != "full" else "isotropic"})
    with refuses("mechanism"):
        _compare(other, done)
    if mechanism == "minibatch":  # of exactly the size that is counted on
        for size in (3, 5):
            with refuses("batch-size"):
                _compare(ConfigRecord({**done, "batch-size": size}), done)
    with refuses("noise"):
        filled_record(GaussianSampling(0.1, 2.0, 4), 20)
