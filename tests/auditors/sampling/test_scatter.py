"""Streamed moments are those of all rows at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling.scatter import Scatter


def rows(count: int, dim: int, seed: int = 0) -> np.ndarray:
    """Return rows whose columns have very different scales and are far from 0."""
    scales = np.logspace(-3, 3, dim)
    return stream(seed, "rows").standard_normal((count, dim)) * scales + 5 * scales


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
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


def test_merging_is_adding() -> None:
    data = rows(50, 7)
    first, second = Scatter(7).add(data[:20]), Scatter(7).add(data[20:])
    merged = first.merge(second).moments()
    one = Scatter(7).add(data[:20]).add(data[20:]).moments()
    np.testing.assert_array_equal(merged.scatter, one.scatter)
    assert merged.quartic == one.quartic


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
    with pytest.raises(ValueError, match=r"rows must have shape \(any, 3\), got \(2, 4\)"):
        Scatter(3).add(np.zeros((2, 4)))
    with pytest.raises(ValueError, match="dim must be at least 1, got 0"):
        Scatter(0)
    with pytest.raises(ValueError, match="count must be at least 2 for a covariance, got 1"):
        _ = Scatter(2).add(np.zeros((1, 2))).moments().covariance
