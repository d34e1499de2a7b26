"""What travels in messages comes out as it went in, and only where it was put."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from leakmeter.auditors.auditor import Canary
from leakmeter.auditors.hook import wire

pytestmark = pytest.mark.usefixtures("flower_task")


def record(*values: float) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.array(values))})


@given(
    st.builds(
        Canary,
        id=st.integers(0, 2**31),
        seed=st.integers(0, 2**63 - 1),
        included=st.booleans(),
        norm=st.none() | st.floats(0, 1e6),
    )
)
def test_a_canary_survives_the_wire(canary: Canary) -> None:
    content = RecordDict({wire.CANARY: wire.canary_record(canary)})
    assert wire.canary(content) == canary
    assert wire.left_out(content) == []


def test_a_message_names_the_arrays_that_are_no_part_of_the_update() -> None:
    content = RecordDict({"arrays": record(1.0)})
    message = Message(content, dst_node_id=1, message_type="train")
    wire.add_left_out(message, ["bn.count", "n"])
    assert wire.left_out(message.content) == ["bn.count", "n"]
    assert wire.left_out(content) == []  # the shared dictionary is not spoiled


def test_a_message_without_orders_has_none() -> None:
    content = RecordDict({"arrays": record(1.0)})
    assert wire.canary(content) is None
    assert wire.left_out(content) == []
    assert wire.clip_norm(content) is None
    assert wire.config(content, "arrays") is None  # another kind of record


def test_the_clip_norm_is_read_from_the_noise_order() -> None:
    for norm in (2, 2.0):
        content = RecordDict({wire.NOISE: ConfigRecord({"clip-norm": norm})})
        assert wire.clip_norm(content) == 2.0
    assert wire.clip_norm(RecordDict({wire.NOISE: ConfigRecord({"std": 1.0})})) is None


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


def test_a_record_for_one_node_does_not_reach_the_others() -> None:
    shared = RecordDict({"arrays": record(1.0)})  # as Flower's strategies build their messages
    first, second = (Message(shared, dst_node_id=n, message_type="train") for n in (1, 2))
    wire.add_record(first, "order", ConfigRecord({"x": 1}))
    assert "order" in first.content
    assert "order" not in second.content
    assert "order" not in shared
    assert first.content["arrays"] is shared["arrays"]  # the model itself is not copied


def test_other_arrays_leave_the_rest_of_a_reply_as_it_was() -> None:
    metrics = MetricRecord({"num-examples": 7})
    before = RecordDict({"model": record(1.0), "metrics": metrics})
    question = Message(RecordDict(), dst_node_id=1, message_type="train")
    reply = wire.replace_arrays(Message(before, reply_to=question), record(2.0))
    assert list(reply.content) == ["model", "metrics"]
    assert reply.content["metrics"] is metrics
    assert wire.arrays(reply.content)["w"].numpy() == [2.0]
    assert wire.arrays(before)["w"].numpy() == [1.0]
