"""Noise that a Gaussian mechanism needs, and δ at ε: the inverses of `epsilon_gaussian`.

Balle and Wang 2018, Improving the Gaussian Mechanism for Differential Privacy (arXiv:1805.06530),
Theorems 8 and 9; Dwork and Roth 2014, The Algorithmic Foundations of Differential Privacy, Theorem
A.1, for the textbook noise. The library never calls them: its accountant calibrates whole runs.
"""

from __future__ import annotations

import math
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfinv, ndtri

from leakmeter.auditors.bounds.gaussian import as_given, bracketed_root, log_hockey_stick
from leakmeter.auditors.values import Floats, within

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_ULP = float(np.finfo(np.float64).eps)


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
    return as_given(np.where(d > 0, log_delta, -math.inf))


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
    return as_given(np.exp(np.asarray(log_delta_gaussian(epsilon, separation))))


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
    return as_given(c * sigma)


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
        log_density = -0.5 * (d / 2 - e / d) ** 2 - _LOG_SQRT_2PI
        return log_h - log_delta[rows], -np.exp(log_density - log_h) * d * d

    # A little wider than proven, since both ends are rounded; the tolerance is that of ln δ.
    low, high = lowest * (1 - 1e-9), highest * (1 + 1e-9)
    return bracketed_root(gap, low, high, _ULP * (0.5 - log_delta))


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
