"""The client's mod: it fails closed, and nothing but the masked vector leaves."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from leakmeter.auditors import canary_mod, tap_mod
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.layout import Layout
from leakmeter.auditors.hook.wire import RefusedError
from leakmeter.clients import MaskMod, mask_mod
from leakmeter.clients.secure_sum.keys import Session
from leakmeter.clients.secure_sum.participant import Participant
from leakmeter.clients.secure_sum.quantise import Quantiser
from leakmeter.clients.secure_sum.signing import Identity
from leakmeter.clients.secure_sum.wire import (
    get_by_number,
    get_participant,
    get_upload,
    put_by_number,
    put_participant,
    put_quantiser,
    put_sum,
)
from leakmeter.fl_app.engines.inline import InlineGrid
from tests.helpers.refusals import refuses

pytestmark = pytest.mark.usefixtures("flower_task")

NUM = 4
THRESHOLD = 3
QUANTISER = Quantiser(
    clip_range=2.0, bits=32, max_clients=NUM, max_weight=100.0, metrics={"loss": (0.0, 4.0)}
)
MODEL: dict[str, Any] = {
    "w": np.array([[0.5, -1.0], [0.25, 0.0]], np.float32),
    "count": np.array(3, np.int64),
    "b": np.array(1.5, np.float64),
    "none": np.zeros((0, 3), np.float32),
}


def record(arrays: dict[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


ABOUT: dict[str, Any] = dict(put_sum(QUANTISER, Layout.of(record(MODEL)), "num-examples"))


def trained(**changes: Any) -> RecordDict:
    """Return what an honest client's training gives back."""
    arrays = {k: np.asarray(a + a.dtype.type(1)) for k, a in MODEL.items()} | changes.pop(
        "arrays", {}
    )
    metrics = {"num-examples": 50, "loss": 1.0, **changes}
    kept = {k: v for k, v in metrics.items() if v is not None}
    return RecordDict({"arrays": record(arrays), "metrics": MetricRecord(kept)})


OWN = MaskMod(outside=["spy"])


class Federation:
    """Four clients in this process whose stages a test sends one by one, and what they answered."""

    def __init__(self, mod: Any = OWN, mods: Any = ()) -> None:
        self.calls = 0
        self.answer: Callable[[], RecordDict] = trained
        self.contexts: dict[int, Context] = {}
        self.keys: dict[int, bytes] = {}
        self.boxes: dict[int, dict[int, bytes]] = {}
        self.app = ClientApp()

        def spy(message: Message, context: Context, call_next: Any) -> Message:
            self.contexts[context.node_id] = context
            reply: Message = call_next(message, context)
            return reply

        def train(message: Message, _: Context) -> Message:
            self.calls += 1
            return Message(self.answer(), reply_to=message)

        self.app.train(mods=[spy, mod, *mods])(train)
        self.app.evaluate()(train)
        self.grid = InlineGrid(self.app, NUM)

    def state(self, node: int) -> Participant:
        kept = self.contexts[node].state[wire.MASK]
        assert isinstance(kept, ConfigRecord)
        return get_participant(kept)

    def send(self, node: int, content: dict[str, Any], message_type: str = "train") -> Any:
        """Return the content of the reply, or the reason of its error."""
        message = Message(RecordDict(content), dst_node_id=node, message_type=message_type)
        reply = next(iter(self.grid.send_and_receive([message])))
        return str(reply.error.reason) if reply.has_error() else reply.content

    def ask(self, node: int, stage: Any, about: dict[str, Any] | None = None, **values: Any) -> Any:
        """Send one order of a stage; `round` is 1 unless told."""
        order = {"stage": stage, "round": 1, **values}
        content: dict[str, Any] = {
            wire.MASK: ConfigRecord({k: v for k, v in order.items() if v is not None})
        }
        if stage == "train":
            told = {k: v for k, v in (about or {}).items() if v is not None}
            model = {"arrays": record(MODEL), "config": ConfigRecord({"server-round": 1})}
            content |= {wire.SUM_ORDER: ConfigRecord(told), **model}
        answer = self.send(node, content)
        return answer if isinstance(answer, str) or stage == "train" else answer[wire.MASK]

    def announce(self, **values: Any) -> None:
        for n in range(1, NUM + 1):
            self.keys[n] = self.ask(n, "keys", number=n, **values)["keys"]

    def share_order(self, n: int, **values: Any) -> dict[str, Any]:
        keys = put_by_number("keys", {p: k for p, k in self.keys.items() if p != n})
        return {"number": n, "threshold": THRESHOLD, **keys, **values}

    def share(self, **values: Any) -> None:
        self.announce(**values)
        for n in self.keys:
            answer = self.ask(n, "shares", **self.share_order(n, **values))
            self.boxes[n] = get_by_number(answer, "boxes")

    def train_order(self, n: int, **values: Any) -> dict[str, Any]:
        boxes = {p: to[n] for p, to in self.boxes.items() if p != n}
        return {**put_by_number("boxes", boxes), **values}

    def train(self, n: int, about: dict[str, Any] | None = None, **values: Any) -> Any:
        return self.ask(n, "train", {**ABOUT, **(about or {})}, **self.train_order(n, **values))

    def told(self, n: int, **records: Any) -> Any:
        """Send a train message with these records in place of, or beside, the usual ones."""
        order = ConfigRecord({"stage": "train", "round": 1, **self.train_order(n)})
        usual = {wire.MASK: order, wire.SUM_ORDER: ConfigRecord(ABOUT), "arrays": record(MODEL)}
        return self.send(n, {**usual, **records})


