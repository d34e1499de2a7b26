"""Keeps account of what rounds revealed about each client; small enough for every checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from typing import Any

import numpy as np

from leakmeter.auditors.finding import Game


@dataclass
class Entry:
    """What is known about one client, or about the mean of several.

    Attributes:
        audited: Audited rounds that it took part in.
        nats: Sum of what they revealed.
        variance: Of that sum.
        alike: Sum of what they would reveal if all coordinates varied and clients were alike.
        rounds: Rounds that it took part in, audited or not.
        bound: Sum of their bounds in nats, if there are bounds.
    """

    audited: int = 0
    nats: float = 0.0
    variance: float = 0.0
    alike: float = 0.0
    rounds: int = 0
    bound: float = 0.0


@dataclass
class Account:
    """Entries by client, and what the audited rounds have in common.

    Attributes:
        entries: By client.
        rounds: Which rounds were audited.
        game: The game that they were played in.
        variance: Of the sum of all nats. Clients of a round share its draws, so it is not the sum
            of their variances.
        has_alike: Whether every audited round has a figure for all coordinates.
    """

    entries: dict[int, Entry] = field(default_factory=dict)
    rounds: list[int] = field(default_factory=list)
    game: Game = "rerun"
    variance: float = 0.0
    has_alike: bool = True

    def audited(
        self,
        server_round: int,
        each: Mapping[int, tuple[float, float]],
        *,
        error: float,
        alike: float | None,
        game: Game,
    ) -> None:
        """Add an audited round.

        Args:
            server_round: Which.
            each: Nats and standard error by client.
            error: Standard error of the mean of these nats.
            alike: What the round would reveal if all coordinates varied and clients were alike;
                None where that is not known.
            game: What was random.
        """
        self.rounds.append(server_round)
        self.game = game
        # Of the sum over clients: `error` is that of their mean. Rounds have draws of their own, so
        # their variances add.
        self.variance += (len(each) * error) ** 2
        self.has_alike = self.has_alike and alike is not None
        for client, (nats, own_error) in each.items():
            entry = self.entries.setdefault(client, Entry())
            entry.audited += 1
            entry.nats += nats
            entry.variance += own_error**2
            entry.alike += alike or 0.0

    def took_part(self, clients: Sequence[int], bound: float) -> None:
        """Add who took part in a round, and its bound in nats."""
        for client in clients:
            entry = self.entries.setdefault(client, Entry())
            entry.rounds += 1
            entry.bound += bound

    def typical(self) -> Entry | None:
        """Return the mean client, in as many audited rounds as any client took part in.

        The largest sum of all clients would be the luckiest estimate: where clients are alike it
        is above the truth for each of them.
        """
        seen = [entry for entry in self.entries.values() if entry.audited]
        if not seen:
            return None
        most = max(entry.audited for entry in seen)
        # Exact sums: a resumed run has its clients in another order.
        share = most / sum(entry.audited for entry in seen)
        return Entry(
            audited=most,
            nats=share * math.fsum(entry.nats for entry in seen),
            variance=share**2 * self.variance,
            alike=share * math.fsum(entry.alike for entry in seen),
        )

    def most_bound(self, target: int | None) -> int | None:
        """Return the client whose bounds add up to the most, or the target; None if absent."""
        there = [c for c in sorted(self.entries) if self.entries[c].rounds]
        if target is not None:
            there = [c for c in there if c == target]
        # Bounds follow from participations alone, so the largest is no selection among estimates.
        return max(there, key=lambda c: self.entries[c].bound, default=None)

    def state(self) -> dict[str, Any]:
        """Return JSON types and arrays only."""
        clients = sorted(self.entries)
        rows = [astuple(self.entries[c]) for c in clients]
        return {
            "clients": np.array(clients, dtype=np.int64),
            "entries": np.array(rows, dtype=np.float64).reshape(-1, len(fields(Entry))),
            "rounds": list(self.rounds),
            "game": self.game,
            "variance": np.array([self.variance]),  # infinite where an error is unknown
            "has_alike": self.has_alike,
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Account:
        """Return the account whose `state` this is."""
        entries = {}
        for client, row in zip(state["clients"], state["entries"], strict=True):
            audited, nats, variance, alike, rounds, bound = (float(value) for value in row)
            entries[int(client)] = Entry(int(audited), nats, variance, alike, int(rounds), bound)
        return cls(
            entries,
            [int(r) for r in state["rounds"]],
            state["game"],
            float(state["variance"][0]),
            bool(state["has_alike"]),
        )
