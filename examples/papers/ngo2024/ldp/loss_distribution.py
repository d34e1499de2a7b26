"""The privacy loss of one coordinate of a sum, for two distributions of other clients.

In both cases z = x + y. The client's own entry x is at one end of its interval (distribution P) or
at the other (Q). The loss ln P/Q decreases with z because the distributions are log-concave.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.special import gammainc, gammaincc, gammaln, lambertw

from leakmeter.auditors.values import Floats
from leakmeter.papers.ngo2024.ldp.irwin_hall import IrwinHall
from leakmeter.papers.ngo2024.ldp.privacy_loss import LARGEST, NODES, Cells, Ends

# Tails below e^-(_CUT + cap) of the peak go to the ends. The cap is part of it because delta counts
# Q's mass e^eps times.
_CUT = 70.0
_MAX_CELLS = 2**18  # cells of one coordinate


@dataclass(frozen=True)
class LossDistribution:
    """The distribution of the loss under P, where it is neither infinite nor beyond the cut."""

    low: float
    high: float
    density: Callable[[Floats], Floats]  # of the loss, on [low, high], up to a factor
    # Mass outside an interval within [low, high]: of the loss, and of Q's loss ln Q/P.
    ends: Callable[[float, float], tuple[Ends, Ends]]


def gamma_loss(n: int, cap: float, width: float) -> LossDistribution:
    """Return the loss for y ~ Gamma(n, 1), x = 0 against x = width; n is at least 2.

    Args:
        n: Shape of the Gamma distribution.
        cap: Losses above it go to the ends.
        width: Distance between the two inputs.
    """
    m = n - 1
    # With w = y/m, ln f(y) - ln f(m) is m (ln w - w + 1). It equals -_CUT - cap on the two real
    # branches of Lambert's W, which are the cut points.
    edge = -math.exp(-1 - (_CUT + cap) / m)
    smallest, largest = (m * -float(lambertw(edge, branch).real) for branch in (0, -1))

    def density(loss: Floats) -> Floats:
        # The loss is m ln(z / (z - width)) - width; solved for z with t as below.
        t = (loss + width) / m
        z, u = -width / np.expm1(-t), width / np.expm1(t)  # u = z - width
        w = z / m
        return np.asarray(np.exp(m * (np.log(w) - w + 1)) * z * u)  # |dz/dloss| = z u / (width m)

    def ends(low: float, high: float) -> tuple[Ends, Ends]:
        least, most = (
            width / math.expm1((high + width) / m),
            -width / math.expm1(-(low + width) / m),
        )
        infinite = float(gammainc(n, width))
        above = max(float(gammainc(n, width + least)) - infinite, 0.0)
        return Ends(infinite, above, float(gammaincc(n, most))), Ends(
            0.0, float(gammaincc(n, most - width)), float(gammainc(n, least))
        )

    return LossDistribution(
        low=m * math.log1p(width / (largest - width)) - width,
        high=min(cap, m * math.log1p(width / smallest) - width),
        density=density,
        ends=ends,
    )


def irwin_hall_loss(n: int, cap: float) -> LossDistribution:
    """Return the loss for y a sum of n uniforms on an interval as wide as x's; n is at least 2.

    Losses beyond ±cap go to the ends. With u the distance of z from the low end of Q's support,
    P's density is f(u + 1) and Q's is f(u).
    """
    total = IrwinHall(n)
    middle = (n - 1) / 2  # where the loss is 0

    def loss(log_u: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the loss, its derivative by ln u, and ln f(u + 1)."""
        u = np.exp(log_u)
        (one, slope_1), (two, slope_2) = total.density(u + 1), total.density(u)
        return one - two, u * (slope_1 - slope_2), one

    # Near u = 0 the loss is linear in ln u, so a spline in ln u is a good start for Newton.
    knots = np.linspace(math.log(_smallest(total, cap)), math.log(middle), 4000)
    guess = CubicSpline(loss(knots)[0][::-1], knots[::-1])
    high = min(cap, float(loss(knots)[0][0]))

    def solved(size: Floats) -> Floats:
        """Return ln u at a loss >= 0, by Newton's method."""
        log_u = guess(size)
        for _ in range(2):
            value, slope, _ = loss(log_u)
            log_u = log_u - (value - size) / slope
        return np.asarray(log_u)

    def density(at: Floats) -> Floats:
        # f is symmetric: at a loss below 0, P's density is Q's at the opposite loss, which is
        # e^-|loss| times P's there.
        size = np.abs(at)
        log_u = solved(size)
        _, slope, log_p = loss(log_u)
        return np.asarray(np.exp(log_p + log_u - np.where(at < 0, size, 0.0)) / -slope)

    def ends(low: float, high: float) -> tuple[Ends, Ends]:
        outer = [_outer_mass(total, float(u)) for u in np.exp(solved(np.array([high, -low])))]
        infinite = math.exp(-float(gammaln(n + 1)))
        (above, other_below), (other_above, below) = outer
        return Ends(infinite, above, below), Ends(infinite, other_above, other_below)

    return LossDistribution(low=-high, high=high, density=density, ends=ends)


