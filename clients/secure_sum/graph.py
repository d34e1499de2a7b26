"""Who shares masks with whom, and how likely a sparse graph of them fails.

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

Neighbours that clients draw themselves, for a server that may do anything (Bell et al., §4): every
client draws k others from the roster; two clients mask with each other if one has drawn the other.
A client's secrets are shared among those that it has drawn, and itself: k + 1 holders.

What such a server can do, with T clients of the roster that work for it and were fixed before the
draws. It sees all draws, then withholds boxes and names survivors as it likes, and learns sums over
closed groups: sets C of honest clients whose masks towards the outside it can all take off. Let t
be the threshold. Clients that follow `participant` give:
1. Nobody's two secrets are both opened, nor is one opened whose owner has revealed shares as a
   survivor, while 2·t > k + 1 + (colluders that it has drawn).
2. A client in C masks with at least t − 1 of its draws. Its own seed was opened, so at least t of
   its holders have revealed; those of them that are honest are survivors (by 1), hence in C if it
   masks with them. So at least 2·t − k − 2 of its draws are in C or collude.
The draws are independent, so the chance that some C of size c exists is at most
(n − T choose c)·p_c^c, p_c the chance that a uniform k-subset of n − 1 has at least 2·t − k − 2 of
c − 1 + T marked ones. This covers every choice that the server makes after the draws, dropouts that
it invents included. Summed over c = 1 … m − 1 it is the chance that a sum has fewer than m honest
clients. (1) fails only where a group of one is possible, so the case c = 1 covers it. A group has
one roster, which is part of its digest: a server that uses several has these chances for each.
Different from the paper: the size of the smallest sum is a result, not an assumption.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import SystemRandom

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

MAX_ABORT = 2.0**-20
MAX_EXPOSURE = 2.0**-40

LEAST_SUM = 2  # honest clients; with one, the sum is its update
_WANTED = 0.1  # share of the clients that a plan wants in the smallest sum

Graph = dict[int, tuple[int, ...]]


@dataclass(frozen=True)
class Risk:
    """Upper bounds on the probability that one round fails."""

    abort: float
    exposure: float

    def check(self, max_abort: float = MAX_ABORT, max_exposure: float = MAX_EXPOSURE) -> None:
        """Refuse a graph that fails more often than allowed."""
        for name, most in (("abort", max_abort), ("exposure", max_exposure)):
            if not (value := getattr(self, name)) <= most:
                raise ValueError(f"P({name}) must be at most {most:.3g}, got {value:.3g}")


@dataclass(frozen=True)
class GraphPlan:
    """A graph's degree and threshold with what they risk at the stated rates."""

    num_clients: int
    degree: int
    threshold: int
    risk: Risk


def complete_graph(clients: Sequence[int]) -> Graph:
    """Return everybody's neighbours when all are joined."""
    _check_clients(clients)
    return {own: tuple(sorted(set(clients) - {own})) for own in clients}


