"""How long does the log-det figure of a linear MNIST model take, and how close is it?

d = 7,850 coordinates, K = 10,000 paired draws, Gaussian updates of N = 20 users. Drawing them
here is two calls of a generator; a federation's own sampling comes on top.

84 s of processor time (136 s by the clock) on one of two busy cores for the figure and its error,
16 s for the draws; 2.5 GB. 201.06 nats with a stated error of 0.41, truth 201.33. One run,
2026-11-16.
"""

from __future__ import annotations

import math
import resource
import time

import numpy as np

from auditors.mi import gaussian_information, logdet_information
from auditors.rng import stream

DIM, DRAWS, USERS = 7850, 10_000, 20


def main() -> None:
    """Draw, measure, and print seconds and error."""
    start = time.perf_counter()
    others = stream(0, "others").standard_normal((DRAWS, DIM), dtype=np.float32)
    others *= np.float32(math.sqrt(USERS - 1))
    sums = stream(0, "target").standard_normal((DRAWS, DIM), dtype=np.float32)
    sums += others
    drawn, busy = time.perf_counter(), time.process_time()
    found = logdet_information(sums, others)
    done, idle = time.perf_counter(), time.process_time()
    truth = gaussian_information(DIM, USERS).nats
    print(f"sampling {drawn - start:.1f} s, log-det with error {done - drawn:.1f} s", end=" ")
    print(f"({idle - busy:.1f} s of processor time)")
    print(f"{found.nats:.2f} nats, stated error {found.std_error:.2f}, truth {truth:.2f}")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GB")


if __name__ == "__main__":
    main()
