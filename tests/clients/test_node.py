"""What a node adds to an app: who it is, and dropouts by seed, round, client and stage."""

from __future__ import annotations

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from leakmeter.auditors.hook import wire
from leakmeter.clients.node import DropoutMod, add_identity, identity_of
from tests.helpers.refusals import refuses

STAGES = ("keys", "shares", "train", "unmask")


pytestmark = pytest.mark.usefixtures("flower_task")


def failed(mod: DropoutMod, content: RecordDict, client: int = 0, kind: str = "train") -> bool:
    """Return whether the client drops out instead of handing the message on."""
    context = Context(1, client + 1, {"partition-id": client}, RecordDict(), {})
    message = Message(content, dst_node_id=client + 1, message_type=kind)
    reply = mod(message, context, lambda m, _: Message(RecordDict(), reply_to=m))
    return wire.says_dropped(reply)


def order(stage: str, server_round: int) -> RecordDict:
    return RecordDict({wire.MASK: ConfigRecord({"stage": stage, "round": server_round})})


def plain(server_round: int) -> RecordDict:
    return RecordDict({wire.CONFIG: ConfigRecord({"server-round": server_round})})


def test_the_rate_is_that_of_every_stage_and_the_stages_are_independent() -> None:
    mod, rounds = DropoutMod(0.3, seed=1), range(1, 401)
    fates = {s: [failed(mod, order(s, r)) for r in rounds] for s in STAGES}
    for fate in fates.values():  # 0.3 ± 5 standard deviations
        assert 0.18 < sum(fate) / len(fate) < 0.42
    assert len({tuple(fate) for fate in fates.values()}) == len(STAGES)


def test_the_same_seed_round_client_and_stage_give_the_same_dropouts() -> None:
    def fates(seed: int) -> list[bool]:
        mod = DropoutMod(0.5, seed)
        return [failed(mod, order("keys", r), client=c) for r in (1, 2) for c in range(10)]

    assert fates(3) == fates(3) != fates(4)


def test_without_a_secure_sum_the_train_message_is_the_only_stage() -> None:
    mod, rounds = DropoutMod(0.5, seed=0), range(1, 21)
    lost = [failed(mod, plain(r)) for r in rounds]
    assert any(lost)
    assert not all(lost)
    assert lost == [failed(mod, order("train", r)) for r in rounds]


def test_an_auditor_and_other_messages_meet_no_dropout() -> None:
    mod = DropoutMod(1 - 1e-12, seed=0)
    collects = RecordDict({wire.TAP: wire.collect_record(1, "num-examples")})
    replay = RecordDict({**plain(1), wire.REPLAY: wire.replay_record(0)})
    assert failed(mod, plain(1))
    assert not failed(mod, collects)
    assert not failed(mod, replay)
    assert not failed(mod, plain(1), kind="evaluate")
    assert not failed(DropoutMod(0.0, seed=0), plain(1))


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_a_rate_outside_of_its_range_is_refused(rate: float) -> None:
    with refuses("rate"):
        DropoutMod(rate, seed=0)


def ask(app: ClientApp, **node_config: int | str) -> Message:
    context = Context(
        run_id=1, node_id=9, node_config=node_config, state=RecordDict(), run_config={}
    )
    return app(Message(RecordDict(), dst_node_id=9, message_type=wire.IDENTITY_QUERY), context)


@pytest.mark.parametrize("partition", [0, 7, "7"])
def test_a_node_with_a_partition_id_tells_it(partition: int | str) -> None:
    app = ClientApp()
    add_identity(app)
    assert identity_of(ask(app, **{"partition-id": partition})) == int(partition)


def test_a_node_without_one_answers_that_it_has_none() -> None:
    app = ClientApp()
    add_identity(app)
    assert identity_of(ask(app)) is None


def test_errors_and_strange_replies_are_no_identity() -> None:
    question = Message(RecordDict(), dst_node_id=9, message_type=wire.IDENTITY_QUERY)
    assert identity_of(Message(Error(0, "lost"), reply_to=question)) is None
    assert identity_of(Message(RecordDict(), reply_to=question)) is None
    text = ConfigRecord({"partition-id": "seven"})
    reply = Message(RecordDict({wire.IDENTITY: text}), reply_to=question)
    assert identity_of(reply) is None