def test_a_client_answers_the_four_stages_and_trains_once() -> None:
    clients = Federation()
    clients.share()
    for n in range(1, NUM + 1):
        reply = clients.train(n)
        assert list(reply) == ["arrays"]
    answer = clients.ask(1, "unmask", survivors=[1, 2, 3, 4], dropped=[])
    assert sorted(get_by_number(answer, "shares")) == [1, 2, 3, 4]
    assert clients.calls == NUM


def test_nothing_but_the_masked_vector_leaves_the_client(caplog: pytest.LogCaptureFixture) -> None:
    clients = Federation()
    clients.answer = lambda: trained(accuracy=0.5, curve=[1.0, 2.0])
    clients.share()
    with caplog.at_level(logging.INFO, "flwr"):
        reply = clients.train(1)
    dim = Layout.of(record(MODEL)).dim
    assert list(reply) == ["arrays"]
    assert list(reply["arrays"]) == ["masked"]
    vector = get_upload(reply, QUANTISER.ring, QUANTISER.num_slots(dim))
    assert vector.dtype == np.uint32
    said = [r.getMessage() for r in caplog.records if "no part of the secure sum" in r.getMessage()]
    assert said == ["not sent, since they are no part of the secure sum: accuracy, curve"]


def test_a_train_message_without_an_order_is_refused_and_not_trained() -> None:
    clients = Federation()
    clients.app.train("other", mods=[mask_mod])(lambda m, _: Message(trained(), reply_to=m))
    plain = {"arrays": record(MODEL), "config": ConfigRecord({"server-round": 1})}
    for content in (plain, {}, {**plain, wire.MASK: MetricRecord({"round": 1})}):
        assert "this client masks" in clients.send(1, content)
    assert "this client masks" in clients.send(1, plain, "train.other")
    assert clients.calls == 0


def test_only_the_apps_own_configuration_switches_masking_off() -> None:
    model = {"arrays": record(MODEL), "config": ConfigRecord()}
    clients = Federation(MaskMod(required=False, outside=["spy"]))
    assert sorted(clients.send(1, model)) == ["arrays", "metrics"]
    assert "metrics" in Federation().send(1, model, "evaluate")  # evaluations pass in any case


@pytest.mark.parametrize("allowed", [True, False])
def test_the_tap_collects_only_where_it_is_allowed(allowed: bool) -> None:
    clients = Federation(MaskMod(allow_tap=allowed, outside=["spy"]), mods=[tap_mod])
    clients.share()
    assert list(clients.told(1, **{wire.TAP: wire.keep_record(1)})) == ["arrays"]
    reply = clients.send(1, {wire.TAP: wire.collect_record(1, wire.WEIGHT)})
    assert set(reply["arrays"]) == set(MODEL) if allowed else "this client masks" in reply


def test_a_tap_order_is_no_way_around_the_mask() -> None:
    clients = Federation(MaskMod(allow_tap=True, outside=["spy"]))  # but no tap is listed
    model = {"arrays": record(MODEL), "config": ConfigRecord()}
    taps: list[dict[str, Any]] = [{"action": "collect", "round": 1}, {"action": "keep"}, {}]
    for tap in taps:
        reply = clients.send(1, {wire.TAP: ConfigRecord(tap), **model})
        assert "this client masks" in reply
    assert clients.calls == 0


