"""Exact privacy of two Gaussians: epsilon, delta, trade-off and noise calibration.

Sources: Andrew et al. 2024, One-shot Empirical Privacy Estimation for Federated Learning
(arXiv:2302.03098), Appendix A; Balle and Wang 2018, Improving the Gaussian Mechanism for
Differential Privacy (arXiv:1805.06530), Theorems 8 and 9; Dong, Roth and Su 2022, Gaussian
Differential Privacy (arXiv:1905.02383), Definition 2.6. The arithmetic is in `hockey_stick`, the
curves of sums that are not Gaussian in `papers.ngo2024.ldp`.
"""

from __future__ import annotations

import math
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfinv, ndtr, ndtri

from leakmeter.auditors._types import Floats, within
from leakmeter.auditors.gaussian.hockey_stick import (
    LOG_SQRT_2PI,
    ULP,
    bracketed_root,
    epsilon_both_ways,
    log_hockey_stick,
)


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
        epsilon[unsolved] = epsilon_both_ways(shift, s0[unsolved], s1[unsolved], d[unsolved])
    return _plain(epsilon)


@overload
def log_delta_gaussian(epsilon: float, separation: float) -> float: ...
@overload
def log_delta_gaussian(epsilon: ArrayLike, separation: ArrayLike) -> float | Floats: ...
def log_delta_gaussian(epsilon: ArrayLike, separation: ArrayLike) -> float | Floats:
    """Return ln delta of `delta_gaussian`, which stays finite where delta underflows."""
    e = within("epsilon", epsilon, lowest=0.0)
    d = within("separation", separation, lowest=0.0)
    e, d = np.broadcast_arrays(e, d)
    log_delta = log_hockey_stick(e, d, np.ones_like(d), np.zeros_like(d))[0]
    # Equal Gaussians have δ = 0, which the formula cannot give: it divides by the separation.
    return _plain(np.where(d > 0, log_delta, -math.inf))


@overload
def delta_gaussian(epsilon: float, separation: float) -> float: ...
@overload
def delta_gaussian(epsilon: ArrayLike, separation: ArrayLike) -> float | Floats: ...
def delta_gaussian(epsilon: ArrayLike, separation: ArrayLike) -> float | Floats:
    """Return the delta at epsilon of two Gaussians `separation` standard deviations apart.

    Balle and Wang 2018, Theorem 8: Phi(D/2 - eps/D) - e^eps Phi(-D/2 - eps/D).

    >>> round(delta_gaussian(2.0, 2.0), 12)
    0.331897998777
    """
    return _plain(np.exp(np.asarray(log_delta_gaussian(epsilon, separation))))


@overload
def epsilon_gaussian(delta: float, separation: float) -> float: ...
@overload
def epsilon_gaussian(delta: ArrayLike, separation: ArrayLike) -> float | Floats: ...
def epsilon_gaussian(delta: ArrayLike, separation: ArrayLike) -> float | Floats:
    """Return the inverse of `delta_gaussian` in epsilon; 0 if delta covers the whole distance.

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
    return _plain(np.asarray(ndtr(-ndtri(x) - d)))


@overload
def gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float: ...
@overload
def gaussian_sigma(
    epsilon: ArrayLike, delta: ArrayLike, sensitivity: ArrayLike = 1.0
) -> float | Floats: ...
def gaussian_sigma(
    epsilon: ArrayLike, delta: ArrayLike, sensitivity: ArrayLike = 1.0
) -> float | Floats:
    """Return the least noise for (epsilon, delta), the analytic calibration.

    Source: Balle and Wang 2018.

    Args:
        epsilon: At least 0.
        delta: In (0, 1).
        sensitivity: How far one participant moves the released vector, in L2 norm.

    >>> round(gaussian_sigma(1.0, 1e-6), 12)
    4.224678889327
    """
    e = within("epsilon", epsilon, lowest=0.0)
    d = within("delta", delta, above=0.0, below=1.0)
    c = within("sensitivity", sensitivity, lowest=0.0)
    e, d, c = np.broadcast_arrays(e, d, c)
    sigma = _sigma_of_unit(e.ravel(), d.ravel()).reshape(e.shape)
    return _plain(c * sigma)


def _sigma_of_unit(epsilon: Floats, delta: Floats) -> Floats:
    """Return sigma for sensitivity 1 by a bracketed search."""
    log_delta = np.log(delta)
    # H_0 = erf(D / sqrt(8)) is the total variation, and H_eps <= min(H_0, P(loss > eps)).
    highest = 1 / np.maximum(math.sqrt(8) * erfinv(delta), _separation_of_tail(epsilon, delta))
    # H_eps >= (1 - e^-a) P(loss > eps + a) for any a; here e^-a = (1 - delta)/2.
    margin = math.log(2) - np.log1p(-delta)
    lowest = 1 / _separation_of_tail(epsilon + margin, 2 * delta / (1 + delta))

    def gap(sigma: Floats, rows: NDArray[np.intp]) -> tuple[Floats, Floats]:
        e, d = epsilon[rows], 1 / sigma
        log_h, _ = log_hockey_stick(e, d, np.ones_like(d), np.zeros_like(d))
        # d delta / d separation is the density at the edge of the best event.
        log_density = -0.5 * (d / 2 - e / d) ** 2 - LOG_SQRT_2PI
        return log_h - log_delta[rows], -np.exp(log_density - log_h) * d * d

    # A little wider than proven, since both ends are rounded; the tolerance is that of ln δ.
    low, high = lowest * (1 - 1e-9), highest * (1 + 1e-9)
    return bracketed_root(gap, low, high, ULP * (0.5 - log_delta))


def _separation_of_tail(epsilon: Floats, tail: Floats) -> Floats:
    """Return D with P(loss > epsilon) = tail, that is D/2 - epsilon/D = Phi^-1(tail)."""
    c = ndtri(tail)
    # D = c + √(c² + 2ε). For c < 0 the two terms cancel, so the other root is divided by instead.
    root = np.sqrt(c * c + 2 * epsilon)
    above = c >= 0
    return np.asarray(np.where(above, c + root, 2 * epsilon / np.where(above, 1.0, root - c)))


def classical_sigma_unsafe_above_epsilon_1(
    epsilon: float, delta: float, sensitivity: float = 1.0
) -> float:
    """Return the textbook noise, sensitivity · sqrt(2 ln(1.25/delta)) / epsilon.

    For comparison only. It is proven for epsilon <= 1 (Dwork and Roth 2014, Theorem A.1). It is
    wasteful there and breaks its promise for large epsilon; use `gaussian_sigma`.

    >>> round(classical_sigma_unsafe_above_epsilon_1(0.02, 1e-7, 1.5), 9)
    428.764435355
    """
    e = float(within("epsilon", epsilon, above=0.0))
    d = float(within("delta", delta, above=0.0, below=1.0))
    c = float(within("sensitivity", sensitivity, lowest=0.0))
    return c * math.sqrt(2 * math.log(1.25 / d)) / e


def _plain(array: Floats) -> float | Floats:
    """Return a float for a 0-d array, which is what numbers in should give."""
    return float(array) if array.ndim == 0 else array
