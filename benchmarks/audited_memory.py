"""How much memory and time does an audit with canaries add to a run with a large model?

Twelve clients, or four, that add noise to the model they get: a run that costs as little as a run
can, so the ratio of times is the worst there is. The peer is the same run without the audit. Each
is a process of its own, and the peak is that of server and clients together, libraries included.
Canaries of large models have random signs: no change of the model is kept, in memory or in a file.
CPU time of one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.audited_run import Spent, spent
from benchmarks.measure import Row, Scale
from benchmarks.page import figure

UNAUDITED = "unaudited"


@dataclass(frozen=True)
class Case:
    """A size of a run.

    Attributes:
        dim: Parameters.
        rounds: Rounds.
        clients: Clients a round.
        seats: Those among them that play canaries.
        target: Most memory that the audit may add, in MB.
        speed: Least speed of the audited run, as a share of the other's.
    """

    dim: int
    rounds: int
    clients: int
    seats: int
    target: float | None = None
    speed: float | None = None


CASES = {
    "quick": (Case(10_000, 3, 4, 2),),
    "full": (Case(10**6, 10, 12, 10),),
    "long": (Case(10**7, 100, 12, 10, 2_000.0, 0.85), Case(10**8, 10, 4, 2, 1_000.0, 0.8)),
}


def measure(scale: Scale) -> Iterator[Row]:
    """Yield a row of memory and one of time for each size."""
    for case in CASES[scale]:
        without, audited = (_spent(case, seats) for seats in (0, case.seats))
        name = (
            f"d = {case.dim:,}, {case.rounds} rounds, {case.seats} of {case.clients} clients play "
            "canaries"
        )
        yield Row(
            f"memory above the unaudited run, {name}",
            [max(audited.peak - without.peak, 0.0)],
            unit="MB",
            target=case.target,
            note=f"peak {figure(audited.peak)} MB, {UNAUDITED} {figure(without.peak)} MB; "
            f"{figure(audited.disk)} MB of disk",
        )
        yield Row(
            f"time, {name}",
            [audited.cpu],
            [without.cpu],
            peer=UNAUDITED,
            target=case.speed,
            note=f"wall time {figure(audited.wall)} s and {figure(without.wall)} s",
        )


def _spent(case: Case, seats: int) -> Spent:
    return spent("noise", case.dim, rounds=case.rounds, clients=case.clients, seats=seats)