def test_a_round_is_not_announced_twice_and_none_before_it() -> None:
    clients = Federation()
    clients.announce(round=5)
    for again in (5, 4, 1):
        assert "round must be above 5" in clients.ask(1, "keys", number=1, round=again)
    assert "keys" in clients.ask(1, "keys", number=1, round=6)


def test_keys_are_fresh_in_every_round() -> None:
    clients = Federation()
    clients.announce()
    first = dict(clients.keys)
    clients.announce(round=2)
    both = [*first.values(), *clients.keys.values()]
    pieces = [keys[i : i + 32] for keys in both for i in (0, 32, 64)]
    assert len(set(pieces)) == len(pieces) == 6 * NUM


def test_another_run_begins_again_and_does_not_go_on_with_what_it_finds() -> None:
    clients = Federation()
    clients.share(round=7)
    for node in range(1, NUM + 1):  # as if the state came from an earlier run of this node
        kept = replace(clients.state(node), session=Session(run=99, server_round=7))
        clients.contexts[node].state[wire.MASK] = put_participant(kept)
    assert "of the run that sent the keys" in clients.train(1, round=7)
    assert "keys" in clients.ask(1, "keys", number=1, round=1)


@pytest.mark.parametrize("stage", ["shares", "train", "unmask"])
def test_no_stage_comes_before_the_keys(stage: str) -> None:
    clients = Federation()
    assert "comes after 'keys'" in clients.ask(1, stage)
    assert clients.calls == 0


def test_stages_out_of_order_or_of_another_round_are_refused_and_nothing_is_trained() -> None:
    clients = Federation()
    clients.announce()
    assert "after 'shared'" in clients.train(1)
    assert "after 'uploaded'" in clients.ask(1, "unmask", survivors=[1, 2, 3], dropped=[])
    clients.keys.clear()
    clients.share(round=2)
    assert "round must be 2" in clients.train(1, round=1)
    assert "round must be 2" in clients.train(1, round=3)
    assert "after 'announced'" in clients.ask(1, "shares", **clients.share_order(1, round=2))
    assert "after 'uploaded'" in clients.ask(1, "unmask", survivors=[1], dropped=[], round=2)
    assert clients.calls == 0


def test_a_client_uploads_once_and_reveals_once_and_a_refusal_may_be_corrected() -> None:
    clients = Federation()
    clients.share()
    assert list(clients.train(1)) == ["arrays"]
    assert "after 'shared', the last was 'uploaded'" in clients.train(1)
    assert clients.calls == 1
    assert "survivors must be" in clients.ask(1, "unmask", survivors=[1, 2], dropped=[3, 4])
    assert "dropped must be a list" in clients.ask(1, "unmask", survivors=[1, 2, 3])
    assert "must be distinct" in clients.ask(1, "unmask", survivors=[1, 1, 2, 3], dropped=[])
    lists: dict[str, Any] = {"survivors": [1, 2, 3], "dropped": [4]}
    assert len(get_by_number(clients.ask(1, "unmask", **lists), "shares")) == NUM
    assert "once" in clients.ask(1, "unmask", **lists)
    assert "once" in clients.ask(1, "unmask", survivors=[1, 2, 3, 4], dropped=[])


@pytest.mark.parametrize(
    ("mod", "reason"),
    [
        (MaskMod(min_peers=4), "peers must be at least 4"),
        (MaskMod(min_threshold=4), "threshold must be at least 4"),
        (MaskMod(colluders=2), "threshold must be at least 4"),
        (MaskMod(min_peers=3, colluders=1), None),
    ],
)
def test_the_clients_own_policy_limits_what_the_server_proposes(
    mod: MaskMod, reason: str | None
) -> None:
    clients = Federation(replace(mod, outside=["spy"]))
    clients.announce()
    answer = clients.ask(1, "shares", **clients.share_order(1))
    if reason is None:
        assert "boxes" in answer
    else:
        assert reason in answer


def test_fewer_boxes_than_the_policy_wants_are_refused_before_training() -> None:
    clients = Federation(MaskMod(min_peers=3, outside=["spy"]))
    clients.share()
    del clients.boxes[4]
    assert "peers must be at least 3, got 2" in clients.train(1)
    assert clients.calls == 0


def parts(*numbers: int, size: int = 0) -> bytes:
    """The bytes of numbers, and of a part of this size for each."""
    return struct.pack(f"<{len(numbers) + 1}I", len(numbers), *numbers) + bytes(size * len(numbers))


