"""The spectrum of gradient noise: the full covariance is its twin."""

from __future__ import annotations

import numpy as np
import pytest

from leakmeter.auditors.records.game import CovarianceSpectrum
from leakmeter.auditors.rng import stream
from tests.helpers.refusals import refuses

BATCH = 4


@pytest.mark.parametrize(("count", "dim", "rank"), [(5, 8, 5), (8, 5, 5), (8, 5, 2), (1, 1, 1)])
@pytest.mark.parametrize("floor", [0.0, 0.1, 1e6])
def test_the_gram_matrix_tells_what_the_covariance_would(
    count: int, dim: int, rank: int, floor: float
) -> None:
    rng = stream(count, "g", dim, rank)
    g = rng.standard_normal((count, rank)) @ rng.standard_normal((rank, dim))
    found = CovarianceSpectrum.of_gram(g @ g.T, dim, batch=BATCH, floor=floor)
    truth = np.linalg.eigvalsh(g.T @ g / (BATCH * count))
    size = truth[-1]
    assert found.rank == np.linalg.matrix_rank(g) == rank
    assert found.smallest == pytest.approx(truth[0], abs=1e-13 * size)
    added = np.maximum(floor - truth, 0.0).sum()
    assert found.added_variance == pytest.approx(added, abs=1e-12 * size)
    if floor:
        assert found.share_saved == pytest.approx(1 - added / (dim * floor), abs=1e-9)
        assert found.num_covered == (truth >= floor).sum()


def test_without_gradients_nothing_is_saved() -> None:
    found = CovarianceSpectrum.of_gram(np.zeros((3, 3)), 7, batch=1, floor=2.0)
    assert (found.rank, found.smallest, found.num_covered) == (0, 0.0, 0)
    assert (found.added_variance, found.share_saved) == (14.0, 0.0)


def test_the_curve_runs_from_the_largest_eigenvalue_through_all_directions() -> None:
    found = CovarianceSpectrum(np.array([0.1, 0.5, 3.0]), 1000, floor=1.0)
    drawn = found.drawn()
    assert (drawn.dim, drawn.floor) == (1000, 1.0)
    for most, curve in (
        (20, found.curve(20)),
        (25, tuple(zip(drawn.index, drawn.variance, drawn.added, strict=True))),
    ):
        assert curve[:3] == ((1, 3.0, 0.0), (2, 0.5, 0.5), (3, 0.1, 0.9))
        assert curve[-1] == (1000, 0.0, 1.0)
        assert len(curve) <= most
    assert CovarianceSpectrum(np.array([2.0]), 1).curve() == ((1, 2.0, 0.0),)


def test_bad_input_is_named() -> None:
    with refuses("eigenvalues"):
        CovarianceSpectrum(np.ones(3), 2)
    with refuses("floor"):
        CovarianceSpectrum(np.ones(2), 2, -1.0)
    with refuses("batch"):
        CovarianceSpectrum.of_gram(np.eye(2), 2, batch=0)
    with refuses("points"):
        CovarianceSpectrum(np.ones(2), 2).curve(0)