def regular_graph(clients: Sequence[int], degree: int, rng: np.random.Generator) -> Graph:
    """Return everybody's `degree` neighbours in a random cyclic order.

    Args:
        clients: Distinct numbers.
        degree: Even and below the number of clients, or one less than it (complete).
        rng: Draws the order. It must not be foreseeable by clients that choose to collude.
    """
    _check_clients(clients)
    count = len(clients)
    _check_degree(count, degree)
    if degree == count - 1:
        return complete_graph(clients)
    ring = [clients[i] for i in rng.permutation(count)]
    reach = [*range(-degree // 2, 0), *range(1, degree // 2 + 1)]
    return {own: tuple(sorted(ring[(i + j) % count] for j in reach)) for i, own in enumerate(ring)}


def check_threshold(num_holders: int, threshold: int, num_colluders: int) -> None:
    """Refuse a threshold at which `num_colluders` of the holders could get both secrets.

    Every honest holder reveals one of a client's two secrets, never both, so with the colluders
    there are num_holders + num_colluders shares in all; two secrets need twice the threshold.
    """
    least = (num_holders + num_colluders) // 2 + 1
    if not least <= threshold <= num_holders:
        raise ValueError(
            f"threshold must be in [{least}, {num_holders}] for {num_holders} holders of which "
            f"{num_colluders} collude, got {threshold}"
        )


def assess(
    num_clients: int, degree: int, threshold: int, dropout_rate: float, collusion_rate: float
) -> Risk:
    """Return the probabilities of abort and exposure in one round."""
    _check_degree(num_clients, degree)
    if not 1 <= threshold <= degree + 1:
        raise ValueError(f"threshold must be in [1, {degree + 1}], got {threshold}")
    dropped = count("dropout_rate", dropout_rate, num_clients)
    colluding = count("collusion_rate", collusion_rate, num_clients)
    aborts = abort_curve(num_clients, degree, dropped)
    exposures = _exposure_curve(num_clients, degree, dropped, colluding)
    return Risk(float(aborts[threshold]), float(exposures[threshold]))


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
            risk = Risk(float(aborts[threshold]), float(exposures[threshold]))
            return GraphPlan(num_clients, degree, threshold, risk)
    raise ValueError(
        "dropout_rate and collusion_rate must leave two honest survivors and "
        f"2·dropped + colluding < {num_clients}, got {dropped} dropped and {colluding} colluding"
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


def tail(population: int, marked: int, drawn: int) -> NDArray[np.float64]:
    """Return P(X ≥ x) for x = 0 … drawn + 1, X the marked among `drawn` of the population."""
    x = np.arange(max(0, drawn + marked - population), min(drawn, marked) + 1)
    log_mass = (
        log_choose(marked, x)
        + log_choose(population - marked, drawn - x)
        - log_choose(population, drawn)
    )
    # Summed from the far end in logs, so the smallest tails keep their digits.
    log_tail = np.logaddexp.accumulate(log_mass[::-1])[::-1]
    tail = np.zeros(drawn + 2)
    tail[: x[0]] = 1.0
    tail[x] = np.minimum(np.exp(log_tail), 1.0)
    return tail


def log_choose(n: NDArray[np.int64] | int, k: NDArray[np.int64] | int) -> NDArray[np.float64]:
    result: NDArray[np.float64] = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    return result


def count(name: str, rate: float, num_clients: int) -> int:
    """Return ⌈rate·n⌉, at most n − 1, forgiving the rounding of products such as 0.07 · 100."""
    if not 0 <= rate < 1:
        raise ValueError(f"{name} must be in [0, 1), got {rate}")
    return min(math.ceil(rate * num_clients - 1e-9), num_clients - 1)


@dataclass(frozen=True)
class DrawnPlan:
    """How many neighbours each client draws, the threshold, and what they risk.

    Attributes:
        num_clients: Clients on the roster.
        draws: Neighbours that each client draws.
        threshold: Shares that open a secret, of `draws` + 1 holders.
        least: Honest clients in any sum that the server can open.
        risk: Chance that a round aborts, and that `least` does not hold.
    """

    num_clients: int
    draws: int
    threshold: int
    least: int
    risk: Risk


def draw(own: int, roster: Collection[int], draws: int) -> tuple[int, ...]:
    """Return a client's own neighbours, from the operating system's random source."""
    others = sorted(set(roster) - {own})
    if not 1 <= draws <= len(others):
        raise ValueError(f"draws must be in [1, {len(others)}], got {draws}")
    return tuple(sorted(SystemRandom().sample(others, draws)))


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


@lru_cache(maxsize=256)
def smallest_sum(
    num_clients: int,
    draws: int,
    threshold: int,
    num_colluders: int,
    max_exposure: float = MAX_EXPOSURE,
) -> tuple[int, float]:
    """Return m and a bound on the chance that a server can open a sum of fewer than m clients.

    m is the largest for which the bound is at most `max_exposure`; m = 1 says nothing.

    Args:
        num_clients: Clients on the roster.
        draws: Neighbours that each draws.
        threshold: Shares that open a secret.
        num_colluders: Clients of the roster that work for the server.
        max_exposure: Largest chance.
    """
    _check_draws(num_clients, draws, threshold)
    honest = num_clients - num_colluders
    needed = 2 * threshold - draws - 2  # draws in the group or colluding, see above
    chance = 0.0
    for size in range(1, honest + 1):
        marked = min(size - 1 + num_colluders, num_clients - 1)
        one = float(tail(num_clients - 1, marked, draws)[max(needed, 0)])
        log_groups = float(log_choose(honest, size)) + size * math.log(one) if one else -math.inf
        more = math.exp(min(log_groups, 0.0))
        if chance + more > max_exposure:
            return size, chance
        chance += more
    return max(honest, 1), chance


def assess_drawn(
    num_clients: int,
    draws: int,
    threshold: int,
    dropout_rate: float,
    num_colluders: int,
    max_exposure: float = MAX_EXPOSURE,
) -> DrawnPlan:
    """Return what drawn neighbours risk.

    Dropouts abort a round and expose nobody: the bound on exposure holds for any dropouts.

    Raises:
        ValueError: If a sum of one honest client is likelier than `max_exposure`.
    """
    dropped = count("dropout_rate", dropout_rate, num_clients)
    least, exposure = smallest_sum(num_clients, draws, threshold, num_colluders, max_exposure)
    if least < LEAST_SUM:
        raise ValueError(
            f"draws must be more, or threshold higher: with {draws} drawn neighbours of "
            f"{num_clients} clients, threshold {threshold} and {num_colluders} colluders an active "
            f"server may open a single update with a chance above {max_exposure:.3g}"
        )
    aborts = abort_curve(num_clients, draws, dropped)
    return DrawnPlan(num_clients, draws, threshold, least, Risk(float(aborts[threshold]), exposure))


def plan_drawn(
    num_clients: int,
    dropout_rate: float,
    num_colluders: int,
    *,
    max_abort: float = MAX_ABORT,
    max_exposure: float = MAX_EXPOSURE,
) -> DrawnPlan:
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
        if least >= max(LEAST_SUM, math.ceil(_WANTED * num_clients)):
            risk = Risk(float(aborts[threshold]), exposure)
            return DrawnPlan(num_clients, draws, threshold, least, risk)
    raise ValueError(
        f"{num_clients} clients are too few for drawn neighbours with {dropped} dropouts and "
        f"{num_colluders} colluders: let everybody mask with all others (neighbours=None)"
    )


def _check_draws(num_clients: int, draws: int, threshold: int) -> None:
    """Refuse numbers that cannot be."""
    if not 2 <= draws < num_clients - 1:
        raise ValueError(f"draws must be in [2, {num_clients - 2}], got {draws}")
    if not 2 <= threshold <= draws + 1:
        raise ValueError(f"threshold must be in [2, {draws + 1}], got {threshold}")


def _check_clients(clients: Sequence[int]) -> None:
    if len(clients) < 2 or len(set(clients)) != len(clients):
        raise ValueError(f"clients must be at least two and distinct, got {list(clients)}")


def _check_degree(num_clients: int, degree: int) -> None:
    if num_clients < 2:
        raise ValueError(f"num_clients must be at least 2, got {num_clients}")
    is_even = 2 <= degree < num_clients and degree % 2 == 0
    if not is_even and degree != num_clients - 1:
        raise ValueError(
            f"degree must be even and in [2, {num_clients - 1}], or {num_clients - 1}, got {degree}"
        )
