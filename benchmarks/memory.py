"""Peak memory of a call in a fresh process, beyond what the process held before it."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path


def peak() -> float:
    """Return the most memory that this process has held so far, in MB."""
    status = Path("/proc/self/status")
    if status.exists():  # the kernel's VmHWM; getrusage inherits the peak of the parent process
        lines = status.read_text().splitlines()
        return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 1024)


def grown(call: Callable[[int], object], small: int, *sizes: int) -> list[float]:
    """Return by how many MB `call` raises the peak of a fresh process, for each rising size.

    `call` is a function of a module, or `partial` of one. It is called with `small` first, which
    loads what it imports late.
    """
    if list(sizes) != sorted(sizes):
        raise ValueError(f"sizes must rise, since a peak never falls, got {sizes}")
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_grown, call, small, sizes).result()


def _grown(call: Callable[[int], object], small: int, sizes: Sequence[int]) -> list[float]:
    call(small)
    before, peaks = peak(), []
    for size in sizes:
        call(size)
        peaks.append(peak() - before)
    return peaks
