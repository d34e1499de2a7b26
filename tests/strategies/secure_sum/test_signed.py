"""Signed secure sums: honest rounds come out, and what a server or a client tries does not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid

from leakmeter.auditors import Audited
from leakmeter.auditors.auditor import Canary
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.canary_order import Order
from leakmeter.auditors.wording import Assumption
from leakmeter.clients import MaskMod
from leakmeter.clients.secure_sum.keys import Session
from leakmeter.clients.secure_sum.participant import Participant
from leakmeter.clients.secure_sum.signing import Identity, TrustedKeys
from leakmeter.clients.secure_sum.wire import get_by_number, put_by_number
from leakmeter.fl_app.engines.inline import InlineGrid
from leakmeter.strategies import Masked
from leakmeter.strategies.flower import GridWrapper
from leakmeter.strategies.secure_sum.topology import Risks
from tests.helpers.numbers import first_fast
from tests.strategies.secure_sum.test_masked import (
    OUTSIDE,
    SEED,
    SIMULATED,
    Federation,
    Watching,
    at,
    changed,
    masked,
    played,
)

pytestmark = pytest.mark.usefixtures("flower_task")

Change = Callable[[int, str, RecordDict], Iterable[RecordDict]]

KEYS_OF_THE_SERVER = Participant.announce(Session(1, 1), 2)
KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([i]) * 32) for i in range(40)]
TRUSTED = TrustedKeys.of([key.public_key().public_bytes_raw() for key in KEYS[:35]])


def own_mods(**policy: Any) -> list[MaskMod]:
    """Return what each client signs and masks with."""
    return [
        replace(SIMULATED, identity=Identity(key), trusted=TRUSTED, **policy) for key in KEYS[:35]
    ]


class Signing(Federation):
    """Clients with keys of their own."""

    def __init__(self, num: int = 5, *, policy: Any = None, **options: Any) -> None:
        own = own_mods(**(policy or {}))

        def mod(message: Message, context: Context, call_next: Any) -> Message:
            return own[context.node_id - 1](message, context, call_next)

        super().__init__(num, mod=mod, **options)


class Lying(GridWrapper):
    """A server that changes what it sends: to each message, the contents that go out instead."""

    def __init__(self, grid: Grid, change: Change) -> None:
        super().__init__(grid)
        self._change = change

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Deliver what the change has made of the messages."""
        sent = []
        for message in messages:
            order = wire.config(message.content, wire.MASK) or ConfigRecord()
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            for content in self._change(node, str(order.get("stage")), message.content):
                sent.append(Message(content, dst_node_id=node, message_type=kind))
        return self.grid.send_and_receive(sent, timeout=timeout)


def signed(clients: Federation, **options: Any) -> Masked:
    return masked(clients, trusted=TRUSTED, **options)


def with_order(content: RecordDict, **values: Any) -> RecordDict:
    order = wire.config(content, wire.MASK) or ConfigRecord()
    return RecordDict({**content, wire.MASK: ConfigRecord({**order, **values})})


def attacked(
    change: Change, clients: Federation | None = None, *, signs: bool = True, **options: Any
) -> Masked:
    """Play one round under a server that lies."""
    clients = clients or (Signing() if signs else Federation())
    strategy = (signed if signs else masked)(clients, **options)
    clients.run(strategy, grid_of=lambda grid: Lying(grid, change))
    return strategy


def test_a_server_with_fewer_than_three_trusted_keys_is_refused_before_a_round() -> None:
    for few in (0, 2):
        lines = [Identity(key).line for key in KEYS[:few]]
        with pytest.raises(ValueError, match=f"at least 3 clients, .*; got {few}"):
            Risks(trusted=lines)
    assert Risks(trusted=[Identity(key).line for key in KEYS[:3]]).server == "active"


# Honest rounds.


