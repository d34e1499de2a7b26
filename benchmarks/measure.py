"""Calls timed in turns, one row per case.

A ratio is the peer's cost over ours in one repetition, so a machine that slows down slows both.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

Scale = Literal["quick", "full", "long"]
Unit = Literal["CPU s", "wall s", "MB", "bytes", "rounds", "exponent", ""]
Timer = Callable[[], float]  # does the work and returns its seconds

OURS = "ours"


@dataclass(frozen=True)
class Row:
    """One case of a question."""

    case: str
    ours: Sequence[float]  # one figure per repetition; none if it could not be measured
    theirs: Sequence[float] = ()  # the peer's, taken in turns with ours
    peer: str = ""
    unit: Unit = "CPU s"  # of both
    memory: float | None = None  # peak of ours beside its libraries, in MB
    target: float | None = None  # the lowest ratio, or without a peer the most that ours may take
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
        if self.peer:
            return median(self.ratios) / self.target
        return self.target / most if (most := median(self.ours)) else math.inf


def seconds(call: Callable[[], object]) -> float:
    """Return the processor time of a call: others may share the cores."""
    start = time.process_time()
    call()
    return time.process_time() - start


def timer(call: Callable[[], object], *, calls: int = 1, size: float = 1.0) -> Timer:
    """Return a timer of some calls together, by the call and by the `size` of the work in each."""
    return lambda: seconds(lambda: [call() for _ in range(calls)]) / (calls * size)


def interleave(
    timers: Mapping[str, Timer], repetitions: int = 5, *, warm_up: bool = True
) -> dict[str, list[float]]:
    """Return the seconds of each, in alternating order; with `warm_up` each is called once more."""
    times: dict[str, list[float]] = {name: [] for name in timers}
    for timed in timers.values() if warm_up else ():
        timed()
    for repetition in range(repetitions):
        for name in list(timers)[:: -1 if repetition % 2 else 1]:
            times[name].append(timers[name]())
    return times


def compare(
    case: str,
    ours: Timer,
    theirs: Timer,
    *,
    peer: str,
    repetitions: int = 5,
    warm_up: bool = True,
    **details: Any,
) -> Row:
    """Measure both in turns and return their row; `details` are other fields of it."""
    times = interleave({OURS: ours, peer: theirs}, repetitions, warm_up=warm_up)
    return Row(case, times[OURS], times[peer], peer, **details)
