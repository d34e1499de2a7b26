"""Turns the messages of a round into what the auditors see."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
from flwr.app import Array, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from leakmeter.auditors._types import Vector
from leakmeter.auditors.auditor import Canary, RoundFacts
from leakmeter.auditors.canaries.canary import canary_vector
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.chain import chain
from leakmeter.auditors.hook.layout import Layout


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
        if total <= 0 or not all(map(self._is_plain, self._records.values())):
            return None
        mean = np.zeros(self._layout.dim)
        for client, update in self.items():
            mean += self.weights[client] / total * update
        return mean

    def _is_plain(self, record: Mapping[str, Array]) -> bool:
        return set(self._layout.names) <= set(record)


def weight_key(strategy: Strategy) -> str:
    """Return the metric by which the chain weights its clients."""
    for held in chain(strategy):
        if isinstance(key := getattr(held, "weighted_by_key", None), str):
            return key
    return wire.WEIGHT


def merged_facts(strategy: Strategy, updates: Updates, *, released: bool) -> RoundFacts:
    """Merge what our wrappers left of the round; without a secure sum the mean is taken here."""
    known: dict[str, Any] = {}
    for held in chain(strategy):
        known |= getattr(held, "facts", None) or {}
    assert set(known) <= {f.name for f in fields(RoundFacts)}
    if "aggregate" not in known:
        known["aggregate"] = updates.mean()
    if not released:
        known.setdefault("abandoned", "the strategy released no model")
    seen = RoundFacts(num_clients=len(updates), total_weight=sum(updates.weights.values()))
    return replace(seen, **known)


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

    Messages of their own do that; nothing rides on the round's replies.
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
    updates = {c: layout.flatten(wire.arrays(kept[c])) - sent for c in sorted(kept)}
    notes = {c: wire.config(kept[c], wire.TAP) for c in sorted(kept)}
    return updates, {c: wire.get_float(n, "weight") for c, n in notes.items() if n is not None}
