"""Limits for one count and for all at once: golden values, closed forms and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from leakmeter.auditors.bounds.lower_bound import band_level, miss_rate, spread_counts, upper_limit
from leakmeter.auditors.rng import stream

# Exact levels of a band that holds at 0.05, 0.025 and 0.01, by another recursion.
BAND_LEVELS = {
    10: (7.94338e-3, 3.68184e-3, 1.36745e-3),
    100: (2.46094e-3, 1.09378e-3, 3.86956e-4),
    500: (1.45579e-3, 6.39263e-4, 2.22881e-4),
    1000: (1.21695e-3, 5.32918e-4, 1.85169e-4),
    5000: (8.64136e-4, 3.77202e-4, 1.30513e-4),
}


@pytest.mark.parametrize("num_samples", BAND_LEVELS)
def test_band_levels_match_another_recursion(num_samples):
    levels = [band_level(num_samples, level) for level in (0.05, 0.025, 0.01)]
    assert levels == pytest.approx(BAND_LEVELS[num_samples], rel=1e-5)


def test_band_levels_match_closed_forms_for_one_and_two_samples():
    assert band_level(1, 0.05) == pytest.approx(0.05, rel=1e-12)
    first, second = upper_limit(np.arange(2), 2, 0.03)
    inside = 2 * first * second - first**2  # both orders, the smaller below both limits
    assert miss_rate(2, 0.03) == pytest.approx(1 - inside, rel=1e-12)


def test_miss_rate_matches_simulation_and_keeps_small_levels():
    uniforms = np.sort(stream(7, "band").random((40_000, 30)), axis=1)
    missed = (uniforms > upper_limit(np.arange(30), 30, 0.01)).any(axis=1).mean()
    assert miss_rate(30, 0.01) == pytest.approx(missed, abs=4 * math.sqrt(0.07 / 40_000))
    # Few limits fail together when they hardly ever fail.
    assert 1e-14 < miss_rate(30, 1e-14) < 30e-14


@pytest.mark.parametrize("level", [1e-12, 0.3, 0.9, 0.999])
def test_any_level_has_a_band(level):
    assert miss_rate(40, band_level(40, level)) == pytest.approx(level, rel=1e-7)


def test_limits_match_golden_values():
    clopper_pearson = [upper_limit(k, n, 0.025) for k, n in [(0, 5000), (0, 1000), (25, 5000)]]
    golden = [0.000737503801108105, 0.003682083896865671, 0.007372195916770871]
    assert clopper_pearson == pytest.approx(golden, rel=1e-13)
    assert upper_limit(1000, 1000, 0.025) == 1
    jeffreys = [upper_limit(k, 1000, 0.025, "jeffreys") for k in (0, 1000)]
    assert jeffreys == pytest.approx([0.0025081643414222978, 0.9999995090883053], rel=1e-12)


@pytest.mark.parametrize("num_samples", [1, 2, 7, 5001, 10**6])
def test_spread_counts_are_few_and_reach_both_ends(num_samples):
    counts = spread_counts(num_samples, 200)
    assert counts.size <= 200
    assert (counts[0], counts[-1]) == (0, num_samples - 1)
