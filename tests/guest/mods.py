"""Mods of foreign apps: Flower's, and some that projects write themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    arrays_size_mod,
    fixedclipping_mod,
    message_size_mod,
)

from leakmeter.auditors import canary_mod

Call = Callable[[Message, Context], Message]


def clipping_mods(strategy: str) -> tuple[Any, ...]:
    """Return the mods that an app needs for a strategy of Flower's, and ours behind them."""
    if "ClientSideFixed" in strategy:
        return (fixedclipping_mod, canary_mod)
    if "ClientSideAdaptive" in strategy:
        return (adaptiveclipping_mod, canary_mod)
    return (canary_mod,)


def local_dp(epsilon: float = 100.0) -> LocalDpMod:
    """Return Flower's local noise."""
    return LocalDpMod(clipping_norm=3.0, sensitivity=3.0, epsilon=epsilon, delta=1e-5)


def counting_mod(message: Message, context: Context, call_next: Call) -> Message:
    """Count calls in the client's state, as a project's own mod may do."""
    kept = context.state.get("calls")
    calls = int(str(kept["all"])) if isinstance(kept, ConfigRecord) else 0
    context.state["calls"] = ConfigRecord({"all": calls + 1})
    return call_next(message, context)


def rounding_mod(message: Message, context: Context, call_next: Call) -> Message:
    """Round what is sent to few digits, as a project's own compression does."""
    reply = call_next(message, context)
    if reply.has_error() or "arrays" not in reply.content:
        return reply
    record = reply.content["arrays"]
    assert isinstance(record, ArrayRecord)
    rounded = {name: Array(np.round(a.numpy(), 3)) for name, a in record.items()}
    reply.content = RecordDict({**reply.content, "arrays": ArrayRecord(rounded)})
    return reply


def strict_mod(message: Message, context: Context, call_next: Call) -> Message:
    """Refuse messages that hold another number of records than Flower's strategies send."""
    content = message.content
    if len(content.array_records) != 1 or len(content.config_records) != 1:
        raise ValueError(f"expected one record of arrays and one of settings, got {list(content)}")
    return call_next(message, context)


HARMLESS: dict[str, Any] = {
    "arrays_size_mod": arrays_size_mod,
    "message_size_mod": message_size_mod,
    "counting_mod": counting_mod,
    "rounding_mod": rounding_mod,
    "strict_mod": strict_mod,
}
