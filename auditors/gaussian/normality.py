"""Tests whether samples look Gaussian."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr


def anderson_darling(values: ArrayLike) -> tuple[float, float]:
    """Return the Anderson-Darling statistic for normality and its p-value.

    Mean and variance are estimated; Stephens' correction for that and his approximation of the
    p-value (D'Agostino and Stephens 1986, Goodness-of-Fit Techniques, Table 4.9).
    """
    x = np.sort(np.asarray(values, dtype=np.float64))
    n = x.size
    if n < 8 or x[0] == x[-1]:
        raise ValueError(f"values must be at least 8 and not all equal, got {n}")
    z = (x - x.mean()) / x.std(ddof=1)
    weights = 2 * np.arange(1, n + 1) - 1
    raw = -n - float(weights @ (log_ndtr(z) + log_ndtr(-z[::-1]))) / n
    a = raw * (1 + 0.75 / n + 2.25 / n**2)
    if a >= 0.6:  # the fitted parabola turns at 153, where p has long vanished: cap its argument
        p = math.exp(1.2937 - 5.709 * a + 0.0186 * min(a, 150.0) ** 2)
    elif a > 0.34:
        p = math.exp(0.9177 - 4.279 * a - 1.38 * a**2)
    elif a > 0.2:
        p = 1 - math.exp(-8.318 + 42.796 * a - 59.938 * a**2)
    else:
        p = 1 - math.exp(-13.436 + 101.14 * a - 223.73 * a**2)
    return a, p
