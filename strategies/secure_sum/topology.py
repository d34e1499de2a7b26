"""How many peers share a client's secrets and how many shares open them, for any cohort size.

Bonawitz et al. 2017 (complete graph) and Bell et al. 2020, Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead (CCS). Different from the paper: tails are summed exactly in logs and
added up over clients, not bounded by Chernoff.

Graphs that an honest server draws: a random cyclic order, each client joined to the degree/2 next
on both sides. At most ⌈rate·n⌉ clients drop out and at most ⌈rate·n⌉ others collude with the
server, both sets fixed before it draws the order. Each client's secrets are shared among its
neighbours and itself. Then
- abort: some client's secrets have fewer than `threshold` surviving holders;
- exposure: an honest client's T colluding holders break 2·threshold > holders + T (below that, the
  server could collect one kind of share from half of the honest holders and the other kind from the
  rest), or the honest survivors fall apart into groups whose sums the server then learns.
Different from the paper: the condition on T is the one for a server that tells holders different
stories.

Neighbours that clients draw themselves, because the server may do anything: the argument is in
`clients.secure_sum.participant`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Conduct
from leakmeter.auditors.values import require, within
from leakmeter.clients.secure_sum.participant import (
    MAX_EXPOSURE,
    MIN_SUM,
    check_threshold,
    log_choose,
    smallest_sum,
    tail,
)
from leakmeter.clients.secure_sum.signing import TrustedKeys

MAX_ABORT = 2.0**-20
_WANTED = 0.1  # share of the clients that a plan wants in the smallest sum

Graph = dict[int, tuple[int, ...]]


@dataclass(frozen=True)
class GraphRisk:
    """Upper bounds on the probability that one round fails."""

    abort: float
    exposure: float

    def check(self, max_abort: float = MAX_ABORT, max_exposure: float = MAX_EXPOSURE) -> None:
        """Refuse a graph that fails more often than allowed."""
        for name, most in (("abort", max_abort), ("exposure", max_exposure)):
            within(f"P({name})", getattr(self, name), lowest=0.0, highest=most)


@dataclass(frozen=True)
class GraphPlan:
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
    risk: GraphRisk | None = None
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
        require("at least 0", is_optional=True, colluders=self.colluders)

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
            raise BadValueError(
                "threshold", "a number of at least 2 or a fraction in (0.5, 1]", self.threshold
            )
        if isinstance(self.neighbours, str) and self.neighbours != "auto":
            raise BadValueError("neighbours", "a number, 'auto' or None", self.neighbours)
        if not isinstance(self.neighbours, str):
            require("at least 2", is_optional=True, neighbours=self.neighbours)

    def plan(self, num_clients: int) -> GraphPlan:
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
            raise BadValueError("threshold", f"at least colluders + 2 = {colluders + 2}", threshold)
        return GraphPlan(degree, threshold, risks.colluders, risk, risks.server)

    def _drawn(self, num_clients: int) -> GraphPlan | None:
        """Return the plan with neighbours that clients draw; None if all are to be peers."""
        risks = self.risks
        colluding = max(
            count("collusion_rate", risks.collusion_rate, num_clients), risks.colluders or 0
        )
        if self.neighbours == "auto":
            limits = {"max_abort": risks.max_abort, "max_exposure": risks.max_exposure}
            try:
                return plan_drawn(num_clients, risks.dropout_rate, colluding, **limits)
            except ValueError:
                return None
        assert self.neighbours is not None
        if self.neighbours >= num_clients - 1:
            return None
        threshold = self._shares(self.neighbours + 1)
        about = (risks.dropout_rate, colluding, risks.max_exposure)
        made = assess_drawn(num_clients, self.neighbours, threshold, *about)
        assert made.risk is not None
        made.risk.check(risks.max_abort, risks.max_exposure)
        return made

    def _shares(self, holders: int) -> int:
        if isinstance(self.threshold, int):
            return self.threshold
        return max(math.ceil(self.threshold * holders - 1e-9), 2)


def regular_graph(clients: Sequence[int], degree: int, rng: np.random.Generator) -> Graph:
    """Return everybody's `degree` neighbours in a random cyclic order.

    Args:
        clients: Distinct numbers.
        degree: Even and below the number of clients, or one less than it (complete).
        rng: Draws the order. It must not be foreseeable by clients that choose to collude.
    """
    count = len(clients)
    _check_degree(count, degree)
    if degree == count - 1:
        return {own: tuple(sorted(set(clients) - {own})) for own in clients}
    ring = [clients[i] for i in rng.permutation(count)]
    reach = [*range(-degree // 2, 0), *range(1, degree // 2 + 1)]
    return {own: tuple(sorted(ring[(i + j) % count] for j in reach)) for i, own in enumerate(ring)}


def union(clients: Iterable[int], drawn: Mapping[int, Collection[int]]) -> Graph:
    """Return who masks with whom: two clients of whom one has drawn the other.

    Args:
        clients: Everybody, those included that have not answered with their draws.
        drawn: Client to those that it has drawn.
    """
    joined: dict[int, set[int]] = {n: set(drawn.get(n, ())) for n in clients}
    for n, own in drawn.items():
        for peer in own:
            joined[peer].add(n)
    return {n: tuple(sorted(peers)) for n, peers in joined.items()}


def assess(
    num_clients: int, degree: int, threshold: int, dropout_rate: float, collusion_rate: float
) -> GraphRisk:
    """Return the probabilities of abort and exposure in one round."""
    _check_degree(num_clients, degree)
    require(f"[1, {degree + 1}]", threshold=threshold)
    dropped = count("dropout_rate", dropout_rate, num_clients)
    colluding = count("collusion_rate", collusion_rate, num_clients)
    aborts = abort_curve(num_clients, degree, dropped)
    exposures = _exposure_curve(num_clients, degree, dropped, colluding)
    return GraphRisk(float(aborts[threshold]), float(exposures[threshold]))


def plan_graph(
    num_clients: int,
    dropout_rate: float,
    collusion_rate: float,
    *,
    max_abort: float = MAX_ABORT,
    max_exposure: float = MAX_EXPOSURE,
) -> GraphPlan:
    """Return the smallest degree, and for it the smallest threshold, that keeps both risks low.

    Raises:
        ValueError: If not even the complete graph does.
    """
    _check_degree(num_clients, num_clients - 1)
    dropped = count("dropout_rate", dropout_rate, num_clients)
    colluding = count("collusion_rate", collusion_rate, num_clients)
    # The risks are not quite monotone in the degree (thresholds are integers): try them in order.
    for degree in [*range(2, num_clients - 1, 2), num_clients - 1]:
        aborts = abort_curve(num_clients, degree, dropped)
        exposures = _exposure_curve(num_clients, degree, dropped, colluding)
        fits = np.flatnonzero((aborts <= max_abort) & (exposures <= max_exposure))
        if len(fits):
            threshold = int(fits[0])
            risk = GraphRisk(float(aborts[threshold]), float(exposures[threshold]))
            return GraphPlan(degree, threshold, risk=risk)
    raise ValueError(
        "dropout_rate and collusion_rate must leave two honest survivors and "
        f"2·dropped + colluding < {num_clients}, got {dropped} dropped and {colluding} colluding"
    )


def assess_drawn(
    num_clients: int,
    draws: int,
    threshold: int,
    dropout_rate: float,
    num_colluders: int,
    max_exposure: float = MAX_EXPOSURE,
) -> GraphPlan:
    """Return what drawn neighbours risk.

    Dropouts abort a round and expose nobody: the bound on exposure holds for any dropouts.

    Raises:
        ValueError: If a sum of one honest client is likelier than `max_exposure`.
    """
    dropped = count("dropout_rate", dropout_rate, num_clients)
    least, exposure = smallest_sum(num_clients, draws, threshold, num_colluders, max_exposure)
    if least < MIN_SUM:
        raise ValueError(
            f"draws must be more, or threshold higher: with {draws} drawn neighbours of "
            f"{num_clients} clients, threshold {threshold} and {num_colluders} colluders an active "
            f"server may open a single update with a chance above {max_exposure:.3g}"
        )
    aborts = abort_curve(num_clients, draws, dropped)
    risk = GraphRisk(float(aborts[threshold]), exposure)
    return GraphPlan(draws, threshold, num_colluders, risk, "active", least)


def plan_drawn(
    num_clients: int,
    dropout_rate: float,
    num_colluders: int,
    *,
    max_abort: float = MAX_ABORT,
    max_exposure: float = MAX_EXPOSURE,
) -> GraphPlan:
    """Return the fewest draws that keep both risks low and every sum above a tenth of the clients.

    The highest threshold that still recovers from the dropouts makes the smallest sum largest.

    Raises:
        ValueError: If no sparse graph does.
    """
    dropped = count("dropout_rate", dropout_rate, num_clients)
    for draws in range(2, num_clients - 1):
        aborts = abort_curve(num_clients, draws, dropped)
        fits = np.flatnonzero(aborts <= max_abort)
        threshold = int(fits[-1]) if len(fits) else 0
        if threshold < 2:
            continue
        least, exposure = smallest_sum(num_clients, draws, threshold, num_colluders, max_exposure)
        if least >= max(MIN_SUM, math.ceil(_WANTED * num_clients)):
            risk = GraphRisk(float(aborts[threshold]), exposure)
            return GraphPlan(draws, threshold, num_colluders, risk, "active", least)
    raise ValueError(
        f"{num_clients} clients are too few for drawn neighbours with {dropped} dropouts and "
        f"{num_colluders} colluders: let everybody mask with all others (neighbours=None)"
    )


def abort_curve(num_clients: int, degree: int, dropped: int) -> NDArray[np.float64]:
    """Return P(abort) for each threshold 0 … degree + 1 by a sum over clients."""
    # Losing this many neighbours is too much for a dropped client, whose own share is gone too. A
    # survivor can lose one more; but among its neighbours one more client may have dropped.
    lost = degree + 1 - np.arange(degree + 2)
    spared = np.minimum(lost + 1, degree + 1)
    dead = dropped * tail(num_clients - 1, max(dropped - 1, 0), degree)[lost]
    alive = (num_clients - dropped) * tail(num_clients - 1, dropped, degree)[spared]
    return np.minimum(dead + alive, 1.0)


def _exposure_curve(
    num_clients: int, degree: int, dropped: int, colluding: int
) -> NDArray[np.float64]:
    """Return P(exposure) for each threshold 0 … degree + 1 by a sum over honest clients."""
    # A client is safe while its colluding holders T satisfy 2·threshold > degree + 1 + T.
    unsafe = np.clip(2 * np.arange(degree + 2) - (degree + 1), 0, degree + 1)
    both = (num_clients - colluding) * tail(num_clients - 1, colluding, degree)[unsafe]
    apart = _split_probability(num_clients, degree, min(dropped + colluding, num_clients))
    return np.minimum(both + apart, 1.0)


def _split_probability(num_clients: int, degree: int, missing: int) -> float:
    """Return a bound on the chance that the honest survivors' graph is not connected.

    On the circle two neighbouring survivors are joined unless degree/2 or more missing clients lie
    between them, and one such gap leaves a path: it takes two. With one survivor fixed, the gaps
    are a uniform composition of `missing` into as many parts as there are survivors, so the
    expected number of pairs of long gaps is a ratio of binomials.
    """
    survivors, half = num_clients - missing, degree // 2
    if survivors < 2:
        return 1.0  # a sum over one client is that client
    if degree == num_clients - 1 or missing < 2 * half:
        return 0.0
    rest = num_clients - 1 - 2 * half
    log_pairs = (
        math.log(survivors * (survivors - 1) / 2)
        + log_choose(rest, survivors - 1)
        - log_choose(num_clients - 1, survivors - 1)
    )
    return min(math.exp(log_pairs), 1.0)


def count(name: str, rate: float, num_clients: int) -> int:
    """Return ⌈rate·n⌉, at most n − 1, forgiving the rounding of products such as 0.07 · 100."""
    within(name, rate, lowest=0.0, below=1.0)
    return min(math.ceil(rate * num_clients - 1e-9), num_clients - 1)


def _check_degree(num_clients: int, degree: int) -> None:
    require("at least 2", num_clients=num_clients)
    is_even = 2 <= degree < num_clients and degree % 2 == 0
    if not is_even and degree != num_clients - 1:
        raise BadValueError(
            "degree", f"even and in [2, {num_clients - 1}], or {num_clients - 1}", degree
        )
