"""Client mods that serve an audit: play a canary, or keep a copy of the plain update.

Both are instruments. A client obeys only because its owner has listed them, and a client that
plays a canary is one honest contributor fewer for everybody else in a secure sum.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from leakmeter.auditors.canary import canary_vector
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.layout import Layout

# What a mod calls to reach the next mod, and at last the app.
Call = Callable[[Message, Context], Message]

# Flower's programs for deployed clients are made of this, and its simulations never load it.
_SUPERNODE = "flwr.supernode.cli"


def is_supernode() -> bool:
    """Whether this process runs the clients of a deployment."""
    return _SUPERNODE in sys.modules


def canary_mod(message: Message, context: Context, call_next: Call) -> Message:
    """Train, then replace the update by the canary that the message orders, if it orders one.

    The seat trains like anyone, so its metrics, its weight and its timing stay honest; only the
    arrays change. The length is the order's, else the clip norm of the round, else the length of
    the update just trained.
    """
    order = wire.canary(message.content)
    reply = call_next(message, context)
    if order is None or reply.has_error():
        return reply
    sent = wire.arrays(message.content)
    # The server names what it leaves out: FedAvg turns integer arrays into floats after round 1.
    layout = Layout.of(sent, wire.left_out(message.content))
    start = layout.flatten(sent)
    swap = np.zeros(layout.dim)
    if order.included:
        norm = order.norm
        if norm is None:
            norm = wire.clip_norm(message.content)
        if norm is None:
            trained = layout.flatten(wire.arrays(reply.content)) - start
            norm = float(np.linalg.norm(trained))
        swap = norm * canary_vector(order.seed, order.id, layout.dim)
    elif wire.avoids_zero(message.content):
        swap[0] = np.spacing(np.abs(start[:1]).astype(layout.dtypes[0]) + 1)[0]
    return wire.replace_arrays(reply, layout.restore(start + swap, sent))


def tap_mod(message: Message, context: Context, call_next: Call) -> Message:
    """Keep the update in the client's own state until the auditor's server collects it.

    Only in simulations: a deployed client must never hand out a plain update beside a masked one.
    Nodes of a deployment may have a partition-id too, so the process is looked at as well. The
    copy does not ride on the train reply.
    """
    order = wire.config(message.content, wire.TAP)
    if order is None:
        return call_next(message, context)
    if is_supernode():
        raise ValueError("tap_mod works on simulated nodes only: this one is a SuperNode")
    if "partition-id" not in context.node_config:
        raise ValueError("tap_mod works on simulated nodes only: node_config lacks 'partition-id'")
    server_round = wire.get_int(order, "round")
    if wire.get_text(order, "action") == "collect":
        return Message(_collect(context, server_round), reply_to=message)
    reply = call_next(message, context)
    if not reply.has_error():
        weight = wire.weight(reply.content, wire.get_text(order, "weight-key"))
        context.state[wire.TAP] = ConfigRecord({"round": server_round, "weight": weight})
        # A record of its own: in one process the server may change the one in the reply.
        context.state[f"{wire.TAP}.arrays"] = ArrayRecord(dict(wire.arrays(reply.content)))
    return reply


def _collect(context: Context, server_round: int) -> RecordDict:
    """Return the kept arrays of this round and forget them."""
    kept = wire.config(context.state, wire.TAP)
    if kept is None or kept["round"] != server_round:
        raise ValueError(f"nothing is kept for round {server_round}, kept: {kept}")
    record = context.state[f"{wire.TAP}.arrays"]
    assert isinstance(record, ArrayRecord)
    del context.state[wire.TAP]
    del context.state[f"{wire.TAP}.arrays"]
    return RecordDict({"arrays": record, wire.TAP: kept})
