"""Exact privacy of two Gaussians: epsilon and trade-off; and a test for normality.

Sources: Andrew et al. 2024, One-shot Empirical Privacy Estimation for Federated Learning
(arXiv:2302.03098), Appendix A; Dong, Roth and Su 2022, Gaussian Differential Privacy
(arXiv:1905.02383), Definition 2.6. The noise that a mechanism needs is in `papers.gaussian`, the
curves of sums that are not Gaussian in `papers.ngo2024.ldp`. Ours differs from the published
routine for the hockey-stick:

1. The quadratic is written in the shift and the *difference* of the spreads, so that equal and
   nearly equal spreads, far means and large offsets need no special case.
2. On the edge of the best event both densities agree up to e^epsilon, so the hockey-stick is a
   difference of Mills ratios: e^epsilon is never formed and nothing overflows.
3. Whole arrays are solved at once, by Newton's method in ln delta inside a bracket.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, log_ndtr, ndtr, ndtri, ndtri_exp

from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.values import Floats, within

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_ULP = float(np.finfo(np.float64).eps)
_SQRT_HALF = math.sqrt(0.5)
_SQRT_HALF_PI = math.sqrt(math.pi / 2)


@overload
def epsilon_between_gaussians(
    mean_0: float, std_0: float, mean_1: float, std_1: float, delta: float
) -> float: ...
@overload
def epsilon_between_gaussians(
    mean_0: ArrayLike, std_0: ArrayLike, mean_1: ArrayLike, std_1: ArrayLike, delta: ArrayLike
) -> float | Floats: ...
def epsilon_between_gaussians(
    mean_0: ArrayLike, std_0: ArrayLike, mean_1: ArrayLike, std_1: ArrayLike, delta: ArrayLike
) -> float | Floats:
    """Return the smallest epsilon >= 0 at which two Gaussians are (epsilon, delta)-close.

    Both directions count: the result is the least epsilon with
    max(H_eps(P || Q), H_eps(Q || P)) <= delta for P = N(mean_0, std_0²), Q = N(mean_1, std_1²).
    Arguments broadcast; numbers in give a float out.

    Args:
        mean_0: Mean of P.
        std_0: Standard deviation of P, at least 0; 0 is a point mass.
        mean_1: Mean of Q.
        std_1: Standard deviation of Q, at least 0.
        delta: In [0, 1).

    Returns:
        Epsilon, accurate to about 1e-15 relative plus 1e-15 absolute; inf where nothing finite
        holds (delta 0, a point mass against anything else) or the value exceeds a float.

    >>> round(epsilon_between_gaussians(0.0, 1.0, 2.0, 1.0, 1e-6), 12)
    10.997151214221
    """
    m0, s0 = within("mean_0", mean_0), within("std_0", std_0, lowest=0.0)
    m1, s1 = within("mean_1", mean_1), within("std_1", std_1, lowest=0.0)
    d = within("delta", delta, lowest=0.0, below=1.0)
    m0, s0, m1, s1, d = np.broadcast_arrays(m0, s0, m1, s1, d)
    # Edges first: equal Gaussians have ε = 0; δ = 0 or a point mass against anything else has ∞.
    epsilon = np.full(m0.shape, math.inf)
    epsilon[(m0 == m1) & (s0 == s1)] = 0.0
    unsolved = np.isinf(epsilon) & (d > 0) & (s0 > 0) & (s1 > 0)
    if unsolved.any():
        with np.errstate(over="ignore"):  # an infinite distance is a valid answer
            # Only the distance of the means matters: reflecting the line swaps nothing else.
            shift = np.abs(m1 - m0)[unsolved]
        epsilon[unsolved] = _epsilon_both_ways(shift, s0[unsolved], s1[unsolved], d[unsolved])
    return as_given(epsilon)


@overload
def epsilon_gaussian(delta: float, separation: float) -> float: ...
@overload
def epsilon_gaussian(delta: ArrayLike, separation: ArrayLike) -> float | Floats: ...
def epsilon_gaussian(delta: ArrayLike, separation: ArrayLike) -> float | Floats:
    """Return ε at δ of Gaussians `separation` deviations apart; 0 if δ covers the distance.

    >>> round(epsilon_gaussian(1e-6, 2.0), 12)
    10.997151214221
    """
    d = within("separation", separation, lowest=0.0)
    return epsilon_between_gaussians(0.0, 1.0, d, 1.0, delta)


@overload
def tradeoff_gaussian(fpr: float, separation: float) -> float: ...
@overload
def tradeoff_gaussian(fpr: ArrayLike, separation: ArrayLike) -> float | Floats: ...
def tradeoff_gaussian(fpr: ArrayLike, separation: ArrayLike) -> float | Floats:
    """Return the least false negative rate at a false positive rate (Dong et al., Def. 2.6).

    >>> round(tradeoff_gaussian(0.05, 1.0), 6)
    0.740489
    """
    x = within("fpr", fpr, lowest=0.0, highest=1.0)
    d = within("separation", separation, lowest=0.0)
    # 1 - x has the quantile -ndtri(x): in this form small false positive rates keep their digits.
    return as_given(np.asarray(ndtr(-ndtri(x) - d)))


def as_given(array: Floats) -> float | Floats:
    """Return a float for a 0-d array, which is what numbers in should give."""
    return float(array) if array.ndim == 0 else array


def _epsilon_both_ways(shift: Floats, std_0: Floats, std_1: Floats, delta: Floats) -> Floats:
    """Return the least eps >= 0 at which neither hockey-stick exceeds delta; all stds positive."""
    wide, narrow = np.maximum(std_0, std_1), np.minimum(std_0, std_1)
    log_delta = np.log(delta)
    epsilon = _epsilon_one_way(shift, wide, narrow, log_delta)
    # The wider Gaussian as P was the worse direction in all of 8 million random cases. That is no
    # proof, so the other direction is checked, and solved where it is worse.
    with np.errstate(all="ignore"):
        log_h, _ = log_hockey_stick(epsilon, *_normalised(shift, narrow, wide))
    worse = log_h > log_delta + _noise(log_delta)
    if worse.any():
        other = _epsilon_one_way(shift[worse], narrow[worse], wide[worse], log_delta[worse])
        epsilon[worse] = np.maximum(epsilon[worse], other)
    return epsilon


def _normalised(shift: Floats, first: Floats, second: Floats) -> tuple[Floats, Floats, Floats]:
    """Return shift m, ratio s and s - 1 in units of the first standard deviation."""
    # s - 1 is computed from the difference: subtracting 1 from a ratio near 1 loses its digits.
    return shift / first, second / first, (second - first) / first


def _noise(log_delta: Floats) -> Floats:
    """Return the rounding error of ln delta; a smaller gap needs no further step."""
    return _ULP * (0.5 - log_delta)


def _epsilon_one_way(shift: Floats, first: Floats, second: Floats, log_delta: Floats) -> Floats:
    """Return the least eps >= 0 with H_eps(N(0, first²) || N(shift, second²)) <= delta."""
    with np.errstate(all="ignore"):  # what leaves the range of floats gives inf or nan
        m, s, u = _normalised(shift, first, second)
        highest = _highest_loss(m, s, u, log_delta)
        log_ratio = _log_ratio(s, u)
        log_h, _ = _log_hockey_stick(np.zeros_like(m), m, s, u, log_ratio)
    epsilon = np.where(np.isinf(highest), math.inf, 0.0)
    todo = np.flatnonzero((log_h > log_delta) & (highest > 0) & (highest < math.inf))
    pair, wanted = tuple(each[todo] for each in (m, s, u, log_ratio)), log_delta[todo]

    def gap(x: Floats, rows: NDArray[np.intp]) -> tuple[Floats, Floats]:
        of, to = pair, wanted
        if rows.size < todo.size:
            of, to = tuple(each[rows] for each in pair), wanted[rows]
        log_h, slope = _log_hockey_stick(x, *of)
        return log_h - to, slope

    with np.errstate(all="ignore"):
        epsilon[todo] = bracketed_root(gap, np.zeros(todo.size), highest[todo], _noise(wanted))
    return epsilon


def _highest_loss(m: Floats, s: Floats, u: Floats, log_delta: Floats) -> Floats:
    """Return an epsilon that is certainly enough: the largest loss within mass 1 - delta."""
    a = -u * (1 + s)  # 1 - s², as a product: without cancellation near s = 1
    far = ndtri_exp(log_delta - math.log(2))  # P(|x| > -far) = delta, and H_eps <= P(loss > eps)
    x = np.where(a < 0, np.fmax(far, m / a), far)  # the loss is concave for a < 0
    top = _log_ratio(s, u) + ((a * x - 2 * m) * x + m * m) / (2 * s * s)
    return np.asarray(np.where(np.isnan(top), math.inf, top * (1 + 4 * _ULP)))


def _log_ratio(s: Floats, u: Floats) -> Floats:
    """Return ln s for s = 1 + u: from u near 1, where u is more precise, and from s elsewhere."""
    near = np.abs(u) < 0.5
    return np.asarray(np.where(near, np.log1p(np.where(near, u, 0.0)), np.log(s)))


def _mills(t: Floats) -> Floats:
    """Return P(X > t) / density(t) of a standard normal."""
    mills: Floats = _SQRT_HALF_PI * erfcx(_SQRT_HALF * t)
    return mills


def log_hockey_stick(epsilon: Floats, m: Floats, s: Floats, u: Floats) -> tuple[Floats, Floats]:
    """Return ln H_eps(N(0,1) || N(m, s²)) and its derivative by epsilon; m >= 0, u = s - 1."""
    with np.errstate(all="ignore"):
        return _log_hockey_stick(epsilon, m, s, u, _log_ratio(s, u))


def _log_hockey_stick(
    epsilon: Floats, m: Floats, s: Floats, u: Floats, log_ratio: Floats
) -> tuple[Floats, Floats]:
    """Return the same from ln s; what leaves the range of floats must be ignored outside."""
    e, mm = epsilon - log_ratio, m * m
    a = -u * (1 + s)
    # The event of Appendix A, loss > eps, is a·x² - 2mx + m² - 2s²e > 0. Its roots are x1, x2
    # in units of the first Gaussian and z = (x - m)/s in units of the second. The textbook
    # formula subtracts nearly equal numbers for one root, so it comes from the product of both.
    r2 = mm + 2 * a * e
    r = np.sqrt(np.maximum(r2, 0.0))
    q, p = m + s * r, s * m + r
    x1, x2 = (mm - 2 * s * s * e) / q, np.abs(q / a)
    z1, z2 = -(mm + 2 * e) / p, np.abs(p / a)
    # At a root both densities agree up to e^eps. So the mass of the first Gaussian beyond it,
    # minus e^eps times that of the second, is density(x) · (Mills(x) - s·Mills(z)).
    inner, log_density = x1 < 0, -0.5 * x1 * x1 - _LOG_SQRT_2PI
    log_scale = np.where(inner, log_density, 0.0)
    density_1 = np.where(inner, 1.0, np.exp(log_density))
    one_1 = np.where(inner, _mills(-x1), ndtr(x1))
    two_1 = np.where(z1 < 0, density_1 * s * _mills(-z1), np.exp(epsilon) * ndtr(z1))
    density_2 = np.exp(-0.5 * x2 * x2 - _LOG_SQRT_2PI - log_scale)
    # The event is two tails if the second is narrower, else an interval: the sign of a.
    seen, signed = density_2 > 0, np.sign(a) * density_2
    one_2 = np.where(seen, signed * _mills(x2), 0.0)
    two_2 = np.where(seen, signed * s * _mills(z2), 0.0)
    h = (one_1 - two_1) + (one_2 - two_2)
    h = np.where((r2 < 0) | ~(h > 0), 0.0, h)
    return log_scale + np.log(h), -(two_1 + two_2) / h


def bracketed_root(
    function: Callable[[Floats, NDArray[np.intp]], tuple[Floats, Floats]],
    low: Floats,
    high: Floats,
    noise: Floats,
) -> Floats:
    """Return the zeros of decreasing functions by Newton steps from `high` inside brackets.

    `function` gets points and the rows they belong to, and returns values and slopes. A value
    within `noise` of 0 counts as 0.
    """
    found, at, rows = high.copy(), high, np.arange(high.size)
    for _ in range(200):
        if not rows.size:
            break
        value, slope = function(at, rows)
        low, high = np.where(value > 0, at, low), np.where(value > 0, high, at)
        with np.errstate(all="ignore"):
            newton = at - value / slope
        # A converged step may leave the bracket by a rounding error, so test for convergence first.
        move = np.minimum(np.abs(newton - at), high - low)
        done = (np.abs(value) <= noise) | (move <= 2 * _ULP * at)
        inside = (newton > low) & (newton < high)
        step = np.where(inside, newton, 0.5 * (low + high))
        if done.any():  # continue with the other rows alone
            found[rows] = np.where(done, at, step)
            left = ~done
            rows, step = rows[left], step[left]
            low, high, noise = low[left], high[left], noise[left]
        at = step
    found[rows] = at
    return found


def brent_root(
    function: Callable[[float], float], low: float, high: float, xtol: float, rtol: float = 4 * _ULP
) -> float:
    """Return where a function is zero between two points at which it has different signs.

    Brent 1973, Algorithms for Minimization without Derivatives, chapter 4. The steps are those of
    `scipy.optimize.brentq`, bit for bit: that package takes a fifth of a second to import.
    """
    x0, x1, f0, f1 = low, high, function(low), function(high)
    if f0 == 0:
        return x0
    x2 = f2 = last = step = 0.0  # the zero is between x1, the best so far, and x2
    for _ in range(100):
        if f1 != 0 and (f0 < 0) != (f1 < 0):
            x2, f2, last, step = x0, f0, x1 - x0, x1 - x0
        if abs(f2) < abs(f1):
            x0, x1, x2, f0, f1, f2 = x1, x2, x1, f1, f2, f1
        near, half = (xtol + rtol * abs(x1)) / 2, (x2 - x1) / 2
        if f1 == 0 or abs(half) < near:
            break
        tried = math.inf
        if abs(last) > near and abs(f1) < abs(f0):
            if x0 == x2:
                tried = -f1 * (x1 - x0) / (f1 - f0)  # by a line
            elif f0 != f2:
                slope0, slope2 = (f0 - f1) / (x0 - x1), (f2 - f1) / (x2 - x1)
                tried = -f1 * (f2 * slope2 - f0 * slope0) / (slope2 * slope0 * (f2 - f0))
        is_short = 2 * abs(tried) < min(abs(last), 3 * abs(half) - near)
        last, step = (step, tried) if is_short else (half, half)
        x0, f0 = x1, f1
        x1 += step if abs(step) > near else math.copysign(near, half)
        f1 = function(x1)
    return x1


def anderson_darling(values: ArrayLike) -> tuple[float, float]:
    """Return the Anderson-Darling statistic for normality and its p-value.

    Mean and variance are estimated; Stephens' correction for that and his approximation of the
    p-value (D'Agostino and Stephens 1986, Goodness-of-Fit Techniques, Table 4.9).
    """
    x = np.sort(np.asarray(values, dtype=np.float64))
    n = x.size
    if n < 8 or x[0] == x[-1]:
        raise BadValueError("values", "at least 8 and not all equal", n)
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
