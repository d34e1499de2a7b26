"""A round between its configuration and its aggregation, as the hook keeps it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from leakmeter.auditors._types import Vector
from leakmeter.auditors.auditor import Canary
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.chain import chain
from leakmeter.auditors.hook.layout import Layout
from leakmeter.auditors.hook.view import Updates, collect_truth

_log = logging.getLogger("flwr")

# Said of auditors where the instruments in the client app do not answer.
NO_CANARIES = "canary seats have sent something else: is canary_mod in the client app?"
NO_TRUTH = (
    "no client kept its plain update, so the sum that was really released gets no verdict: in a "
    "simulation list tap_mod in the client app, behind the mods that mask or noise"
)


@dataclass(frozen=True)
class Opened:
    """What is known of a round when its messages go out.

    Attributes:
        server_round: Counted over the whole run.
        arrays: The model as the strategy has it.
        sent: The same as a vector.
        clients: Node id to client index.
        orders: Client to the canary that it plays.
        grid: Where the messages go.
        layout: Of the model.
        hides_updates: Whether replies will be masked or noised, by our own mods.
        is_noised: Whether they will be noised.
    """

    server_round: int
    arrays: ArrayRecord
    sent: Vector
    clients: Mapping[int, int]
    orders: Mapping[int, Canary]
    grid: Grid
    layout: Layout
    hides_updates: bool
    is_noised: bool

    def updates(self, replies: Sequence[Message], weight_key: str) -> Updates:
        """Return the replies that hold an update; those that cannot be read are left out."""
        contents = {}
        for reply in replies:
            client = self.clients.get(reply.metadata.src_node_id)
            if client is None or not reply.has_content():
                continue
            try:
                wire.arrays(reply.content)
            except ValueError as error:
                _log.warning("client %d is not audited: its reply's %s", client, error)
                continue
            contents[client] = reply.content
        return Updates(self.layout, self.sent, contents, weight_key)

    def obeyed(self, updates: Updates) -> tuple[dict[int, Canary], list[int]]:
        """Return the orders of seats that answered and did as told, and the seats that did not."""
        answered = {c: o for c, o in self.orders.items() if c in updates}
        if self.is_noised:
            return answered, []
        done = {c for c, o in answered.items() if updates.carries(c, o)}
        # One canary that was seen shows the mod; noise of the clients' own may cover an empty seat.
        if any(answered[c].included for c in done):
            done |= {c for c, o in answered.items() if not o.included}
        refused = [c for c in answered if c not in done]
        if refused:
            _log.warning("%d of %d %s", len(refused), len(answered), NO_CANARIES)
        return {c: o for c, o in answered.items() if c in done}, refused

    def truth(
        self, updates: Updates, timeout: float
    ) -> tuple[Mapping[int, Vector], Mapping[int, float]]:
        """Return the plain updates and their weights: as sent, or as tapped clients kept them."""
        if not self.hides_updates:
            return updates, updates.weights
        return collect_truth(
            self.grid,
            self.clients,
            server_round=self.server_round,
            layout=self.layout,
            sent=self.sent,
            timeout=timeout,
        )


def hides_updates(messages: Collection[Message]) -> bool:
    """Whether our own mods will change updates on their way, so that only a tap has them plain."""
    keys = (wire.MASK, wire.NOISE, wire.FILLED)
    return any(key in m.content for m in messages for key in keys)


def give_orders(
    messages: Mapping[int, Message],
    orders: Mapping[int, Canary],
    layout: Layout,
    *,
    avoid_zero: bool,
) -> None:
    """Tell seats which canary to play, and which arrays are no part of it."""
    for client, order in orders.items():
        record = wire.canary_record(order, avoid_zero=avoid_zero)
        wire.add_record(messages[client], wire.CANARY, record)
        wire.add_left_out(messages[client], layout.left_out)


def ask_to_keep(messages: Sequence[Message], server_round: int, weight_key: str) -> None:
    """Ask clients with a tap to keep their plain updates for the auditors."""
    keep = wire.keep_record(server_round, weight_key)
    for message in messages:
        wire.add_record(message, wire.TAP, keep)


class Numbers:
    """Gives nodes the numbers by which auditors know clients."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def of(self, nodes: Sequence[int], strategy: Strategy, grid: Grid) -> dict[int, int]:
        """Return node id to client, from the strategy that knows it or by first sight."""
        for held in chain(strategy):
            known: Mapping[int, int] | None = getattr(held, "client_of", None)
            if known is not None:
                return {node: known[node] for node in nodes}
        for node in sorted({*grid.get_node_ids(), *nodes}):
            self._seen.setdefault(node, len(self._seen))
        return {node: self._seen[node] for node in nodes}
