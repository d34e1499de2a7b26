"""The exact simulation of Algorithm 1: the distribution of real vectors, and published numbers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ks_2samp

from leakmeter.auditors.canaries.canary_auditor import one_fit
from leakmeter.auditors.rng import stream
from leakmeter.papers.andrew2024.gaussian_sum import simulate_cosines
from leakmeter.papers.gaussian import gaussian_sigma

DELTA = 1e-6


def with_real_vectors(dim: int, canaries: int, sigma: float, seed: int) -> np.ndarray:
    """Return the same by Algorithm 1 word for word."""
    rng = stream(seed, "vectors")
    rows = rng.standard_normal((canaries, dim))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    released = rows.sum(axis=0) + sigma * rng.standard_normal(dim)
    return np.asarray(rows @ released / np.linalg.norm(released))


@pytest.mark.parametrize(("dim", "canaries", "sigma"), [(40, 10, 0.5), (20, 20, 1.0), (30, 5, 0.0)])
def test_cosines_have_the_law_of_real_vectors(dim: int, canaries: int, sigma: float) -> None:
    runs = 1200
    exact = [simulate_cosines(dim, canaries, sigma, stream(s, "exact")) for s in range(runs)]
    slow = [with_real_vectors(dim, canaries, sigma, s) for s in range(runs)]
    # One canary, their mean and their spread: the joint distribution, not only each cosine's.
    for statistic in (lambda c: c[-1], np.mean, np.std, np.max):
        samples = [[float(statistic(c)) for c in side] for side in (exact, slow)]
        assert ks_2samp(*samples).pvalue > 1e-4  # chance of failure 1e-3 over fresh seeds
    wrong = [float(with_real_vectors(dim, canaries, sigma + 0.5, s)[-1]) for s in range(runs)]
    assert ks_2samp([float(c[-1]) for c in exact], wrong).pvalue < 1e-4


# d = 10,000, k = 100, means and standard deviations over runs: the paper's Table 1 keeps the
# null's std, the algorithm as printed fits it.
@pytest.mark.parametrize(
    ("epsilon", "known", "fitted"),
    [
        (10.0, (9.80, 0.64), (12.09, 2.14)),
        (3.0, (2.99, 0.51), (4.59, 1.48)),
        (1.0, (1.01, 0.45), (2.30, 1.24)),
    ],
)
def test_estimates_are_the_published_ones(
    epsilon: float, known: tuple[float, float], fitted: tuple[float, float]
) -> None:
    runs, sigma = 400, gaussian_sigma(epsilon, DELTA)
    z = 100 * np.stack(
        [simulate_cosines(10**4, 100, sigma, stream(s, "table")) for s in range(runs)]
    )
    for std, (mean, spread) in (("known", known), ("fitted", fitted)):
        values = one_fit(z, std, DELTA)  # type: ignore[arg-type]
        # Three standard errors, and half a digit of the printed number.
        assert values.mean() == pytest.approx(mean, abs=3 * spread / np.sqrt(runs) + 0.005)
        assert values.std() == pytest.approx(spread, rel=3 / np.sqrt(2 * runs) + 0.05)


def test_without_noise_one_canary_is_the_sum() -> None:
    assert simulate_cosines(100, 1, 0.0, stream(0)) == pytest.approx([1.0])
