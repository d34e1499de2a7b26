"""Array types and callbacks that several modules share, and what values an argument may take."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
AnyFloats = NDArray[np.floating[Any]]  # in the precision that its maker chose
Indices = NDArray[np.int64]
Vector = NDArray[np.float64]  # one update or model, flat

# Told which stage of a long audit is running and what share of it is done.
Watch = Callable[[str, float], None]


def within(
    name: str,
    values: ArrayLike,
    *,
    lowest: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    highest: float = math.inf,
) -> NDArray[np.float64]:
    """Return `values` as float64, or raise with the name, the range and the first culprit.

    >>> within("delta", 1.5, lowest=0.0, below=1.0)
    Traceback (most recent call last):
    ValueError: delta must be in [0, 1), got 1.5
    """
    array = np.asarray(values, dtype=np.float64)
    # NaN fails every comparison, and without a bound above or below so does infinity.
    fine = (array >= lowest) & (array > above) & (array < below) & (array <= highest)
    if not fine.all():
        left = f"[{lowest:g}" if lowest > above else f"({above:g}"
        right = f"{highest:g}]" if highest < below else f"{below:g})"
        raise ValueError(f"{name} must be in {left}, {right}, got {array[~fine].flat[0]}")
    return array


def require(allowed: str, **named: float | None) -> None:
    """Raise unless each value is in a range: "(0, 1]", or "at least 1". None is no value.

    >>> require("(0, 1]", rate=1.0, share=0.0)
    Traceback (most recent call last):
    ValueError: share must be in (0, 1], got 0.0
    """
    is_open = allowed.startswith("("), allowed.endswith(")")
    words = allowed if allowed.startswith("at least") else f"in {allowed}"
    low, _, high = allowed.removeprefix("at least ").strip("[]()").partition(", ")
    least, most = float(low), float(high or "inf")
    for name, value in named.items():
        if value is None:
            continue
        is_above = value > least if is_open[0] else value >= least
        is_below = value < most if is_open[1] else value <= most
        if not (is_above and is_below):  # NaN fails every comparison
            raise ValueError(f"{name} must be {words}, got {value}")
