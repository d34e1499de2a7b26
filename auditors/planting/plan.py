"""Which client holds which canary, and whether a fair coin lets it in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.finding import Adjacency, Unit
from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import require
from leakmeter.auditors.wording import Assumption

Out = Literal["stand-in", "nothing"]

# What the place of a canary that is out has: the two worlds, and what findings assume.
_WORLDS: Final[Mapping[Out, tuple[Adjacency, Assumption]]] = {
    "stand-in": ("replace", Assumption.STAND_IN),
    "nothing": ("add-remove", Assumption.PLACE_IS_EMPTY),
}


@dataclass(frozen=True)
class PlantPlan:
    """Who holds which canaries: a pure function of these values, the same wherever it is made.

    Records are numbered: canary i is record i, its stand-in is record `canaries` + i, and decoys
    are all after these.

    Attributes:
        canaries: How many records have a coin. Half of them are planted, on average.
        clients: Clients that hold them: the first ones, equally many each.
        copies: How often each planted record is in its client's data.
        rounds: Only the first so many rounds have canaries; None for all.
        out: What is in the place of a canary whose coin says out: a "stand-in", another record that
            is never scored, so that no coin changes how many records a client has (adjacency
            replace); or "nothing" (adjacency add-remove), for clients that train on Poisson samples
            with a fixed denominator.
        whole: Whether a client that holds canaries trains on nothing else, so that the unit is the
            client; there is one canary for each of them.
        seed: Of coins and records.

    >>> plan = PlantPlan(canaries=4, clients=2)
    >>> plan.planted(0), plan.planted(1), plan.planted(2)
    ([4, 2], [1, 7], [])
    """

    canaries: int = 200
    clients: int = 20
    copies: int = 1
    rounds: int | None = None
    out: Out = "stand-in"
    whole: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        require("at least 2", canaries=self.canaries)
        require(f"[1, {self.canaries}]", clients=self.clients)
        require("[1, 10000]", copies=self.copies)  # clients refuse more
        require("at least 1", is_optional=True, rounds=self.rounds)
        if self.out not in _WORLDS:
            raise ValueError(f"out must be 'stand-in' or 'nothing', got {self.out!r}")
        if self.whole and (self.clients < self.canaries or self.out != "stand-in"):
            raise ValueError(
                "whole must be False unless clients equals canaries and out is 'stand-in', got "
                f"{self.clients} clients, {self.canaries} canaries and {self.out!r}"
            )

    @cached_property
    def is_in(self) -> NDArray[np.bool_]:
        """What the coin of each canary says, (canaries,)."""
        coins = (stream(self.seed, "planted coin", i).random() for i in range(self.canaries))
        return np.array([coin < 0.5 for coin in coins])

    def held(self, client: int) -> range:
        """Return the canaries of a client, whatever their coins say."""
        is_holder = 0 <= client < self.clients
        return range(client, self.canaries, self.clients) if is_holder else range(0)

    def planted(self, client: int, server_round: int = 1) -> list[int]:
        """Return the numbers of the records that a client trains on in a round, each once."""
        if self.rounds is not None and server_round > self.rounds:
            return []
        own = [i if self.is_in[i] else self.canaries + i for i in self.held(client)]
        return own if self.out == "stand-in" else [i for i in own if i < self.canaries]

    def decoys(self, count: int) -> range:
        """Return the numbers of so many decoys."""
        return range(2 * self.canaries, 2 * self.canaries + count)

    @property
    def world(self) -> tuple[Adjacency, Assumption]:
        """How the two worlds of a canary differ, and what findings assume about it."""
        return _WORLDS[self.out]

    @property
    def unit(self) -> Unit:
        """Whose participation a bound is about."""
        if self.whole:
            return "client"
        return "record" if self.copies == 1 else "group"