def test_the_model_is_the_same_as_without_signatures() -> None:
    plain, own = Federation(), Signing()
    results = [plain.run(masked(plain), rounds=2), own.run(signed(own), rounds=2)]
    for name in ("w", "b"):
        one, other = (result.arrays[name].numpy() for result in results)
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("stage", ["keys", "shares", "train", "survivors", "unmask"])
def test_one_may_drop_out_in_any_stage(stage: str) -> None:
    clients = Signing(faults=at(stage, [2]))
    strategy = played(clients, signed)
    assert strategy.facts().abandoned is None
    left = [c for c in range(5) if c != 2 or stage in ("survivors", "unmask")]
    assert strategy.facts().num_clients == len(left)
    assert strategy.facts().aggregate == pytest.approx(clients.mean(left), abs=1e-6)


# Few clients, and a graph that may fail more often than usual.
DRAWN: dict[str, Any] = {
    "neighbours": 8,
    "threshold": 7,
    "collusion_rate": 0.0,
    "max_abort": 1.0,
    "max_exposure": 1.0,
}


@pytest.mark.parametrize(
    "stage", first_fast(2, ["draw", "unmask", "shares", "keys", "train", "survivors"])
)
def test_drawn_neighbours_give_the_sum_whoever_drops_out(stage: str) -> None:
    clients = Signing(12, faults=at(stage, [4]))
    strategy = played(clients, signed, **DRAWN)
    left = [c for c in range(12) if c != 4 or stage in ("survivors", "unmask")]
    assert strategy.facts().abandoned is None
    assert strategy.facts().num_clients == len(left)
    assert strategy.facts().aggregate == pytest.approx(clients.mean(left), abs=1e-6)
    (finding,) = strategy.findings()
    assert 2 <= finding.value < 12  # how small a sum may be
    assert Assumption.COLLUDERS_FIXED_BEFOREHAND in finding.assumptions
    assert 0 <= finding.facts["chance that a client was exposed"] <= 1
    assert json.loads(json.dumps(strategy.state()))


def test_the_finding_names_the_mode_and_what_clients_insist_on() -> None:
    clients = Signing()
    strategy = played(clients, signed, threshold=4)
    (finding,) = strategy.findings()
    assert finding.threat_model.conduct == "active"
    assert finding.threat_model.colluders == 2  # 2·4 > 5 + 2
    assert finding.value == 2  # of 5 survivors a lying server may drop one, and two collude
    assert Assumption.HONEST_RELAY not in finding.assumptions
    assert {Assumption.TRUSTED_KEYS, Assumption.OWN_THRESHOLD} <= set(finding.assumptions)
    curious = Federation()
    other = masked(curious, threshold=4)
    curious.run(other)
    (before,) = other.findings()
    assert (before.threat_model.conduct, before.value) == ("curious", 3)


def test_canaries_play_under_signatures_and_their_seats_are_known_to_all() -> None:
    seen: dict[int, Any] = {}

    def watch(message: Message, context: Context, call_next: Any) -> Message:
        if wire.SEATS in message.content:
            seen[context.node_id] = wire.seat_numbers(message.content)
        reply: Message = call_next(message, context)
        return reply

    clients = Signing(6)
    clients.mods = [watch, *(clients.mods or ())]
    strategy = signed(clients, threshold=5)
    watching = Watching({0: Canary(id=3, seed=9, norm=0.5)})
    clients.run(Audited(strategy, [watching], sends="models"))
    assert set(seen) == {1, 2, 3, 4, 5, 6}
    assert len(set(seen.values())) == 1
    assert strategy.facts().abandoned is None


# Clients that are no client, or lie.


