"""Models of a sum: both forms agree, shrink as they should, and know what they do not know."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leakmeter.auditors.likelihood_ratio.sum_distribution import DenseGaussian, DualGaussian
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling import moments as module
from leakmeter.auditors.sampling.moments import RUNNING_FROM, Scatter
from tests.helpers.numbers import few_or_many
from tests.helpers.refusals import refuses

DIM = 12
ROOT = stream(0, "root").standard_normal((DIM, DIM)) * np.logspace(-2, 2, DIM)[:, None]


def draws(count: int, seed: int = 1) -> np.ndarray:
    """Return rows with covariance ROOT ROOTᵀ."""
    return stream(seed, "draws").standard_normal((count, DIM)) @ ROOT.T


def dense(rows: np.ndarray, **more: object) -> DenseGaussian:
    """Return the dense model of some rows."""
    return DenseGaussian.fit(Scatter(rows.shape[1]).add(rows).moments(), **more)


def shrunk(rows: np.ndarray, shrinkage: float, noise_std: float = 0.0) -> np.ndarray:
    """Return the covariance that both forms should invert, the slow way."""
    covariance = np.cov(rows.T)
    target = np.diag(np.diagonal(covariance))
    return (1 - shrinkage) * covariance + shrinkage * target + noise_std**2 * np.eye(len(target))


@pytest.mark.parametrize("noise_std", [0.0, 0.7])
@pytest.mark.parametrize("shrinkage", [0.05, 0.6, 1.0])
def test_both_forms_invert_the_shrunk_covariance(shrinkage: float, noise_std: float) -> None:
    rows, vectors = draws(40), draws(5, seed=2)
    truth = np.linalg.inv(shrunk(rows, shrinkage, noise_std))
    for fit in (
        dense(rows, shrinkage=shrinkage, noise_std=noise_std),
        DualGaussian.fit(rows, shrinkage=shrinkage, noise_std=noise_std),
    ):
        gram = vectors @ truth @ vectors.T
        np.testing.assert_allclose(fit.gram(vectors), gram, rtol=2e-4, atol=1e-4 * gram.max())
        expected = truth @ vectors[0]
        scale = np.sqrt(np.diagonal(truth))
        assert np.abs((fit.solve(vectors[0]) - expected) / scale).max() < 1e-3


def test_fewer_samples_than_dimensions_are_enough_for_the_dual_form() -> None:
    rows = draws(6)
    fit = DualGaussian.fit(rows, shrinkage=0.3)
    expected = np.linalg.solve(shrunk(rows, 0.3), ROOT[:, 0])
    np.testing.assert_allclose(fit.solve(ROOT[:, 0]) @ ROOT[:, 0], expected @ ROOT[:, 0], rtol=1e-3)


def test_leading_directions_see_nothing_outside_them() -> None:
    rows = draws(200)
    fit = DualGaussian.fit(rows, shrinkage=0.01).leading(3)
    assert fit.form == "3 leading directions"
    basis = fit.mix @ fit.white.columns(slice(0, DIM))
    np.testing.assert_allclose(basis @ basis.T, np.eye(3), atol=1e-5)
    inside = basis * fit.root  # rows of the model in the units of the updates
    outside = draws(1, seed=3)[0]
    scaled = outside / fit.root
    outside = (scaled - basis.T @ (basis @ scaled)) * fit.root
    assert abs(fit.gram(outside[None])[0, 0]) < 1e-6 * fit.gram(inside[:1])[0, 0]


@pytest.mark.slow
def test_shrinkage_falls_with_samples_and_agrees_with_ledoit_and_wolf() -> None:
    from sklearn.covariance import ledoit_wolf_shrinkage  # a second, and no other test needs it

    # On standardised data with equal variances their target is the same as ours.
    found = []
    for count in (30, 150, 750):
        rows = (
            stream(4, "lw").standard_normal((count, 40))
            @ np.linalg.cholesky(0.5 * np.eye(40) + 0.5).T
        )
        standard = (rows - rows.mean(axis=0)) / rows.std(axis=0)
        theirs = ledoit_wolf_shrinkage(standard)
        ours = dense(rows).shrinkage, DualGaussian.fit(rows).shrinkage
        assert ours == pytest.approx((theirs, theirs), rel=0.2)
        found.append(ours[0])
    assert found == sorted(found, reverse=True)


def test_independent_coordinates_are_shrunk_all_the_way() -> None:
    rows = stream(5, "white").standard_normal((50, 80))
    assert dense(rows).shrinkage > 0.9


def test_redundant_and_still_coordinates_are_left_out() -> None:
    rows = draws(60)
    rows[:, 4] = 0.0
    free = np.arange(DIM - 2)
    for fit in (dense(rows, free=free), DualGaussian.fit(rows, free=free)):
        assert fit.kept.tolist() == [i for i in range(DIM - 2) if i != 4]
        assert fit.solve(np.ones(DIM))[[4, DIM - 2, DIM - 1]].tolist() == [0.0, 0.0, 0.0]


def test_moments_without_redundant_coordinates_give_the_same_model() -> None:
    rows = draws(60)
    rows[:, 4] = 0.0
    free = np.flatnonzero(np.arange(DIM) % 5 != 2)
    some = replace(Scatter(free.size).add(rows[:, free]).moments(), columns=free)
    fit, full = DenseGaussian.fit(some, shrinkage=0.1), dense(rows, free=free, shrinkage=0.1)
    assert fit.kept.tolist() == full.kept.tolist()
    np.testing.assert_allclose(fit.solve(np.ones(DIM)), full.solve(np.ones(DIM)), rtol=1e-9)
    np.testing.assert_allclose(fit.gram(rows[:3]), full.gram(rows[:3]), rtol=1e-9)


def test_noise_moves_every_coordinate() -> None:
    rows = draws(60)
    rows[:, 4] = 0.0
    assert 4 in dense(rows, noise_std=0.1).kept


def test_a_singular_covariance_still_has_a_factor() -> None:
    rows = draws(500)
    rows[:, 1] = rows[:, 0]
    fit = dense(rows, shrinkage=0.0)
    assert fit.shrinkage > 0
    assert np.isfinite(fit.gram(rows[:3])).all()


@pytest.fixture(params=few_or_many(600, RUNNING_FROM))
def many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Parameters of a model that counts as large."""
    monkeypatch.setattr(module, "RUNNING_FROM", request.param)
    return int(request.param)


