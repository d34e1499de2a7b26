"""The digest of what clients were told: every difference counts, and nothing is ambiguous."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from leakmeter.auditors.auditor import Canary
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.canary_order import Order
from leakmeter.clients.secure_sum.keys import Instructions, Session, binding, fingerprint

pytestmark = pytest.mark.usefixtures("flower_task")

MODEL = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(3)}


def content(**changes: Any) -> RecordDict:
    records: dict[str, Any] = {
        "arrays": ArrayRecord({n: Array(a) for n, a in MODEL.items()}),
        wire.CONFIG: ConfigRecord({"server-round": 3, "lr": 0.1, "names": ["a", "b"]}),
        wire.SUM_ORDER: ConfigRecord({"clip-range": 4.0, "bits": 32}),
        wire.NOISE: ConfigRecord({"share-std": 0.5}),
        wire.MASK: ConfigRecord({"stage": "train", "number": 1, "boxes": b"x"}),
        **changes,
    }
    return RecordDict({name: record for name, record in records.items() if record is not None})


def digest(made: RecordDict | None = None, kind: str = "train", group: str = "") -> bytes:
    message = Message(content() if made is None else made, 1, kind, group_id=group)
    return binding(Session(7, 3), 4, bytes(32), b"", Instructions().of(message))


def arrays(**changes: Any) -> ArrayRecord:
    return ArrayRecord({n: Array(a) for n, a in {**MODEL, **changes}.items()})


def config(**changes: Any) -> ConfigRecord:
    return ConfigRecord({"server-round": 3, "lr": 0.1, "names": ["a", "b"], **changes})


DIFFERENT: dict[str, Callable[[], bytes]] = {
    "a weight": lambda: digest(content(arrays=arrays(w=MODEL["w"] + np.float32(1e-6)))),
    "the type": lambda: digest(content(arrays=arrays(w=MODEL["w"].astype(np.float64)))),
    "the shape": lambda: digest(content(arrays=arrays(w=MODEL["w"].reshape(3, 2)))),
    "a name": lambda: digest(
        content(arrays=ArrayRecord({"v": Array(MODEL["w"]), "b": Array(MODEL["b"])}))
    ),
    "the order": lambda: digest(
        content(arrays=ArrayRecord({n: Array(MODEL[n]) for n in ("b", "w")}))
    ),
    "one array less": lambda: digest(content(arrays=ArrayRecord({"w": Array(MODEL["w"])}))),
    "the learning rate": lambda: digest(content(config=config(lr=0.0))),
    "a number as a text": lambda: digest(content(config=config(lr="0.1"))),
    "a whole number": lambda: digest(content(config=config(**{"server-round": 3.0}))),
    "a truth": lambda: digest(content(config=config(**{"server-round": True}))),
    "a longer list": lambda: digest(content(config=config(names=["a", "b", ""]))),
    "a joined list": lambda: digest(content(config=config(names=["ab"]))),
    "a text": lambda: digest(content(config=config(names="ab"))),
    "the clip range": lambda: digest(
        content(**{wire.SUM_ORDER: ConfigRecord({"clip-range": 1e30, "bits": 32})})
    ),
    "no noise": lambda: digest(content(**{wire.NOISE: None})),
    "less noise": lambda: digest(content(**{wire.NOISE: ConfigRecord({"share-std": 0.4})})),
    "seats": lambda: digest(content(**{wire.SEATS: wire.seats_record([2])})),
    "other seats": lambda: digest(content(**{wire.SEATS: wire.seats_record([3])})),
    "an unknown record": lambda: digest(content(more=MetricRecord({"x": 1}))),
    "the same as metrics": lambda: digest(content(more=ConfigRecord({"x": 1}))),
    "the message type": lambda: digest(kind="train.other"),
    "the group": lambda: digest(group="1"),
}


def test_every_difference_in_what_clients_are_told_changes_the_digest() -> None:
    made = {name: make() for name, make in DIFFERENT.items()} | {"nothing": digest()}
    assert len(set(made.values())) == len(made)
    assert all(len(value) == 32 for value in made.values())


def test_run_round_threshold_settings_and_roster_are_bound_in() -> None:
    told = bytes(range(32))
    terms: list[Any] = [
        (Session(7, 3), 4, bytes(32), b""),
        (Session(8, 3), 4, bytes(32), b""),
        (Session(7, 4), 4, bytes(32), b""),
        (Session(7, 3), 5, bytes(32), b""),
        (Session(7, 3), 4, told, b""),
        (Session(7, 3), 4, bytes(32), told),
    ]
    assert len({binding(*each, told) for each in terms}) == len(terms)


OWN: dict[str, Any] = {
    wire.MASK: ConfigRecord({"stage": "train", "round": 3, "number": 9, "boxes": b"yz"}),
    wire.CANARY: Order(Canary(9, seed=2**100, norm=0.5), (1,), "differences").to_record(),
}


@pytest.mark.parametrize("name", OWN)
def test_what_each_client_is_told_by_itself_is_left_out(name: str) -> None:
    assert digest(content(**{name: OWN[name]})) == digest()


def test_an_order_to_keep_an_update_is_bound_in() -> None:
    """Where it fails, nothing is sent: a server could choose all clients but one."""
    told: list[dict[str, Any]] = [
        {},
        {wire.TAP: wire.keep_record(3)},
        {wire.TAP: wire.keep_record(4)},
    ]
    assert len({digest(content(**one)) for one in told}) == len(told)


@pytest.mark.parametrize("name", OWN)
def test_whatever_else_has_the_name_of_a_clients_own_record_is_bound_in(name: str) -> None:
    """Otherwise a server could send each client another model or learning rate there."""
    strange = [
        arrays(),
        arrays(b=np.ones(3)),
        ConfigRecord({"lr": 0.0}),
        MetricRecord({"lr": 0.0}),
        type(OWN[name])({**OWN[name], "lr": 0.0}),
        type(OWN[name])({**OWN[name], "lr": 1.0}),
    ]
    made = {digest(), *(digest(content(**{name: record})) for record in strange)}
    assert len(made) == len(strange) + 1


def test_the_order_of_records_and_names_does_not_count() -> None:
    made = content()
    turned = RecordDict({name: made[name] for name in reversed(list(made))})
    turned[wire.CONFIG] = ConfigRecord({"names": ["a", "b"], "lr": 0.1, "server-round": 3})
    assert digest(turned) == digest()


def test_a_message_that_has_travelled_has_the_same_digest() -> None:
    from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

    made = content(
        **{wire.CONFIG: config(empty=[], text="é", raw=b"\x00", flag=False, big=2**62, tiny=5e-324)}
    )
    assert digest(recorddict_from_proto(recorddict_to_proto(made))) == digest(made)


values = st.one_of(
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.booleans(),
)


@given(
    st.dictionaries(st.text(max_size=4), values, max_size=4),
    st.dictionaries(st.text(max_size=4), values, max_size=4),
)
def test_two_configurations_have_one_fingerprint_only_if_they_are_equal(
    one: Any, other: Any
) -> None:
    same = {k: (type(v), repr(v)) for k, v in one.items()} == {
        k: (type(v), repr(v)) for k, v in other.items()
    }
    assert (fingerprint(one) == fingerprint(other)) == same


def test_a_shared_record_is_read_once_and_differences_are_named() -> None:
    shared = content()
    one = Message(shared, 1, "train")
    other = Message(RecordDict({**shared, wire.CONFIG: config(lr=1.0)}), 2, "train")
    instructions = Instructions()
    assert instructions.same([one, Message(shared, 3, "train")]) is not None
    assert instructions.same([one, other]) is None
    assert instructions.differing(one, other) == ["config"]
    assert instructions.differing(one, Message(shared, 2, "train.x")) == ["message type"]
