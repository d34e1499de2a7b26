"""Keeps account of what rounds have told of each client; small enough for every checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Literal

import numpy as np

from leakmeter.auditors.finding import Game


@dataclass
class Entry:
    """What is known of one client.

    Attributes:
        audited: Audited rounds that it took part in.
        nats: Sum of what they told.
        variance: Of that sum.
        alike: Sum of what they would tell if all coordinates varied and clients were alike.
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
    """Entries by client, the audited rounds, and the game that they were played in."""

    entries: dict[int, Entry] = field(default_factory=dict)
    rounds: list[int] = field(default_factory=list)
    game: Game = "rerun"

    def audited(
        self,
        server_round: int,
        each: Mapping[int, tuple[float, float]],
        *,
        alike: float,
        game: Game,
    ) -> None:
        """Take up nats and standard errors of an audited round, by client."""
        self.rounds.append(server_round)
        self.game = game
        for client, (nats, error) in each.items():
            entry = self.entries.setdefault(client, Entry())
            entry.audited += 1
            entry.nats += nats
            entry.variance += error**2
            entry.alike += alike

    def took_part(self, clients: Sequence[int], bound: float) -> None:
        """Take up who took part in a round, and its bound in nats."""
        for client in clients:
            entry = self.entries.setdefault(client, Entry())
            entry.rounds += 1
            entry.bound += bound

    def largest(self, what: Literal["nats", "bound"], target: int | None) -> int | None:
        """Return the client with the most, of those that count, or the target if it does."""
        counts = "audited" if what == "nats" else "rounds"
        there = [c for c in sorted(self.entries) if getattr(self.entries[c], counts)]
        if target is not None:
            there = [c for c in there if c == target]
        return max(there, key=lambda c: getattr(self.entries[c], what), default=None)

    def state(self) -> dict[str, Any]:
        """Return JSON types and arrays only."""
        clients = sorted(self.entries)
        rows = [astuple(self.entries[c]) for c in clients]
        return {
            "clients": np.array(clients, dtype=np.int64),
            "entries": np.array(rows, dtype=np.float64).reshape(-1, 6),
            "rounds": list(self.rounds),
            "game": self.game,
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Account:
        """Return the account whose `state` this is."""
        entries = {}
        for client, row in zip(state["clients"], state["entries"], strict=True):
            audited, nats, variance, alike, rounds, bound = (float(value) for value in row)
            entries[int(client)] = Entry(int(audited), nats, variance, alike, int(rounds), bound)
        return cls(entries, [int(r) for r in state["rounds"]], state["game"])