def test_strangers_copied_keys_and_clients_without_keys_drop_out_and_the_others_go_on() -> None:
    own = own_mods()
    everybody = TrustedKeys.of([key.public_key().public_bytes_raw() for key in KEYS])
    stranger = MaskMod(seed=SEED, identity=Identity(KEYS[39]), trusted=everybody, outside=OUTSIDE)
    odd = {3: stranger, 5: own[3], 7: MaskMod(seed=SEED, outside=OUTSIDE)}

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        chosen = odd.get(context.node_id, own[context.node_id - 1])
        return chosen(message, context, call_next)

    clients = Federation(9, mod=mod)
    strategy = played(clients, signed, threshold=0.75)
    # Of two that have announced with one key, both drop out.
    assert strategy.facts().num_clients == 5
    assert strategy.facts().aggregate == pytest.approx(clients.mean([0, 1, 5, 7, 8]), abs=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        lambda _: {"signature": bytes(64)},
        lambda _: {"signature": b""},
        lambda _: {"signature": 7},
        lambda order: {"signature": order["signature"][::-1]},
    ],
)
def test_a_bad_signature_about_survivors_is_a_dropout(change: Any) -> None:
    clients = Signing(faults=at("survivors", [1], changed(change)))
    strategy = played(clients, signed)
    assert strategy.facts().abandoned is None
    assert strategy.facts().num_clients == 5


def test_too_few_signatures_abandon_the_round_before_any_share_is_asked_for() -> None:
    clients = Signing(faults=at("survivors", [1, 2, 3]))
    strategy = played(clients, signed)
    assert "have signed" in str(strategy.facts().abandoned)
    assert "unmask" not in strategy._tally.dropped


# A server that lies. The first three work without signatures: what clients were told is in their
# masks in any case.


class Uneven(Federation):
    """Clients of a server that changes the train messages of all but the first client."""

    def __init__(self, change: Callable[[RecordDict], RecordDict], **options: Any) -> None:
        super().__init__(**options)
        inside = self.mods or []

        def relay(message: Message, context: Context, call_next: Any) -> Message:
            order = wire.config(message.content, wire.MASK) or ConfigRecord()
            if order.get("stage") == "train" and context.node_id != 1:
                message = copy.copy(message)  # the server's own stays as it was
                message.content = change(message.content)
            reply: Message = call_next(message, context)
            return reply

        self.mods = [relay, *inside]


def wider(content: RecordDict) -> RecordDict:
    order = wire.config(content, wire.SUM_ORDER)
    assert order is not None
    return RecordDict({**content, wire.SUM_ORDER: ConfigRecord({**order, "clip-range": 1e30})})


def slower(content: RecordDict) -> RecordDict:
    config = wire.config(content, wire.CONFIG)
    return RecordDict({**content, wire.CONFIG: ConfigRecord({**(config or {}), "lr": 0.0})})


def another_model(content: RecordDict) -> RecordDict:
    arrays = wire.arrays(content)
    moved = {n: type(a)(a.numpy() + np.ones_like(a.numpy())) for n, a in arrays.items()}
    return RecordDict({**content, "arrays": type(arrays)(moved)})


@pytest.mark.parametrize("change", [wider, slower, another_model])
def test_uneven_instructions_show_nothing_of_the_client_that_was_told_otherwise(
    change: Any,
) -> None:
    clients = Uneven(change)
    strategy = played(clients)
    facts = strategy.facts()
    # Masks do not cancel: the sum is noise, which is noticed.
    assert facts.rejected or facts.abandoned
    assert facts.aggregate is None


def test_a_strategy_that_sends_uneven_messages_is_refused_before_the_first_round() -> None:
    clients = Federation()
    inner = clients.fedavg()
    usual = inner.configure_train

    def uneven(*args: Any) -> list[Message]:
        messages = list(usual(*args))
        wire.add_record(messages[0], wire.CONFIG, ConfigRecord({"lr": 1.0}))
        return messages

    inner.configure_train = uneven  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"same train message inside Masked.*differ in 'config'"):
        clients.run(Masked(inner, threshold=3))
    assert clients.seen == []