BAD_ORDERS: list[tuple[Any, dict[str, Any], str]] = [
    ("keys", {"number": "one"}, "number must be a whole number, got str"),
    ("keys", {"number": None}, "number must be a whole number"),
    ("keys", {"number": True}, "number must be a whole number"),
    ("keys", {"number": 1, "round": 1.5}, "round must be a whole number"),
    ("keys", {"number": 1, "round": None}, "round must be a whole number"),
    ("keys", {"number": 1, "round": -1}, "server_round must be"),
    ("other", {}, "stage must be keys, shares, train or unmask"),
    (3, {}, "stage must be a text"),
    ("shares", {"threshold": None}, "threshold must be a whole number"),
    ("shares", {"keys": parts(2, 3, 4, size=96)[:-1]}, "keys must be numbers and as many equal"),
    ("shares", {"keys": parts(2, 3, size=144)}, "96 bytes, got 144"),
    ("shares", {"keys": parts() + b"x"}, "keys must be numbers and as many equal parts"),
    ("shares", {"keys": parts(2, 2, 3, size=96)}, "keys must be for distinct numbers"),
    ("shares", {"keys": b"\xff" * 400}, "keys must be numbers and as many equal parts"),
    ("shares", {"keys": b""}, "keys must be numbers and as many equal parts, got 0 bytes"),
    ("shares", {"keys": parts(2, 3, 4)}, "96 bytes, got 0"),
    ("shares", {"keys": "abc"}, "keys must be bytes, got str"),
    ("shares", {"keys": None}, "keys must be bytes"),
    ("train", {"boxes": None}, "boxes must be bytes"),
    ("train", {"boxes": parts(2, 3, 4) + b"12"}, "boxes must be numbers and as many equal parts"),
    ("train", {"boxes": parts(2, 3, 4, size=1)}, "box must be sealed"),
]
BAD_SUMS: list[tuple[dict[str, Any], str]] = [
    ({"clip-range": None}, "mask order must describe the quantiser"),
    ({"clip-range": "wide"}, "mask order must describe the quantiser"),
    ({"clip-range": -1.0}, "clip_range must be in"),
    ({"bits": 7}, "bits must be in"),
    ({"metric-lows": [0.0, 1.0]}, "mask order must describe the quantiser"),
    ({"max-clients": 3}, "max-clients must be at least 4"),
    ({"weight-key": None}, "weight-key must be a text"),
    ({"arrays": None}, "arrays must be names among"),
    ({"arrays": ["w", "other"]}, "arrays must be names among"),
    ({"arrays": []}, "must have float arrays"),
]


@pytest.mark.parametrize(("stage", "change", "reason"), BAD_ORDERS)
def test_a_malformed_order_is_refused_with_the_reason(
    stage: Any, change: dict[str, Any], reason: str
) -> None:
    clients = Federation()
    if stage == "shares":
        clients.announce()
        answer = clients.ask(1, stage, **clients.share_order(1, **change))
    elif stage == "train":
        clients.share()
        answer = clients.train(1, **change)
    else:
        clients.announce(round=0)
        answer = clients.ask(1, stage, **{"round": 0 if stage == "other" else 1, **change})
    assert isinstance(answer, str)
    assert reason in answer
    assert clients.calls == 0


@pytest.mark.parametrize(("change", "reason"), BAD_SUMS)
def test_a_sum_that_is_not_described_is_refused_before_training(
    change: dict[str, Any], reason: str
) -> None:
    clients = Federation()
    clients.share()
    assert reason in clients.train(1, change)
    assert clients.calls == 0


OWN_FAULTS: dict[str, Callable[[], RecordDict]] = {
    "not a number": lambda: trained(arrays={"b": np.array(np.nan)}),
    "infinite": lambda: trained(arrays={"b": np.array(np.inf)}),
    "too heavy": lambda: trained(**{"num-examples": 101}),
    "weightless": lambda: trained(**{"num-examples": 0}),
    "a negative weight": lambda: trained(**{"num-examples": -3.0}),
    "a weight that is no number": lambda: trained(**{"num-examples": float("nan")}),
    "a list of weights": lambda: trained(**{"num-examples": [50.0]}),
    "no weight": lambda: trained(**{"num-examples": None}),
    "no metric": lambda: trained(loss=None),
    "an infinite metric": lambda: trained(loss=float("inf")),
}


