"""The density of a sum of n uniforms on [0, 1], to full relative accuracy, tails included.

The closed form is an alternating sum whose terms exceed the result by a factor of about e^n, so it
is useless for n of 25 and more. The recursion of B-splines (de Boor 1972, On Calculating with
B-splines) only adds positive numbers. It gives values and derivatives on a grid. Between the grid
points we use a Taylor polynomial that never crosses a knot.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln

from leakmeter.auditors.values import Floats

_ORDER = 8  # of the Taylor polynomial
_REACH = 30.0  # standard deviations; the density beyond is below e^-400 and treated as 0


class IrwinHall:
    """The distribution of the sum of `n` independent uniforms on [0, 1]; n is at least 2."""

    def __init__(self, n: int) -> None:
        self.n = n
        self._log_factorial = float(gammaln(n))  # ln (n-1)!
        self._points = max(8, math.ceil(64 / math.sqrt(1 + n / 100)))  # per unit interval
        self._first, self._taylor = self._table()

    def density(self, x: Floats) -> tuple[Floats, Floats]:
        """Return ln f(x) and f'(x)/f(x) for 0 < x < n; -inf and 0 where f is below e^-400."""
        # f is symmetric, and a Taylor polynomial keeps its relative accuracy only where f rises.
        left = np.minimum(x, self.n - x)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_f, slope = self._tabulated(left)
            near = left <= 2
            if near.any():
                log_f[near], slope[near] = self._first_pieces(left[near])
        slope = np.where(np.isfinite(log_f), slope, 0.0)
        return log_f, np.where(left < x, -slope, slope)

    def _first_pieces(self, x: Floats) -> tuple[Floats, Floats]:
        """Return both for x <= 2: (x^(n-1) - n (x-1)_+^(n-1)) / (n-1)!, exact down to x = 0."""
        m = self.n - 1
        log_x = np.log(x)
        ratio = np.maximum(x - 1, 0.0) / x
        bent = self.n * ratio**m  # the second term relative to the first; 0 below the knot x = 1
        steep = self.n * np.where(x > 1, ratio ** (m - 1), 0.0)
        return m * log_x - self._log_factorial + np.log1p(-bent), m / x * (1 - steep) / (1 - bent)

    def _tabulated(self, x: Floats) -> tuple[Floats, Floats]:
        """Return both from the Taylor polynomial at the grid point below x."""
        at = np.floor(x * self._points).astype(np.int64)
        s = x - at / self._points
        row = np.clip(at - self._first * self._points, 0, self._taylor.shape[1] - 1)
        value = np.zeros_like(x)
        slope = np.zeros_like(x)
        for coefficient in self._taylor[::-1]:  # Horner's rule for both
            slope = slope * s + value
            value = value * s + coefficient[row]
        return np.log(value), slope / value

    def _table(self) -> tuple[int, Floats]:
        """Return the first unit interval and the Taylor coefficients (order, points)."""
        order = min(self.n, _ORDER + 1)
        t = np.arange(self._points) / self._points
        reach = _REACH * math.sqrt(self.n / 12) + order + 2
        first, pieces = 0, np.ones((1, t.size))  # of the first B-spline: 1 on [0, 1)
        rows: list[Floats] = []
        for k in range(1, self.n + 1):
            if k > 1:
                first, pieces = _next_spline(first, pieces, k, t, reach)
            if k > self.n - order:
                rows.append(_derivative(first, pieces, self.n - k, self.n, reach))
        taylor = [r / math.factorial(j) for j, r in enumerate(reversed(rows))]
        return max(0, math.floor(self.n / 2 - reach)), np.stack([r.ravel() for r in taylor])


def _next_spline(first: int, pieces: Floats, k: int, t: Floats, reach: float) -> tuple[int, Floats]:
    """Return the k-th B-spline on its unit intervals: de Boor's recursion, all terms positive."""
    low, high = max(0, math.floor(k / 2 - reach)), min(k, math.ceil(k / 2 + reach))
    here, before = (_rows(first, pieces, low - shift, high - shift) for shift in (0, 1))
    x = t + np.arange(low, high)[:, None]
    return low, (x * here + (k - x) * before) / (k - 1)


def _derivative(first: int, pieces: Floats, j: int, n: int, reach: float) -> Floats:
    """Return the j-th derivative of the n-th B-spline, the j-th difference of the (n-j)-th."""
    low, high = max(0, math.floor(n / 2 - reach)), min(n, math.ceil(n / 2 + reach))
    total = np.zeros((high - low, pieces.shape[1]))
    for m in range(j + 1):
        total += (-1) ** m * math.comb(j, m) * _rows(first, pieces, low - m, high - m)
    return total


def _rows(first: int, pieces: Floats, low: int, high: int) -> Floats:
    """Return unit intervals low..high-1, with zeros for those that are not stored."""
    out = np.zeros((high - low, pieces.shape[1]))
    a, b = max(low, first), min(high, first + len(pieces))
    if a < b:
        out[a - low : b - low] = pieces[a - first : b - first]
    return out
