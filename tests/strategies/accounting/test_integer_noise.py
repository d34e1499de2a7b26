"""Every formula for integer noise against exact convolutions in one to three dimensions.

The exact side shares no code with the package: log-probabilities by series, sums of shares by
convolution in logs, rounding by going through all corners of the cell.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from scipy.special import gammaln, logsumexp

from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.noise import RoundedNorms, RoundingGrid, Shift, distribution_named
from leakmeter.strategies.accounting.accountant import (
    ORDERS,
    Release,
    amplified,
    composed,
    epsilon_of,
    unamplified,
)

REACH = 90  # outcomes on either side


def skellam_divergence(l2: float, l1: float, variance: float, orders: np.ndarray) -> np.ndarray:
    return distribution_named("skellam").divergence(Shift(l2, l1, variance, 1, 1), orders)


def discrete_gaussian_divergence(
    l2: float, l1: float, variance: float, orders: np.ndarray, *, shares: int, dim: int
) -> np.ndarray:
    shift = Shift(l2, l1, variance, dim, shares)
    return distribution_named("discrete-gaussian").divergence(shift, orders)


@lru_cache(maxsize=64)
def log_pmf(distribution: str, share: float, shares: int) -> np.ndarray:
    """Return the exact log-probabilities of a sum of shares, from -REACH to REACH."""
    k = np.abs(np.arange(-REACH, REACH + 1))
    if distribution == "skellam":
        m = np.arange(400)[:, None]
        terms = (2 * m + k) * math.log(share / 2) - gammaln(m + 1) - gammaln(m + k + 1)
        one = logsumexp(terms, axis=0) - share
    else:
        one = -(k**2) / (2 * share)
        one = one - logsumexp(one)
    total = one
    for _ in range(shares - 1):
        rows = [_shifted(total, x) + one[x + REACH] for x in range(-REACH, REACH + 1)]
        total = logsumexp(rows, axis=0)
    return total


def _shifted(values: np.ndarray, by: int) -> np.ndarray:
    moved = np.full(len(values), -np.inf)
    moved[max(by, 0) : len(values) + min(by, 0)] = values[max(-by, 0) : len(values) - max(by, 0)]
    return moved


def renyi(p: np.ndarray, q: np.ndarray, order: float) -> float:
    inside = np.isfinite(p) & np.isfinite(q)
    return float(logsumexp(order * p[inside] - (order - 1) * q[inside])) / (order - 1)


def divergence(
    distribution: str, share: float, shares: int, shift: tuple[int, ...], a: float
) -> float:
    """Return the exact divergence of noise and shifted noise: coordinates are independent."""
    p = log_pmf(distribution, share, shares)
    return sum(renyi(_shifted(p, v), p, a) for v in shift)


SHIFTS = [(1,), (3,), (2, 1), (1, 1, 1), (4, 0, 2), (1, -1)]


SUMS = [
    *(("skellam", *sum_) for sum_ in [(0.05, 4), (0.5, 1), (0.5, 6), (2.0, 3), (9.0, 2)]),
    *(
        ("discrete-gaussian", *sum_)
        for sum_ in [(0.25, 1), (0.25, 4), (0.6, 5), (2.0, 3), (9.0, 1)]
    ),
]


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize(("distribution", "share", "shares"), SUMS)
def test_the_bound_is_above_the_exact_divergence(
    distribution: str, share: float, shares: int, shift: tuple[int, ...]
) -> None:
    orders = np.array([2.0, 3.0, 8.0] if distribution == "skellam" else [1.25, 2.0, 3.0, 8.0])
    l2, l1 = math.hypot(*shift), sum(map(abs, shift))
    moved = Shift(l2, l1, share * shares, len(shift), shares)
    bounds = distribution_named(distribution).divergence(moved, orders)
    exact = [divergence(distribution, share, shares, shift, a) for a in orders]
    assert all(e <= b * (1 + 1e-9) for e, b in zip(exact, bounds, strict=True))
    # And near it, where noise is ample.
    at_two = orders.tolist().index(2.0)
    if distribution == "skellam" and share * shares >= 18:
        assert bounds[at_two] <= 1.15 * exact[at_two]
    if distribution != "skellam" and (shares == 1 or share >= 2):
        assert bounds[at_two] <= 1.25 * exact[at_two] + 1e-6


def test_the_variance_of_a_skellam_is_that_of_both_poissons_together() -> None:
    """With each Poisson's own mean in its place, the formula would be below the exact value."""
    exact = divergence("skellam", 9.0, 2, (1,), 2)
    right, wrong = (skellam_divergence(1, 1, v, np.array([2.0]))[0] for v in (18.0, 36.0))
    assert wrong < exact < right


