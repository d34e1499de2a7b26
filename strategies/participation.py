"""Who takes part in which round, as a pure function of seed and round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from auditors.rng import stream


class Participation(Protocol):
    """Chooses the clients of a round."""

    def cohort(self, seed: int, server_round: int, num_clients: int) -> list[int]:
        """Return the client indices of the round in increasing order."""
        ...

    def check(self, num_clients: int) -> None:
        """Raise if so many clients cannot serve this pattern."""
        ...


@dataclass(frozen=True)
class FixedSize:
    """The same number of clients each round, uniformly without replacement."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be at least 1, got {self.size}")

    def check(self, num_clients: int) -> None:
        """Raise if there are fewer clients than a round needs."""
        if self.size > num_clients:
            raise ValueError(f"size must be at most num_clients = {num_clients}, got {self.size}")

    def cohort(self, seed: int, server_round: int, num_clients: int) -> list[int]:
        """Return the client indices of the round in increasing order."""
        self.check(num_clients)
        rng = stream(seed, "cohort", server_round)
        return sorted(rng.choice(num_clients, self.size, replace=False).tolist())
