"""Array types and callbacks that several modules share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
AnyFloats = NDArray[np.floating[Any]]  # in the precision that its maker chose
Indices = NDArray[np.int64]
Vector = NDArray[np.float64]  # one update or model, flat

# Told which stage of a long audit is running and what share of it is done.
Watch = Callable[[str, float], None]
