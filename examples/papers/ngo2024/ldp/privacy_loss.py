"""Rigorous bounds on delta of many independent coordinates, from the privacy loss of one.

The hockey-stick divergence is E_P[(1 - e^eps r)_+] with r = Q/P, convex in the r of every
coordinate. Spreading the mass of a cell to its ends while keeping the mean of r can only raise the
divergence. Joining the mass of a cell in one point can only lower it. Both give measures on a
lattice, composed by FFT, and the truth is between them. Sources: Koskela, Jälkö, Honkela 2020,
Computing Tight
Differential Privacy Guarantees Using FFT (arXiv:1906.03049); Doroshenko et al. 2022, Connect the
Dots (arXiv:2207.04380), for the upper measure. Ours differs:

1. The lower measure keeps the mean too (`lower_measure`), so both bounds err by O(step²), where
   rounding losses to the lattice errs by O(step).
2. Losses are tilted exponentially before the FFT, so that a small delta keeps its digits.
3. Truncation, wrap-around and the rounding of the FFT are counted into the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, rfft
from scipy.optimize import brentq

from leakmeter.auditors.values import Floats

NODES = np.array([0.5 - math.sqrt(1 / 12), 0.5 + math.sqrt(1 / 12)])  # Gauss-Legendre on [0, 1]
LARGEST = 2**22  # lattice points of a composition
_ULP = float(np.finfo(np.float64).eps)
_TINY = 1e-300  # no delta is exactly 0; smaller values are not distinguished from it
_ALIAS = 1e-20  # mass that may wrap around, relative to the tilted distribution


@dataclass(frozen=True)
class Ends:
    """Mass that is in no cell: at an infinite loss, above all cells, below all cells."""

    infinite: float
    above: float
    below: float


@dataclass(frozen=True)
class Cells:
    """The loss of one coordinate under P: mass at two nodes of each cell [k, k + 1) · step."""

    first: int
    step: float
    mass: Floats  # (2, cells)
    ends: Ends
    other_ends: Ends  # the same for Q, whose loss is ln Q/P

    @property
    def losses(self) -> Floats:
        """The loss at each node, (2, cells)."""
        k = self.first + np.arange(self.mass.shape[1])
        return np.asarray((k + NODES[:, None]) * self.step)

    def reversed(self) -> Cells:
        """Return the loss ln Q/P under Q."""
        mass = (self.mass * np.exp(-self.losses))[::-1, ::-1]
        first = -(self.first + mass.shape[1])
        return Cells(first, self.step, mass, self.other_ends, self.ends)


@dataclass(frozen=True)
class Measure:
    """Mass at the losses origin + k·step, k = 0, 1, ..., and at infinity."""

    origin: float
    step: float
    mass: Floats
    infinite: float

    @property
    def losses(self) -> Floats:
        """The lattice."""
        return np.asarray(self.origin + self.step * np.arange(self.mass.size), np.float64)


def upper_measure(cells: Cells) -> Measure:
    """Return a measure whose delta is never too small: each cell's mass moved to its two ends."""
    # Share of a node's mass that goes to the right end, so that the mean of r = e^-loss stays.
    moved = np.expm1(-NODES * cells.step) / math.expm1(-cells.step)  # (2,)
    right = moved @ cells.mass  # (cells,)
    mass = np.zeros(right.size + 1)
    mass[:-1] += cells.mass.sum(axis=0) - right
    mass[1:] += right
    # Moving mass to a larger loss raises delta: from below up to the first point, and from above
    # to infinity.
    mass[0] += cells.ends.below
    infinite = cells.ends.infinite + cells.ends.above
    return Measure(cells.first * cells.step, cells.step, mass, infinite)