def test_sums_of_narrow_discrete_gaussians_are_above_one_gaussian() -> None:
    """The extra term is needed: five shares of variance 0.25 cost more than one of 1.25."""
    exact = divergence("discrete-gaussian", 0.25, 5, (1,), 2)
    assert exact > 2 * 1 / (2 * 1.25)
    narrow = discrete_gaussian_divergence(1.0, 1.0, 1.0, ORDERS, shares=5, dim=1)
    assert np.isinf(narrow).all()  # below half a step there is no proof


def corners(values: tuple[float, ...], limits: RoundedNorms) -> Iterator[tuple[float, np.ndarray]]:
    """Yield all roundings that a client may send, with their probabilities."""
    found = []
    for up in itertools.product((0, 1), repeat=len(values)):
        whole = np.floor(values) + up
        chance = math.prod(
            (v - math.floor(v)) if u else 1 - (v - math.floor(v))
            for u, v in zip(up, values, strict=True)
        )
        if chance > 0 and whole @ whole <= limits.l2**2:
            found.append((chance, whole))
    total = sum(chance for chance, _ in found)
    yield from ((chance / total, whole) for chance, whole in found)


def density(distribution: str, share: float, shares: int, roundings: list) -> np.ndarray:  # type: ignore[type-arg]
    """Return the exact probabilities of a rounded and noised vector, over a grid of outcomes."""
    one = np.exp(log_pmf(distribution, share, shares))
    total: np.ndarray | float = 0.0
    for chance, whole in roundings:
        each = np.ones(())
        for v in whole:
            moved = np.zeros(len(one))
            moved[max(int(v), 0) : len(one) + min(int(v), 0)] = one[
                max(-int(v), 0) : len(one) - max(int(v), 0)
            ]
            each = np.multiply.outer(each, moved[REACH - 40 : REACH + 41])
        total = total + chance * each
    return np.asarray(total)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace"])
@pytest.mark.parametrize("values", [(1.3,), (1.2, -0.7), (0.4, 0.9, -1.1)])
@pytest.mark.parametrize(
    ("distribution", "share", "shares"),
    [("skellam", 0.4, 5), ("skellam", 2.0, 2), ("discrete-gaussian", 0.5, 4)],
)
def test_rounded_and_noised_worlds_are_within_epsilon_and_delta(
    distribution: str, share: float, shares: int, values: tuple[float, ...], adjacency: str
) -> None:
    """The whole mechanism, exactly: both worlds are mixtures over all roundings."""
    dim, norm, delta = len(values), math.hypot(*values), 1e-3
    limits = RoundedNorms.of(norm, dim)
    grid = RoundingGrid(1.0, limits.l1, dim, shares)
    release = Release(math.sqrt(share * shares), limits.l2, distribution=distribution, grid=grid)
    bound = unamplified([release], delta, participations=1, adjacency=adjacency)  # type: ignore[arg-type]
    other = tuple(-v for v in values) if adjacency == "replace" else (0.0,) * dim
    p = density(distribution, share, shares, list(corners(values, limits)))
    q = density(distribution, share, shares, list(corners(other, limits)))
    assert p.sum() == pytest.approx(1, abs=1e-9)
    for a, b in ((p, q), (q, p)):
        assert np.maximum(a - math.exp(bound.value) * b, 0).sum() <= delta
    # Not vacuous: at an eighth of ε the same two worlds are too far apart.
    assert np.maximum(p - math.exp(bound.value / 8) * q, 0).sum() > delta


