"""Rounding to integers: unbiased, within its bound whatever is drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakmeter.auditors.noise import RoundedNorms
from leakmeter.clients.protection.noise_mod import to_integers


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
