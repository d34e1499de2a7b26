"""Grids around Flower's: one shows only some nodes, one retries, one can be stopped.

Also which client each node is, where a grid knows it by itself, and what a grid in this process
delivers in one go, so that an app can train clients together.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Error, Message
from flwr.serverapp import Grid

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.grid import GridWrapper
from leakmeter.auditors.wording import counted

_log = logging.getLogger("flwr")

# Flower's error code for an exception inside the client app: asking again would not help.
CLIENT_APP_RAISED = 2
# How a client app says that its machine, not the client, is at fault.
UNUSABLE = "this machine cannot run the client"
# What Python says where something cannot be imported, in whatever Ray and Flower wrap it.
_IMPORT_FAILED = ("ModuleNotFoundError", "ImportError", "No module named")


class UnusableNodeError(RuntimeError):
    """A machine cannot import the client app or find its data, so its clients would be missing."""


class Places(Mapping[int, int]):
    """Maps each number of a range to its place in it; takes no room, however long the range is."""

    def __init__(self, numbers: range) -> None:
        self._numbers = numbers

    def __getitem__(self, number: int) -> int:
        if number not in self._numbers:
            raise KeyError(number)
        return self._numbers.index(number)

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


class NumberedGrid(Grid):
    """A grid that may know by itself which client each node is, so that nobody has to ask.

    Attributes:
        nodes: The ids of all nodes in the order of clients; None if the nodes must be asked.
    """

    nodes: range | None = None


def known_nodes(grid: Grid) -> range | None:
    """Return the ids of all nodes in the order of clients, if the grid knows it."""
    return grid.nodes if isinstance(grid, NumberedGrid) else None


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


def current_delivery() -> Delivery | None:
    """Return what is being delivered in this process; None in every other engine."""
    return _current.get()


@contextmanager
def delivering(messages: Sequence[tuple[int, Message]]) -> Iterator[None]:
    """Announce messages while they are delivered."""
    token = _current.set(Delivery(messages))
    try:
        yield
    finally:
        _current.reset(token)


class PartialGrid(GridWrapper):
    """Shows only some of the nodes, so that a strategy samples among these."""

    def __init__(self, grid: Grid, nodes: Iterable[int]) -> None:
        super().__init__(grid)
        self._nodes = list(nodes)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes that are shown."""
        return list(self._nodes)


class InterruptibleGrid(GridWrapper):
    """Ends the thread that waits for replies once `stop` is set.

    For Flower's simulation, whose server would wait for replies that nobody is left to give.
    """

    def __init__(self, grid: Grid, stop: threading.Event) -> None:
        super().__init__(grid)
        self._stop = stop

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return the replies that have come when all have, or when time is up."""
        missing = set(self.grid.push_messages(messages))
        replies: list[Message] = []
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            come = list(self.grid.pull_messages(missing))
            missing -= {reply.metadata.reply_to_message_id for reply in come}
            replies += come
            if not missing or (deadline is not None and time.monotonic() > deadline):
                return replies
            if self._stop.wait(0.1):
                raise SystemExit("interrupted")  # no Exception, which strategies might handle


class PatientGrid(GridWrapper, NumberedGrid):
    """Sends a message again if it failed for a reason outside the client app.

    A worker that dies loses its message. The client's state is then unchanged, so the second try
    gives what the first would have given. A machine of a simulation that cannot import the client
    app fails the run: its clients would be missing in every round, and the result would differ.

    Args:
        grid: Delivers the messages.
        is_simulated: Whether the clients run on machines of ours. In a deployment every client
            writes its own errors, so an error never ends the run: the client has dropped out.
    """

    def __init__(self, grid: Grid, *, is_simulated: bool = True) -> None:
        super().__init__(grid)
        self._is_simulated, self.nodes = is_simulated, known_nodes(grid)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return the replies, those of the second try in place of the failed ones."""
        sent = list(messages)
        contents = {m.metadata.dst_node_id: m for m in sent}
        replies = self._received(sent, timeout)
        if raised := [_reason(r) for r in replies if _app_raised(r)]:
            first = wire.one_line(raised[0])
            _log.warning("%s failed, the first with %s", counted(len(raised), "client app"), first)
        # The SuperLink answers expired messages, so the source does not identify the client: match
        # message ids.
        by_id = {m.metadata.message_id: m.metadata.dst_node_id for m in sent}

        def asked(reply: Message) -> int:
            return by_id.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)

        # An error that is the client's own answer would not change with a second message.
        errors = [r for r in replies if r.has_error()]
        lost = [r for r in errors if not (_app_raised(r) or wire.says_dropped(r))]
        failed = {asked(r) for r in lost} & set(contents)
        if not failed:
            return replies
        _log.warning("%s failed on the way; trying once more", counted(len(failed), "message"))
        again = [
            Message(
                contents[node].content,
                dst_node_id=node,
                message_type=contents[node].metadata.message_type,
                ttl=contents[node].metadata.ttl,
                group_id=contents[node].metadata.group_id,
            )
            for node in sorted(failed)
        ]
        kept = [r for r in replies if asked(r) not in failed]
        return kept + self._received(again, timeout)

    def _received(self, messages: list[Message], timeout: float | None) -> list[Message]:
        """Return the replies, or raise if one says that a machine is of no use."""
        replies = list(self.grid.send_and_receive(messages, timeout=timeout))
        for reply in filter(_is_unusable, replies):
            reason = f"a machine cannot run the client app: {wire.one_line(_reason(reply))}"
            if self._is_simulated:
                raise UnusableNodeError(reason)
            _log.warning("node %d drops out: %s", reply.metadata.src_node_id, reason)
        if not self._is_simulated:
            for reply in (one for one in replies if one.has_error()):
                # Flower's strategies log what a client says as it is.
                reply.error = Error(reply.error.code, wire.one_line(_reason(reply)))
        return replies


def _is_unusable(reply: Message) -> bool:
    """Whether the machine behind a reply will never be able to run the client app."""
    if _app_raised(reply):
        return UNUSABLE in _reason(reply)
    return reply.has_error() and any(word in _reason(reply) for word in _IMPORT_FAILED)


def _reason(reply: Message) -> str:
    blank = wire.blank_reason(reply)
    return (reply.error.reason or "no reason given") if blank is None else blank


def _app_raised(reply: Message) -> bool:
    """Whether the client app itself failed; behind masks or noise it has answered nevertheless."""
    if wire.blank_reason(reply) is not None:
        return True
    return reply.has_error() and reply.error.code == CLIENT_APP_RAISED
