"""Reads and checks replies of clipped and noised clients; copies them with new arrays."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from leakmeter.auditors.hook import wire


class NotNoisedError(ValueError):
    """A reply did not pass noise_mod, so the guarantee would not hold."""


def reply_of_nobody(arrays: ArrayRecord, weight_key: str) -> Message:
    """Return the reply that brings the noise of an empty round to the inner strategy."""
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({weight_key: 1})})
    return Message(content, dst_node_id=0, message_type="train")


def with_arrays(messages: Sequence[Message], arrays: ArrayRecord, weight_key: str) -> list[Message]:
    """Return copies of replies with other arrays; the replies themselves stay as they came.

    Flower's strategies raise if metrics differ in names or kinds. Metrics that not all clients sent
    in the same form are left out.
    """
    sent = [_metrics(message) for message in messages]
    alike = [
        name
        for name in (sent[0] if sent else {})
        if name not in (wire.CLIP_BIT, weight_key) and len({_kind(m.get(name)) for m in sent}) == 1
    ]
    copies = []
    for message, metrics in zip(messages, sent, strict=True):
        other = copy.copy(message)
        kept = MetricRecord({weight_key: 1, **{name: metrics[name] for name in alike}})
        other.content = RecordDict({"arrays": arrays, "metrics": kept})
        copies.append(other)
    return copies


def clip_bit(message: Message) -> float:
    """Return a reply's bit, or the mean of all bits behind masks, within [0, 1]."""
    for record in message.content.values():
        if isinstance(record, MetricRecord) and wire.CLIP_BIT in record:
            bit = wire.get_float(record, wire.CLIP_BIT)
            if bit != bit:
                raise ValueError(f"{wire.CLIP_BIT!r} must be a number, got NaN")
            return min(max(bit, 0.0), 1.0)
    raise NotNoisedError(
        f"replies must carry {wire.CLIP_BIT!r} for an adaptive clip norm: list noise_mod in the "
        f"client app, and {wire.CLIP_BIT!r} with (0, 1) among the metrics of Masked"
    )


def _metrics(message: Message) -> dict[str, Any]:
    records = message.content.values()
    return {
        k: v for record in records if isinstance(record, MetricRecord) for k, v in record.items()
    }


def _kind(value: Any) -> int | None:
    """Return the length of a list, -1 for a number, None for what is missing."""
    if value is None:
        return None
    return len(value) if isinstance(value, list) else -1
