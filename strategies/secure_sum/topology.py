"""How many peers share a client's secrets and how many shares open them, for any cohort size.

Bonawitz et al. 2017 for the complete graph, Bell et al. 2020 for the sparse ones; the
probabilities come from `clients.secure_sum.graph`, and where clients draw their neighbours
themselves, because the server may do anything, from `clients.secure_sum.graph`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from leakmeter.auditors.finding import Conduct
from leakmeter.clients.secure_sum.graph import (
    MAX_ABORT,
    MAX_EXPOSURE,
    Graph,
    Risk,
    assess,
    assess_drawn,
    check_threshold,
    complete_graph,
    count,
    plan_drawn,
    plan_graph,
    regular_graph,
)
from leakmeter.clients.secure_sum.signing import TrustedKeys


@dataclass(frozen=True)
class Plan:
    """Graph and threshold for one cohort.

    Attributes:
        degree: Peers of each client; where clients draw them, how many each draws.
        threshold: Shares that open a secret.
        colluders: Clients that are assumed to work for the server; None for as many as the sum can
            bear.
        risk: What a sparse graph risks at the stated rates; None for a complete graph, where
            nothing is left to chance.
        server: What the server may do.
        least: Honest clients in the smallest sum that a server can open, where clients draw their
            neighbours; None elsewhere.

    Of each client's holders, holders − threshold may drop out once keys are announced. A client
    also wants two peers, so of three clients none may be missing before shares are out.
    """

    degree: int
    threshold: int
    colluders: int | None = None
    risk: Risk | None = None
    server: Conduct = "curious"
    least: int | None = None

    @property
    def is_drawn(self) -> bool:
        """Whether clients draw their own neighbours."""
        return self.least is not None

    @property
    def holders(self) -> int:
        """Clients that hold shares of one secret, its owner among them."""
        return self.degree + 1

    def bearable(self, others: int) -> int:
        """Return how many may collude with the server without opening an update.

        Where a number is assumed, no more than that are counted.

        Args:
            others: Survivors that play no canary; two of them must stay honest, or a sum over the
                honest ones would be one client's update.
        """
        if self.is_drawn:  # the chance that these are too many among somebody's draws is in `risk`
            return max(min(self.colluders or 0, others - 2), 0)
        # Both secrets of one client stay shut while 2·threshold > holders + colluders.
        most = max(min(2 * self.threshold - self.holders - 1, others - 2), 0)
        return most if self.colluders is None else min(self.colluders, most)

    def with_update(self, survivors: int, idle: int) -> int:
        """Return how many clients with an update of their own are in a round's smallest sum.

        Args:
            survivors: Clients in the sum that came out.
            idle: Those among them that play a canary or have sent no update.
        """
        return max((self.fewest(survivors) or survivors) - idle, 0)

    def fewest(self, survivors: int) -> int | None:
        """Return how few survivors a server that may do anything can name; None for another."""
        if self.server == "curious":
            return None
        accepted = self.threshold if self.least is None else self.least + (self.colluders or 0)
        return min(accepted, survivors)

    def draw(self, clients: Sequence[int]) -> Graph:
        """Return who masks with whom where the server draws it; nobody can foresee it."""
        if self.degree == len(clients) - 1:
            return complete_graph(clients)
        return regular_graph(clients, self.degree, np.random.default_rng())


@dataclass(frozen=True, kw_only=True)
class Risks:
    """Who may collude or drop out, and how likely a sparse graph may fail.

    Attributes:
        colluders: Clients that are assumed to collude with the server, also if all of them are in
            one neighbourhood; findings count as many. None: as many as each round tolerates.
        dropout_rate: Share of clients that may drop out, for a sparse graph.
        collusion_rate: Share of clients that may collude, for a sparse graph.
        max_abort: Largest chance of an aborted round that a sparse graph may have.
        max_exposure: Largest chance that a sparse graph exposes a client.
        trusted: Public lines of all clients, in a file or as lines: then clients sign, and the
            server may do anything. The server uses its list to leave strangers out; what protects
            the clients are their own lists. None for a server that follows the protocol.

    Example:
        Masked(FedAvg(), neighbours="auto", risks=Risks(dropout_rate=0.2))
    """

    colluders: int | None = None
    dropout_rate: float = 0.1
    collusion_rate: float = 0.05
    max_abort: float = MAX_ABORT
    max_exposure: float = MAX_EXPOSURE
    trusted: TrustedKeys | str | Path | Mapping[str, str] | Sequence[str | bytes] | None = None

    def __post_init__(self) -> None:
        if self.trusted is not None:
            trusted = TrustedKeys.of(self.trusted)
            trusted.check_enough()
            object.__setattr__(self, "trusted", trusted)
        if self.colluders is not None and self.colluders < 0:
            raise ValueError(f"colluders must be at least 0, got {self.colluders}")

    @property
    def keys(self) -> TrustedKeys | None:
        """The keys of all clients, where they sign."""
        return self.trusted if isinstance(self.trusted, TrustedKeys) else None

    @property
    def server(self) -> Conduct:
        """What the server may do."""
        return "curious" if self.trusted is None else "active"


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Graph and threshold of a secure sum, for any cohort size.

    Attributes:
        threshold: Shares that open a secret, as a number or as a fraction of the holders; not
            used with neighbours="auto", which computes it.
        neighbours: Peers of each client: None for all, a number for a random regular graph,
            "auto" for the smallest graph that is safe at the stated rates.
        risks: Who may collude or drop out, and what a sparse graph may risk.
    """

    threshold: int | float = 2 / 3
    neighbours: int | Literal["auto"] | None = None
    risks: Risks = Risks()

    def __post_init__(self) -> None:
        is_count = isinstance(self.threshold, int)
        if not (self.threshold >= 2 if is_count else 0.5 < self.threshold <= 1):
            raise ValueError(
                "threshold must be a number of at least 2 or a fraction in (0.5, 1], "
                f"got {self.threshold}"
            )
        if isinstance(self.neighbours, str) and self.neighbours != "auto":
            raise ValueError(f"neighbours must be a number, 'auto' or None, got {self.neighbours}")
        if isinstance(self.neighbours, int) and self.neighbours < 2:
            raise ValueError(f"neighbours must be at least 2, got {self.neighbours}")

    def plan(self, num_clients: int) -> Plan:
        """Return graph and threshold for a cohort of this size.

        Raises:
            ValueError: If there are too few clients, or the graph would fail or expose a client
                more often than allowed.
        """
        if num_clients < 3:
            raise ValueError(f"a secure sum needs at least 3 clients, got {num_clients}")
        if self.risks.server == "active" and self.neighbours is not None:
            sparse = self._drawn(num_clients)
            if sparse is not None:
                return sparse
        risks, colluders = self.risks, self.risks.colluders or 0
        rates = (risks.dropout_rate, risks.collusion_rate)
        risk = None
        if self.neighbours == "auto" and self.risks.server == "curious":
            limits = {"max_abort": risks.max_abort, "max_exposure": risks.max_exposure}
            auto = plan_graph(num_clients, *rates, **limits)
            degree, threshold, risk = auto.degree, auto.threshold, auto.risk
        else:
            number = num_clients - 1 if self.neighbours == "auto" else self.neighbours
            degree = min(number or num_clients - 1, num_clients - 1)
            threshold = self._shares(degree + 1)
            if degree < num_clients - 1:
                risk = assess(num_clients, degree, threshold, *rates)
                risk.check(risks.max_abort, risks.max_exposure)
        check_threshold(degree + 1, threshold, colluders)
        if threshold < colluders + 2:  # a sum over one honest client would be its update
            raise ValueError(
                f"threshold must be at least colluders + 2 = {colluders + 2}, got {threshold}"
            )
        return Plan(degree, threshold, risks.colluders, risk, risks.server)

    def _drawn(self, num_clients: int) -> Plan | None:
        """Return the plan with neighbours that clients draw; None if all are to be peers."""
        risks = self.risks
        colluding = max(
            count("collusion_rate", risks.collusion_rate, num_clients), risks.colluders or 0
        )
        if self.neighbours == "auto":
            limits = {"max_abort": risks.max_abort, "max_exposure": risks.max_exposure}
            try:
                made = plan_drawn(num_clients, risks.dropout_rate, colluding, **limits)
            except ValueError:
                return None
        else:
            assert self.neighbours is not None
            if self.neighbours >= num_clients - 1:
                return None
            threshold = self._shares(self.neighbours + 1)
            about = (risks.dropout_rate, colluding, risks.max_exposure)
            made = assess_drawn(num_clients, self.neighbours, threshold, *about)
            made.risk.check(risks.max_abort, risks.max_exposure)
        return Plan(made.draws, made.threshold, colluding, made.risk, "active", made.least)

    def _shares(self, holders: int) -> int:
        if isinstance(self.threshold, int):
            return self.threshold
        return max(math.ceil(self.threshold * holders - 1e-9), 2)
