"""The mod clips and noises as ordered, within its owner's limits, or not at all."""

from __future__ import annotations

import math
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

from leakmeter.auditors.hook import wire
from leakmeter.clients import NoiseMod, noise_mod
from tests.helpers.refusals import refuses

pytestmark = pytest.mark.usefixtures("flower_task")

START = np.linspace(-50, 50, 400, dtype=np.float32)


def order(**values: Any) -> ConfigRecord:
    asked = {"round": 3, "clip-norm": 1.0, "share-std": 0.0, "weight-key": "num-examples"}
    return ConfigRecord({**asked, **{k.replace("_", "-"): v for k, v in values.items()}})


def message(noise: ConfigRecord | None = None, kind: str = "train", model: bool = True) -> Message:
    content = RecordDict({"arrays": ArrayRecord({"w": Array(START)})} if model else {})
    if noise is not None:
        content[wire.NOISE] = noise
    return Message(content, dst_node_id=1, message_type=kind)


def context(client: int = 0) -> Context:
    return Context(1, 1, {"partition-id": client}, RecordDict(), {})


class Training:
    """A client that adds `update` to the model."""

    def __init__(self, update: np.ndarray) -> None:
        self.update, self.calls = update, 0

    def __call__(self, asked: Message, _: Context) -> Message:
        self.calls += 1
        arrays = ArrayRecord({"w": Array((START + self.update).astype(np.float32))})
        metrics = MetricRecord({"num-examples": 30, "train-loss": 0.7})
        extra = ConfigRecord({"secret": 1})
        content = RecordDict({"arrays": arrays, "metrics": metrics, "extra": extra})
        return Message(content, reply_to=asked)


def sent(reply: Message) -> np.ndarray:
    return wire.arrays(reply.content)["w"].numpy().astype(np.float64) - START


@pytest.mark.parametrize(("size", "is_below"), [(0.5, False), (0.015625, True), (0.0, True)])
def test_the_update_is_clipped_weighs_one_and_says_so(size: float, is_below: bool) -> None:
    reply = noise_mod(message(order()), context(), Training(np.full(400, size)))
    if is_below:
        assert sent(reply).tolist() == [size] * 400
    else:
        assert np.linalg.norm(sent(reply)) == pytest.approx(1.0, abs=1e-4)
    said = {"num-examples": 1, "train-loss": 0.7, wire.CLIP_BIT: float(is_below)}
    assert dict(reply.content["metrics"]) == said
    assert set(reply.content) == {"arrays", "metrics", wire.NOISE}  # nothing else slips through


def test_rounding_to_the_models_precision_never_leaves_the_norm() -> None:
    rng = np.random.default_rng(0)
    for size in (1e-4, 1.0, 30.0):
        asked = message(order(clip_norm=size))
        reply = noise_mod(asked, context(), Training(rng.standard_normal(400) * 40))
        assert 0 < np.linalg.norm(sent(reply)) <= size
    asked = message(order(clip_norm=1e-12))  # below the model's precision
    reply = noise_mod(asked, context(), Training(np.full(400, 9.0)))
    assert np.linalg.norm(sent(reply)) <= 1e-12


def test_noise_comes_after_clipping_and_takes_all_metrics_away() -> None:
    # 400 coordinates: the norm of the noise is within 4 standard errors of std·√400.
    asked = message(order(share_std=2.0))
    reply = NoiseMod(seed=1)(asked, context(), Training(np.full(400, 9.0)))
    scale = np.linalg.norm(sent(reply) - 1 / 20) / 20
    assert scale == pytest.approx(2.0, abs=4 * 2 / math.sqrt(800))
    assert dict(reply.content["metrics"]) == {"num-examples": 1}


def test_seeded_noise_repeats_and_differs_between_clients_rounds_and_seeds() -> None:
    def drawn(seed: int | None, client: int, server_round: int) -> np.ndarray:
        asked = message(order(share_std=1.0, round=server_round))
        return sent(NoiseMod(seed=seed)(asked, context(client), Training(np.zeros(400))))

    first = drawn(1, 0, 3)
    assert np.array_equal(first, drawn(1, 0, 3))
    for others in ((2, 0, 3), (1, 1, 3), (1, 0, 4)):
        assert not np.array_equal(first, drawn(*others))
    assert not np.array_equal(drawn(None, 0, 3), drawn(None, 0, 3))
    asked = order(share_std=1.0, seed=5)  # a seed in the message is not obeyed
    again = [sent(noise_mod(message(asked), context(), Training(np.zeros(400)))) for _ in "ab"]
    assert not np.array_equal(*again)


