"""A partition in one call, as tests compare many schemes."""

from __future__ import annotations

from typing import Any

import numpy as np

from leakmeter.fl_app.data.partition import Scheme


def partition(
    labels: np.ndarray, *, scheme: str, concentration: float, **asked: Any
) -> tuple[np.ndarray, ...]:
    """Return the records of each client."""
    return Scheme(labels, scheme, concentration).partition(**asked)


def deal(labels: np.ndarray, scheme: str, concentration: float, *asked: Any) -> list[np.ndarray]:
    """Return the records of each client after a new partition of a pool."""
    return Scheme(labels, scheme, concentration).deal(*asked)


def draw(labels: np.ndarray, scheme: str, concentration: float, *asked: Any) -> np.ndarray:
    """Return the records of one client alone."""
    return Scheme(labels, scheme, concentration).draw(*asked)
