"""Moments of a sum from single updates: closed forms, twins, and what each game needs."""

from __future__ import annotations

import numpy as np
import pytest

from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling.moments import (
    DealSums,
    Interchangeable,
    Reruns,
    WithinDeals,
    sum_moments,
)
from tests.helpers.refusals import refuses

DIM = 4
ROOT = np.array([[1.0, 0, 0, 0], [0.5, 2, 0, 0], [-1, 0.3, 0.5, 0], [0.2, 0, 1, 1]])
COVARIANCE = ROOT @ ROOT.T


def normals(*shape: int, name: str = "rows") -> np.ndarray:
    """Return rows with covariance `COVARIANCE`."""
    return stream(0, "sum-moments", name).standard_normal((*shape, DIM)) @ ROOT.T


def off(found: np.ndarray, truth: np.ndarray) -> float:
    """Return the largest error in units of the standard deviations."""
    size = np.sqrt(np.diag(truth))
    return float(np.abs((found - truth) / np.outer(size, size)).max())


def test_interchangeable_clients_add_n_single_laws() -> None:
    rows = normals(500, 1) + 3
    found = Interchangeable(DIM, 7).add(rows[:100]).add(rows[100:]).moments()
    np.testing.assert_allclose(found.mean, 7 * rows[:, 0].mean(axis=0))
    np.testing.assert_allclose(found.covariance, 7 * np.cov(rows[:, 0].T))
    assert found.count == 500


@pytest.mark.parametrize("cuts", [[40], [1, 39], [7, 20, 40], [39, 40]])
def test_reruns_are_the_sum_of_each_clients_own_covariance(cuts: list[int]) -> None:
    rows = normals(40, 6) * np.arange(1, 7)[:, None] + 10 * np.arange(6)[:, None]
    fit = Reruns(DIM, 40)
    for block in (slice(0, 4), slice(4, 6)):
        for part in np.split(rows[:, block], cuts):
            if len(part):
                fit.add(part)
    found = fit.moments()
    twin = sum(np.cov(rows[:, client].T) for client in range(6))
    np.testing.assert_allclose(found.covariance, twin)
    np.testing.assert_allclose(found.mean, rows.mean(axis=0).sum(axis=0))
    assert found.count - 1 == 6 * 39  # degrees of freedom


def test_reruns_do_not_mistake_the_clients_different_means_for_spread() -> None:
    rows = normals(30, 5)
    shifted = rows + 1e3 * np.arange(5)[:, None]
    one, other = (Reruns(DIM, 30).add(r).moments().covariance for r in (rows, shifted))
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_deal_sums_are_the_covariance_of_the_sums() -> None:
    rows = normals(50, 3)
    found = DealSums(DIM).add(rows[:20]).add(rows[20:]).moments()
    np.testing.assert_allclose(found.covariance, np.cov(rows.sum(axis=1).T))


def negatively_dependent(deals: int, clients: int, total: int) -> np.ndarray:
    """Return rows as in a deal: of `total` centred shares, the first `clients`.

    Cov(x_i) = COVARIANCE and Cov(x_i, x_j) = -COVARIANCE / (total - 1), so a sum of n has
    covariance n (total - n) / (total - 1) COVARIANCE.
    """
    rows = normals(deals, total, name="dealt")
    rows -= rows.mean(axis=1, keepdims=True)
    return rows[:, :clients] * np.sqrt(total / (total - 1))


@pytest.mark.parametrize("clients", [2, 15, 19])
def test_within_deals_finds_the_covariance_of_a_negatively_dependent_sum(clients: int) -> None:
    rows = negatively_dependent(2000, clients, 20)
    fit = WithinDeals(DIM, clients)
    for part in np.split(rows, [3, 700]):
        fit.add(part)
    found = fit.moments()
    truth = clients * (20 - clients) / 19 * COVARIANCE
    assert off(found.covariance, truth) < 0.13  # 2000 deals: four standard errors of 0.032
    assert found.count - 1 == 2000 * (clients - 1)
    # What independent clients would have is far off.
    if clients > 2:
        assert off(clients * COVARIANCE, truth) > 1


def test_within_deals_needs_fewer_deals_than_the_sums_themselves() -> None:
    rows = negatively_dependent(12, 15, 20)
    truth = 15 * 5 / 19 * COVARIANCE
    modelled = WithinDeals(DIM, 15).add(rows).moments().covariance
    direct = DealSums(DIM).add(rows).moments().covariance
    scale = np.trace(modelled @ np.linalg.inv(truth)) / DIM  # the factor is left out of it
    assert off(modelled / scale, truth) < 0.25 < off(direct, truth)


def test_a_coordinate_that_never_moves_stays_out_of_the_factor() -> None:
    rows = negatively_dependent(200, 5, 10)
    rows[..., 2] = 7.0
    found = WithinDeals(DIM, 5).add(rows).moments()
    assert np.isfinite(found.scatter).all()
    assert found.covariance[2, 2] == pytest.approx(0, abs=1e-12)
    assert found.covariance[0, 0] == pytest.approx(5 * 5 / 9 * COVARIANCE[0, 0], rel=0.3)


@pytest.mark.parametrize(
    ("game", "clients", "draws", "kind"),
    [
        ("rerun", 5, 10, Reruns),
        ("independent", 5, 10, Interchangeable),
        ("partition", 5, 95, WithinDeals),
        ("partition", 5, 96, DealSums),  # 20 deals for 4 dimensions
        ("partition", 1, 3, DealSums),
    ],
)
def test_each_game_is_fitted_in_its_own_way(game, clients, draws, kind) -> None:
    assert type(sum_moments(game, DIM, clients, draws)) is kind


def test_too_few_draws_are_refused() -> None:
    with refuses("draws"):
        sum_moments("rerun", DIM, 3, 1)
    with refuses("draws"):
        WithinDeals(DIM, 3).add(normals(1, 3)).moments()
    with refuses("num_clients"):
        WithinDeals(DIM, 1)
