"""The most memory that a call takes, beside what its process holds before: libraries and data."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak() -> float:
    """Return the most memory that this process has held so far, in MB.

    The kernel's VmHWM starts anew with a program, while `getrusage` goes on from the process that
    started it, which may have been larger; it is for systems without that file.
    """
    if not _STATUS.exists():
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / (2**20 if sys.platform == "darwin" else 1024)
    lines = _STATUS.read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def grown(call: Callable[[int], object], small: int, *sizes: int) -> list[float]:
    """Return by how many MB `call` raises the peak of a fresh process, for each size.

    Args:
        call: A function of a module, or `partial` of one, since its name travels.
        small: A size to call it with before, which loads what it imports late.
        sizes: The sizes in question, rising: a peak never falls.
    """
    if list(sizes) != sorted(sizes):
        raise ValueError(f"sizes must rise, got {sizes}")
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_grown, call, small, sizes).result()


def _grown(call: Callable[[int], object], small: int, sizes: Sequence[int]) -> list[float]:
    call(small)
    before, peaks = peak(), []
    for size in sizes:
        call(size)
        peaks.append(peak() - before)
    return peaks
