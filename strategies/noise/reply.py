"""Replies of clipped and noised clients: read, checked, and handed on with other arrays."""

from __future__ import annotations

import copy

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from leakmeter.auditors.hook import wire


def check(message: Message, weight_key: str, *, is_masked: bool, has_noise: bool) -> None:
    """Raise on a reply that noise_mod has not seen: the guarantee would not hold.

    `has_noise` says whether a client's own noise should be on it.
    """
    weight = wire.weight(message.content, weight_key)
    node = message.metadata.src_node_id
    if weight != 1:
        who = "the clients of a secure sum, on average" if is_masked else f"node {node}"
        raise ValueError(
            f"{weight_key} must be 1 under noise, got {weight:g} from {who}: "
            "list noise_mod in the client app"
        )
    if has_noise and not is_masked and wire.config(message.content, wire.NOISE) is None:
        raise ValueError(
            f"the reply of node {node} must say that it carries noise, but does not: "
            "list noise_mod in the client app"
        )


def reply_of_nobody(arrays: ArrayRecord, weight_key: str) -> Message:
    """Return the reply that brings the noise of an empty round to the inner strategy."""
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({weight_key: 1})})
    return Message(content, dst_node_id=0, message_type="train")


def with_arrays(message: Message, arrays: ArrayRecord) -> Message:
    """Return a copy of a reply with other arrays; the reply itself stays as it came."""
    other = copy.copy(message)
    metrics = {
        k: v
        for record in message.content.values()
        if isinstance(record, MetricRecord)
        for k, v in record.items()
        if k != wire.CLIP_BIT
    }
    other.content = RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)})
    return other


def clip_bit(message: Message) -> float:
    """Return a reply's bit, or the mean of all bits behind masks, within [0, 1]."""
    for record in message.content.values():
        if isinstance(record, MetricRecord) and wire.CLIP_BIT in record:
            return min(max(wire.get_float(record, wire.CLIP_BIT), 0.0), 1.0)
    raise ValueError(
        f"replies must carry {wire.CLIP_BIT!r} for an adaptive clip norm: list noise_mod in the "
        f"client app, and {wire.CLIP_BIT!r} with (0, 1) among the metrics of Masked"
    )
