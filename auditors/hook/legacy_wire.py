"""Flower's legacy API in the records that the audit reads, and back.

Legacy arrays travel as bytes without type and shape, and everything else as scalars in one config.
Here arrays get both, and our records are texts in that config. All else knows only our records.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.layout import shaped

if TYPE_CHECKING:  # every client loads this module; a release may come without the legacy API
    from flwr.common import Parameters

# Flower's own names of what a legacy message has.
_SENT: Final = "fitins.parameters"
_CONFIG: Final = "fitins.config"
_TRAINED: Final = "fitres.parameters"
_METRICS: Final = "fitres.metrics"

_UNREADABLE: Final = "bytes"  # the type of what is no array of numbers, such as trees

Record = TypeVar("Record", MetricRecord, ConfigRecord)

# Arrays.


def record_of(parameters: Parameters) -> ArrayRecord:
    """Return legacy parameters as a record, named by their places."""
    tensors = enumerate(parameters.tensors)
    return ArrayRecord({str(i): _described(data, parameters.tensor_type) for i, data in tensors})


def _described(data: bytes, stype: str) -> Array:
    """Return an array with the type and the shape that its bytes have."""
    try:
        numbers = shaped(Array(dtype="", shape=(), stype=stype, data=data))
    except Exception:  # bytes of anything: they can be trained, not audited
        return Array(dtype=_UNREADABLE, shape=(), stype=stype, data=data)
    return Array(dtype=str(numbers.dtype), shape=numbers.shape, stype=stype, data=data)


def _described_record(content: RecordDict, key: str) -> ArrayRecord:
    arrays = content.array_records[key].items()
    return ArrayRecord({name: _described(a.data, a.stype) for name, a in arrays})


def _bare_record(content: RecordDict) -> ArrayRecord:
    """Return the trained arrays as a legacy client sends them."""
    arrays = content.array_records[_TRAINED].items()
    return ArrayRecord(
        {name: Array(dtype="", shape=(), stype=a.stype, data=a.data) for name, a in arrays}
    )


# Our records among the scalars of a config.


def packed(content: RecordDict) -> dict[str, str]:
    """Return our records of a message as scalars."""
    ours = {key: record for key, record in content.items() if wire.is_ours(key)}
    return {key: json.dumps(dict(record)) for key, record in ours.items()}


def unpacked(scalars: Mapping[str, Any], kind: type[Record]) -> dict[str, Record]:
    """Return our records among scalars; what anybody else has put in their place is left out."""
    records = {}
    for key in filter(wire.is_ours, scalars):
        try:
            records[key] = kind(json.loads(scalars[key]))
        except (TypeError, ValueError, RecursionError):  # a client may send anything
            continue
    return records


def without_ours(scalars: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scalars that are not ours."""
    return {key: value for key, value in scalars.items() if not wire.is_ours(key)}


# A fit message at the client.


def is_ordered(content: RecordDict) -> bool:
    """Whether a legacy fit message has records of ours."""
    config = wire.config(content, _CONFIG)
    return _SENT in content and config is not None and any(map(wire.is_ours, config))


def translated(message: Message) -> Message:
    """Return a legacy fit message as the audit reads it."""
    orders = unpacked(message.content.config_records[_CONFIG], MetricRecord)
    return _with_content(message, {_SENT: _described_record(message.content, _SENT), **orders})


def without_orders(message: Message) -> Message:
    """Return a legacy fit message as the app would have got it, but for what another mod reads."""
    config = message.content.config_records[_CONFIG]
    kept = {key: config[key] for key in (wire.PLANTED,) if key in config}
    plain = ConfigRecord(without_ours(config) | kept)
    return _with_content(message, {**message.content, _CONFIG: plain})


def order(content: RecordDict, key: str) -> MetricRecord | None:
    """Return one of our orders in a message, a legacy one or not."""
    if is_ordered(content):
        return unpacked(content.config_records[_CONFIG], MetricRecord).get(key)
    record = content.get(key)
    return record if isinstance(record, MetricRecord) else None


def without_order(message: Message, key: str) -> Message:
    """Return a message, a legacy one or not, without one of our orders."""
    content = {name: record for name, record in message.content.items() if name != key}
    if is_ordered(message.content):
        config = message.content.config_records[_CONFIG]
        content[_CONFIG] = ConfigRecord({name: config[name] for name in config if name != key})
    return _with_content(message, content)


def with_answer(reply: Message, key: str, answer: ConfigRecord) -> Message:
    """Return a reply, a legacy one or not, with an answer of ours."""
    content = dict(reply.content)
    if {_TRAINED, _METRICS} <= set(content):
        told = packed(RecordDict({key: answer}))
        content[_METRICS] = ConfigRecord({**reply.content.config_records[_METRICS], **told})
    else:
        content[key] = answer
    return _with_content(reply, content)


def translated_reply(reply: Message) -> Message:
    """Return a legacy reply as the audit reads it; what is none stays as it is."""
    if reply.has_error() or _TRAINED not in reply.content:
        return reply
    return _with_content(
        reply, {**reply.content, _TRAINED: _described_record(reply.content, _TRAINED)}
    )


def as_legacy_reply(reply: Message) -> Message:
    """Return a reply as the legacy API sends it, our answers among its metrics."""
    if reply.has_error() or not {_TRAINED, _METRICS} <= set(reply.content):
        return reply
    kept = {key: record for key, record in reply.content.items() if not wire.is_ours(key)}
    metrics = {**reply.content.config_records[_METRICS], **packed(reply.content)}
    changed = {_TRAINED: _bare_record(reply.content), _METRICS: ConfigRecord(metrics)}
    return _with_content(reply, {**kept, **changed})


def _with_content(message: Message, content: Mapping[str, Any]) -> Message:
    twin = copy.copy(message)
    twin.content = RecordDict(dict(content))
    return twin
