"""What all benchmarks share: calls timed in turns, one row a case, and the ratio first.

A ratio is what the peer takes over what ours takes, of the same repetition, so that a machine that
slows down for a while slows both; the order changes with every repetition. Above 1 ours is faster.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

Scale = Literal["quick", "full", "long"]
Unit = Literal["CPU s", "wall s", "MB", "bytes", "rounds"]
Clock = Callable[[], float]
Timer = Callable[[], float]  # does the work and returns its seconds

OURS = "ours"
REPETITIONS = 5


@dataclass(frozen=True)
class Spread:
    """The median of some repetitions, the lowest and the highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Return the spread of at least one value."""
        known = sorted(values)
        if not known:
            raise ValueError("values must be at least one, got none")
        return cls(statistics.median(known), known[0], known[-1])


@dataclass(frozen=True)
class Row:
    """One case of a question.

    Attributes:
        case: What was done.
        unit: Of `ours` and `theirs`: time of the processor, time by the clock, memory, or a count.
        ours: What ours takes.
        repetitions: How often both were measured.
        peer: What ours is compared with; empty for nothing.
        theirs: What that takes.
        ratio: `theirs` over `ours`, paired by repetition.
        memory: Most memory of ours beside its libraries, in MB, where it was asked for.
        target: The ratio that was to be reached; without a peer, the most that ours may take.
        expected: The exponent that theory gives to a growth; `ratio` is then the one found.
        note: What else has to be said.
    """

    case: str
    unit: Unit
    ours: Spread
    repetitions: int
    peer: str = ""
    theirs: Spread | None = None
    ratio: Spread | None = None
    memory: float | None = None
    target: float | None = None
    expected: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.repetitions < 1:
            raise ValueError(f"repetitions must be at least 1, got {self.repetitions}")
        if bool(self.peer) != (self.theirs is not None):
            raise ValueError(f"theirs must be given with a peer and only then, got {self.theirs}")
        if (self.ratio is None) != (not self.peer and self.expected is None):
            raise ValueError(f"ratio goes with a peer or with expected, got {self.ratio}")

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met, by the medians; None without a target."""
        if self.target is None:
            return None
        if self.ratio is not None:
            return self.ratio.median >= self.target
        return self.ours.median <= self.target


@dataclass(frozen=True)
class Skipped:
    """A case that could not be measured here, and why."""

    case: str
    reason: str


Rows = Iterable[Row | Skipped]
Measure = Callable[[Scale], Rows]


def seconds(call: Callable[[], object], clock: Clock = time.process_time) -> float:
    """Return how long a call takes the processor, or by the clock that is given."""
    start = clock()
    call()
    return clock() - start


def timer(
    call: Callable[[], object],
    *,
    calls: int = 1,
    size: float = 1.0,
    clock: Clock = time.process_time,
) -> Timer:
    """Return a timer of `call`.

    Args:
        call: The work.
        calls: Times that it is done, where once is too short for the clock.
        size: How much of what the row states one call does: the time is divided by it. A hundredth
            of the work that is to be scaled up has a size of 0.01, a thousand values at once that
            are stated by the value one of 1,000.
        clock: Of the processor, for others share the cores; or by the wall.
    """

    def work() -> None:
        for _ in range(calls):
            call()

    return lambda: seconds(work, clock) / (calls * size)


def interleave(
    timers: Mapping[str, Timer], repetitions: int = REPETITIONS, *, warm_up: bool = True
) -> dict[str, list[float]]:
    """Return the seconds of each timer, one after the other, forwards and backwards in turn.

    Args:
        timers: What is measured.
        repetitions: How often.
        warm_up: Whether each is done once before, for the caches.
    """
    times: dict[str, list[float]] = {name: [] for name in timers}
    for timed in timers.values() if warm_up else ():
        timed()
    for repetition in range(repetitions):
        for name in list(timers)[:: -1 if repetition % 2 else 1]:
            times[name].append(timers[name]())
    return times


def paired(
    case: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    peer: str,
    unit: Unit = "CPU s",
    memory: float | None = None,
    target: float | None = None,
    note: str = "",
) -> Row:
    """Return the row of figures that were taken in turns."""
    ratios = [slow / fast for fast, slow in zip(ours, theirs, strict=True)]
    return Row(
        case,
        unit,
        Spread.of(ours),
        len(ratios),
        peer,
        Spread.of(theirs),
        Spread.of(ratios),
        memory=memory,
        target=target,
        note=note,
    )


def compare(
    case: str,
    ours: Timer,
    theirs: Timer,
    *,
    peer: str,
    repetitions: int = REPETITIONS,
    warm_up: bool = True,
    unit: Unit = "CPU s",
    memory: float | None = None,
    target: float | None = None,
    note: str = "",
) -> Row:
    """Measure both in turns and return their row."""
    times = interleave({OURS: ours, peer: theirs}, repetitions, warm_up=warm_up)
    return paired(
        case,
        times[OURS],
        times[peer],
        peer=peer,
        unit=unit,
        memory=memory,
        target=target,
        note=note,
    )


def alone(
    case: str,
    ours: Sequence[float],
    *,
    unit: Unit = "CPU s",
    memory: float | None = None,
    target: float | None = None,
    note: str = "",
) -> Row:
    """Return the row of something that has no peer; a target is then the most that it may take."""
    return Row(case, unit, Spread.of(ours), len(ours), memory=memory, target=target, note=note)