def lower_measure(cells: Cells, spread: float) -> Measure:
    """Return a measure whose delta is never too large: cells joined at their mean of r.

    The means are near the middles of the cells, on no lattice. With points slightly below the
    means, each point takes the mass of its own cell and as much of the cell below as keeps the
    mean of r at the point. Taking less is safe, since raising r lowers delta.

    Args:
        cells: The loss of one coordinate.
        spread: Its standard deviation.
    """
    p, step = cells.mass.sum(axis=0), cells.step
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (np.exp(-NODES * step) @ cells.mass) / p  # of r, in units of r at the cell's left
    # A mean differs from the middle by step²/12 times the slope of the log-density, which is at
    # most about 10/spread.
    offset = max(step / 2 - step * step * (1 + 1 / spread), step / 4)
    point = math.exp(-offset)
    own = p > 0
    fine = own & (mean <= point)
    # From the cell below, whose mean of r in the same units is e^step times its own.
    below = np.full(p.size, math.inf)
    below[1:] = np.where(own[:-1], math.exp(step) * mean[:-1], math.inf)
    ratio = np.where(fine, (point - mean) / (below - point), 0.0)
    wanted = ratio * p
    taken = np.minimum(np.append(wanted[1:], 0.0), p)  # what the point above takes from each cell
    wanted = ratio * (p - taken)  # again, for the mass that is left: still less, so still safe
    taken = np.minimum(np.append(wanted[1:], 0.0), p)
    mass = np.zeros(p.size + 1)  # the point of cell k has index k + 1
    mass[1:] += np.where(fine, p - taken, 0.0)
    mass[2:] += taken[:-1]
    mass[:-1] += np.where(fine, 0.0, p - taken)  # a mean below its point goes one point down
    mass[-1] += cells.ends.above
    origin = (cells.first - 1) * step + offset
    return Measure(origin, step, mass, cells.ends.infinite)


def infinite_mass(infinite: float, d: int) -> float:
    """Return the probability that any of d coordinates has an infinite loss."""
    return -math.expm1(d * math.log1p(-infinite)) if infinite < 1 else 1.0


def deltas(cells: Cells, d: int, epsilons: Floats, spread: float) -> tuple[Floats, Floats]:
    """Return lower and upper bounds on delta of d coordinates at ascending epsilons >= 0."""
    low, high = lower_measure(cells, spread), upper_measure(cells)
    bounds = np.empty((2, epsilons.size))
    for group, tilt in _tilts(high, d, epsilons):
        lower, slack = _composed(low, d, epsilons[group], tilt)
        bounds[0, group] = np.maximum(lower - slack, 0.0) + infinite_mass(low.infinite, d)
        upper, slack = _composed(high, d, epsilons[group], tilt)
        bounds[1, group] = upper + slack + infinite_mass(high.infinite, d)
    bounds *= 1 + 4 * _ULP * np.array([[-1.0], [1.0]])
    # Delta falls with epsilon, so a bound at one epsilon is a bound at the next.
    lower = np.maximum.accumulate(bounds[0, ::-1])[::-1]
    return lower, np.clip(np.minimum.accumulate(bounds[1]), _TINY, 1.0)


