"""Numbers that tests of different modules need alike."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

THOROUGH = 100  # examples of a property that names no number


class FixedNormals:
    """In place of a generator: hands out a fixed vector of normals, bit by bit."""

    def __init__(self, normals: np.ndarray) -> None:
        self.normals, self.used = normals, 0

    def standard_normal(self, dim: int) -> np.ndarray:
        """Return the next ones."""
        self.used += dim
        return self.normals[self.used - dim : self.used]


def few_or_many(few: Any, many: Any) -> list[Any]:
    """Return values for `parametrize`: few repetitions in the fast set, many in the slow one."""
    return [few, pytest.param(many, marks=pytest.mark.slow)]


def first_fast(few: int, cases: Iterable[Any]) -> list[Any]:
    """Return values for `parametrize`: the first few fast, the others slow."""
    several = [case if isinstance(case, tuple) else (case,) for case in cases]
    slow = [pytest.param(*case, marks=pytest.mark.slow) for case in several[few:]]
    return [pytest.param(*case) for case in several[:few]] + slow


def num_examples(full: int) -> int:
    """Return how many examples a property is tried with: all in the profile "thorough"."""
    return max(5, full * settings.default.max_examples // THOROUGH)


def most_allowed(num_runs: int, nominal: float = 0.05) -> float:
    """Return how many violations are nominal plus three standard errors."""
    return num_runs * nominal + 3 * math.sqrt(num_runs * nominal * (1 - nominal))


def idx(array: np.ndarray) -> bytes:
    """Return `array` in MNIST's own format IDX: magic number, big-endian sizes, bytes."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.tobytes()
