"""What a node adds to a client app: its identity, and dropouts in simulations.

A real client that vanishes sends nothing. Here it answers with an error instead, which the server
treats the same way and does not have to wait for.
"""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.mods import Call
from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import require

_TRAIN = "train"


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


@dataclass(frozen=True)
class DropoutMod:
    """Fails in each stage independently with the same chance; for simulations only.

    The stages are those of a secure sum (keys, shares, train, unmask); without one there is train
    alone. A client that fails in train does so before training. A client that has failed in one
    stage is not asked in later stages of the round. Seed, round, client and stage decide, so every
    engine gives the same dropouts. Place it first in the list of mods.

    Attributes:
        rate: Chance to fail in a stage; 0 does nothing.
        seed: Names the draws.
    """

    rate: float
    seed: int

    def __post_init__(self) -> None:
        require("[0, 1)", rate=self.rate)

    def __call__(self, message: Message, context: Context, call_next: Call) -> Message:
        """Fail, or hand the message on."""
        is_training = message.metadata.message_type.split(".")[0] == _TRAIN
        # What an auditor asks for is no part of the protocol.
        if not self.rate or not is_training or wire.is_instrument(message.content):
            return call_next(message, context)
        stage, server_round = _place(message.content)
        client = int(context.node_config["partition-id"])
        if stream(self.seed, "dropout", server_round, client, stage).random() < self.rate:
            return wire.dropout_reply(message, stage)
        return call_next(message, context)


def _place(content: RecordDict) -> tuple[str, int]:
    """Return the stage and the round that a message belongs to."""
    order = wire.config(content, wire.MASK)
    if order is None:
        return _TRAIN, wire.server_round(content)
    return wire.get_text(order, "stage"), wire.get_int(order, "round")
