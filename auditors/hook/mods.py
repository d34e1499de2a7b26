"""Client mods for an audit: play a canary, or keep a copy of the plain update.

Both are instruments. A client obeys only because its owner has listed them. A client that plays a
canary is one honest contributor fewer for everybody else in a secure sum.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from leakmeter.auditors._types import Vector
from leakmeter.auditors.canary import add_canary
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.layout import Layout
from leakmeter.auditors.hook.seat import Answer, Order, Outcome
from leakmeter.auditors.hook.surroundings import mods_around

# What a mod calls to reach the next mod, and at last the app.
Call = Callable[[Message, Context], Message]

# Flower's programs for deployed clients load this module; its simulations never do.
_SUPERNODE: Final = "flwr.supernode.cli"
_DP_SGD: Final = "opacus"


def is_supernode() -> bool:
    """Whether this process runs the clients of a deployment."""
    return _SUPERNODE in sys.modules


def canary_mod(message: Message, context: Context, call_next: Call) -> Message:
    """Train, then replace the update by the canary that the message orders, if it orders one.

    The seat trains as usual, so its metrics, its weight and its timing stay honest; only the float
    arrays change. The canary's norm is that of the order, otherwise the clip norm of the round,
    otherwise the norm of the update just trained. The client app does not see the order. In the
    reply the mod says that it is present, and between which other mods; the hook removes that.

    After a replay, the state in `context` is restored.
    """
    order = Order.of(message.content)
    is_replay = wire.replay_number(message.content) is not None
    if order is None and not is_replay:
        return call_next(message, context)
    before = copy.deepcopy(context.state) if is_replay else None
    outer, inner = mods_around(call_next)
    reply = call_next(_without_order(message), context)
    if before is not None:
        context.state = before
    if reply.has_error():
        return reply
    outcome: Outcome = "greeted"
    if order is not None and order.canary is not None:
        outcome = _play(order, message, reply)
    answer = Answer(outcome, outer, inner, trains_privately=_DP_SGD in sys.modules)
    reply.content = RecordDict({**reply.content, wire.CANARY: answer.to_record()})
    return reply


def _without_order(message: Message) -> Message:
    """Return the message as the app would have got it; the original may be sent again."""
    inside = copy.copy(message)
    kept = {key: record for key, record in message.content.items() if key != wire.CANARY}
    inside.content = RecordDict(kept)
    return inside


def _play(order: Order, message: Message, reply: Message) -> Outcome:
    """Put the canary into the reply, or leave the reply as it is and say why."""
    canary = order.canary
    assert canary is not None
    try:
        sent, trained = wire.arrays(message.content), wire.arrays(reply.content)
        names = list(sent)
        layout = Layout.of(sent, [names[place] for place in order.left_out])
        layout.check(trained)
    except (ValueError, IndexError):
        return "other-arrays"
    vector = layout.flatten(sent)
    if order.sends == "differences":
        vector[:] = 0.0
    norm = wire.clip_norm(message.content) if canary.norm is None else canary.norm
    if norm is None:
        norm = layout.distance(trained, vector)
        if not math.isfinite(norm):  # as without an audit: others see a client that diverged
            return "not-finite"
    dtypes = layout.dtypes_in(trained)
    if canary.included:
        add_canary(vector, canary.seed, norm)  # the seed of an order is a key
    else:
        _nudge(vector, layout, dtypes)
    wire.replace_arrays(reply, layout.restore(vector, trained, dtypes))
    return "played"


def _nudge(vector: Vector, layout: Layout, dtypes: Sequence[str]) -> None:
    """Move one entry by a rounding step: Flower's mods divide by the norm of an update."""
    first = next(place for place, size in enumerate(layout.sizes) if size)
    start = np.asarray(vector[0], dtype=dtypes[first])
    vector[0] = float(start) + float(np.spacing(np.abs(start) + np.ones_like(start)))


def tap_mod(message: Message, context: Context, call_next: Call) -> Message:
    """Keep the update in the client's own state until the auditor's server collects it.

    Only in simulations: a deployed client must never hand out a plain update next to a masked one.
    Nodes of a deployment may have a partition-id too, so the process is checked as well. The copy
    does not travel with the train reply.
    """
    if wire.TAP not in message.content:
        return call_next(message, context)
    if is_supernode():
        raise ValueError("tap_mod works on simulated nodes only: this one is a SuperNode")
    if "partition-id" not in context.node_config:
        raise ValueError("tap_mod works on simulated nodes only: node_config lacks 'partition-id'")
    order = wire.config(message.content, wire.TAP)
    if order is not None:
        return Message(_collect(context, order), reply_to=message)
    server_round = wire.kept_round(message.content)
    reply = call_next(message, context)
    if server_round is not None and not reply.has_error():
        context.state[wire.TAP] = ConfigRecord({"round": server_round})
        # Copies, because in one process the server may change the records of the reply.
        context.state[_ARRAYS] = ArrayRecord(dict(wire.arrays(reply.content)))
        context.state[_METRICS] = _scalars(reply.content)
    return reply


_ARRAYS: Final = f"{wire.TAP}.arrays"
_METRICS: Final = f"{wire.TAP}.metrics"


def _scalars(content: RecordDict) -> MetricRecord:
    """Return all single numbers of a reply in one record, the first of a name."""
    found = MetricRecord()
    for record in content.metric_records.values():
        for name, value in record.items():
            if name not in found and not isinstance(value, list):
                found[name] = value
    return found


def _collect(context: Context, order: ConfigRecord) -> RecordDict:
    """Return what was kept of this round and delete it."""
    server_round, key = wire.get_int(order, "round"), wire.get_text(order, "weight-key")
    kept = wire.config(context.state, wire.TAP)
    if kept is None or kept["round"] != server_round:
        raise ValueError(f"nothing is kept for round {server_round}, kept: {kept}")
    arrays = context.state.pop(_ARRAYS)
    weight = wire.weight(RecordDict({"metrics": context.state.pop(_METRICS)}), key)
    del context.state[wire.TAP]
    content = RecordDict({wire.TAP: ConfigRecord({"round": server_round, "weight": weight})})
    if order.get("arrays") is True:
        content["arrays"] = arrays
    return content
