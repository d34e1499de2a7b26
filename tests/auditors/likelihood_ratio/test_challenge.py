"""The worst pair is found by one product, and the test between two updates is the optimal one."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform

from leakmeter.auditors.likelihood_ratio.game import Candidates, between, challenge, farthest_pair
from leakmeter.auditors.likelihood_ratio.sum_distribution import DenseGaussian, DualGaussian, grams
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling.moments import Scatter
from tests.helpers.refusals import refuses

DIM = 8
ROOT = stream(0, "root").standard_normal((DIM, DIM))
ROWS = stream(0, "fit").standard_normal((400, DIM)) @ ROOT.T
CANDIDATES = stream(0, "candidates").standard_normal((60, DIM)) @ ROOT.T + 100.0


def fits() -> list[DenseGaussian | DualGaussian]:
    """Return both forms of the same model."""
    moments = Scatter(DIM).add(ROWS).moments()
    return [DenseGaussian.fit(moments, shrinkage=0.1), DualGaussian.fit(ROWS, shrinkage=0.1)]


def test_the_pair_is_that_of_the_mahalanobis_distances() -> None:
    covariance = np.cov(ROWS.T)
    shrunk = 0.9 * covariance + 0.1 * np.diag(np.diagonal(covariance))
    distances = squareform(pdist(CANDIDATES, "mahalanobis", VI=np.linalg.inv(shrunk)))
    expected = np.unravel_index(distances.argmax(), distances.shape)
    for fit in fits():
        found = challenge(CANDIDATES, fit)
        assert set(found.pair) == set(expected)
        assert found.modelled == pytest.approx(distances.max(), rel=1e-3)


def test_scores_have_unit_variance_under_the_model_and_differ_by_the_separation() -> None:
    for fit in fits():
        test = challenge(CANDIDATES, fit)
        assert test.shift == pytest.approx(test.modelled, rel=1e-9)
        covariance = np.cov(ROWS.T)
        shrunk = 0.9 * covariance + 0.1 * np.diag(np.diagonal(covariance))
        assert test.direction @ shrunk @ test.direction == pytest.approx(1.0, rel=1e-3)


def test_equal_candidates_cannot_be_told_apart() -> None:
    for fit in fits():
        test = between(CANDIDATES[0], CANDIDATES[0], fit)
        assert (test.shift, test.modelled) == (0.0, 0.0)
        assert not test.direction.any()


def test_the_farthest_of_two_are_the_two() -> None:
    assert set(farthest_pair(np.array([[1.0, 0.0], [0.0, 1.0]]))) == {0, 1}
    with refuses("candidates"):
        challenge(CANDIDATES[:1], fits()[0])


def test_an_update_is_tested_against_the_candidate_farthest_from_it() -> None:
    covariance = np.cov(ROWS.T)
    shrunk = 0.9 * covariance + 0.1 * np.diag(np.diagonal(covariance))
    inverse = np.linalg.inv(shrunk)
    for fit in fits():
        for update in CANDIDATES[:5] + ROOT[0]:
            gaps = update - CANDIDATES
            farthest_one = np.einsum("ij,jk,ik->i", gaps, inverse, gaps).argmax()
            for rows in (CANDIDATES, CANDIDATES.astype(np.float32)):
                assert Candidates.of(rows, [fit]).against(update).pair == (-1, farthest_one)


def test_forms_of_one_fit_see_the_candidates_as_each_does_alone() -> None:
    fit = DualGaussian.fit(ROWS[:30], shrinkage=0.1)
    forms, centre = [fit, fit.leading(3)], CANDIDATES.mean(axis=0)
    for form, gram in zip(forms, grams(forms, CANDIDATES, centre), strict=True):
        assert np.array_equal(gram, form.gram(CANDIDATES, centre))
