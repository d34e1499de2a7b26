"""Clipping by one joint norm, and Gaussian noise of the right scale from either source."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from leakmeter.auditors import noise
from leakmeter.auditors.noise import gaussian
from leakmeter.clients.protection.noise_mod import clip
from tests.helpers.refusals import refuses

finite = st.floats(-1e150, 1e150, allow_nan=False)
updates = arrays(np.float64, st.integers(1, 30), elements=finite)


@given(updates, st.floats(1e-6, 1e6))
def test_a_clipped_update_is_within_the_norm_and_points_the_same_way(
    update: np.ndarray, norm: float
) -> None:
    before = update.copy()
    clipped = clip(update, norm)
    assert np.linalg.norm(clipped) <= norm * (1 + 1e-12)
    assert np.array_equal(update, before)
    assert np.all(clipped * np.sign(update) >= 0)
    if np.linalg.norm(update) <= norm * (1 - 1e-12):
        assert clipped is update


@pytest.mark.parametrize("size", [1e300, 1e-300, 5e-324, 0.0])
def test_squares_beyond_float64_do_not_matter(size: float) -> None:
    clipped = clip(np.full(4, size), 1.0)
    assert np.linalg.norm(clipped) <= 1 + 1e-12
    assert clipped.tolist() == ([0.5] * 4 if size > 1 else [size] * 4)


def test_the_norm_is_one_joint_l2_norm_of_what_is_finite() -> None:
    assert clip(np.array([3.0, 4.0]), 1.0) == pytest.approx([0.6, 0.8])
    assert clip(np.array([3.0, 4.0]), 5.0).tolist() == [3.0, 4.0]
    assert clip(np.zeros(0), 0.1).shape == (0,)
    for wrong in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="update must be finite"):
            clip(np.array([0.0, wrong]), 1.0)
    for norm in (0.0, -1.0, math.nan, math.inf):
        with refuses("norm"):
            clip(np.ones(2), norm)


def fixed_bytes(count: int) -> bytes:
    return np.random.default_rng(11).bytes(count)


SOURCES: dict[str, Callable[[], np.random.Generator | None]] = {
    "seeded": lambda: np.random.default_rng(7),
    "system": lambda: None,
}


@pytest.mark.parametrize("source", SOURCES)
def test_noise_has_the_stated_scale_and_no_other(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Chance of failure by bad luck: 1e-3 (fixed bytes and seed).
    monkeypatch.setattr(noise.os, "urandom", fixed_bytes)
    drawn = gaussian(20_000, 3.0, SOURCES[source]())
    assert stats.kstest(drawn, stats.norm(scale=3.0).cdf).pvalue > 1e-3
    for wrong in (2.8, 3.2):
        assert stats.kstest(drawn, stats.norm(scale=wrong).cdf).pvalue < 1e-3
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 4 / math.sqrt(20_000)


@pytest.mark.parametrize("byte", [b"\x00", b"\xff"])
def test_the_last_words_of_the_systems_source_are_finite(
    byte: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not np.array_equal(gaussian(8, 1.0, None), gaussian(8, 1.0, None))
    assert gaussian(4, 0.0, None).tolist() == [0.0] * 4
    for std in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="std must be in"):
            gaussian(3, std, None)
    monkeypatch.setattr(noise.os, "urandom", lambda count: byte * count)
    assert np.abs(gaussian(2, 1.0, None)) == pytest.approx([8.21, 8.21], abs=0.1)