def test_a_canary_for_somebody_who_is_no_seat_is_refused() -> None:
    def order_canary(content: RecordDict) -> RecordDict:
        record = Order(Canary(id=1, seed=5, norm=1.0)).to_record()
        return RecordDict({**content, wire.CANARY: record})

    clients = Uneven(order_canary)
    strategy = played(clients)
    assert strategy.facts().abandoned is not None
    assert [client for _, _, client in clients.seen] == [0]


# What needs signatures.


def swap_keys(_: int, stage: str, content: RecordDict) -> list[RecordDict]:
    """Hand out keys of the server's own in place of client 2's."""
    if stage != "shares":
        return [content]
    order = wire.config(content, wire.MASK)
    assert order is not None
    keys = get_by_number(order, "keys")
    if 2 in keys:
        size = len(keys[2])
        own = KEYS_OF_THE_SERVER.public.to_bytes()
        keys[2] = own + keys[2][len(own) : size]
    return [with_order(content, **put_by_number("keys", keys))]


def invent(_: int, stage: str, content: RecordDict) -> list[RecordDict]:
    """Name a client that nobody has met beside the real ones."""
    if stage != "shares":
        return [content]
    order = wire.config(content, wire.MASK)
    assert order is not None
    keys = get_by_number(order, "keys")
    size = len(next(iter(keys.values())))
    own = KEYS_OF_THE_SERVER.public.to_bytes()
    keys[99] = own + bytes(size - len(own))
    return [with_order(content, **put_by_number("keys", keys))]


@pytest.mark.parametrize("change", [swap_keys, invent])
def test_swapped_keys_and_invented_peers_end_the_round_before_training(change: Change) -> None:
    clients = Signing()
    strategy = attacked(change, clients)
    assert strategy.facts().abandoned is not None
    assert clients.seen == []  # nobody has trained
    assert strategy._tally.dropped["shares"] >= 4


def test_without_signatures_clients_share_their_secrets_with_the_servers_own_keys() -> None:
    assert attacked(swap_keys, signs=False)._tally.dropped["shares"] == 0


def test_survivors_that_differ_from_client_to_client_open_nothing() -> None:
    def change(node: int, stage: str, content: RecordDict) -> list[RecordDict]:
        if stage == "survivors" and node in (1, 2, 3):
            return [with_order(content, survivors=[1, 2, 3, 4, 5])]
        return [content]

    strategy = attacked(change, Signing(6), threshold=4)
    assert "have signed" in str(strategy.facts().abandoned)


def test_one_request_to_unmask_is_answered_and_one_list_signed() -> None:
    answers: list[tuple[str, bool]] = []

    class Twice(Lying):
        def send_and_receive(
            self, messages: Iterable[Message], *, timeout: float | None = None
        ) -> Iterable[Message]:
            sent = list(messages)
            first = list(self.grid.send_and_receive(sent, timeout=timeout))
            order = wire.config(sent[0].content, wire.MASK) if sent else None
            if order is not None and order["stage"] in ("survivors", "unmask"):
                again = [
                    Message(m.content, dst_node_id=m.metadata.dst_node_id, message_type="train")
                    for m in sent
                ]
                second = self.grid.send_and_receive(again, timeout=timeout)
                answers.extend((str(order["stage"]), r.has_error()) for r in second)
            return first

    clients = Signing()
    strategy = signed(clients)
    clients.run(strategy, grid_of=lambda grid: Twice(grid, lambda *_: []))
    assert strategy.facts().abandoned is None
    assert {stage for stage, _ in answers} == {"survivors", "unmask"}
    assert all(failed for _, failed in answers)


