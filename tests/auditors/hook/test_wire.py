"""What travels in messages comes out as it went in, and only where it was put."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from leakmeter.auditors.hook import wire

pytestmark = pytest.mark.usefixtures("flower_task")


def record(*values: float) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.array(values))})


def test_a_message_names_the_arrays_that_are_no_part_of_the_update() -> None:
    content = RecordDict({"arrays": record(1.0)})
    message = Message(content, dst_node_id=1, message_type="train")
    wire.add_left_out(message, ["bn.count", "n"])
    assert wire.left_out(message.content) == ["bn.count", "n"]
    assert wire.left_out(content) == []  # the shared dictionary is not spoiled


def test_the_clip_norm_is_read_from_the_noise_order() -> None:
    for norm in (2, 2.0):
        content = RecordDict({wire.NOISE: ConfigRecord({"clip-norm": norm})})
        assert wire.clip_norm(content) == 2.0
    assert wire.clip_norm(RecordDict({wire.NOISE: ConfigRecord({"std": 1.0})})) is None


def test_the_keys_on_the_wire_are_distinct_and_stay_as_they_are() -> None:
    keys = {name: value for name, value in vars(wire).items() if name.isupper()}
    assert len(set(keys.values())) == len(keys)
    assert (wire.SUM_ORDER, wire.SUM_OUTCOME) == ("leakmeter.mask.sum", "leakmeter.sum")
    assert (wire.IDENTITY, wire.IDENTITY_QUERY) == ("leakmeter.identity", "query.identity")
    assert (wire.CLIP_BIT, wire.WEIGHT) == ("below-clip", "num-examples")


@pytest.mark.parametrize(
    ("read", "good", "wrong", "words"),
    [
        (wire.get_int, 7, (7.0, "7", True, [7]), "a whole number"),
        (wire.get_float, 0.5, ("0.5", True, [0.5]), "a number"),
        (wire.get_text, "x", (7, b"x", ["x"]), "a text"),
        (wire.get_bytes, b"x", ("x", 7, [b"x"]), "bytes"),
    ],
)
def test_a_value_of_another_type_is_named(read: Any, good: Any, wrong: Any, words: str) -> None:
    assert read(ConfigRecord({"size": good}), "size") == good
    with pytest.raises(wire.WireError, match=f"size must be {words}, got nothing"):
        read(ConfigRecord(), "size")
    for value in wrong:
        with pytest.raises(wire.WireError, match=f"size must be {words}, got (1 entries|[a-z]+)$"):
            read(ConfigRecord({"size": value}), "size")


def test_a_number_without_a_fraction_is_read_as_a_float() -> None:
    number = wire.get_float(ConfigRecord({"size": 2}), "size")
    assert (number, type(number)) == (2.0, float)


def test_values_in_orders_are_named_where_they_have_another_type() -> None:
    cases: list[tuple[Any, str, Any, str]] = [
        (wire.clip_norm, wire.NOISE, ConfigRecord({"clip-norm": "2"}), "clip-norm"),
        (wire.share_std, wire.NOISE, ConfigRecord({"share-std": "2"}), "share-std"),
        (wire.replay_number, wire.REPLAY, MetricRecord({"number": 0.5}), "number"),
        (wire.sum_outcome, wire.SUM_OUTCOME, ConfigRecord({"step": 0.5}), "saturated"),
        (wire.server_round, wire.CONFIG, ConfigRecord({"server-round": "3"}), "server-round"),
    ]
    for read, key, order, name in cases:
        with pytest.raises(wire.WireError, match=f"^{name} must be a"):
            read(RecordDict({key: order}))


def test_the_round_is_read_from_flowers_own_record() -> None:
    assert wire.server_round(RecordDict({"config": ConfigRecord({"server-round": 3})})) == 3
    with pytest.raises(wire.WireError, match="must have a ConfigRecord 'config', got"):
        wire.server_round(RecordDict({"arrays": record(1.0)}))


def test_what_a_secure_sum_notes_comes_out_as_it_went_in() -> None:
    outcome = wire.SumOutcome(step=2.0**-9, saturated=3, colluders=2)
    assert wire.sum_outcome(RecordDict({wire.SUM_OUTCOME: outcome.to_record()})) == outcome
    assert wire.sum_outcome(RecordDict()) is None


def test_the_one_array_record_is_found_under_any_name() -> None:
    model = record(1.0)
    assert wire.arrays(RecordDict({"m": MetricRecord(), "model": model})) is model


@pytest.mark.parametrize("count", [0, 2])
def test_none_or_several_array_records_are_refused(count: int) -> None:
    content = RecordDict({f"a{i}": record(1.0) for i in range(count)})
    with pytest.raises(ValueError, match=f"exactly one ArrayRecord, got {count}"):
        wire.arrays(content)


def test_the_weight_is_read_under_its_key_and_is_one_if_nobody_states_it() -> None:
    content = RecordDict({"metrics": MetricRecord({"num-examples": 7, "share": 0.5})})
    assert wire.weight(content) == 7.0
    assert wire.weight(content, "share") == 0.5
    assert wire.weight(content, "absent") == 1.0
    assert wire.weight(RecordDict({"config": ConfigRecord({"num-examples": 7})})) == 1.0


def test_other_arrays_leave_the_rest_of_a_reply_as_it_was() -> None:
    metrics = MetricRecord({"num-examples": 7})
    before = RecordDict({"model": record(1.0), "metrics": metrics})
    question = Message(RecordDict(), dst_node_id=1, message_type="train")
    reply = wire.replace_arrays(Message(before, reply_to=question), record(2.0))
    assert list(reply.content) == ["model", "metrics"]
    assert reply.content["metrics"] is metrics
    assert wire.arrays(reply.content)["w"].numpy() == [2.0]
    assert wire.arrays(before)["w"].numpy() == [1.0]


def test_an_integer_beyond_floats_is_infinite_and_ends_no_run() -> None:
    record = {"low": -(10**400), "high": 10**400}
    assert wire.get_float(record, "high") == math.inf  # type: ignore[arg-type]
    assert wire.get_float(record, "low") == -math.inf  # type: ignore[arg-type]
