"""Lets a server ask a node which client it is."""

from __future__ import annotations

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from leakmeter.auditors.hook import wire


def add_identity(app: ClientApp) -> None:
    """Make the app answer `query.identity` with its partition-id, if it has one."""

    @app.query("identity")
    def identity(message: Message, context: Context) -> Message:
        record = ConfigRecord()
        if "partition-id" in context.node_config:
            record["partition-id"] = int(context.node_config["partition-id"])
        return Message(RecordDict({wire.IDENTITY: record}), reply_to=message)


def identity_of(reply: Message) -> int | None:
    """Return the client index in a reply, or None if the node could not tell."""
    if not reply.has_content():
        return None
    record = wire.config(reply.content, wire.IDENTITY)
    client = record.get("partition-id") if record is not None else None
    return client if isinstance(client, int) else None
