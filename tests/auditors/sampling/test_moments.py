"""Moments of a sum from single updates and from streams: closed forms, twins, precision."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling import moments as module
from leakmeter.auditors.sampling.moments import (
    RUNNING_FROM,
    ColumnProducts,
    DealSums,
    Interchangeable,
    Reruns,
    Scatter,
    WithinDeals,
    sum_moments,
)
from tests.helpers.numbers import few_or_many, num_examples
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


def rows(count: int, dim: int, seed: int = 0) -> np.ndarray:
    """Return rows whose columns have very different scales and are far from 0."""
    scales = np.logspace(-3, 3, dim)
    return stream(seed, "rows").standard_normal((count, dim)) * scales + 5 * scales


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 6))
@settings(max_examples=num_examples(40), deadline=None)
def test_any_chunks_give_the_moments_of_all_rows(sizes: list[int], dim: int) -> None:
    data = rows(sum(sizes), dim)
    scatter = Scatter(dim)
    for chunk in np.split(data, np.cumsum(sizes)[:-1]):
        scatter.add(chunk)
    moments = scatter.moments()
    centred = data - data.mean(axis=0)
    unit = np.outer(data.std(axis=0) + 1e-12, data.std(axis=0) + 1e-12) * len(data)
    assert moments.count == len(data)
    np.testing.assert_allclose(moments.mean, data.mean(axis=0), rtol=1e-12)
    assert np.abs((moments.scatter - centred.T @ centred) / unit).max() < 1e-9


def test_single_precision_is_exact_in_units_of_each_coordinate() -> None:
    data = rows(300, 1100).astype(np.float32)
    scatter = Scatter(1100)
    for chunk in np.array_split(data, 4):
        scatter.add(chunk)
    moments = scatter.moments()
    truth = np.cov(data.astype(np.float64).T)
    std = np.sqrt(np.diagonal(truth))
    assert np.abs((moments.covariance - truth) / np.outer(std, std)).max() < 3e-6
    np.testing.assert_array_equal(moments.scatter, moments.scatter.T)


@pytest.fixture(params=[(600, 1), *few_or_many((600, 10_000), (RUNNING_FROM, 1))])
def many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Dimensions that count as large, with blocks of columns or without."""
    dim, blocked_from = request.param
    monkeypatch.setattr(module, "RUNNING_FROM", dim)
    monkeypatch.setattr(module, "_BLOCKED_FROM", blocked_from)
    return int(dim)


def test_a_large_scatter_is_single_and_exact_in_units_of_each_coordinate(many: int) -> None:
    for smallest in (-3, -19):  # in single precision the square of 1e-19 would vanish
        rng, scales = stream(3, "large"), np.logspace(smallest, 3, many)
        data = (rng.standard_normal((60, many)) * scales).astype(np.float32)
        moments = Scatter(many).add(data[:40]).add(data[40:]).moments()
        assert moments.scatter.dtype == np.float32
        found = moments.covariance
        error = (found - truth_of([data])) / np.outer(scales, scales)
        assert np.abs(error).max() < 1e-5
        np.testing.assert_array_equal(found, found.T)


def test_the_quartic_of_gaussians_is_known() -> None:
    data = stream(1, "quartic").standard_normal((4000, 30))
    moments = Scatter(30).add(data).moments()
    assert moments.quartic is not None
    assert moments.quartic / moments.count == pytest.approx(30**2 + 2 * 30, rel=0.02)


def test_a_coordinate_that_never_moves_has_no_variance() -> None:
    data = rows(20, 3)
    data[:, 1] = 7.25
    moments = Scatter(3).add(data[:10]).add(data[10:]).moments()
    assert moments.scatter[1].tolist() == [0.0, 0.0, 0.0]


def test_wrong_shapes_are_named() -> None:
    with refuses("rows"):
        Scatter(3).add(np.zeros((2, 4)))
    with refuses("dim"):
        Scatter(0)
    with refuses("count"):
        _ = Scatter(2).add(np.zeros((1, 2))).moments().covariance


def truth_of(chunks: list[np.ndarray]) -> np.ndarray:
    """Return the covariance of all rows in double precision."""
    return np.asarray(np.cov(np.concatenate(chunks).astype(np.float64), rowvar=False))


def error_of(scatter: Scatter, truth: np.ndarray) -> float:
    """Return the largest error in units of two standard deviations."""
    std = np.sqrt(np.diagonal(truth))
    unit = np.where(std > 0, std, 1.0)
    return float(np.abs((scatter.moments().covariance - truth) / np.outer(unit, unit)).max())


