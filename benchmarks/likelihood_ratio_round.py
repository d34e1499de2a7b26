"""How long does the mathematics of one likelihood-ratio round take, and how much memory?

d = 7,850: covariance of 25,000 updates, its factor, the worst pair among 1,000 candidates and the
statistics of 5,000 trials with 89 others. d = 89,610: the dual form of 2,000 updates, 1,000
candidates, and the trials. Updates are random numbers, since their training is another question,
and trials are single draws of the sum: training projects where it trains. One thread; each size in
a process of its own, for its peak of memory.

d = 7,850: 31 s and 1.9 GB. d = 89,610: 23 s and 1.8 GB. Two shared cores, 2026-11-16.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

import numpy as np

from auditors.challenge import challenge
from auditors.rng import stream
from auditors.scatter import Scatter
from auditors.sum_law import DenseLaw, DualLaw, SumLaw

FIT, TRIALS, CHUNK = 25_000, 5_000, 2_048


def drawn(dim: int, count: int, seed: int) -> np.ndarray:
    """Return updates; making them is not part of what is timed."""
    return stream(seed, "benchmark").standard_normal((count, dim), dtype=np.float32)


def dense(dim: int) -> tuple[float, SumLaw]:
    """Fit from 25,000 updates in chunks."""
    scatter, spent = Scatter(dim), 0.0
    for first in range(0, FIT, CHUNK):
        rows = drawn(dim, min(CHUNK, FIT - first), first)
        start = time.process_time()
        scatter.add(rows)
        spent += time.process_time() - start
    start = time.process_time()
    law = DenseLaw.fit(scatter.moments())
    return spent + time.process_time() - start, law


def dual(dim: int) -> tuple[float, SumLaw]:
    """Fit from 2,000 updates at once."""
    rows = drawn(dim, 2_000, 0)
    start = time.process_time()
    law = DualLaw.fit(rows)
    return time.process_time() - start, law  # which does not keep the rows


def one(dim: int) -> None:
    """Play one round and print time and memory."""
    spent, law = dense(dim) if dim < 10_000 else dual(dim)
    candidates = drawn(dim, 1_000, 99)
    start = time.process_time()
    test = challenge(candidates, law)
    spent += time.process_time() - start
    for first in range(0, TRIALS, 250):
        rows = drawn(dim, 250, 100 + first)
        start = time.process_time()
        rows @ test.direction.astype(np.float32)
        spent += time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    print(f"d = {dim:,}: {spent:.1f} s of one core, peak {peak:.2f} GB ({law.form})")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        one(int(sys.argv[1]))
    else:
        for size in (7_850, 89_610):
            subprocess.run([sys.executable, __file__, str(size)], check=True)
