"""Grids that stand before Flower's: one shows a part of the nodes, one asks twice."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

_log = logging.getLogger("flwr")

# Flower's error code for an exception inside the client app: asking again would not help.
CLIENT_APP_RAISED = 2


class GridWrapper(Grid):
    """Hands every call on to `grid`."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def set_run(self, run: Any) -> None:
        """Hand on."""
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run this grid belongs to."""
        return self.grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Hand on."""
        return self.grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes."""
        return self.grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Hand on."""
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Hand on."""
        return self.grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Hand on."""
        return self.grid.send_and_receive(messages, timeout=timeout)


class PartialGrid(GridWrapper):
    """Shows only some of the nodes, so that a strategy samples among these."""

    def __init__(self, grid: Grid, nodes: Iterable[int]) -> None:
        super().__init__(grid)
        self._nodes = list(nodes)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes that are shown."""
        return list(self._nodes)


class PatientGrid(GridWrapper):
    """Sends a message once more when its failure was not the client app's own.

    A worker that dies takes its message with it; the client's state is untouched then, so the
    second try gives what the first would have given.
    """

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return the replies, those of the second try in place of the failed ones."""
        sent = list(messages)
        contents = {m.metadata.dst_node_id: m for m in sent}
        replies = list(self.grid.send_and_receive(sent, timeout=timeout))
        if raised := [r.error.reason for r in replies if _app_raised(r)]:
            _log.warning("%d client app(s) failed, the first with %s", len(raised), raised[0])
        # An expired message is answered by the SuperLink, so the source is no help: match ids.
        by_id = {m.metadata.message_id: m.metadata.dst_node_id for m in sent}

        def asked(reply: Message) -> int:
            return by_id.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)

        failed = {asked(r) for r in replies if r.has_error() and not _app_raised(r)} & set(contents)
        if not failed:
            return replies
        _log.warning("%d message(s) failed on the way and are sent once more", len(failed))
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
        return kept + list(self.grid.send_and_receive(again, timeout=timeout))


def _app_raised(reply: Message) -> bool:
    """Whether the client app itself failed."""
    return reply.has_error() and reply.error.code == CLIENT_APP_RAISED
