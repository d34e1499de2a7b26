"""The guarantee in bits is above what channels of known information convey, and near it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import gammaln, ive
from scipy.stats import norm, skellam

from leakmeter.auditors.finding import Finding
from leakmeter.auditors.noise import RoundingGrid
from leakmeter.auditors.rng import stream
from leakmeter.strategies.accounting.accountant import Release
from leakmeter.strategies.accounting.assurance import Assurance
from leakmeter.strategies.protection.mechanism import Central, Distributed, Local

DELTA = 1e-5


def nats(release: Release, rounds: int = 1) -> float:
    """Return what is guaranteed against somebody who sees all of these releases."""
    found = Assurance(Central(1.0), (release,) * rounds, rounds).findings(DELTA)
    [bound] = [f for f in found if f.quantity == "mutual information"]
    assert (bound.kind, bound.observer) == ("guarantee", "outsider")
    return bound.value * math.log(2)


def of_two_points(clip: float, std: float) -> float:
    """Return I(x; x + noise) for a client that sends its clip norm or minus it, by a fair coin."""

    def surprise(z: float) -> float:
        ratio = math.log(2) - np.logaddexp(0, -2 * clip * z / std**2)
        return float(norm.pdf(z, clip, std) * ratio)

    return quad(surprise, clip - 12 * std, clip + 12 * std)[0]


def of_a_sphere(clip: float, std: float, dim: int, draws: int) -> tuple[float, float]:
    """Return I(x; x + noise) for an update that is uniform on the clip norm, and its error.

    The density of the sum is known: E exp(<x, z>/σ²) over a sphere is a Bessel function of |z|.
    """
    rng = stream(0, "sphere", dim)
    z = std * rng.standard_normal((draws, dim))
    z[:, 0] += clip  # x is the first axis, by symmetry
    kappa, order = np.linalg.norm(z, axis=1) * clip / std**2, dim / 2 - 1
    mean = gammaln(dim / 2) + order * np.log(2 / kappa) + np.log(ive(order, kappa)) + kappa
    each = z[:, 0] * clip / std**2 - mean
    return float(each.mean()), float(each.std() / math.sqrt(draws))


@pytest.mark.parametrize("std", [0.3, 1.0, 3.0, 20.0])
def test_two_points_convey_less_than_is_guaranteed_and_nearly_all_of_it_under_much_noise(
    std: float,
) -> None:
    truth, bound = of_two_points(1.0, std), nats(Release(std, 1.0))
    assert bound == pytest.approx(1 / (2 * std**2))
    assert truth <= bound
    assert truth > 0.99 * bound or std < 20


@pytest.mark.parametrize("std", [0.5, 1.0, 2.0])
def test_many_coordinates_convey_nearly_what_is_guaranteed(std: float) -> None:
    truth, error = of_a_sphere(1.0, std, 200, 4000)
    bound = nats(Release(std, 1.0))
    pair, spread = of_a_sphere(1.0, std, 1, 10_000)  # of dimension 0: two points
    assert pair == pytest.approx(of_two_points(1.0, std), abs=4 * spread)
    # Chance of failure below 1 in 10⁵ over fresh seeds. Half of the bound would be too small.
    assert truth - 4 * error <= bound
    assert truth + 4 * error > 0.97 * bound
    assert truth - 4 * error > 0.5 * bound


@pytest.mark.parametrize("rounds", [2, 9])
def test_an_update_that_is_sent_again_conveys_less_than_the_sum_over_rounds(rounds: int) -> None:
    # Equal updates under noise of their own are one update under 1/√rounds of the noise.
    bound = nats(Release(6.0, 1.0), rounds)
    assert bound == pytest.approx(rounds * nats(Release(6.0, 1.0)))
    truth, error = of_a_sphere(1.0, 6.0 / math.sqrt(rounds), 200, 4000)
    assert truth - 4 * error <= bound
    assert truth + 4 * error > 0.97 * bound


@pytest.mark.parametrize(("clip", "variance"), [(1, 1.0), (2, 4.0), (3, 50.0), (1, 200.0)])
def test_noise_of_integers_conveys_less_than_is_guaranteed(clip: int, variance: float) -> None:
    z = np.arange(-400, 401)
    p, q = (skellam.pmf(z, variance / 2, variance / 2, loc=sign * clip) for sign in (1, -1))
    is_there = (p > 0) & (q > 0)
    half = (p[is_there] + q[is_there]) / 2
    truth = sum(float(np.sum(one[is_there] * np.log(one[is_there] / half))) / 2 for one in (p, q))
    grid = RoundingGrid(step=1.0, l1=float(clip), dim=1, shares=1)
    bound = nats(Release(math.sqrt(variance), float(clip), distribution="skellam", grid=grid))
    assert 0 < truth <= bound


def observers(found: list[Finding]) -> set[str]:
    return {f.observer for f in found if f.quantity == "mutual information"}


def test_nothing_is_guaranteed_against_somebody_who_sees_the_sum_before_the_noise() -> None:
    one = Release(2.0, 1.0)
    assert observers([*Assurance(Central(2.0), (one,), 1).findings(DELTA)]) == {"outsider"}
    several = Assurance(Distributed(2.0, 3), (one,), 1).findings(DELTA)
    assert observers([*several]) == {"server", "outsider"}
    alone = Assurance(Local(2.0), (one,), 1, single=(Release(0.5, 1.0),)).findings(DELTA)
    bits = {f.observer: f.value for f in alone if f.quantity == "mutual information"}
    assert bits["wire"] == pytest.approx(16 * bits["outsider"])  # a quarter of the noise
