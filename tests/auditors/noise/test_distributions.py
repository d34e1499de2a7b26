"""Weights and probabilities of integer noise against series, convolutions and closed forms."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from leakmeter.auditors.noise import BETA, MAX_NORM, MAX_STD, MIN_STD, RoundedNorms
from leakmeter.papers.ring_noise.integer_sum import IntegerNoise
from tests.helpers.refusals import refuses


def bessel_series(k: int, variance: Fraction, terms: int = 60) -> Fraction:
    """Return I_k(μ) by its power series, in exact fractions."""
    half = variance / 2
    return sum(
        (half ** (2 * m + k) / (math.factorial(m) * math.factorial(m + k)) for m in range(terms)),
        Fraction(0),
    )


@pytest.mark.parametrize("variance", [MIN_STD**2, 0.3, 5.0])
def test_skellam_weights_are_the_bessel_series_to_forty_digits(variance: float) -> None:
    weights = IntegerNoise("skellam", variance).weights()
    exact = [bessel_series(k, Fraction(variance)) for k in range(min(len(weights), 12))]
    for weight, value in zip(weights[1:], exact[1:], strict=False):
        # Relative to the peak: that is what a total variation sees.
        error = abs(Fraction(weight, weights[0]) - value / exact[0])
        assert error < Fraction(1, 10**40)


@pytest.mark.parametrize("variance", [0.3, 7.0, 1e4])
def test_skellam_probabilities_are_scipys(variance: float) -> None:
    found = IntegerNoise("skellam", variance).log_pmf()
    k = np.arange(min(len(found), 300))
    np.testing.assert_allclose(
        found[k], stats.skellam(variance / 2, variance / 2).logpmf(k), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("variance", [0.26, 7.0, 900.0])
def test_discrete_gaussian_probabilities_are_the_normalised_exponential(variance: float) -> None:
    found = IntegerNoise("discrete-gaussian", variance).log_pmf()
    k = np.arange(len(found))
    exponents = -(k**2) / (2 * variance)
    total = 1 + 2 * np.exp(exponents[1:]).sum()
    np.testing.assert_allclose(found, exponents - math.log(total), atol=1e-10)


@pytest.mark.parametrize("law", ["skellam", "discrete-gaussian"])
def test_a_sum_of_shares_is_their_convolution(law: str) -> None:
    noise = IntegerNoise(law, 0.7)
    side = np.exp(noise.log_pmf())
    one = np.concatenate([side[:0:-1], side])
    total = one
    for _ in range(4):
        total = np.convolve(total, one)
    found = noise.log_pmf(5)
    centre = len(total) // 2
    k = np.arange(15)
    np.testing.assert_allclose(np.exp(found[k]), total[centre + k], rtol=1e-9)
    is_closed = np.allclose(found[k], IntegerNoise(law, 3.5).log_pmf()[k], rtol=1e-9)
    assert is_closed == (law == "skellam")  # discrete Gaussians are not closed under addition


@pytest.mark.parametrize("std", [0.0, MIN_STD / 2, 2 * MAX_STD, math.inf, math.nan])
def test_noise_beyond_the_tables_is_refused(std: float) -> None:
    with pytest.raises(ValueError, match="standard deviation"):
        IntegerNoise("skellam", std**2)


def test_an_unknown_law_is_refused() -> None:
    with refuses("distribution"):
        IntegerNoise("laplace", 1.0)  # type: ignore[arg-type]


def test_norms_after_rounding_are_the_smaller_of_the_sure_and_the_likely_bound() -> None:
    sure = RoundedNorms.of(100.0, 4)  # in few dimensions the sure bound is smaller
    assert sure.l2 == pytest.approx(math.sqrt(100**2 + 1 + 101)) or sure.l2 == pytest.approx(102)
    assert sure.l2 == pytest.approx(min(102.0, math.sqrt(100**2 + 1 + 101)))
    likely = RoundedNorms.of(10.0, 10_000)
    assert math.exp(-0.5) == BETA
    assert likely.l2**2 == pytest.approx(10**2 + 10_000 / 4 + (10 + 50))
    assert likely.l1 == pytest.approx(likely.l2**2)  # below √d·Δ₂, since integers are at least 1
    fine = RoundedNorms.of(1e6, 100)
    assert fine.l1 == pytest.approx(10 * fine.l2)
    with refuses("norm"):
        RoundedNorms.of(2 * MAX_NORM, 3)
