"""Who takes part in which round, as a pure function of seed and round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from leakmeter.auditors.rng import stream


class Participation(Protocol):
    """Chooses the clients of a round."""

    def cohort(self, seed: int, server_round: int, num_clients: int) -> list[int]:
        """Return the client indices of the round in increasing order."""
        ...

    def check(self, num_clients: int) -> None:
        """Raise if this number of clients does not fit the pattern."""
        ...

    def sampling(self, num_clients: int) -> dict[str, Any]:
        """Return how clients are drawn, as fields of the accountant's `Release`."""
        ...


@dataclass(frozen=True)
class FixedSize:
    """The same number of clients each round, uniformly without replacement."""

    size: int

    def __post_init__(self) -> None:
        _check_size(self.size)

    def check(self, num_clients: int) -> None:
        """Raise if there are fewer clients than a round needs."""
        _check_fits(self.size, num_clients)

    def cohort(self, seed: int, server_round: int, num_clients: int) -> list[int]:
        """Return the client indices of the round in increasing order."""
        self.check(num_clients)
        rng = stream(seed, "cohort", server_round)
        return sorted(rng.choice(num_clients, self.size, replace=False).tolist())

    def sampling(self, num_clients: int) -> dict[str, Any]:
        """Return the cohort's and the population's size."""
        return {"sampling": "fixed", "cohort": self.size, "population": num_clients}


@dataclass(frozen=True)
class Poisson:
    """Each client independently, with the same probability; a round may be empty."""

    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate must be in (0, 1], got {self.rate}")

    def check(self, num_clients: int) -> None:
        """Any number of clients will do."""

    def cohort(self, seed: int, server_round: int, num_clients: int) -> list[int]:
        """Return the client indices of the round in increasing order."""
        coins = stream(seed, "cohort", server_round).random(num_clients)
        return list(map(int, np.flatnonzero(coins < self.rate)))

    def sampling(self, num_clients: int) -> dict[str, Any]:
        """Return the rate."""
        return {"sampling": "poisson", "rate": self.rate, "population": num_clients}


@dataclass(frozen=True)
class ShuffledEpochs:
    """All clients in a random order, `size` per round, then all again in another order.

    The last round of an epoch is left out if it would be short, so every client takes part at
    most once per epoch and every round has the same size.

    Attributes:
        size: Clients per round.
        epochs: Passes over the clients; None for as many as the rounds take.
    """

    size: int
    epochs: int | None = None

    def __post_init__(self) -> None:
        _check_size(self.size)
        if self.epochs is not None and self.epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {self.epochs}")

    def check(self, num_clients: int) -> None:
        """Raise if there are fewer clients than a round needs."""
        _check_fits(self.size, num_clients)

    def max_rounds(self, num_clients: int) -> int | None:
        """Return how many rounds there can be; None if there is no end."""
        return None if self.epochs is None else self.epochs * (num_clients // self.size)

    def cohort(self, seed: int, server_round: int, num_clients: int) -> list[int]:
        """Return the client indices of the round in increasing order."""
        self.check(num_clients)
        most = self.max_rounds(num_clients)
        if most is not None and server_round > most:
            raise ValueError(f"rounds must be at most {most} for this pattern, got {server_round}")
        epoch, turn = divmod(server_round - 1, num_clients // self.size)
        order = stream(seed, "cohort", "epoch", epoch).permutation(num_clients)
        return sorted(order[turn * self.size : (turn + 1) * self.size].tolist())

    def sampling(self, num_clients: int) -> dict[str, Any]:
        """Return nothing: no amplification is claimed for this pattern."""
        return {}


def EachOnce(size: int) -> ShuffledEpochs:  # noqa: N802 - reads like the other patterns
    """Return the pattern in which every client takes part at most once in the whole run."""
    return ShuffledEpochs(size, epochs=1)


def _check_size(size: int) -> None:
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")


def _check_fits(size: int, num_clients: int) -> None:
    if size > num_clients:
        raise ValueError(f"size must be at most num_clients = {num_clients}, got {size}")
