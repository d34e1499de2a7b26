"""A round between its configuration and its aggregation: its orders, its updates, its facts."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from leakmeter.auditors._types import Vector
from leakmeter.auditors.auditor import Canary, RoundFacts
from leakmeter.auditors.canary import canary_vector
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.chain import client_of, known_facts
from leakmeter.auditors.hook.layout import Layout

_log = logging.getLogger("flwr")

# Said of auditors where the instruments in the client app do not answer.
NO_CANARIES = "canary seats have sent something else: is canary_mod in the client app?"
NO_TRUTH = (
    "no client kept its plain update, so the sum that was really released gets no verdict: in a "
    "simulation list tap_mod in the client app, behind the mods that mask or noise"
)


class Updates(Mapping[int, Vector]):
    """Client index to the update in its reply, flattened when asked for."""

    def __init__(
        self,
        layout: Layout,
        sent: Vector,
        contents: Mapping[int, RecordDict],
        weight_key: str = wire.WEIGHT,
    ) -> None:
        self._layout, self._sent = layout, sent
        # Shallow copies: strategies may replace arrays inside the records they are given.
        self._records: dict[int, dict[str, Array]] = {
            c: dict(wire.arrays(contents[c])) for c in sorted(contents)
        }
        self.weights = {c: wire.weight(contents[c], weight_key) for c in self._records}

    def __getitem__(self, client: int) -> Vector:
        record = self._records[client]
        if self._is_plain(record):
            return self._layout.flatten(record) - self._sent
        # Masked replies are ring elements, not a model: show them as they are.
        return np.concatenate([a.numpy().ravel() for a in record.values()], dtype=np.float64)

    def __iter__(self) -> Iterator[int]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def carries(self, client: int, order: Canary) -> bool:
        """Whether a reply holds the canary that was ordered; True where a mask hides it.

        A client's own noise may cover most of it: an honest update has a cosine of 6/√d or more
        with a canary once in 10⁹ times.
        """
        if not self._is_plain(self._records[client]):
            return True
        update = self[client]
        length = float(np.linalg.norm(update))
        if not order.included:
            return length <= 1e-5 * (1 + float(np.linalg.norm(self._sent)))
        least = min(0.9, 6 / math.sqrt(update.size)) * length
        return float(update @ canary_vector(order.seed, order.id, update.size)) > least > 0

    def mean(self) -> Vector | None:
        """Return the weighted mean update; None if the replies hold no plain updates."""
        total = sum(self.weights.values())
        if total <= 0 or not self.are_plain:
            return None
        mean = np.negative(self._sent)
        for client, record in self._records.items():
            self._layout.add(record, self.weights[client] / total, mean)
        return mean

    @property
    def are_plain(self) -> bool:
        """Whether no mask hides any of them."""
        return all(map(self._is_plain, self._records.values()))

    def _is_plain(self, record: Mapping[str, Array]) -> bool:
        return set(self._layout.names) <= set(record)


@dataclass(frozen=True)
class OpenRound:
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
        # A seat whose update is not finite has trained a diverged model; that is another warning.
        refused = [c for c in answered if c not in done and np.isfinite(updates[c]).all()]
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

    def plain(self, truth: Mapping[int, Vector], updates: Updates) -> Mapping[int, Vector]:
        """Return updates that neither masks nor noise hide: the truth, or as sent; else none."""
        if truth or self.is_noised or not updates.are_plain:
            return truth
        return updates


class ClientNumbers:
    """Gives nodes the numbers by which auditors know clients."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def of(self, nodes: Sequence[int], strategy: Strategy, grid: Grid) -> dict[int, int]:
        """Return node id to client, from the strategy that knows it or by first sight."""
        known = client_of(strategy)
        if known is not None:
            return {node: known[node] for node in nodes}
        for node in sorted({*grid.get_node_ids(), *nodes}):
            self._seen.setdefault(node, len(self._seen))
        return {node: self._seen[node] for node in nodes}


def will_hide_updates(messages: Collection[Message]) -> bool:
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


def collect_truth(
    grid: Grid,
    clients: Mapping[int, int],
    *,
    server_round: int,
    layout: Layout,
    sent: Vector,
    timeout: float,
) -> tuple[dict[int, Vector], dict[int, float]]:
    """Collect the plain updates that tapped clients kept, and their weights.

    Messages of their own do that; nothing rides on the round's replies. A client whose copy cannot
    be read is left out, and the others are collected.
    """
    order = wire.collect_record(server_round)
    messages = [
        Message(RecordDict({wire.TAP: order}), dst_node_id=node, message_type="train")
        for node in clients
    ]
    kept = {
        clients[m.metadata.src_node_id]: m.content
        for m in grid.send_and_receive(messages, timeout=timeout)
        if m.has_content()
    }
    updates: dict[int, Vector] = {}
    weights: dict[int, float] = {}
    for client, content in sorted(kept.items()):
        try:
            update = layout.flatten(wire.arrays(content)) - sent
            note = wire.config(content, wire.TAP)
            if note is not None:
                weights[client] = wire.get_float(note, "weight")
        except Exception as error:  # a client may send anything
            _log.warning("the plain update of client %d cannot be read: %s", client, error)
        else:
            updates[client] = update
    return updates, weights


def round_facts(strategy: Strategy, updates: Updates, *, released: bool) -> RoundFacts:
    """Return what the wrappers know of a round, completed by what the replies show.

    Args:
        strategy: The chain of strategies.
        updates: The round's replies. Without a secure sum the mean is computed from them.
        released: Whether the strategy released a model.
    """
    known = known_facts(strategy)
    if known.abandoned is not None:
        return known  # no sum, hence nobody in it, whoever has answered
    seen = RoundFacts(
        aggregate=updates.mean() if known.aggregate is None else None,
        num_clients=len(updates),
        total_weight=sum(updates.weights.values()),
        abandoned=None if released else "the strategy released no model",
    )
    return known.over(seen)
