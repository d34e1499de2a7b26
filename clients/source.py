"""Where a redraw of the clients gets their data from: one class for each game an audit can play.

Generators are made by the hundred thousand, one for each client of each draw, so that a number
depends neither on who else was asked for nor on chunks and workers. Each is a Philox of its own
key (Salmon, Moraes, Dror, Shaw 2011, Parallel Random Numbers: As Easy as 1, 2, 3).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Self, overload

import numpy as np

from leakmeter.auditors.finding import Game
from leakmeter.auditors.rng import derive, of_key
from leakmeter.auditors.values import Indices

# Splits a pool of records into this many parts, or takes one such part out of it.
Deal = Callable[[Indices, int, np.random.Generator], Sequence[Indices]]
Draw = Callable[[Indices, int, np.random.Generator], Indices]
Rngs = Sequence[np.random.Generator]
Shared = Callable[[], np.random.Generator]

_WORD = (1 << 64) - 1


class Generators:
    """The generators of one stream: one for each draw and client, whoever asks and when."""

    def __init__(self, seed: int, *path: str | int) -> None:
        key = derive(seed, *path)
        self._low, self._high = key & _WORD, key >> 64

    def __call__(
        self, draw: int, client: int = 0, spare: np.random.Generator | None = None
    ) -> np.random.Generator:
        """Return the generator at its beginning.

        Args:
            draw: Which draw.
            client: Whose.
            spare: One of these generators that nobody needs any longer; it becomes this one, which
                takes a sixth of the time.
        """
        low, high = (self._low + client) & _WORD, (self._high + draw) & _WORD
        if spare is None:
            return of_key(high << 64 | low)
        spare.bit_generator.state = _BEGINNING | {
            "state": {"counter": _BEGINNING["buffer"], "key": (low, high)}
        }
        return spare


# The state of a Philox that has drawn nothing, but for its key.
_BEGINNING: Final[dict[str, Any]] = {
    "bit_generator": "Philox",
    "buffer": np.zeros(4, np.uint64),
    "buffer_pos": 4,
    "has_uint32": 0,
    "uinteger": 0,
}


@dataclass(frozen=True)
class EqualParts(Sequence[Indices]):
    """Consecutive records, equally many for each client, listed when a client is asked for.

    Attributes:
        clients: How many clients there are.
        size: Records of each.
    """

    clients: int
    size: int

    @overload
    def __getitem__(self, client: int) -> Indices: ...
    @overload
    def __getitem__(self, client: slice) -> list[Indices]: ...
    def __getitem__(self, client: int | slice) -> Indices | list[Indices]:
        if isinstance(client, slice):
            return [self[one] for one in range(self.clients)[client]]
        first = range(self.clients)[client] * self.size  # raises as a list does
        return np.arange(first, first + self.size)

    def __len__(self) -> int:
        return self.clients


def typical(parts: Sequence[Indices]) -> Sequence[Indices]:
    """Return parts whose sizes have the mean, median and extremes of all, as few as are known."""
    return parts[:1] if isinstance(parts, EqualParts) else parts


class Source(ABC):
    """Says which records each client trains on in a draw."""

    num_clients: int  # they are numbered from 0
    absent: tuple[int, ...] = ()

    @property
    @abstractmethod
    def game(self) -> Game:
        """Which game these draws play."""

    @abstractmethod
    def usual(self) -> Sequence[Indices]:
        """Return parts of the usual sizes; for the scale of weights."""

    @abstractmethod
    def records(self, clients: Sequence[int], deals: Shared, own: Rngs) -> list[Indices]:
        """Return the clients' records in one draw.

        Args:
            clients: Whose.
            deals: Makes the generator that all clients of the draw share.
            own: Each client's own generator, which draws its batches afterwards.
        """

    def without(self, client: int, held: Indices) -> Source:
        """Return the source for the others when `client` holds these records."""
        return self

    def settled(self) -> Source:
        """Return the source whose clients have their records whoever else is asked for."""
        return self

    def check(self, clients: Sequence[int]) -> None:
        """Raise if some of these are not there, or are named twice."""
        if not all(0 <= client < self.num_clients for client in clients):
            raise ValueError(f"clients must be in [0, {self.num_clients - 1}], got {list(clients)}")
        if len(set(clients)) < len(clients):
            raise ValueError(f"clients must differ, got {list(clients)}")
        if gone := sorted(set(clients) & set(self.absent)):
            raise ValueError(f"clients must be others than {list(self.absent)}, got {gone}")


@dataclass(frozen=True)
class Kept(Source):
    """Each client keeps its data; only the batches are new.

    Attributes:
        parts: The records of each client.
    """

    parts: Sequence[Indices]
    game: ClassVar[Game] = "rerun"

    @property
    def num_clients(self) -> int:  # type: ignore[override]
        return len(self.parts)

    def usual(self) -> Sequence[Indices]:
        return typical(self.parts)

    def records(self, clients: Sequence[int], deals: Shared, own: Rngs) -> list[Indices]:
        return [self.parts[client] for client in clients]


@dataclass(frozen=True, kw_only=True)
class _Pool(Source):
    """Records to be shared out, and who is not among those who get some."""

    pool: Indices
    num_clients: int
    absent: tuple[int, ...] = ()
    size: float = 0.0  # of a share; 0 divides the pool evenly

    def __post_init__(self) -> None:
        if not 1 <= self.num_clients <= max(len(self.pool), self.num_clients * bool(self.size)):
            allowed = f"between 1 and the records ({len(self.pool)})"
            raise ValueError(f"num_clients must be {allowed}, got {self.num_clients}")
        if not self.size:
            object.__setattr__(self, "size", len(self.pool) / self.num_clients)
        if len(self.pool) < max(self.size, 1):
            left = f"at least one client's share, {max(self.size, 1):g}"
            raise ValueError(f"the records left must be {left}, got {len(self.pool)}")

    @property
    def shares(self) -> int:
        """How many shares of the usual size the pool makes."""
        return max(round(len(self.pool) / self.size), 1)

    def usual(self) -> Sequence[Indices]:
        return np.array_split(self.pool, self.shares)

    def without(self, client: int, held: Indices) -> Self:
        rest = np.setdiff1d(self.pool, held)
        return replace(self, pool=rest, absent=tuple(sorted({*self.absent, client})))


@dataclass(frozen=True, kw_only=True)
class Dealt(_Pool):
    """All records are partitioned again among all clients, none to two of them.

    Attributes:
        pool: The records.
        num_clients: How many share them.
        deal: Splits a pool among a number of clients; a pure function of its generator.
        absent: Clients that get nothing, since their records were taken out of the pool.
        size: Records of a usual share. What is taken out of the pool makes fewer shares, not
            smaller ones, unless more clients are asked for than there are shares.
        is_settled: Whether every client has a share of its own, whoever else is asked for. All
            others than the absent may be asked for, one after the other.
    """

    deal: Deal
    is_settled: bool = False
    game: ClassVar[Game] = "partition"

    def records(self, clients: Sequence[int], deals: Shared, own: Rngs) -> list[Indices]:
        if not self.absent:
            parts = self.deal(self.pool, self.shares, deals())
            return [parts[client] for client in clients]
        if self.is_settled:
            present = [c for c in range(self.num_clients) if c not in self.absent]
            parts = self.deal(self.pool, max(self.shares, len(present)), deals())
            return [parts[present.index(client)] for client in clients]
        # Fewer shares than clients: those who are asked for take theirs in order.
        return list(self.deal(self.pool, max(self.shares, len(clients)), deals())[: len(clients)])

    def settled(self) -> Self:
        return replace(self, is_settled=True)


@dataclass(frozen=True, kw_only=True)
class Fresh(_Pool):
    """Each client draws its records independently, so two clients may hold the same one.

    Attributes:
        pool: The records.
        num_clients: A client holds one of this many shares of them.
        draw: Takes one of a number of shares out of a pool; a pure function of its generator.
        holds_out: Whether the others draw from the records that the client under attack does not
            hold. This is a different game: their sum then varies less like the target's updates.
        absent: Clients that get nothing, since their records were taken out of the pool.
        size: Records of a usual share, also of a pool that records were taken out of.
    """

    draw: Draw
    holds_out: bool = False

    @property
    def game(self) -> Game:
        return "independent-held-out" if self.holds_out else "independent"

    def without(self, client: int, held: Indices) -> Self:
        return super().without(client, held) if self.holds_out else self

    def records(self, clients: Sequence[int], deals: Shared, own: Rngs) -> list[Indices]:
        return [self.draw(self.pool, self.shares, rng) for rng in own]


@dataclass(frozen=True, kw_only=True)
class Endless(Source):
    """Each draw of a client is another client of an endless population: none is drawn twice.

    Attributes:
        num_clients: Clients of the run.
        size: Records of each.
        draw: Returns the records of another client; a pure function of its generator.
        holds_out: Whether the game is the one in which others never hold the records of the client
            under attack. They do not in either.
    """

    num_clients: int
    size: int
    draw: Callable[[np.random.Generator], Indices]
    holds_out: bool = False

    @property
    def game(self) -> Game:
        return "independent-held-out" if self.holds_out else "independent"

    def usual(self) -> Sequence[Indices]:
        return [np.arange(self.size)]

    def records(self, clients: Sequence[int], deals: Shared, own: Rngs) -> list[Indices]:
        return [self.draw(rng) for rng in own]