OTHER_SHAPES: dict[str, dict[str, Any]] = {
    "flat": {"w": np.zeros(4, np.float32)},
    "longer": {"b": np.zeros(1)},
    "not empty": {"none": np.zeros((1, 3), np.float32)},
}


def fails() -> RecordDict:
    raise ZeroDivisionError("7 records of class 3")


FAULTS: dict[str, Callable[[], RecordDict]] = {
    **OWN_FAULTS,
    **{name: lambda arrays=arrays: trained(arrays=arrays) for name, arrays in OTHER_SHAPES.items()},
    "no arrays": lambda: RecordDict({"metrics": MetricRecord({"num-examples": 50, "loss": 1.0})}),
    "an exception": fails,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_training_gives_the_answer_has_one_form(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    clients = Federation()
    clients.share()
    honest = clients.train(1)
    clients.answer = FAULTS[fault]
    answer = clients.train(2)
    assert list(answer) == list(honest) == ["arrays"]
    assert list(answer["arrays"]) == list(honest["arrays"]) == ["masked"]
    kinds = [(a["arrays"]["masked"].dtype, a["arrays"]["masked"].shape) for a in (answer, honest)]
    assert kinds[0] == kinds[1]
    assert len(answer["arrays"]["masked"].data) == len(honest["arrays"]["masked"].data)
    assert clients.state(2).step == "uploaded"
    assert any("sends no update in this round" in r.getMessage() for r in caplog.records)


def test_a_failed_training_leaves_no_trace_in_the_apps_state() -> None:
    clients = Federation()

    def writes(message: Message, context: Context, call_next: Any) -> Message:
        context.state.setdefault("mine", ConfigRecord({"list": [1]}))["list"].append(2)  # type: ignore
        context.state["new"] = ConfigRecord({"loss": 0.5})
        reply: Message = call_next(message, context)
        return reply

    clients = Federation(mods=[writes])
    clients.share()
    clients.answer = fails
    clients.train(1)
    assert set(clients.contexts[1].state) == {wire.MASK}
    clients.answer = trained
    clients.train(2)
    assert set(clients.contexts[2].state) == {wire.MASK, "mine", "new"}


@pytest.mark.parametrize("allowed", [True, False])
def test_only_a_simulation_says_why_an_update_is_blank(allowed: bool) -> None:
    clients = Federation(MaskMod(allow_tap=allowed, outside=["spy"]))
    clients.answer = fails
    clients.share()
    answer = clients.train(1)
    assert (wire.BLANK in answer) == allowed
    if allowed:
        assert answer[wire.BLANK]["reason"] == "ZeroDivisionError: 7 records of class 3"


def test_mods_before_the_masks_are_refused_unless_their_owner_names_them() -> None:
    clients = Federation(MaskMod())
    assert "got spy before it" in clients.ask(1, "keys", number=1)


@pytest.mark.parametrize("tool", [canary_mod, tap_mod])
def test_instruments_before_the_masks_are_refused_even_if_they_are_named(tool: Any) -> None:
    outside = ["spy", "canary_mod", "tap_mod"]
    clients = Federation(tool, mods=[MaskMod(outside=outside)])
    assert "must be behind mask_mod" in clients.ask(1, "keys", number=1)


def test_a_list_of_mods_that_cannot_be_read_is_refused_by_a_client_that_signs() -> None:
    key = Ed25519PrivateKey.generate()
    others = [Ed25519PrivateKey.generate() for _ in range(3)]
    lines = [Identity(k).line for k in (key, *others)]
    order = RecordDict({wire.MASK: ConfigRecord({"stage": "keys", "round": 1, "number": 1})})
    context = Context(1, 1, {"partition-id": 0}, RecordDict(), {})
    message = Message(order, dst_node_id=1, message_type="train")
    # Called as no release of Flower calls it, so there is no list to read.
    assert MaskMod()(message, context, lambda m, _: m).has_content()
    with pytest.raises(RefusedError, match="cannot be read under this release"):
        MaskMod(identity=key, trusted=lines)(message, context, lambda m, _: m)


OWN_LIMITS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"min_clip_range": 2.5}, {}, "clip-range must be at least 2.5 here, got 2"),
    ({"min_max_weight": 120}, {}, "max-weight must be at least 120 here, got 100"),
    ({}, {"weight-key": "loss"}, "weight-key must be 'num-examples' here, got 'loss'"),
    ({"weight_key": "records"}, {}, "weight-key must be 'records' here, got 'num-examples'"),
    ({"metrics": []}, {}, "metrics must be among [] here, got loss besides"),
]


