"""The span condition: what lies outside, what rounding is, and what samples cannot decide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from leakmeter.auditors.likelihood_ratio import sum_distribution
from leakmeter.auditors.likelihood_ratio.sum_distribution import SampleSpan, Span, outside_span
from leakmeter.auditors.rng import stream
from tests.helpers.refusals import refuses

Floats = NDArray[Any]


def subspace(
    rank: int, dim: int, samples: int, *, offset: float = 0.0, dtype: Any = np.float64
) -> tuple[Floats, Floats, Floats]:
    """Return samples of a random subspace plus a fixed point, its basis and that point."""
    rng = stream(11, "span", rank, dim, samples)
    basis = np.linalg.qr(rng.standard_normal((dim, rank)))[0].T
    point = offset * rng.standard_normal(dim)
    rows = rng.standard_normal((samples, rank)) @ basis + point
    return rows.astype(dtype), basis, point


def twin(vector: Floats, samples: Floats) -> float:
    """Return the distance from the span of the differences by least squares."""
    differences = (samples - samples.mean(axis=0)).T
    return float(
        np.linalg.norm(vector - differences @ np.linalg.lstsq(differences, vector, rcond=1e-9)[0])
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_vector_within_the_span_is_not_separated(dtype: Any) -> None:
    samples, basis, _ = subspace(12, 80, 100, offset=1.0, dtype=dtype)
    found = outside_span(3.0 * basis.sum(axis=0), samples)
    assert (found.rank, found.dim, found.samples, found.complete) == (12, 80, 100, True)
    assert found.share < 1e-5
    assert not found.outside
    assert not found.separated
    assert found.words == "100 samples span 12 of 80 dimensions; the difference is inside"


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_component_outside_separates_and_is_measured(dtype: Any) -> None:
    samples, basis, _ = subspace(12, 80, 100, offset=1.0, dtype=dtype)
    normal = np.linalg.qr(np.vstack([basis, np.ones(80)]).T)[0][:, -1]
    found = outside_span(4 * basis[0] + 3 * normal, samples)
    assert found.residual_norm == pytest.approx(3.0, rel=1e-5)
    assert found.share == pytest.approx(0.6, rel=1e-5)
    assert found.separated
    assert "0.6 of the difference is outside: separated by support" in found.words


def test_the_residual_is_that_of_least_squares() -> None:
    samples, _, _ = subspace(9, 30, 40, offset=2.0)
    for vector in stream(1, "twin").standard_normal((5, 30)):
        found = outside_span(vector, samples)
        assert found.residual_norm == pytest.approx(twin(vector, samples), rel=1e-9)


def test_the_fixed_point_of_the_sum_hides_nothing() -> None:
    samples, _, point = subspace(5, 40, 60, offset=1.0)
    assert outside_span(point, samples).separated
    linear = outside_span(point, samples, affine=False)
    assert linear.rank == 6
    assert not linear.outside


def test_a_span_that_still_grows_decides_nothing() -> None:
    samples = stream(3, "grows").standard_normal((30, 200))
    vector = stream(4, "grows").standard_normal(200)
    found = outside_span(vector, samples)
    assert (found.rank, found.complete, found.outside, found.separated) == (29, False, True, False)
    assert "not decided" in found.words


def test_a_column_that_no_sample_touches_separates_even_then() -> None:
    samples = stream(5, "idle").standard_normal((30, 200))
    samples[:, [3, 50]] = 0.0
    vector = stream(6, "idle").standard_normal(200)
    found = outside_span(vector, samples)
    assert (found.complete, found.separated, found.idle_columns) == (False, True, 2)
    assert found.idle_norm == pytest.approx(np.hypot(vector[3], vector[50]), rel=1e-12)
    assert "2 columns that no sample touches: separated by support" in found.words
    vector[[3, 50]] = 0.0
    assert not outside_span(vector, samples).separated


def test_rounding_to_float32_is_no_separation_but_a_little_more_is() -> None:
    # Rows of a softmax layer's update sum to zero over the classes, up to rounding.
    rng = stream(7, "softmax")
    samples = rng.standard_normal((120, 10, 6))
    samples -= samples.mean(axis=1, keepdims=True)
    pair = samples[0] - samples[1]
    flat = samples[2:].reshape(118, 60).astype(np.float32)
    found = outside_span(pair.astype(np.float32).ravel(), flat)
    assert (found.rank, found.separated) == (54, False)
    pair[0, 0] += 0.01
    assert outside_span(pair.astype(np.float32).ravel(), flat).separated


def test_a_limit_on_the_rank_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    samples, basis, _ = subspace(20, 50, 200)
    monkeypatch.setattr(sum_distribution, "_MAX_RANK", 8)
    found = outside_span(basis[0], samples)
    assert (found.rank, found.complete, found.separated) == (8, False, False)


def test_a_wide_float32_span_needs_no_matrix_of_its_square() -> None:
    rng = stream(8, "wide")
    basis = rng.standard_normal((60, 6_000), dtype=np.float32)
    samples = rng.standard_normal((100, 60), dtype=np.float32) @ basis
    span = SampleSpan(samples)
    inside = span.outside(rng.standard_normal(60) @ basis)
    assert 60 <= inside.rank <= 61  # rounding may look like a direction, and then it is nearly none
    assert not inside.outside
    assert span.outside(rng.standard_normal(6_000)).share > 0.99


def test_the_zero_vector_lies_within_anything() -> None:
    found = outside_span(np.zeros(3), np.zeros((4, 3)))
    assert isinstance(found, Span)
    assert (found.rank, found.share, found.separated, found.idle_columns) == (0, 0.0, False, 3)
    assert outside_span(np.array([0.0, 1.0, 0.0]), np.zeros((4, 3))).separated


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: outside_span(np.ones(3), np.ones((2, 3, 3))), "rows"),
        (lambda: outside_span(np.ones(3), [np.inf, 0, 0]), "rows"),
        (lambda: outside_span(np.ones(2), np.ones((2, 3))), "vector"),
        (lambda: outside_span([1.0, np.nan], np.ones((2, 2))), "vector"),
    ],
)
def test_a_wrong_argument_is_named(call: Any, message: str) -> None:
    with refuses(message):
        call()