@pytest.mark.parametrize("far", [0.0, 1e4])
def test_chunks_that_add_up_in_single_precision_stay_within_the_stated_error(
    far: float, many: int
) -> None:
    """Chunks that wander off by `far` deviations end a run; without that they cancel digits."""
    dim = many
    mix = stream(5, "mix").standard_normal((3, dim)).astype(np.float32)
    chunks = []
    for i in range(6):
        rng = stream(i, "chunk")
        plain = rng.standard_normal((40, dim), dtype=np.float32)
        common = rng.standard_normal((40, 3), dtype=np.float32) @ mix
        scales = np.logspace(-3, 3, dim).astype(np.float32)
        chunks.append((plain + common + 5 + far * (i // 3)) * scales)
    chunks[0][:, 7] = chunks[1][:, 7] = 1.5  # moves in later chunks only
    chunks[0][:, 9] = 2.5
    for chunk in chunks[1:]:
        chunk[:, 9] = 2.5  # never moves
    scatter = Scatter(dim)
    for chunk in chunks:
        scatter.add(chunk)
    assert error_of(scatter, truth_of(chunks)) < 3e-6


def test_the_fourth_powers_of_a_large_model_are_those_of_its_chunks(many: int) -> None:
    dim = many
    chunks = [stream(i, "part").standard_normal((30, dim), dtype=np.float32) for i in range(3)]
    one = Scatter(dim)
    for chunk in chunks:
        one.add(chunk)
    assert one.moments().quartic == pytest.approx(
        sum(Scatter(dim - 1).add(chunk[:, 1:]).quartic for chunk in chunks), rel=5e-3
    )


def test_coordinates_that_seldom_move_are_as_exact_as_the_others(many: int) -> None:
    """A fourth of each eighth moves in one row of one chunk, and an eighth never does."""
    rng, scales = stream(9, "seldom"), np.logspace(-6, 6, many).astype(np.float32)
    chunks = [rng.standard_normal((40, many), dtype=np.float32) for _ in range(4)]
    for i, chunk in enumerate(chunks):
        chunk[:, np.arange(many) % 8 >= 6] = 0.0
        chunk[7, np.arange(many) % 32 == 6 + 8 * i] = 1.0 + 100 * i
        chunk *= scales
    scatter = Scatter(many)
    for chunk in chunks:
        scatter.add(chunk)
    moves = np.arange(many) % 8 != 7
    found = scatter.moments().covariance
    assert not found[~moves].any()
    std = np.sqrt(np.where(moves, np.diagonal(truth_of(chunks)), 1.0))
    assert np.abs((found - truth_of(chunks)) / np.outer(std, std)).max() < 3e-6


def total(chunks: list[np.ndarray], *, even: list[bool]) -> np.ndarray:
    """Return the products of all rows, less nothing."""
    dim = chunks[0].shape[1]
    products = ColumnProducts(dim)
    for rows, is_even in zip(chunks, even, strict=True):
        products.open(len(rows))
        for at, columns, tile, _ in products.tiles():
            tile[:] = rows[at, columns]
        products.add(is_even)
    return products.total(np.zeros(dim), np.zeros(dim))


@given(
    st.lists(st.tuples(st.integers(1, 150), st.booleans()), min_size=1, max_size=4),
    st.integers(1, 70),
    st.sampled_from([1, 2, 4, 8, 16]),
)
@settings(max_examples=num_examples(40), deadline=None)
def test_whole_numbers_have_exact_products_in_any_blocks_and_chunks(
    sizes: list[tuple[int, bool]], dim: int, blocks: int
) -> None:
    rng = stream(dim, "whole", blocks)
    chunks = [rng.integers(-9, 10, (count, dim)).astype(np.float32) for count, _ in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCKED_FROM", 1)
        patch.setattr(module, "_BLOCKS", blocks)
        found = total(chunks, even=[is_even for _, is_even in sizes])
    truth = sum(rows.astype(np.int64).T @ rows.astype(np.int64) for rows in chunks)
    np.testing.assert_array_equal(found, truth)


def test_sums_of_blocks_cost_a_factor_of_about_five_in_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_BLOCKED_FROM", 1)
    rows = stream(0, "normal").standard_normal((2048, 400), dtype=np.float32)
    truth = rows.T.astype(np.float64) @ rows.astype(np.float64)
    above = np.triu_indices(400, 1)
    fewer, plain = (
        float(np.sqrt(np.mean((total([rows], even=[even]) - truth)[above] ** 2))) / len(rows)
        for even in (True, False)
    )
    assert 2 * plain < fewer < 8 * plain
    assert 2e-8 < fewer < 5e-8
