"""The messages that the in-process engine delivers in one go.

A client app can look at those that come after its own, and train their clients together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message


@dataclass(frozen=True)
class Delivery:
    """Messages that are delivered one after the other.

    Attributes:
        messages: The clients, by partition-id, and what is sent to them, in this order.
        ahead: What the app has computed for a message before it got it, by the message's id.
    """

    messages: Sequence[tuple[int, Message]]
    ahead: dict[str, Any] = field(default_factory=dict)


_current: ContextVar[Delivery | None] = ContextVar("delivery", default=None)


def current() -> Delivery | None:
    """Return what is being delivered; None in every other engine."""
    return _current.get()


@contextmanager
def delivering(messages: Sequence[tuple[int, Message]]) -> Iterator[None]:
    """Announce messages while they are delivered."""
    token = _current.set(Delivery(messages))
    try:
        yield
    finally:
        _current.reset(token)