def large(count: int, dim: int) -> np.ndarray:
    """Return rows of a large model whose coordinates correlate and have very different scales."""
    rng = stream(6, "large")
    rows = rng.standard_normal((count, dim), dtype=np.float32)
    rows += 2 * rng.standard_normal((count, 3), dtype=np.float32) @ rows[:3]
    return rows * np.logspace(-15, 3, dim).astype(np.float32)


def test_a_large_model_is_fitted_in_single_precision_to_the_same_result(many: int) -> None:
    rows = large(600, many)
    moments = Scatter(many).add(rows[:400]).add(rows[400:]).moments()
    kept = moments.scatter.copy()
    double, single = (
        DenseGaussian.fit(each, shrinkage=0.05) for each in (moments.plain(), moments)
    )
    np.testing.assert_array_equal(moments.scatter, kept)
    used = DenseGaussian.fit(moments, shrinkage=0.05, overwrite=True)
    assert (double.factor.dtype, single.factor.dtype) == (np.float64, np.float32)
    assert np.shares_memory(used.factor, moments.scatter)
    assert single.kept.size == many
    np.testing.assert_array_equal(single.factor, used.factor)
    assert single.condition == pytest.approx(double.condition, rel=1e-3)
    scale = np.diagonal(double.gram(rows[:9])).max()
    assert np.abs(single.gram(rows[:9]) - double.gram(rows[:9])).max() < 1e-4 * scale
    solved = [fit.solve(rows[0]) * fit.std for fit in (single, double)]
    assert np.abs(solved[0] - solved[1]).max() < 1e-3 * np.abs(solved[1]).max()


def test_a_large_model_that_single_precision_cannot_factor_well_is_fitted_in_double(
    many: int,
) -> None:
    moments = Scatter(many).add(large(600, many)).moments()
    fit, plain = (DenseGaussian.fit(each, shrinkage=5e-4) for each in (moments, moments.plain()))
    assert fit.factor.dtype == np.float64
    assert fit.shrinkage == plain.shrinkage == 5e-4
    assert fit.condition == pytest.approx(plain.condition, rel=0.05)


def test_nothing_that_moves_is_an_error() -> None:
    with pytest.raises(ValueError, match="samples must move at least one coordinate"):
        dense(np.ones((5, 3)))
    with refuses("sums"):
        DualGaussian.fit(np.ones((2, 3)))
