"""Calls timed in turns, one row per case.

A ratio is the peer's cost over ours in the same repetition, so a machine that slows down for a
while slows both. The order alternates between repetitions. Above 1 ours is cheaper.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

Scale = Literal["quick", "full", "long"]
Unit = Literal["CPU s", "wall s", "MB", "bytes", "rounds", "exponent", ""]
Timer = Callable[[], float]  # does the work and returns its seconds

OURS, REPETITIONS = "ours", 5


@dataclass(frozen=True)
class Row:
    """One case of a question.

    Attributes:
        case: What was done.
        ours: What ours took, one figure per repetition; none if it could not be measured.
        peer: What ours is compared with; empty for nothing.
        theirs: What the peer took in the same repetitions.
        unit: Of both.
        memory: Peak memory of ours beside its libraries, in MB.
        target: The lowest ratio that was asked for; without a peer, the most that ours may take.
        note: Anything else a reader must know.
    """

    case: str
    ours: tuple[float, ...]
    peer: str = ""
    theirs: tuple[float, ...] = ()
    unit: Unit = "CPU s"
    memory: float | None = None
    target: float | None = None
    note: str = ""

    @property
    def ratios(self) -> tuple[float, ...]:
        """`theirs` over `ours`, one per repetition; none without a peer."""
        pairs = zip(self.theirs, self.ours, strict=True) if self.peer else ()
        return tuple(slow / fast for slow, fast in pairs)

    @property
    def margin(self) -> float | None:
        """How far the median is beyond the target, as a factor; below 1 is missed."""
        if self.target is None or not self.ours:
            return None
        return median(self.ratios) / self.target if self.peer else self.target / median(self.ours)


def seconds(call: Callable[[], object]) -> float:
    """Return the processor time of a call: others may share the cores."""
    start = time.process_time()
    call()
    return time.process_time() - start


def timer(call: Callable[[], object], *, calls: int = 1, size: float = 1.0) -> Timer:
    """Return a timer of `call`.

    Args:
        call: The work.
        calls: How often it is done, where once is too short for the clock.
        size: How much of what the row states one call does; the time is divided by it. A hundredth
            of the work has size 0.01; a thousand values, stated per value, have size 1,000.
    """
    return lambda: seconds(lambda: [call() for _ in range(calls)]) / (calls * size)


def interleave(
    timers: Mapping[str, Timer], repetitions: int = REPETITIONS, *, warm_up: bool = True
) -> dict[str, list[float]]:
    """Return the seconds of each timer; with `warm_up` each is called once before."""
    times: dict[str, list[float]] = {name: [] for name in timers}
    for timed in timers.values() if warm_up else ():
        timed()
    for repetition in range(repetitions):
        for name in list(timers)[:: -1 if repetition % 2 else 1]:
            times[name].append(timers[name]())
    return times


def paired(
    case: str, ours: Sequence[float], theirs: Sequence[float], *, peer: str, **details: Any
) -> Row:
    """Return the row of figures that were taken in turns; `details` are fields of `Row`."""
    return Row(case, tuple(ours), peer, tuple(theirs), **details)


def compare(
    case: str,
    ours: Timer,
    theirs: Timer,
    *,
    peer: str,
    repetitions: int = REPETITIONS,
    warm_up: bool = True,
    **details: Any,
) -> Row:
    """Measure both in turns and return their row."""
    times = interleave({OURS: ours, peer: theirs}, repetitions, warm_up=warm_up)
    return paired(case, times[OURS], times[peer], peer=peer, **details)


def alone(case: str, ours: Sequence[float], **details: Any) -> Row:
    """Return the row of something without a peer; a target is then the most it may take."""
    return Row(case, tuple(ours), **details)


def skipped(case: str, reason: str) -> Row:
    """Return the row of a case that cannot be measured here."""
    return Row(case, (), note=f"not measured: {reason}")
