"""Local privacy of one client in a secure sum of independent updates, without added noise.

Source: Ngo et al. 2024, Secure Aggregation is Not Private Against Membership Inference Attacks
(arXiv:2403.17775), Theorem 3, Corollary 1 and Fig. 1. Ours differs:

1. The Gamma distribution is not symmetric, so Theorem 3 as printed does not cover the exponential
   case: both directions are computed and the maximum is taken. Pairs that go up in some entries and
   down in others are less distinguishable in every case tried; that is no proof.
2. The curve comes with a lower and an upper bound on the exact one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from leakmeter.auditors.bounds.gaussian import log_hockey_stick
from leakmeter.auditors.values import Floats, within
from leakmeter.papers.ngo2024.ldp.loss_distribution import (
    LossDistribution,
    gamma_loss,
    irwin_hall_loss,
    loss_cells,
)
from leakmeter.papers.ngo2024.ldp.privacy_loss import deltas, infinite_mass

_FINE = 2000  # lattice points per standard deviation of one coordinate's loss
# Losses this far above epsilon count as infinite, which moves delta by e^-_MARGIN of itself.
_MARGIN = 30.0


@dataclass(frozen=True)
class LdpCurve:
    """The optimal LDP curve of z = x + y at some epsilons, with rigorous bounds.

    Attributes:
        case: Distribution of an entry of the other clients' updates.
        n: Number of other clients.
        d: Number of entries of an update.
        epsilons: Epsilons of the curve.
        delta: The best value, in [lower, upper].
        lower: Never above the exact delta.
        upper: Never below it.
        gaussian: Theorem 2's delta for Gaussian noise of the same covariance: an approximation.
        separation: Its Δ.
        infinite_mass: Probability of an output that only one of the two inputs can produce.
        forward: Best value for the lowest input against the highest.
        backward: The same for the highest against the lowest.
    """

    case: str
    n: int
    d: int
    epsilons: Floats
    delta: Floats
    lower: Floats
    upper: Floats
    gaussian: Floats
    separation: float
    infinite_mass: float
    forward: Floats
    backward: Floats


def ldp_curve(case: str, n: int, d: int, epsilons: ArrayLike) -> LdpCurve:
    """Return the curve of one client's update hidden in the sum of n others, all entries i.i.d.

    Args:
        case: "exponential" (entries of the others Exp(1), own entries in [0, 4]) or "uniform"
            (the others' uniform on [-1/2, 1/2], own entries in the same interval).
        n: Number of other clients, at least 1.
        d: Entries of an update, at least 1.
        epsilons: At least 0, a number or a sequence.

    Returns:
        Bounds and best values at these epsilons, in their order.

    Examples:
        >>> curve = ldp_curve("exponential", n=50, d=5, epsilons=[1.0, 2.0])
        >>> [round(float(x), 6) for x in curve.delta]
        [0.253045, 0.102289]
    """
    if case not in _CASES:
        raise ValueError(f"case must be one of {', '.join(_CASES)}, got {case!r}")
    n, d = _count("n", n), _count("d", d)
    asked = np.atleast_1d(within("epsilons", epsilons, lowest=0.0))
    if asked.ndim != 1 or not asked.size:
        raise ValueError(f"epsilons must be a number or a sequence, got shape {asked.shape}")
    points, places = np.unique(asked, return_inverse=True)
    bounds, infinite = _CASES[case].bounds(n, d, points)
    # Splitting a cell widens its variance by step²/6 and joining narrows it by step²/12. So the
    # errors are about 2 : 1, and this weighted mean cancels them to leading order.
    best = np.clip((2 * bounds[:, 0] + bounds[:, 1]) / 3, bounds[:, 0], bounds[:, 1])
    lower, upper = bounds[:, 0].max(axis=0), bounds[:, 1].max(axis=0)
    separation = _CASES[case].width * math.sqrt(d / (n * _CASES[case].variance))
    log_delta, _ = log_hockey_stick(points, *(np.full(points.shape, x) for x in (separation, 1, 0)))
    return LdpCurve(
        case=case,
        n=n,
        d=d,
        epsilons=asked,
        delta=best.max(axis=0)[places],
        lower=lower[places],
        upper=upper[places],
        gaussian=np.exp(log_delta)[places],
        separation=separation,
        infinite_mass=infinite,
        forward=best[0][places],
        backward=best[1][places],
    )


@dataclass(frozen=True)
class _Case:
    """One distribution of the other clients' entries: range of x, variance, loss for n clients."""

    width: float
    variance: float
    loss: Callable[[int, float], LossDistribution]
    alone: Callable[[int], float]  # delta of d entries if n = 1, the same for all epsilons
    alone_backward: Callable[[int, Floats], Floats]
    symmetric: bool

    def bounds(self, n: int, d: int, epsilons: Floats) -> tuple[Floats, float]:
        """Return (direction, lower or upper, epsilon), and the infinite mass."""
        if n == 1:
            one = np.full(epsilons.size, self.alone(d))
            other = self.alone_backward(d, epsilons)
            return np.array([[one, one], [other, other]]), self.alone(d)
        loss = self.loss(n, _MARGIN + float(epsilons[-1]))
        cells, spread = loss_cells(loss, d, _FINE)
        forward = deltas(cells, d, epsilons, spread)
        # For a symmetric distribution both directions are the same, cell by cell.
        backward = forward if self.symmetric else deltas(cells.reversed(), d, epsilons, spread)
        return np.array([forward, backward]), infinite_mass(cells.ends.infinite, d)


# n = 1, exponential: outputs below 4 reveal x = 0 and have mass 1 - e^-4 in each coordinate. All
# others make x = 4 more likely; that direction, (1 - e^(eps-4d))_+, is never the worse one.
# n = 1, uniform: the two supports are disjoint.
_CASES = {
    "exponential": _Case(
        width=4.0,
        variance=1.0,
        loss=partial(gamma_loss, width=4.0),
        alone=lambda d: -math.expm1(-4.0 * d),
        alone_backward=lambda d, epsilons: -np.expm1(np.minimum(epsilons - 4.0 * d, 0.0)),
        symmetric=False,
    ),
    "uniform": _Case(
        width=1.0,
        variance=1 / 12,
        loss=irwin_hall_loss,
        alone=lambda _: 1.0,
        alone_backward=lambda _, epsilons: np.ones(epsilons.size),
        symmetric=True,
    ),
}


def _count(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name} must be a whole number >= 1, got {value!r}")
    return int(value)