def _tilts(measure: Measure, d: int, epsilons: Floats) -> Iterator[tuple[slice, float]]:
    """Yield runs of epsilons and the tilt that moves the composed loss to where they are."""
    # The bounds hold for any tilt, so a coarser lattice is good enough to choose it.
    starts = np.arange(0, measure.mass.size, max(1, measure.mass.size // 4096))
    mass, losses = np.add.reduceat(measure.mass, starts), measure.losses[starts]
    losses, mass = losses[mass > 0], mass[mass > 0]
    start = 0
    while start < epsilons.size:
        first = float(epsilons[start])
        tilt = _tilt_towards(first, mass, losses, d)
        mean, std = _tilted_moments(tilt, mass, losses, d)
        if tilt > 0:  # a little further, so that it also suits the next epsilons
            tilt = _tilt_towards(mean + 0.5 * std, mass, losses, d)
            mean, std = _tilted_moments(tilt, mass, losses, d)
        end = max(start + 1, int(np.searchsorted(epsilons, mean + 0.5 * std, side="right")))
        if tilt > 0 and first >= mean:  # near the largest possible loss no tilt reaches further
            end = epsilons.size
        yield slice(start, end), tilt
        start = end


def _tilted_moments(tilt: float, mass: Floats, losses: Floats, d: int) -> tuple[float, float]:
    """Return mean and standard deviation of the sum of d losses, tilted by e^(tilt·loss)."""
    exponent = tilt * losses
    weight = mass * np.exp(exponent - exponent.max())
    weight /= weight.sum()
    mean = float(weight @ losses)
    return d * mean, math.sqrt(d * float(weight @ (losses - mean) ** 2))


def _tilt_towards(aim: float, mass: Floats, losses: Floats, d: int) -> float:
    """Return the tilt >= 0 that gives this mean, or the largest useful one if it is too far."""
    aim = min(aim, d * (losses[-1] - 0.02 * (losses[-1] - losses[0])))

    def gap(tilt: float) -> float:
        return _tilted_moments(tilt, mass, losses, d)[0] - aim

    if gap(0.0) >= 0:
        return 0.0
    most = 1.0
    while gap(most) < 0:
        most *= 2
    return float(brentq(gap, 0.0, most, rtol=1e-3))


def _composed(measure: Measure, d: int, epsilons: Floats, tilt: float) -> tuple[Floats, Floats]:
    """Return delta of the finite losses of d coordinates, and a bound on its rounding error."""
    losses, step = measure.losses, measure.step
    # Normalised weights mass · e^(tilt·loss - top) / total; the scale comes back at the end.
    log_weight = np.where(measure.mass > 0, tilt * losses, -math.inf)
    top = float(log_weight.max())
    weight = measure.mass * np.exp(log_weight - top)
    total = float(weight.sum())
    weight /= total
    size, alias = _window(weight, d)
    mean = float(weight @ np.arange(weight.size))
    mass = irfft(_power(rfft(weight, size), d), size)
    # Index of the lowest sum in the window around the mean; the FFT is cyclic.
    lowest = round(d * mean) - size // 2
    mass = np.maximum(np.roll(mass, -(lowest % size)), 0.0)
    sums = d * measure.origin + step * (lowest + np.arange(size))
    start = int(np.searchsorted(sums, epsilons[0], side="right"))
    # Undo the tilt relative to the first epsilon. With cumulative sums from the right, delta at
    # each epsilon is sum(mass) - e^eps · sum(mass · e^-loss) over the losses above it.
    excess = sums[start:] - epsilons[0]
    mass = mass[start:] * np.exp(-tilt * excess)
    plain = np.append(np.cumsum(mass[::-1])[::-1], 0.0)
    damped = np.append(np.cumsum((mass * np.exp(-excess))[::-1])[::-1], 0.0)
    at = np.searchsorted(sums[start:], epsilons, side="right")
    value = plain[at] - np.exp(epsilons - epsilons[0]) * damped[at]
    log_scale = d * (top + math.log(total)) - tilt * epsilons[0]
    scale = math.exp(min(log_scale, 700.0))
    # Absolute error of the FFT's result: wrapped mass, plus rounding that grows with its norm.
    noise = alias + 8 * _ULP * (d + math.log2(size)) * math.sqrt(size) * _norm(weight, d)
    rounding = noise * _largest(tilt) * np.exp(-tilt * (epsilons - epsilons[0]))
    relative = 8 * _ULP * (abs(log_scale) + d + 8)
    return scale * np.maximum(value, 0.0), scale * (rounding + relative * plain[at])


def _largest(tilt: float) -> float:
    """Return the maximum of e^(-tilt·x) (1 - e^-x) over x > 0."""
    return math.exp(-tilt * math.log1p(1 / tilt)) / (1 + tilt) if tilt > 0 else 1.0


def _norm(weight: Floats, d: int) -> float:
    """Return about the Euclidean norm of the composed mass, which scales the FFT's rounding."""
    k = np.arange(weight.size)
    mean = weight @ k
    std = math.sqrt(d * float(weight @ (k - mean) ** 2))
    return min(1.0, 1 / math.sqrt(max(3.5 * std, 1.0)))


def _window(weight: Floats, d: int) -> tuple[int, float]:
    """Return a length for the FFT and the mass that may be outside it (Chernoff's bound)."""
    k = np.arange(weight.size) - weight @ np.arange(weight.size)
    std = math.sqrt(d * float(weight @ (k * k)))
    size = 1 << max(4, math.ceil(math.log2(max(weight.size, 20 * std))))
    # Blocks with their mass moved to the outer end are coarser, and still give a bound.
    width = max(1, weight.size // 2048)
    starts = np.arange(0, weight.size, width)
    mass, left = np.add.reduceat(weight, starts), k[starts]
    right = np.minimum(left + width - 1, k[-1])
    while True:
        far = size // 2 - 2
        outside = _chernoff(mass, right, d, std, far) + _chernoff(mass, -left, d, std, far)
        if outside < _ALIAS or size >= 4 * LARGEST:
            return size, min(outside, 1.0)
        size *= 2


def _chernoff(mass: Floats, k: Floats, d: int, std: float, far: float) -> float:
    """Return an upper bound on the probability that the sum of d variables k is above `far`."""
    k, mass = k[mass > 0], mass[mass > 0]
    if d * k.max() <= far:
        return 0.0
    best = 0.0
    for t in np.geomspace(0.01, 100.0, 30) / std:
        exponent = t * k
        peak = exponent.max()
        best = min(best, d * (peak + math.log(mass @ np.exp(exponent - peak))) - t * far)
    return math.exp(best)


def _power(base: NDArray[np.complex128], exponent: int) -> NDArray[np.complex128]:
    """Return base**exponent by repeated squaring."""
    result: NDArray[np.complex128] | None = None
    while True:
        if exponent & 1:
            result = base if result is None else result * base
        exponent >>= 1
        if not exponent:
            assert result is not None
            return result
        base = base * base
