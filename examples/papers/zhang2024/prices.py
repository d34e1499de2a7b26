"""What a record is guaranteed where all clients are alike, mechanism by mechanism, and the floor.

Zhang, Psounis (2024), arXiv:2405.04551, Table 1. `strategies.accounting` prices a run round by
round, as its clients are; these functions price the settings of the paper with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.values import Floats
from leakmeter.strategies.accounting.rdp import (
    Contribution,
    Conversion,
    RecordRelease,
    best_guarantee,
    diluted,
    epsilon_of,
    guarantee,
)


def water_filling_epsilon(
    *,
    users: int,
    floor: float,
    clip: float,
    batch: int,
    examples: int,
    delta: float,
    rounds: int = 1,
    conversion: Conversion = "tight",
) -> float:
    """Return ε of Gaussian sampling filled to the floor σ² by each of `users` equal clients.

    >>> setting = dict(users=50, clip=10.0, batch=32, examples=1200, delta=1e-4)
    >>> round(water_filling_epsilon(floor=1e-3, **setting, conversion="plain"), 6)
    1.221943
    >>> round(water_filling_epsilon(floor=1e-3, **setting), 6)
    0.863769
    """
    one = Contribution(floor, clip, batch, examples)
    return _equal(one, users, "water-filling", rounds, delta, conversion)


def gaussian_sampling_epsilon(
    *,
    users: int,
    floor: float,
    clip: float,
    batch: int,
    examples: int,
    delta: float,
    rounds: int = 1,
    conversion: Conversion = "tight",
) -> float:
    """Return ε of Gaussian sampling with isotropic noise of variance `floor`.

    This is row 5 of Table 1, sharpened.
    """
    one = Contribution(floor, clip, batch, examples)
    return _equal(one, users, "isotropic", rounds, delta, conversion)


def full_gradient_epsilon(
    *,
    users: int,
    floor: float,
    clip: float,
    examples: int,
    delta: float,
    rounds: int = 1,
    conversion: Conversion | Literal["exact"] = "exact",
) -> float:
    """Return ε of the full gradient with isotropic noise (row 3).

    The conversion "exact" gives the ε of the Gaussian mechanism itself.
    """
    one = Contribution(floor, clip, 1, examples)
    if conversion != "exact":
        return _equal(one, users, "full", rounds, delta, conversion)
    _check(users, rounds)
    return float(epsilon_gaussian(delta, one.shift * math.sqrt(rounds / (users * floor))))


def minibatch_epsilon(
    *,
    users: int,
    floor: float,
    clip: float,
    batch: int,
    examples: int,
    delta: float,
    rounds: int = 1,
    conversion: Conversion = "tight",
) -> float:
    """Return ε of a minibatch without replacement and isotropic noise on its mean gradient.

    "plain" is row 1, a statement about one round: ln(1 + B/D (e^ε' - 1)) with ε' for a batch whose
    members are known. "tight" is the least of three that hold: the Rényi accountant of sampling
    without replacement; known batches, whose Gaussians compose exactly; and for one round
    row 1 with the exact ε' at δD/B (Balle, Barthe, Gaboardi 2018, arXiv:1807.01647, Theorem 9).
    """
    _check(users, rounds)
    if not 1 <= batch <= examples:
        raise ValueError(f"batch must be in [1, {examples}], got {batch}")
    if conversion == "plain":
        if rounds != 1:
            raise ValueError(f"rounds must be 1 with the plain conversion, got {rounds}")
        # If the members of the batch are known, only the batch counts: D is B.
        drawn = Contribution(floor, clip, 1, batch)
        return diluted(_equal(drawn, users, "full", 1, delta, "plain"), batch / examples)
    one = RecordRelease((Contribution(floor, clip, batch, examples),) * users, "minibatch")
    return best_guarantee([one] * rounds, delta).value


def theorem_two(
    alpha: Floats, *, smallest: float, clip: float, batch: int, examples: int
) -> Floats:
    """Return (19), and (34) in a subspace; infinite outside 1 < α < DS/C².

    `RecordRelease.rdp` with the mechanism "sampling" and floors that add up to S/B is mostly
    smaller.

    Args:
        alpha: Orders.
        smallest: S, the sum over clients of the smallest eigenvalue of (1/D) Σ gᵀg, without B.
        clip: C.
        batch: B.
        examples: D.
    """
    own = clip**2 / examples
    rest = smallest - alpha * own  # must be positive: orders below DS/C²
    is_admissible = (alpha > 1) & (rest > 0)
    a, rest = np.where(is_admissible, alpha, 2.0), np.where(is_admissible, rest, 1.0)
    bound = (2 * a * batch * own / examples + a * own / (a - 1)) / rest
    return np.where(is_admissible, bound, math.inf)


def theorem_two_epsilon(
    *,
    smallest: float,
    clip: float,
    batch: int,
    examples: int,
    delta: float,
    rounds: int = 1,
    conversion: Conversion = "tight",
) -> float:
    """Return ε by (19), or (34) in a subspace, of Gaussian sampling without any noise.

    `smallest` is S, the sum over clients of the smallest eigenvalue of (1/D) Σ gᵀg. It must be
    valid for all neighbouring data sets, which no measurement can show.
    """
    if not 0 < smallest < math.inf:
        raise ValueError(f"smallest must be in (0, inf), got {smallest}")
    Contribution(smallest, clip, batch, examples)  # checks the others
    _check(1, rounds)

    def curve(alpha: Floats) -> Floats:
        one = theorem_two(alpha, smallest=smallest, clip=clip, batch=batch, examples=examples)
        return np.asarray(rounds * one)

    limit = examples * smallest / clip**2
    return epsilon_of(curve, delta, limit=limit, conversion=conversion)


def _equal(
    one: Contribution,
    users: int,
    mechanism: str,
    rounds: int,
    delta: float,
    conversion: Conversion,
) -> float:
    _check(users, rounds)
    each = RecordRelease((one,) * users, mechanism)
    return guarantee([each] * rounds, delta, conversion=conversion).value


def _check(users: int, rounds: int) -> None:
    if users < 1:
        raise ValueError(f"users must be at least 1, got {users}")
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")


def calibrated_floor(
    price: Callable[..., float], target: float, *, tol: float = 1e-12, **setting: float
) -> float:
    """Return the smallest floor σ² at which the price of the setting is at most `target`.

    >>> setting = dict(users=50, clip=10.0, batch=32, examples=1200, delta=1e-4)
    >>> floor = calibrated_floor(water_filling_epsilon, 0.863769, **setting)
    >>> round(floor, 9)
    0.001

    Args:
        price: Function with a keyword `floor` that returns ε; it decreases with the floor.
        target: Largest ε that is allowed.
        tol: Relative error by which the floor may be too large.
        setting: The price's other keywords.
    """
    if not 0 < target < math.inf:
        raise ValueError(f"target must be in (0, inf), got {target}")

    def is_enough(log_floor: float) -> bool:
        return price(floor=math.exp(log_floor), **setting) <= target

    # Bisection in ln σ², after widening the bracket in either direction. `high` is always enough,
    # so rounding never returns a floor that is too small.
    low, high = 0.0, 0.0
    while not is_enough(high):
        low, high = high, high + 2
        if high > 600:
            raise ValueError(f"target must be reachable with some floor, got {target}")
    while low == high or is_enough(low):
        low, high = low - 2, min(low, high)
        if low < -600:
            return math.exp(high)
    while high - low > tol:
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return math.exp(high)
