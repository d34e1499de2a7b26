"""What the hook asks of canary_mod and what the mod answers, as they travel."""

from __future__ import annotations

import contextlib
import math
import sys
from typing import Any, get_args

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from hypothesis import given
from hypothesis import strategies as st

from leakmeter.auditors.auditor import Canary
from leakmeter.auditors.canary_draws import KINDS, canary_key, canary_vector
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.canary_order import (
    FIELDS,
    Answer,
    Order,
    Outcome,
    Sends,
    Size,
    canaries,
    take_answer,
    with_own_key,
)
from leakmeter.auditors.hook.mods import ModList, canary_mod, tap_mod, with_answer

pytestmark = pytest.mark.usefixtures("flower_task")


def ordered(content: RecordDict) -> Canary | None:
    order = Order.of(content)
    return None if order is None else order.canary


def travelled(content: RecordDict) -> RecordDict:
    """Serialise, as between processes: a whole number beyond 64 bits would not pass."""
    return recorddict_from_proto(recorddict_to_proto(content))


@given(
    st.builds(
        Canary,
        id=st.integers(0, 2**31),
        seed=st.integers(0, 2**128 - 1),
        included=st.booleans(),
        norm=st.none() | st.floats(0, 1e6),
    )
)
def test_a_canary_survives_the_wire(canary: Canary) -> None:
    content = RecordDict({wire.CANARY: Order(canary).to_record()})
    assert ordered(travelled(content)) == canary


SEED = [1, 2, 3, 4]  # as words of 32 bits, lowest first


def test_a_seed_travels_with_all_its_128_bits() -> None:
    content = RecordDict({wire.CANARY: MetricRecord({"id": 7, "seed": SEED, "included": 1})})
    order = ordered(content)
    assert order is not None
    assert order.seed == 1 + 2 * 2**32 + 3 * 2**64 + 4 * 2**96


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"seed": 12345}, r"seed must be a list of 4 whole numbers in \[0, 2\^32\), got int"),
        ({"seed": [1, 2, 3]}, "seed must be .*, got 3 entries"),
        ({"seed": [1, 2, 3, 4, 5]}, "seed must be .*, got 5 entries"),
        ({"seed": [1.0, 2.0, 3.0, 4.0]}, "seed must be"),
        ({"seed": [1, 2, 3, 2**32]}, "seed must be"),
        ({"seed": [-1, 2, 3, 4]}, "seed must be"),
        ({"id": -1}, "canary order: id must be at least 0, got -1"),
        ({"included": 2}, "included must be 0 or 1, got 2"),
        ({"difference": 2}, "difference must be 0 or 1, got 2"),
        ({"open": 2}, "open must be 0 or 1, got 2"),
        ({"left-out": [-1]}, "left-out must be a list of places, got 1 entries"),
        ({"left-out": 3}, "left-out must be a list of places, got int"),
        ({"id": 0.5}, "id must be a whole number"),
        ({"kind": 2}, "kind must be a number from 0 to 1, got 2: use the server's release"),
        ({"kind": -1}, "kind must be a number from 0 to 1, got -1"),
        ({"kind": 1.0}, "kind must be a whole number"),
        ({"norm": -1.0}, "canary order: norm must be in"),
        ({"norm": math.nan}, "canary order: norm must be in"),
        ({"norm": math.inf}, "canary order: norm must be in"),
        ({"times": 0.5}, r"canary order: times must be in \[1, inf\), got 0.5"),
        ({"times": math.inf}, "canary order: times must be in"),
        ({"times": [1.0]}, "times must be a number, got 1 entries"),
        ({"least-norm": -1}, r"canary order: least_norm must be in \[0, inf\), got -1"),
    ],
)
def test_an_order_for_no_possible_canary_is_refused(changed: dict[str, Any], words: str) -> None:
    order = MetricRecord({"id": 7, "seed": SEED, "included": 1, **changed})
    with pytest.raises(wire.WireError, match=words):
        ordered(RecordDict({wire.CANARY: order}))


_NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats()
_ENTRIES = _NUMBERS | st.lists(st.integers(-(2**63), 2**63 - 1)) | st.lists(st.floats())


@given(st.dictionaries(st.sampled_from(sorted(FIELDS)), _ENTRIES))
def test_any_order_is_read_or_refused_with_a_reason(order: dict[str, Any]) -> None:
    content = RecordDict({wire.CANARY: MetricRecord(order)})
    with contextlib.suppress(wire.WireError):  # and no other error
        read = Order.of(content)
        assert read is not None
        assert read.canary is None or 0 <= read.canary.seed < 2**128
        assert all(place >= 0 for place in read.left_out)


OPEN = Order(Canary(1, 2), sends=None)


def test_an_order_keeps_what_the_reply_is_made_of() -> None:
    long = Order(Canary(1, 2), size=Size(10.0, least_norm=0.5))
    differences = Order(Canary(1, 2), (0,), "differences")
    signs = Order(Canary(1, 2, kind="signs"))
    for order in (Order(), Order(left_out=(1, 4)), differences, OPEN, long, signs):
        content = RecordDict({wire.CANARY: order.to_record()})
        assert Order.of(travelled(content)) == order
    assert "kind" not in long.to_record()  # the sphere, as before there were two
    assert Order.of(RecordDict({"arrays": ArrayRecord()})) is None
    assert Order.of(RecordDict({wire.CANARY: ConfigRecord()})) is None  # an answer is no order