def test_without_an_order_it_fails_closed_before_training_unless_its_owner_says_otherwise() -> None:
    training = Training(np.full(400, 9.0))
    tap = RecordDict({wire.TAP: ConfigRecord({"action": "collect", "round": 1})})
    collects = Message(tap, dst_node_id=1, message_type="train")
    for asked in (message(), message(model=False), collects):
        with pytest.raises(ValueError, match=r"must carry 'leakmeter\.noise': this client clips"):
            noise_mod(asked, context(), training)
    assert training.calls == 0
    for mod, asked in (
        (NoiseMod(required=False), message()),
        (NoiseMod(allow_tap=True), collects),
        (noise_mod, message(kind="evaluate")),
    ):
        assert sent(mod(asked, context(), training))[0] == pytest.approx(9)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"clip_norm": 0.0}, "clip-norm must be in"),
        ({"clip_norm": 2.5}, r"clip-norm must be in \(0, 2\], got 2.5"),
        ({"clip_norm": math.nan}, "clip-norm must be in"),
        ({"clip_norm": math.inf}, "clip-norm must be in"),
        ({"share_std": 0.4}, "share-std must be at least 0.5 and finite, got 0.4"),
        ({"share_std": math.nan}, "share-std must be at least"),
        ({"share_std": math.inf}, "share-std must be at least"),
        ({"share_std": -1.0}, "share-std must be at least"),
    ],
)
def test_the_owners_limits_come_before_training(values: dict[str, float], reason: str) -> None:
    training = Training(np.zeros(400))
    mod = NoiseMod(max_clip_norm=2.0, min_noise_std=0.5)
    with pytest.raises(ValueError, match=reason):
        mod(message(order(**{"share_std": 1.0, **values})), context(), training)
    assert training.calls == 0
    mod(message(order(share_std=0.5)), context(), training)
    mod(message(order(clip_norm=2.0, share_std=1.0)), context(), training)
    for limits in ({"max_clip_norm": 0.0}, {"min_noise_std": -1.0}):
        with refuses(*limits):
            NoiseMod(**limits)
    incomplete = order()
    del incomplete["share-std"]
    for asked, reason in ((incomplete, "must say share-std"), (order(clip_norm=math.inf), "in")):
        with pytest.raises(ValueError, match=reason):
            noise_mod(message(asked), context(), training)


def fails(*_: object) -> Message:
    raise ZeroDivisionError("no records")


def refusing(asked: Message, _: Context) -> Message:
    return Message(Error(7, "3 records of class 2"), reply_to=asked)


@pytest.mark.parametrize("std", [0.0, 0.5])
@pytest.mark.parametrize(
    "training",
    [*(Training(np.full(400, wrong)) for wrong in (math.nan, math.inf)), fails, refusing],
)
def test_a_client_whose_training_fails_answers_in_the_form_of_any_other(
    training: Any, std: float
) -> None:
    mod = NoiseMod(seed=3)
    honest = mod(message(order(share_std=std)), context(), Training(np.zeros(400)))
    failed = mod(message(order(share_std=std)), context(), training)
    assert list(failed.content) == list(honest.content)
    assert wire.BLANK not in failed.content
    np.testing.assert_array_equal(sent(failed), sent(honest))  # the same noise on nothing
    names = {"num-examples"} if std else {"num-examples", wire.CLIP_BIT}
    assert {n: failed.content["metrics"][n] for n in names} == dict.fromkeys(names, 1)


def test_a_failed_training_leaves_no_trace_in_the_apps_state() -> None:
    def writes(_: Message, of: Context) -> Message:
        of.state["mine"] = ConfigRecord({"loss": 0.5})
        raise ZeroDivisionError

    own = context()
    noise_mod(message(order()), own, writes)
    assert not own.state


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e18])
def test_a_model_that_would_swallow_noise_is_refused_before_training(value: float) -> None:
    asked, training = message(order(share_std=0.5)), Training(np.zeros(400))
    asked.content["arrays"] = ArrayRecord({"w": Array(np.full(400, value))})
    with pytest.raises(ValueError, match=r"model must be finite|for this model"):
        noise_mod(asked, context(), training)
    assert not training.calls
