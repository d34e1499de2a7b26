"""Integers: draws have the stated law and no other, rounding has no bias and keeps its bound."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from leakmeter.auditors import noise
from leakmeter.auditors.noise import MAX_STD, MIN_STD, RoundedNorms, distribution_named
from leakmeter.clients.protection.noise_mod import to_integers
from leakmeter.papers.ring_noise.integer_sum import IntegerNoise

LAWS = ("skellam", "discrete-gaussian")
DRAWS = 200_000


def total_variation(noise: IntegerNoise) -> float:
    return distribution_named(noise.distribution).total_variation(noise.variance)


def p_value(drawn: np.ndarray, noise: IntegerNoise) -> float:
    """Return the chi-square test of draws against exact probabilities, rare outcomes together."""
    side = np.exp(noise.log_pmf())
    most = int(np.flatnonzero(side * len(drawn) >= 10)[-1])
    probabilities = np.array([*side[most:0:-1], *side[: most + 1]])
    counts = np.array([(drawn == k).sum() for k in range(-most, most + 1)])
    beyond = 1 - probabilities.sum()
    if beyond * len(drawn) >= 5:
        probabilities = np.append(probabilities, beyond)
        counts = np.append(counts, (np.abs(drawn) > most).sum())
    else:
        probabilities /= probabilities.sum()
    return float(stats.chisquare(counts, counts.sum() * probabilities).pvalue)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("std", [0.3, 1.7, 20.0])
def test_draws_have_their_law_and_no_other(law: str, std: float) -> None:
    # Chance of failure by bad luck: 1e-4 for each case (fixed seed).
    drawn = IntegerNoise(law, std**2).sampler.draw(DRAWS, np.random.default_rng(5))
    assert p_value(drawn, IntegerNoise(law, std**2)) > 1e-4
    for wrong in (0.95, 1.05):
        assert p_value(drawn, IntegerNoise(law, wrong * std**2)) < 1e-4
    if std < 2:  # with ample noise the two laws are the same for any test of this size
        (other,) = set(LAWS) - {law}
        assert p_value(drawn, IntegerNoise(other, std**2)) < 1e-4  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_wide_draws_have_their_law(law: str) -> None:
    # Chance of failure by bad luck: 1e-4 (fixed seed), by equally likely groups of outcomes.
    noise = IntegerNoise(law, MAX_STD**2)
    drawn = noise.sampler.draw(DRAWS, np.random.default_rng(6))
    side = np.exp(noise.log_pmf())
    cumulative = np.cumsum(np.concatenate([side[:0:-1], side]))
    places = cumulative[drawn + len(side) - 1] - np.exp(noise.log_pmf())[np.abs(drawn)] / 2
    assert stats.kstest(places, "uniform").pvalue > 1e-4
    assert stats.kstest(stats.norm(scale=MAX_STD * 1.02).cdf(drawn), "uniform").pvalue < 1e-4


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("std", [MIN_STD, 0.5, 4.0])
def test_the_tables_law_is_within_the_stated_total_variation(law: str, std: float) -> None:
    """The law that comparing 127 bits with the limits gives, as exact fractions."""
    noise = IntegerNoise(law, std**2)
    limits = [0, *noise.sampler.limits, 2**127]
    weights = noise.weights()
    total = weights[0] + 2 * sum(weights[1:])
    drawn = [Fraction(b - a, 2**127) for a, b in itertools.pairwise(limits)]
    exact = [Fraction(w if k == 0 else 2 * w, total) for k, w in enumerate(weights)]
    distance = sum(abs(a - b) for a, b in zip(drawn, exact, strict=True)) / 2
    assert distance <= total_variation(noise) < 1e-32
    assert len(weights) * 2.0**-127 <= distribution_named(noise.distribution).total_variation(
        noise.variance
    )


@pytest.mark.slow
def test_the_stated_total_variation_covers_the_widest_table() -> None:
    noise = IntegerNoise("skellam", MAX_STD**2)
    assert len(noise.sampler.limits) * 2.0**-127 <= total_variation(noise) < 1e-32


@pytest.mark.parametrize("law", LAWS)
def test_words_that_tie_with_a_limit_are_decided_by_further_bits(
    law: str, monkeypatch: Any
) -> None:
    """A first word that equals a limit's leaves it open; the exact comparison decides."""
    sampler = IntegerNoise(law, 4.0).sampler
    for size, limit in enumerate(sampler.limits[:5]):
        high, low = divmod(limit, 2**64)
        for more, magnitude in ((low, size + 1), (max(low - 1, 0), size)):
            words = [(high << 1).to_bytes(8, "little"), more.to_bytes(8, "little")]
            monkeypatch.setattr(noise, "_random_bytes", lambda *_, w=words: w.pop(0))
            assert sampler.draw(1, None).tolist() == [magnitude]
            assert not words  # the further bits were asked for


def test_the_systems_source_differs_from_draw_to_draw_and_a_seed_does_not() -> None:
    sampler = IntegerNoise("skellam", 100.0).sampler
    assert not np.array_equal(sampler.draw(50, None), sampler.draw(50, None))
    same = [sampler.draw(50, np.random.default_rng(1)) for _ in "ab"]
    assert np.array_equal(*same)
    drawn = sampler.draw(DRAWS, None)
    # Chance of failure: 1e-9, six standard errors.
    assert abs(drawn.var() - 100) < 6 * 100 * math.sqrt(2 / DRAWS) + 1
    assert drawn.dtype == np.int64


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.floats(0.01, 1e5), st.integers(0, 2**32 - 1))
def test_a_rounded_update_is_within_both_norms(dim: int, norm: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    direction = rng.standard_normal(dim)
    values = norm * direction / np.linalg.norm(direction) * (1 - 1e-12)
    limits = RoundedNorms.of(norm, dim)
    whole = to_integers(values, limits, rng)
    assert np.abs(whole - values).max() < 1
    assert np.linalg.norm(whole) <= limits.l2 * (1 + 1e-12)
    assert np.abs(whole).sum() <= limits.l1 * (1 + 1e-9)


def test_rounding_has_no_bias_where_nothing_is_drawn_again() -> None:
    # Chance of failure by bad luck: 1e-6 (five standard errors, fixed seed).
    values = np.array([0.25, -0.25, 3.5, 0.0])
    rng, limits = np.random.default_rng(2), RoundedNorms.of(100.0, 4)
    mean = np.mean([to_integers(values, limits, rng) for _ in range(600)], axis=0)
    np.testing.assert_allclose(mean, values, atol=5 * 0.5 / np.sqrt(600))
    assert mean[3] == 0


@pytest.mark.parametrize("rng", [None, np.random.default_rng(0)])
def test_what_never_fits_is_rounded_towards_zero(rng: np.random.Generator | None) -> None:
    # No corner of the cell is within the limit: after many tries the value nearest zero is sent.
    assert to_integers(np.array([1.9, -2.5]), RoundedNorms(1.0, 1.0), rng).tolist() == [1, -2]
