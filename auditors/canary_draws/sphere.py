"""Canaries that are uniform on the unit sphere, and the exact null of their cosines.

Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar (2024), One-shot Empirical Privacy Estimation
for Federated Learning, arXiv:2302.03098, section 3, and Proposition 3.1 for the null.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincc, gammaln

from leakmeter.auditors.canary_draws.kind import BLOCK, Add, Block, CanaryKind
from leakmeter.auditors.rng import of_key

_DEEP = 1e-290  # below this the incomplete beta function loses digits, then underflows
_NODES, _WEIGHTS = np.polynomial.laguerre.laggauss(24)


class Sphere(CanaryKind):
    """Normal numbers, divided by their norm."""

    name = "sphere"
    dtype = np.float64
    is_remembered = True

    def numbers(self, key: int) -> Normals:
        """Return normal numbers."""
        return Normals(key)

    def planted(self, key: int, dim: int, norm: float) -> Add:
        """Return what adds the canary, in half the memory of a vector."""
        normals = of_key(key).standard_normal(dim, dtype=np.float32)
        parts = (normals[start : start + BLOCK] for start in range(0, dim, BLOCK))
        exact = (part.astype(np.float64) for part in parts)
        scale = norm / math.sqrt(sum(float(part @ part) for part in exact))
        done = 0

        def add(to: Block) -> None:
            nonlocal done
            part = normals[done : done + to.size]
            to += np.multiply(part, scale, dtype=np.float64)
            done += to.size

        return add

    def logsf(self, cosine: ArrayLike, dim: int) -> NDArray[np.float64]:
        """Return ln P(cosine ≥ t) exactly."""
        return cosine_logsf(cosine, dim)


class Normals:
    """Normal numbers of a key, in single precision."""

    def __init__(self, key: int) -> None:
        self._rng = of_key(key)
        self._short = np.empty(0, dtype=np.float32)

    def fill(self, out: Block) -> None:
        """Put the next ones into an array."""
        # float32 normals are twice as fast; the direction needs no more digits than a model has.
        if self._short.size != out.size:
            self._short = np.empty(out.size, dtype=np.float32)
        self._rng.standard_normal(dtype=np.float32, out=self._short)
        out[:] = self._short


def cosine_logsf(cosine: ArrayLike, dim: int) -> NDArray[np.float64]:
    """Return ln P(cosine of a canary with a vector that does not contain it ≥ t).

    Andrew et al. (2024), Proposition 3.1: for t ≥ 0 it is ½·I_{1−t²}(a, ½), a = (d−1)/2. Deep in
    the tail this underflows. Substituting 1 − u² = (1 − t²)·e^(−w/a) in its integral leaves
    (1−t²)^a / (2a·B(a, ½)) times the mean of 1/u over an exponential w, which is smooth.

    >>> round(float(cosine_logsf(0.5, 1000)), 6)
    -147.379589
    """
    t = np.clip(np.asarray(cosine, dtype=np.float64), -1.0, 1.0)
    a = (dim - 1) / 2
    square = t**2
    tail = betaincc(0.5, a, square) / 2  # in t², which keeps its digits near 0
    with np.errstate(divide="ignore"):
        # Gauss-Laguerre quadrature in w: nodes along the last axis, (..., nodes).
        inner = 1 - square[..., None]
        u = np.sqrt(square[..., None] - inner * np.expm1(-_NODES / a))
        front = a * np.log1p(-square) - math.log(2 * a) - _log_beta(a)
        upper = np.where(tail < _DEEP, front + np.log((_WEIGHTS / u).sum(axis=-1)), np.log(tail))
    return np.asarray(np.where(t >= 0, upper, np.log1p(-tail)))


def _log_beta(a: float) -> float:
    """Return ln B(a, ½); for large a by a series, since two large logs would cancel."""
    if a < 40:
        return float(gammaln(a) + gammaln(0.5) - gammaln(a + 0.5))
    ratio = 0.5 * math.log(a) - 1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5)
    return 0.5 * math.log(math.pi) - ratio
