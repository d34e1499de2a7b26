"""Orders and answers of canary seats, the kind of reply, and warnings to the user."""

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
    MISTAKEN,
    NO_ANSWER,
    Answer,
    Order,
    Outcome,
    ReplyKind,
    Sends,
    Size,
    canaries,
    guest_warnings,
    in_blocks,
    noise_around,
    replay_warnings,
    reply_kind,
    reply_kind_by_lengths,
    take_answer,
    with_own_key,
)
from leakmeter.auditors.hook.guest_noise import LocalNoise
from leakmeter.auditors.hook.mods import ModList, canary_mod, tap_mod, with_answer
from leakmeter.auditors.rng import stream

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
        local_noise=st.none() | st.builds(LocalNoise, *[st.floats(1e-3, 0.9)] * 4),
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


DIM = 300


def vectors(seed: int, clients: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Return a model and updates of clients that agree in part, a tenth as long as the model."""
    rng = stream(seed, "sending")
    sent = rng.standard_normal(DIM)
    common = rng.standard_normal(DIM)
    return sent, 0.1 * (common + 0.5 * rng.standard_normal((clients, DIM)))


def decide(sent: Any, replies: Any, released: Any) -> str | None:
    return reply_kind(sent, list(replies), in_blocks(np.mean(replies, axis=0)), released)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])  # of the updates
@pytest.mark.parametrize("rate", [0.01, 1.0])  # of the server
def test_models_and_differences_are_recognised(scale: float, rate: float) -> None:
    for seed in range(20):
        sent, updates = vectors(seed)
        updates *= scale
        step = rate * updates.mean(axis=0)
        found = decide(sent, sent + updates, sent + step)
        assert found == "models" or (scale == 100.0 and found is None), seed
        for sign in (1, -1):  # differences are added, gradients are subtracted
            found = decide(sent, updates, sent + sign * step)
            assert found == "differences" or (scale == 100.0 and found is None), seed


def test_a_gradient_that_looks_like_the_model_is_still_a_difference() -> None:
    sent, targets = vectors(0)
    gradients = sent - targets  # of half the squared distance: all of the model is in it
    assert decide(sent, gradients, sent - 0.1 * gradients.mean(axis=0)) == "differences"


@pytest.mark.parametrize("seed", range(5))
def test_a_model_that_started_at_zero_is_decided_in_round_two(seed: int) -> None:
    _, first = vectors(seed)
    _, second = vectors(seed + 100)
    sent = first.mean(axis=0)  # all that is in the model has come from round 1
    updates = first + 0.3 * second  # and round 2 goes on in nearly the same direction
    step = updates.mean(axis=0)
    rounded = [np.float64(np.float32(sent + u)) for u in updates]
    assert decide(sent, rounded, np.float64(np.float32(sent + step))) == "models"
    assert decide(sent, updates, np.float64(np.float32(sent - 0.5 * step))) == "differences"


def test_an_adaptive_server_still_moves_along_models() -> None:
    sent, updates = vectors(3)
    released = sent + 0.01 * np.sign(updates.mean(axis=0))
    assert decide(sent, sent + updates, released) == "models"


def test_under_noise_the_share_of_the_model_decides() -> None:
    sent, updates = vectors(1)
    rng = stream(0, "noise")
    noised = sent + updates.mean(axis=0) + 0.5 * rng.standard_normal(DIM)
    assert decide(sent, sent + updates, noised) == "models"
    assert decide(sent, updates, noised) == "differences"
    blurred = sent + updates + 20 * rng.standard_normal(updates.shape)
    assert decide(sent, blurred, sent + 20 * rng.standard_normal(DIM)) is None


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_nothing_is_decided_where_nothing_can_be(value: float) -> None:
    _, updates = vectors(2)
    flat = np.full(DIM, value)
    assert decide(flat, updates, updates.mean(axis=0)) is None
    if value:
        sent, _ = vectors(2)
        broken = np.full((3, DIM), value)
        with np.errstate(invalid="ignore"):
            assert reply_kind(sent, list(broken), in_blocks(broken[0]), sent) is None
    assert reply_kind(updates[0], [], None, updates[0]) is None


def test_the_sign_is_seen_once_and_survives_an_interruption() -> None:
    sent, updates = vectors(4)
    mean = updates.mean(axis=0)
    sending = ReplyKind("auto")
    sending.sends = reply_kind(sent, list(updates), in_blocks(mean), sent - mean)
    assert sending.sends == "differences"
    sending.note_step(sent, sent - mean, mean)
    assert sending.sign == -1
    sending.note_step(sent, sent + mean, mean)  # a later step that canaries have turned round
    assert sending.sign == -1
    again = ReplyKind("auto")
    again.restore(sending.state())
    again.note_step(sent, sent + mean, mean)
    assert (again.sends, again.sign) == ("differences", -1)


@pytest.mark.parametrize("scale", [1e-4, 0.1, 0.6, 3.0, 30.0])
def test_a_seat_takes_nothing_for_the_other(scale: float) -> None:
    for seed in range(50):
        rng = stream(seed, "seat")
        sent, update = rng.standard_normal((2, DIM))
        update *= scale
        kinds = {"models": sent + update, "differences": update}
        for kind, reply in kinds.items():
            lengths = [float(np.linalg.norm(v)) for v in (reply - sent, reply, sent)]
            found = reply_kind_by_lengths(*lengths)
            assert found == kind if scale <= 0.6 else found is None, (seed, kind)


@pytest.mark.parametrize("lengths", [(1, 1, 0), (np.inf, 1, 1), (1, np.nan, 1), (0, 1, 1)])
def test_a_seat_cannot_tell_from_zeros_or_from_what_is_not_finite(lengths: Any) -> None:
    assert reply_kind_by_lengths(*lengths) is None


def test_seats_are_believed_until_honest_replies_say_otherwise() -> None:
    sending = ReplyKind("auto")
    assert sending.note_answers([]) == []
    assert sending.note_answers(["models", "differences"]) == [MISTAKEN]
    assert sending.sends is None
    assert sending.note_answers(["differences", "differences"]) == []
    assert sending.sends == "differences"
    sent, updates = vectors(6)
    decided_before = ReplyKind("auto")
    mean = updates.mean(axis=0)
    decided_before.sends = reply_kind(sent, list(updates), in_blocks(mean), sent + mean)
    assert decided_before.note_answers(["models"]) == [MISTAKEN]
    assert decided_before.sends == "differences"


def test_a_server_that_moves_against_replies_to_a_model_of_zeros_gets_gradients() -> None:
    _, updates = vectors(7)
    mean, start = updates.mean(axis=0), np.zeros(DIM)
    assert decide(start, updates, -0.1 * mean) == "differences"
    assert decide(start, updates, mean) is None


def test_what_the_user_says_stays() -> None:
    sent, updates = vectors(5)
    sending = ReplyKind("models")
    sending.note_step(sent, sent - updates[0], updates[0])
    assert (sending.sends, sending.sign) == ("models", 1)
    with pytest.raises(
        ValueError, match=r"sends must be one of auto, models, differences, got 'x'"
    ):
        ReplyKind("x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "answer",
    [
        Answer("played"),
        Answer("greeted", outer=("LocalDpMod",)),
        Answer("played", outer=("MaskMod", "NoiseMod", "tap_mod")),
        Answer("played", inner=("fixedclipping_mod", "arrays_size_mod", "tap_mod")),
        Answer("not-finite"),
    ],
)
def test_a_sound_list_of_mods_gets_no_remark(answer: Answer) -> None:
    assert guest_warnings({0: answer, 1: answer}, [0, 1]) == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer("played", inner=("LocalDpMod",)), "bypass the noise of LocalDpMod"),
        (Answer("other-arrays", inner=("MaskMod",)), "MaskMod hides the update from canary_mod"),
        (Answer("played", inner=("my_mod",)), "my_mod handles the update before a canary"),
        (Answer("other-arrays"), "other arrays than they are sent"),
        (Answer("played", trains_privately=True), "numbers are about clients, not records"),
    ],
)
def test_a_wrong_list_is_named_once_with_the_order_to_use(answer: Answer, words: str) -> None:
    [said] = guest_warnings({0: answer, 1: answer, 2: Answer("played")}, [0, 1, 2])
    assert words in said
    for name in answer.inner:
        assert f"[{name}, canary_mod]" in said


def test_silence_of_all_is_said_and_of_nobody_is_not() -> None:
    assert guest_warnings({}, [3]) == [NO_ANSWER]
    assert guest_warnings({}, []) == []


def test_noise_is_found_on_either_side() -> None:
    assert noise_around({0: Answer("played", outer=("MaskMod", "LocalDpMod"))}) == "LocalDpMod"
    assert noise_around({0: Answer(), 1: Answer(inner=("NoiseMod",))}) == "NoiseMod"
    assert noise_around({0: Answer(outer=("fixedclipping_mod",))}) is None


def test_a_mod_that_sees_replays_is_named_once() -> None:
    told = replay_warnings({0: Answer(outer=("mine", "LocalDpMod")), 1: Answer(outer=("mine",))})
    assert len(told) == 1
    assert "[canary_mod, mine]" in told[0]
    assert replay_warnings({0: Answer(inner=("mine",))}) == []