def _outer_mass(total: IrwinHall, u: float) -> tuple[float, float]:
    """Return the integrals of f over [1, 1 + u] and over [0, u]."""
    if u > 1:  # f rises here, so width times right value is an upper bound; it is below the cut
        log_f, _ = total.density(np.array([u + 1, u]))
        return u * math.exp(log_f[0]), u * math.exp(log_f[1])
    # F(x) = (x^n - n (x-1)_+^n)/n! for x <= 2.
    log_power, log_factorial = total.n * math.log(u), float(gammaln(total.n + 1))
    shell = math.expm1(total.n * math.log1p(u)) - total.n * math.exp(log_power)
    return shell * math.exp(-log_factorial), math.exp(log_power - log_factorial)


def _smallest(total: IrwinHall, cap: float) -> float:
    """Return the u at which f falls to e^-(_CUT + cap) of its peak."""
    u = np.linspace(0.0, total.n / 2, 20 * total.n + 1)[1:]
    log_f, _ = total.density(u)
    floor = float(log_f[-1]) - _CUT - cap
    above = u[np.flatnonzero(log_f >= floor)[0]]
    if above > 1:
        return float(above)
    # f(u) = u^(n-1)/(n-1)! on the first interval.
    return math.exp((floor + float(gammaln(total.n))) / (total.n - 1))


def loss_cells(loss: LossDistribution, d: int, fine: int) -> tuple[Cells, float]:
    """Return the loss in cells, and its standard deviation.

    Args:
        loss: The loss of one coordinate.
        d: How many coordinates will be composed; many leave room only for coarser cells.
        fine: Cells per standard deviation.
    """
    coarse = _cells(loss, (loss.high - loss.low) / 20_000)
    spread = min(_std(coarse), _std(coarse.reversed()))
    room = max((loss.high - loss.low) / _MAX_CELLS, 20 * spread * math.sqrt(d) / LARGEST)
    return _cells(loss, max(spread / fine, room)), spread


def _cells(loss: LossDistribution, step: float) -> Cells:
    """Return the loss in as many whole cells of this width as fit."""
    first, last = math.ceil(loss.low / step), math.floor(loss.high / step)
    losses = (np.arange(first, last) + NODES[:, None]) * step
    mass = loss.density(losses)
    ends, other_ends = loss.ends(first * step, last * step)
    mass *= (1 - ends.infinite - ends.above - ends.below) / mass.sum()
    return Cells(first, step, mass, ends, other_ends)


def _std(cells: Cells) -> float:
    """Return the standard deviation of the finite losses."""
    weight = cells.mass / cells.mass.sum()
    mean = float((weight * cells.losses).sum())
    return math.sqrt(float((weight * (cells.losses - mean) ** 2).sum()))
