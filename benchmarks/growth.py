"""How does each main cost grow with clients, dimension, canaries, trials and rounds?

Each cost is measured at three or four sizes, each twice the last; the exponent is the slope of
the straight line through the logarithms, one for each repetition. Expected is what the operations
that count for large sizes add up to: small sizes, where fixed costs still weigh, stay below it.
Sizes are small and sides are fixed, so these are no figures of speed. CPU time, one thread. Memory
is measured once, in a process that takes the sizes as they rise, with the inputs of the call; less
than 0.1 MB counts as 0.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks import growth_costs as cost
from benchmarks.measure import Row, Scale, interleave
from benchmarks.memory import grown
from benchmarks.page import amount

LEAST = 0.1  # MB; less is the allocator's


@dataclass(frozen=True)
class Growth:
    """A cost and what it grows with.

    Attributes:
        name: Of the cost.
        variable: What it grows with.
        call: Works at a size and returns seconds.
        sizes: Rising.
        small: A size that takes no time.
        time: Expected exponent of time.
        memory: Expected exponent of memory.
    """

    name: str
    variable: str
    call: Callable[[int], float]
    sizes: tuple[int, ...]
    small: int
    time: float
    memory: float


def doubled(first: int, count: int = 4) -> tuple[int, ...]:
    """Return so many sizes, each twice the one before."""
    return tuple(first << i for i in range(count))


GROWTHS = (
    Growth("secure round, complete graph", "clients N", cost.complete_round, doubled(16), 5, 2, 2),
    Growth("secure round, 14 neighbours", "clients N", cost.sparse_round, doubled(32), 16, 1, 1),
    Growth("secure round, 14 neighbours", "d", cost.long_round, doubled(2**18), 500, 1, 1),
    Growth("products of 100 canaries", "d", cost.products, doubled(2**15), 500, 1, 1),
    Growth("one-shot report", "canaries k", cost.one_shot_report, doubled(125), 5, 1, 0),
    Growth("one-shot audit, simulated", "canaries k", cost.simulation, doubled(400), 5, 2, 2),
    Growth("likelihood-ratio round", "d", cost.likelihood_ratio, doubled(700, 3), 50, 3, 2),
    Growth("likelihood-ratio round", "trials", cost.trials, doubled(100), 2, 1, 0),
    Growth("sampling a cohort's sum", "clients N", cost.cohort, doubled(20), 2, 1, 0),
    Growth("covariance", "d", cost.covariance, doubled(1_000, 3), 50, 2, 2),
    Growth("water-filling draw", "examples D", cost.filled_examples, doubled(200), 5, 2, 1),
    Growth("water-filling draw", "d", cost.filled_dim, doubled(10_000), 500, 1, 1),
    Growth("whole run", "rounds T", cost.whole_run, doubled(8, 3), 1, 1, 1),
)


def slope(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Return the slope of the straight line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def measure(scale: Scale) -> Iterator[Row]:
    """Yield a row of time and one of memory for each growth."""
    for growth in GROWTHS:
        if scale == "quick":
            yield timed(growth, (growth.small, 2 * growth.small), 1)
        else:
            yield timed(growth, growth.sizes, 5)
            yield held(growth)


def timed(growth: Growth, sizes: Sequence[int], repetitions: int) -> Row:
    """Return the exponent of time."""
    timers = {str(size): partial(growth.call, size) for size in sizes}
    times = interleave(timers, repetitions, warm_up=False)
    slopes = [slope(sizes, values) for values in zip(*times.values(), strict=True)]
    each = [f"{size}: {amount(values, 'CPU s')}" for size, values in times.items()]
    return row(f"{growth.name}, time against {growth.variable}", slopes, growth.time, each)


def held(growth: Growth) -> Row:
    """Return the exponent of memory."""
    peaks = grown(growth.call, growth.small, *growth.sizes)
    slopes = [slope(growth.sizes, [max(peak, LEAST) for peak in peaks])]
    pairs = zip(growth.sizes, peaks, strict=True)
    each = [f"{size}: {amount([peak], 'MB')}" for size, peak in pairs]
    return row(f"{growth.name}, memory against {growth.variable}", slopes, growth.memory, each)


def row(case: str, slopes: Sequence[float], expected: float, each: Sequence[str]) -> Row:
    """Return a row with what was found at each size."""
    note = f"expected {expected:g}; {', '.join(each)}"
    return Row(case, slopes, unit="exponent", note=note)