@pytest.mark.parametrize(("own", "change", "reason"), OWN_LIMITS)
def test_what_a_sum_takes_of_a_client_is_its_owners_choice(
    own: dict[str, Any], change: dict[str, Any], reason: str
) -> None:
    clients = Federation(MaskMod(outside=["spy"], **own))
    clients.share()
    assert reason in clients.train(1, change)
    assert clients.calls == 0


def test_limits_that_exclude_each_other_are_a_mistake() -> None:
    with refuses("min_clip_range"):
        MaskMod(min_clip_range=2.0, max_clip_range=1.0)
    with refuses("min_max_weight"):
        MaskMod(min_max_weight=-1.0)
    with pytest.raises(TypeError, match="outside must be a list of names"):
        MaskMod(outside="spy")


def test_orders_that_nobody_can_carry_out_are_refused_before_training() -> None:
    clients = Federation()
    clients.share()
    noise = {"round": 1, "clip-norm": 1.0, "share-std": 0.5, "weight-key": "num-examples"}
    said = clients.told(1, **{wire.NOISE: ConfigRecord(noise)})
    assert "list noise_mod directly behind mask_mod" in said
    assert wire.SUM_ORDER in clients.told(1, **{wire.SUM_ORDER: MetricRecord()})
    assert clients.calls == 0


def test_integer_arrays_stay_outside_even_when_they_come_as_floats() -> None:
    clients = Federation()
    clients.share()
    assert ABOUT["arrays"] == ["w", "b", "none"]
    later = {**MODEL, "count": np.array(3.0)}  # as FedAvg sends it after its first round
    clients.answer = lambda: trained(arrays={"count": np.array(4.0)})
    reply = clients.told(1, arrays=record(later))
    get_upload(reply, QUANTISER.ring, QUANTISER.num_slots(Layout.of(record(MODEL)).dim))


@pytest.mark.parametrize(("bits", "octets"), [(8, 1), (16, 2), (24, 3), (30, 4), (32, 4), (40, 5)])
def test_a_coordinate_takes_as_many_bytes_as_its_ring_needs(bits: int, octets: int) -> None:
    quantiser = Quantiser(clip_range=2.0, bits=bits, max_clients=NUM, max_weight=100.0)
    slots = quantiser.num_slots(Layout.of(record(MODEL)).dim)
    clients = Federation()
    clients.share()
    reply = clients.train(1, put_quantiser(quantiser))
    assert reply["arrays"]["masked"].numpy().nbytes == octets * slots
    vector = get_upload(reply, quantiser.ring, slots)
    assert vector.shape == (slots,)
    assert int(vector.max()) < 2**bits


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(10, np.uint64),
        np.zeros((2, 5), np.uint32),
        np.zeros(9, np.uint32),
        np.zeros(10, np.float32),
        np.full(10, 2**31, np.uint32),
    ],
)
def test_an_upload_of_another_form_is_refused(array: np.ndarray[Any, Any]) -> None:
    content = RecordDict({"arrays": ArrayRecord({"masked": Array(array)})})
    ring = Quantiser(clip_range=1.0, bits=31, max_clients=3).ring
    with pytest.raises(RefusedError, match="masked vector must be"):
        get_upload(content, ring, 10)


def test_after_the_upload_the_clients_state_holds_no_secret_of_its_own() -> None:
    clients = Federation()
    clients.share()
    before = clients.state(1).secrets
    assert before is not None
    clients.train(1)
    kept = clients.contexts[1].state[wire.MASK]
    held = b"".join(value for value in kept.values() if isinstance(value, bytes))
    assert held
    for secret in (before.seed, before.mask.secret, before.share.secret):
        assert secret not in held
    clients.ask(1, "unmask", survivors=[1, 2, 3, 4], dropped=[])
    kept = clients.contexts[1].state[wire.MASK]
    assert isinstance(kept, ConfigRecord)
    after = get_participant(kept)
    assert after == Participant(after.session, 1, "revealed", None, after.threshold)


def test_a_straggler_that_overwrites_the_state_leads_to_a_refusal() -> None:
    clients = Federation()
    clients.share()
    late = clients.contexts[1].state[wire.MASK]
    clients.share(round=2)
    clients.contexts[1].state[wire.MASK] = late  # the late reply of round 1 is written last
    assert "round must be 1" in clients.train(1, round=2)
    assert "after 'announced'" in clients.ask(1, "shares", **clients.share_order(1))
