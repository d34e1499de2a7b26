"""How long does the report on 1,000 canaries take, after 1,000 rounds of a million parameters?

The changes are in a file. They are read by blocks of coordinates, every canary is drawn once, and
all else is matrix products in double precision. The peer draws every canary again for each round
and takes its product with that round's change, which is how one would stream it without a file; it
is timed on a few canaries and one round, and scaled up. Memory is that of the report alone. One
thread; two take about half the time of the matrix products.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.measure import Row, Scale, interleave
from benchmarks.memory import grown
from leakmeter.auditors.canaries.transcript import Transcript
from leakmeter.auditors.canary_draws import canary_products
from leakmeter.auditors.rng import stream

FEW, MINUTES = 10, 5
# Canaries and as many rounds, parameters, repetitions.
SIZES = {"quick": (20, 10_000, 2), "full": (200, 10**6, 2), "long": (1_000, 10**6, 1)}


def filled(rounds: int, canaries: int, dim: int) -> Transcript:
    """Return a transcript of rounds that go in random directions."""
    found, start = Transcript(0, range(canaries), dim), np.zeros(dim)
    for i in range(rounds):
        found.add(start, stream(0, "round", i).standard_normal(dim, dtype=np.float32))  # type: ignore[arg-type]
    return found


def reported(rounds: int, canaries: int, dim: int) -> float:
    """Return the CPU seconds of a report."""
    found = filled(rounds, canaries, dim)
    begin = time.process_time()
    found.final()
    found.largest(100_000, 0.005, stream(0, "null"))
    spent = time.process_time() - begin
    found.close()
    return spent


def streamed(rounds: int, canaries: int, dim: int) -> float:
    """Return the CPU seconds of products taken round by round, scaled up from a few."""
    change = stream(0, "round", 0).standard_normal(dim)
    begin = time.process_time()
    canary_products(0, range(FEW), change)
    return (time.process_time() - begin) * canaries * rounds / FEW


def measure(scale: Scale) -> Iterator[Row]:
    """Yield the row of one size."""
    count, dim, repetitions = SIZES[scale]
    times = interleave(
        {
            "file": partial(reported, count, count, dim),
            "stream": partial(streamed, count, count, dim),
        },
        repetitions,
        warm_up=False,
    )
    case = f"{count:,} canaries, {count:,} rounds, d = {dim:,}"
    if scale == "long":
        yield Row(f"the report alone, {case}", times["file"], target=60.0 * MINUTES)
    yield Row(
        case,
        times["file"],
        times["stream"],
        peer=f"every round by itself, scaled up from {FEW} canaries in one",
        memory=grown(partial(reported, canaries=count, dim=dim), 1, count)[0],
    )