def test_a_seat_gets_the_key_of_its_own_canary_and_not_the_seed() -> None:
    canary = Canary(id=5, seed=99, norm=2.0)
    seat = with_own_key(canary)
    assert (seat.id, seat.norm) == (5, 2.0)
    vector = np.zeros(40)
    KINDS["sphere"].planted(seat.seed, vector.size, 2.0)(vector)
    np.testing.assert_allclose(vector, 2.0 * canary_vector(99, 5, 40), rtol=1e-12)
    # Neither as a seed nor as a key of another canary does it make one that others may play.
    others = {canary_key(99, i) for i in range(50)} | {canary_key(seat.seed, i) for i in range(50)}
    assert len(others) == 100
    assert 99 not in others


def test_only_messages_that_order_a_canary_are_seats() -> None:
    orders = {1: Order(Canary(5, 6)), 2: Order(), 3: None}
    messages = []
    for node, order in orders.items():
        content = RecordDict({} if order is None else {wire.CANARY: order.to_record()})
        messages.append(Message(content, dst_node_id=node, message_type="train"))
    assert canaries(messages) == {1: Canary(5, 6)}


_NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)


@given(
    st.builds(
        Answer,
        outcome=st.sampled_from(get_args(Outcome)),
        outer=st.lists(_NAMES, max_size=5).map(tuple),
        inner=st.lists(_NAMES, max_size=5).map(tuple),
        trains_privately=st.booleans(),
        sends=st.none() | st.sampled_from(get_args(Sends)),
    )
)
def test_an_answer_survives_the_wire(answer: Answer) -> None:
    content = RecordDict({wire.CANARY: answer.to_record()})
    assert Answer.of(travelled(content)) == answer


_VALUES = (
    st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.booleans()
    | st.text()
    | st.binary()
    | st.lists(st.text())
    | st.lists(st.floats(), max_size=5)
)


@given(
    st.dictionaries(
        st.sampled_from(["outcome", "outer", "inner", "trains-privately", "sends", "local-noise"]),
        _VALUES,
    ),
    st.none() | st.sampled_from(get_args(Outcome)),
)
def test_an_answer_that_lies_is_read_without_harm(record: dict[str, Any], outcome: Any) -> None:
    if outcome is not None:
        record["outcome"] = outcome
    answer = Answer.of(RecordDict({wire.CANARY: ConfigRecord(record)}))
    if answer is None:
        assert record.get("outcome") not in get_args(Outcome)
        return
    for name in (*answer.outer, *answer.inner):  # they go into logs and pages
        assert name.isidentifier()
    assert len(answer.outer) <= 20
    assert answer.sends in (None, *get_args(Sends))
    assert answer.local_noise is None or answer.local_noise.claim.epsilon < math.inf


def reply(**records: Any) -> Message:
    question = Message(RecordDict(), dst_node_id=1, message_type="train")
    return Message(RecordDict(records), reply_to=question)


def test_the_answer_is_taken_out_of_a_reply_whatever_it_holds() -> None:
    metrics = MetricRecord({"num-examples": 3})
    good = reply(metrics=metrics, **{wire.CANARY: Answer("played").to_record()})
    assert take_answer(good) == Answer("played")
    for lie in (ConfigRecord({"outcome": "x"}), MetricRecord({"a": 1}), ArrayRecord()):
        bad = reply(metrics=metrics, **{wire.CANARY: lie})
        assert take_answer(bad) is None
        assert list(bad.content) == ["metrics"]
    assert list(good.content) == ["metrics"]
    assert take_answer(good) is None


def test_a_mod_that_makes_its_own_reply_passes_nothing_but_the_answer() -> None:
    hidden = RecordDict({"x": ArrayRecord({"w": Array(np.ones(2))})})
    record = Answer("played", outer=("mask_mod",)).to_record()
    record["weights"] = "1 2 3"  # not ours: it must not ride along
    unread, asked = (
        ModList((), None, ()),
        Message(RecordDict(), dst_node_id=1, message_type="train"),
    )
    told = with_answer(asked, unread, RecordDict({wire.CANARY: record}), hidden)
    assert told[wire.CANARY] == Answer("played", outer=("mask_mod",)).to_record()
    assert with_answer(asked, unread, RecordDict(), hidden) is hidden
    forged = RecordDict({wire.CANARY: ConfigRecord({"w": 1.0})})
    assert with_answer(asked, unread, forged, hidden) is hidden


def test_where_the_list_shows_it_the_answer_comes_from_the_order_alone() -> None:
    def mask(*_: object) -> None: ...

    def other(*_: object) -> None: ...

    mods = ModList((other,), mask, (tap_mod, canary_mod, other))
    hidden = RecordDict({"arrays": ArrayRecord()})
    for canary, outcome in ((Canary(id=1, seed=5), "played"), (None, "greeted")):
        asked = Message(
            RecordDict({wire.CANARY: Order(canary).to_record()}),
            dst_node_id=1,
            message_type="train",
        )
        expected = Answer(
            outcome, ("other", "mask", "tap_mod"), ("other",), "opacus" in sys.modules
        )
        forged = RecordDict({wire.CANARY: Answer("other-arrays").to_record()})
        for reply in (RecordDict(), forged):  # training has failed, or its reply says otherwise
            told = with_answer(asked, mods, reply, hidden)
            assert told[wire.CANARY] == expected.to_record()
    asked = Message(RecordDict(), dst_node_id=1, message_type="train")
    assert with_answer(asked, mods, forged, hidden) is hidden  # nobody has asked
