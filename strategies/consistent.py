"""Keeps the replies that Flower can aggregate, and copies them with new arrays.

Flower's strategies raise if one reply differs in form.
"""

from __future__ import annotations

import copy
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.values import all_finite, shaped

_log = logging.getLogger("flwr")

# What must be the same in all replies of a round.
_Form: TypeAlias = tuple[tuple[object, ...], ...]

_Metric: TypeAlias = int | float | list[int] | list[float]

_NUMBERS = "fiub"  # numpy's kinds of types that can be averaged
_WIDEST = 8  # bytes of a number; PyTorch cannot read longer ones


def trained(
    replies: Iterable[Message], weight_key: str, fits: Callable[[ArrayRecord], bool]
) -> list[Message]:
    """Return errors and the replies of a training round that can be averaged.

    All others are dropouts, and logged: those whose arrays do not fit or are not finite, and those
    with other names, types or metrics than most.

    Args:
        replies: Those of the round, one of each client.
        weight_key: The metric that weights clients.
        fits: Whether arrays can take the place of the model that was sent. A client that is alone
            in its round would otherwise decide what the next model looks like.
    """

    def form(reply: Message) -> _Form:
        record = wire.arrays(reply.content)
        if not fits(record):
            raise ValueError("its arrays have other names or shapes than the model that was sent")
        key = wire.arrays_key(reply.content)
        return (key,), _of_arrays(record), *_of_metrics(reply, weight_key)

    return _alike(replies, weight_key, form)


def evaluated(replies: Iterable[Message], weight_key: str) -> list[Message]:
    """Return errors and the replies of an evaluation round that can be averaged."""
    return _alike(replies, weight_key, lambda reply: _of_metrics(reply, weight_key))


def left_out(replies: Iterable[Message], usable: Iterable[Message]) -> frozenset[int]:
    """Return the nodes of replies that are not among the usable ones."""
    nodes = {reply.metadata.src_node_id for reply in replies if reply.has_content()}
    return frozenset(nodes - {reply.metadata.src_node_id for reply in usable})


def shapes(record: ArrayRecord) -> dict[str, tuple[int, ...]]:
    """Return the shape that each array says it has."""
    return {name: tuple(array.shape) for name, array in record.items()}


def _alike(
    replies: Iterable[Message], weight_key: str, form: Callable[[Message], _Form]
) -> list[Message]:
    """Return errors and the replies of the form that most have."""
    sent = list(replies)
    forms: dict[int, _Form] = {}
    for place, reply in enumerate(sent):
        if reply.has_content():
            try:
                forms[place] = form(reply)
            except Exception as error:  # a client may send anything
                _complain(reply, str(error))
    usual = Counter(forms.values()).most_common(1)  # of equally many the first
    for place, one in forms.items():
        if one != usual[0][0]:
            _complain(sent[place], "arrays or metrics have other names or types than most")
    good = [place for place, one in forms.items() if one == usual[0][0]]
    if good and sum(wire.weight(sent[place].content, weight_key) for place in good) <= 0:
        _log.warning("nobody counts: all weights %r are zero", weight_key)
        good = []
    return [reply for place, reply in enumerate(sent) if place in good or reply.has_error()]


def _of_arrays(record: ArrayRecord) -> tuple[object, ...]:
    """Return names, shapes and types; raise if the arrays cannot be averaged at all."""
    found: list[object] = []
    for name, array in sorted(record.items()):
        numbers = shaped(array)
        kind = numbers.dtype
        if kind.kind not in _NUMBERS or kind.itemsize > _WIDEST:
            raise ValueError(f"array {name!r} must contain numbers of at most 64 bits, got {kind}")
        if numbers.shape != tuple(array.shape):  # what it says need not be what it is
            raise ValueError(f"array {name!r} must have shape {array.shape}, got {numbers.shape}")
        if not all_finite(numbers):  # not by the type that the array says
            raise ValueError(f"array {name!r} is not finite")
        found.append((name, numbers.shape, kind.kind, kind.itemsize))
    return tuple(found)


def _of_metrics(reply: Message, weight_key: str) -> tuple[tuple[object, ...], ...]:
    """Return names and lengths (-1 for a number); raise if there is no usable weight."""
    metrics = [(k, r) for k, r in reply.content.items() if isinstance(r, MetricRecord)]
    if len(metrics) != 1:
        raise ValueError(f"a reply must have one MetricRecord, got {len(metrics)}")
    key, record = metrics[0]
    weight = wire.get_float(record, weight_key)
    if not 0 <= weight < math.inf:
        raise ValueError(f"{weight_key} must be at least 0 and finite, got {weight}")
    return (key,), tuple((name, _length(value)) for name, value in sorted(record.items()))


def _length(value: _Metric) -> int:
    """Return the length of a list, -1 for a number; raise for what is no number of 64 bits."""
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, int) and not -(2**63) <= number < 2**64:
            raise ValueError("metrics must be numbers of at most 64 bits, got a longer one")
    return len(value) if isinstance(value, list) else -1


def _complain(reply: Message, reason: str) -> None:
    node = reply.metadata.src_node_id
    _log.warning("node %d drops out, its reply cannot be used: %s", node, wire.one_line(reason))


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