def test_epsilon_from_divergences_is_above_the_exact_one_and_near_it() -> None:
    for separation in (0.1, 1.0, 4.0):
        exact = float(epsilon_gaussian(1e-5, separation))
        found = epsilon_of(ORDERS * separation**2 / 2, 1e-5)
        assert exact <= found <= 1.12 * exact


def test_the_samplers_distance_costs_delta() -> None:
    curve, delta = ORDERS * 0.5, 1e-5
    plain = epsilon_of(curve, delta)
    assert epsilon_of(curve, delta, 1e-30) == pytest.approx(plain, rel=1e-12)
    far = 1e-8
    found = epsilon_of(curve, delta, far)
    assert found > plain
    left = delta - (1 + math.exp(found)) * far
    assert epsilon_of(curve, left) <= found * (1 + 1e-9)
    assert epsilon_of(curve, delta, 1e-6) == math.inf  # (1 + e^ε)·1e-6 is above δ


def on_grid(std: float = 30.0, l2: float = 20.0, distribution: str = "skellam") -> Release:
    return Release(std, l2, distribution=distribution, grid=RoundingGrid(1.0, 4 * l2, 16, 5))


def test_each_order_takes_its_own_costliest_releases() -> None:
    releases = [on_grid(), on_grid(25.0), on_grid(30.0, 21.0), Release(30.0, 20.0), on_grid()]
    total, distance = composed(releases, 3, "zero-out")
    rows = np.array([r.divergence("zero-out") for r in releases])
    np.testing.assert_allclose(total, np.sort(rows, axis=0)[-3:].sum(axis=0))
    assert 0 < distance < 1e-25


def test_ample_integer_noise_costs_little_more_than_gaussian_noise() -> None:
    gaussian = unamplified([Release(30.0, 20.0)], 1e-5, participations=1, adjacency="zero-out")
    for distribution in ("skellam", "discrete-gaussian"):
        release = on_grid(distribution=distribution)
        found = unamplified([release], 1e-5, participations=1, adjacency="zero-out")
        assert gaussian.value < found.value < 1.12 * gaussian.value
        twice = unamplified([release], 1e-5, participations=1, adjacency="replace")
        assert twice.value > 1.9 * found.value


def test_what_has_no_proof_is_refused() -> None:
    with pytest.raises(ValueError, match="amplification must be of Gaussian noise"):
        amplified([on_grid()], 1e-5, adjacency="zero-out")
    with pytest.raises(ValueError, match="no proof covers both"):
        replace(on_grid(), bit_std=1.0)
    with pytest.raises(ValueError, match="distribution must be one of gaussian"):
        replace(on_grid(), distribution="laplace")
    silent = Release(0.0, 1.0, distribution="skellam", grid=RoundingGrid(1.0, 1.0, 3, 0))
    nothing = unamplified([silent], 1e-5, participations=1, adjacency="zero-out")
    assert nothing.value == math.inf  # no noise, and no honest share
    between = skellam_divergence(1.0, 1.0, 4.0, np.array([1.5, 2.0, 2.5, 3.0]))
    assert np.isinf(between).tolist() == [True, False, True, False]  # integer orders alone
    with pytest.raises(ValueError, match="grid must be None with Gaussian noise alone"):
        replace(on_grid(), distribution="gaussian")
    for wrong in ({"step": 0.0}, {"l1": math.inf}, {"dim": 0}, {"shares": -1}):
        with pytest.raises(ValueError, match="must be"):
            RoundingGrid(**{"step": 1.0, "l1": 1.0, "dim": 1, **wrong})  # type: ignore[arg-type]
