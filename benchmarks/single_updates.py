"""Does a search in single updates add less than 5 % of CPU time to a round with canaries?

Ten of twenty clients play canaries, for `OneShotCanaries`; ours is the same run with
`SingleUpdates` as well, the peer without it. A network of a million parameters is trained for an
epoch on 100 images of 32 × 32, batch 32. A client that only adds noise to its model is the worst
there is: the audit of models alone takes twice as long as such a run. Both are processes of their
own and take turns; the time is that of server and clients together, the report included. A ratio of
0.952 is 5 % more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.audited_run import Spent, spent
from benchmarks.measure import OURS, Row, Scale, interleave
from benchmarks.page import figure

ALONE, LIMIT = "one-shot alone", 0.05


@dataclass(frozen=True)
class Case:
    """A kind of client and a size of a run."""

    client: str
    size: int
    rounds: int
    clients: int
    seats: int
    repetitions: int

    def row(self) -> Row:
        """Measure both runs in turns."""
        found: dict[bool, Spent] = {}

        def seconds(*, in_updates: bool) -> float:
            about = {"rounds": self.rounds, "clients": self.clients, "seats": self.seats}
            found[in_updates] = spent(self.client, self.size, **about, in_updates=in_updates)
            return found[in_updates].cpu

        both = {OURS: lambda: seconds(in_updates=True), ALONE: lambda: seconds(in_updates=False)}
        times = interleave(both, self.repetitions, warm_up=False)
        ours, theirs = found[True], found[False]
        return Row(
            f"{self.client}, d = {ours.dim:,}, {self.rounds} rounds, {self.seats} of "
            f"{self.clients} clients play canaries",
            times[OURS],
            times[ALONE],
            peer=ALONE,
            target=1 / (1 + LIMIT) if self.client == "convolutions" else None,
            note=f"peak {figure(ours.peak)} MB and {figure(theirs.peak)} MB, disk "
            f"{figure(ours.disk)} MB and {figure(theirs.disk)} MB",
        )


CASES: dict[Scale, tuple[Case, ...]] = {
    "quick": (Case("noise", 10_000, 2, 4, 2, 1),),
    "full": (Case("convolutions", 100, 5, 20, 10, 3), Case("noise", 10**6, 10, 20, 10, 3)),
    "long": (Case("convolutions", 100, 10, 20, 10, 5), Case("noise", 10**6, 20, 20, 10, 5)),
}


def measure(scale: Scale) -> Iterator[Row]:
    """Yield a row for each kind of client."""
    yield from (case.row() for case in CASES[scale])
