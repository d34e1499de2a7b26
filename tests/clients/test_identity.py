"""A node says which client it is, if it knows."""

from __future__ import annotations

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from leakmeter.auditors.hook.wire import IDENTITY, IDENTITY_QUERY
from leakmeter.clients.node import add_identity, identity_of

pytestmark = pytest.mark.usefixtures("flower_task")


def ask(app: ClientApp, **node_config: int | str) -> Message:
    context = Context(
        run_id=1, node_id=9, node_config=node_config, state=RecordDict(), run_config={}
    )
    return app(Message(RecordDict(), dst_node_id=9, message_type=IDENTITY_QUERY), context)


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
    question = Message(RecordDict(), dst_node_id=9, message_type=IDENTITY_QUERY)
    assert identity_of(Message(Error(0, "lost"), reply_to=question)) is None
    assert identity_of(Message(RecordDict(), reply_to=question)) is None
    text = ConfigRecord({"partition-id": "seven"})
    reply = Message(RecordDict({IDENTITY: text}), reply_to=question)
    assert identity_of(reply) is None
