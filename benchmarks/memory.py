"""Peak memory of a call in a fresh process, beyond what the process held before it."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path


def peak() -> float:
    """Return the most memory that this process has held so far, in MB."""
    if (status := Path("/proc/self/status")).exists():  # getrusage inherits the parent's peak
        lines = status.read_text().splitlines()
        return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # of macOS, in bytes


def grown(call: Callable[[int], object], small: int, *sizes: int) -> list[float]:
    """Return by how many MB `call`, a function of a module, raises the peak at each rising size.

    It is called with `small` first, which loads what it imports late.
    """
    if list(sizes) != sorted(sizes):
        raise ValueError(f"sizes must rise, since a peak never falls, got {sizes}")
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_grown, call, small, sizes).result()


def _grown(call: Callable[[int], object], small: int, sizes: Sequence[int]) -> list[float]:
    call(small)
    before = peak()
    return [(call(size), peak() - before)[1] for size in sizes]
