"""Keeps the replies that Flower can aggregate: its strategies raise if one differs in form."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable
from typing import TypeAlias

from flwr.app import Message, MetricRecord

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.values import values

_log = logging.getLogger("flwr")

# Names and shapes of arrays, names and lengths of metrics (-1 for a number), with their keys.
_Form: TypeAlias = tuple[tuple[str, ...], tuple[tuple[str, tuple[int, ...] | int], ...]]

_NUMBERS = "fiub"  # numpy's kinds of types that can be averaged


def consistent(replies: Iterable[Message], weight_key: str) -> list[Message]:
    """Return errors and the replies of the most common form; others are logged as dropouts."""
    sent = list(replies)
    forms: dict[int, _Form] = {}
    for place, reply in enumerate(sent):
        if reply.has_content():
            try:
                forms[place] = _form(reply, weight_key)
            except Exception as error:  # a client may send anything
                _complain(reply, str(error))
    usual = Counter(forms.values()).most_common(1)  # of equally many the first
    for place, form in forms.items():
        if form != usual[0][0]:
            _complain(sent[place], "arrays or metrics have other names or shapes than most")
    good = [place for place, form in forms.items() if form == usual[0][0]]
    if good and sum(wire.weight(sent[place].content, weight_key) for place in good) <= 0:
        _log.warning("nobody counts: all weights %r are zero", weight_key)
        good = []
    return [reply for place, reply in enumerate(sent) if place in good or reply.has_error()]


def _form(reply: Message, weight_key: str) -> _Form:
    """Return what must be the same in all replies; raise if this one cannot be averaged at all."""
    arrays = wire.arrays(reply.content)
    for name, array in arrays.items():
        numbers = values(array)
        if numbers.dtype.kind not in _NUMBERS or numbers.size != math.prod(array.shape):
            raise ValueError(f"array {name!r} must hold {array.shape} numbers")
    metrics = [(k, r) for k, r in reply.content.items() if isinstance(r, MetricRecord)]
    if len(metrics) != 1:
        raise ValueError(f"a reply must have one MetricRecord, got {len(metrics)}")
    key, record = metrics[0]
    weight = wire.get_float(record, weight_key)
    if not 0 <= weight < math.inf:
        raise ValueError(f"{weight_key} must be at least 0 and finite, got {weight}")
    lengths = [(n, len(v) if isinstance(v, list) else -1) for n, v in sorted(record.items())]
    shapes = [(name, tuple(array.shape)) for name, array in sorted(arrays.items())]
    return (wire.arrays_key(reply.content), key), (*shapes, *lengths)


def _complain(reply: Message, reason: str) -> None:
    node = reply.metadata.src_node_id
    _log.warning("node %d drops out, its reply cannot be used: %s", node, wire.one_line(reason))
