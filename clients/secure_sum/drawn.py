"""Neighbours that clients draw themselves, for a server that may do anything.

Bell et al. 2020, Secure Single-Server Aggregation with (Poly)Logarithmic Overhead (CCS), §4: every
client draws k others from the roster; two clients mask with each other if one has drawn the other.
A client's secrets are shared among those that it has drawn, and itself: k + 1 holders.

What a server can do, with T clients of the roster that work for it and were fixed before the draws.
It sees all draws, then withholds boxes and names survivors as it likes, and learns sums over closed
groups: sets C of honest clients whose masks towards the outside it can all take off. Let t be the
threshold. Clients that follow `participant` give:
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

Different from the paper: tails are summed exactly in logs, and the size of the smallest sum is a
result, not an assumption.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from random import SystemRandom

import numpy as np

from leakmeter.clients.secure_sum.graph import (
    MAX_ABORT,
    MAX_EXPOSURE,
    Graph,
    Risk,
    abort_curve,
    count,
    log_choose,
    tail,
)

LEAST_SUM = 2  # honest clients; with one, the sum is its update
_WANTED = 0.1  # share of the clients that a plan wants in the smallest sum


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
    check(num_clients, draws, threshold)
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


def check(num_clients: int, draws: int, threshold: int) -> None:
    """Refuse numbers that cannot be."""
    if not 2 <= draws < num_clients - 1:
        raise ValueError(f"draws must be in [2, {num_clients - 2}], got {draws}")
    if not 2 <= threshold <= draws + 1:
        raise ValueError(f"threshold must be in [2, {draws + 1}], got {threshold}")
