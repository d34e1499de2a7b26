"""Streamed moments are those of all rows at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling import moments as module
from leakmeter.auditors.sampling.moments import RUNNING_FROM, Scatter
from tests.helpers.numbers import few_or_many, num_examples
from tests.helpers.refusals import refuses


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


def off(scatter: Scatter, truth: np.ndarray) -> float:
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
    assert off(scatter, truth_of(chunks)) < 3e-6


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