@pytest.mark.parametrize("has_folder", [True, False])
def test_a_request_that_meets_the_state_of_before_is_refused_where_steps_are_noted(
    has_folder: bool, tmp_path: Path
) -> None:
    """Flower reads a client's state when a message comes: a second one may see it as it was."""
    own = [
        replace(mod, identity=Identity(key, tmp_path / str(i) if has_folder else None))
        for i, (mod, key) in enumerate(zip(own_mods(), KEYS, strict=False))
    ]

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        return own[context.node_id - 1](message, context, call_next)

    answered: list[bool] = []

    class Stale(GridWrapper):
        def send_and_receive(
            self, messages: Iterable[Message], *, timeout: float | None = None
        ) -> Iterable[Message]:
            sent, grid = list(messages), self.grid
            assert isinstance(grid, InlineGrid)
            order = (wire.config(sent[0].content, wire.MASK) if sent else None) or {}
            before = dict(grid._contexts)
            first = list(grid.send_and_receive(sent, timeout=timeout))
            if order.get("stage") == "unmask":
                grid._contexts.update(before)
                again = [
                    Message(m.content, dst_node_id=m.metadata.dst_node_id, message_type="train")
                    for m in sent
                ]
                answered.extend(r.has_content() for r in grid.send_and_receive(again))
            return first

    clients = Federation(mod=mod)
    strategy = signed(clients)
    clients.run(strategy, grid_of=Stale)
    assert strategy.facts().abandoned is None
    assert answered == [not has_folder] * 5


def test_a_clip_range_and_a_weight_beyond_the_clients_policy_are_refused() -> None:
    for policy in ({"max_clip_range": 3.0}, {"max_weight": 99.0}):
        clients = Signing(policy=policy)
        strategy = signed(clients)
        clients.run(strategy)
        assert "must be at most" in str(strategy.facts().abandoned)
        assert clients.seen == []
    clients = Signing(policy={"max_clip_range": 4.0, "max_weight": 100.0})
    strategy = played(clients, signed)
    assert strategy.facts().abandoned is None


def test_room_for_noise_that_nobody_adds_is_refused() -> None:
    """It would round updates as coarsely as a clip range beyond the policy."""

    def change(_: int, stage: str, content: RecordDict) -> list[RecordDict]:
        if stage != "train":
            return [content]
        order = wire.config(content, wire.SUM_ORDER) or ConfigRecord()
        wide = ConfigRecord({**order, "noise-std": 1e30})
        return [RecordDict({**content, wire.SUM_ORDER: wide})]

    clients = Signing(policy={"max_clip_range": 4.0})
    strategy = attacked(change, clients)
    assert "noise-std must be at most" in str(strategy.facts().abandoned)
    assert clients.seen == []


def test_clients_count_canary_seats_as_those_who_hide_nobody() -> None:
    orders = {c: Canary(id=c, seed=9, norm=0.5) for c in (0, 1, 2)}
    clients = Federation(4)
    strategy = masked(clients)
    clients.run(Audited(strategy, [Watching(orders)], sends="models"))
    assert "fewer than two others" in str(strategy.facts().abandoned)


def test_a_roster_that_is_not_the_same_for_all_opens_nothing() -> None:
    def change(node: int, stage: str, content: RecordDict) -> list[RecordDict]:
        if stage != "draw" or node > 4:
            return [content]
        order = wire.config(content, wire.MASK)
        assert order is not None
        known = get_by_number(order, "identities")
        few = {n: key for n, key in known.items() if n <= 10}
        return [with_order(content, **put_by_number("identities", few))]

    facts = attacked(change, Signing(12), **DRAWN).facts()
    assert facts.aggregate is None
    assert facts.abandoned is not None


def test_a_roster_too_small_to_hide_in_is_refused() -> None:
    def change(_: int, stage: str, content: RecordDict) -> list[RecordDict]:
        if stage != "draw":
            return [content]
        return [with_order(content, draws=3, threshold=2)]

    strategy = attacked(change, Signing(12), **DRAWN)
    assert strategy.facts().abandoned is not None
    assert strategy._tally.dropped["draw"] == 12


def test_a_signed_client_answers_no_evaluation_and_no_unsigned_stage() -> None:
    clients = Signing()
    strategy = masked(clients)  # a server that asks for no signatures
    clients.run(strategy)
    assert strategy.facts().abandoned is not None
    assert clients.seen == []
