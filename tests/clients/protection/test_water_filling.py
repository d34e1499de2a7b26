"""Water filling: its exact covariance, its law, and the corners.

A draw is affine in its normals, so feeding unit vectors in their place gives the exact covariance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from leakmeter.auditors.rng import stream
from leakmeter.clients.protection import record_rule
from leakmeter.clients.protection.gradients import Gradients, LayerFactors
from leakmeter.clients.protection.record_rule import WaterFilling, function_times
from tests.helpers.numbers import FixedNormals, num_examples
from tests.helpers.refusals import refuses

Draw = Callable[[np.random.Generator], np.ndarray]


def exact_law(draw: Draw, num_normals: int) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance of a draw that is affine in `num_normals` normals."""

    def at(normals: np.ndarray) -> np.ndarray:
        fed = FixedNormals(normals)
        value = draw(cast(np.random.Generator, fed))
        assert fed.used == num_normals
        return value

    mean = at(np.zeros(num_normals))
    moves = np.array([at(unit) - mean for unit in np.eye(num_normals)])
    return mean, moves.T @ moves


def floored(sigma: np.ndarray, floor: float) -> np.ndarray:
    """Return h(Σ) as the paper has it, through the eigenvectors of Σ."""
    values, vectors = np.linalg.eigh(sigma)
    return np.asarray((vectors * np.maximum(values, floor)) @ vectors.T)


def law_of(g: np.ndarray, sigma2: float, batch: int, blocks: int = 1) -> tuple[np.ndarray, ...]:
    filling = WaterFilling(sigma2, blocks)
    normals = blocks * len(g) + g.shape[1]
    return exact_law(lambda rng: filling.draw(Gradients.of(g), batch, rng)[0], normals)


@settings(deadline=None, max_examples=num_examples(60))
@given(
    count=st.integers(1, 9), dim=st.integers(1, 9), rank=st.integers(0, 9), batch=st.integers(1, 4),
    place=st.floats(0.0, 1.0), seed=st.integers(0, 10**6),
)  # fmt: skip
def test_the_covariance_of_the_filled_estimate_is_exactly_the_floored_one(
    count: int, dim: int, rank: int, batch: int, place: float, seed: int
) -> None:
    rng = stream(seed, "gradients")
    g = rng.standard_normal((count, rank)) @ rng.standard_normal((rank, dim))
    sigma = g.T @ g / (batch * count)
    values = np.linalg.eigvalsh(sigma)
    floor = float(10 ** (-3 + 4 * place) * max(values[-1], 1e-3))  # below, among and above them
    mean, covariance = law_of(g, floor, batch)
    size = max(values[-1], floor)
    assert mean == pytest.approx(g.mean(axis=0), abs=1e-12 * size**0.5)
    assert covariance == pytest.approx(floored(sigma, floor), abs=1e-11 * size)
    assert np.linalg.eigvalsh(covariance)[0] >= floor * (1 - 1e-9) - 1e-11 * size


def p_value(draws: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> float:
    """Return how unlikely the draws are under N(mean, covariance): one chi² for each direction."""
    values, vectors = np.linalg.eigh(covariance)
    scores = (((draws - mean) @ vectors) ** 2).sum(axis=0) / values
    tails = np.minimum(stats.chi2.cdf(scores, len(draws)), stats.chi2.sf(scores, len(draws)))
    return min(1.0, 2 * len(values) * float(tails.min()))


def test_draws_follow_the_floored_law_and_neither_isotropic_noise_nor_another_floor() -> None:
    rng = stream(0, "law")
    g = rng.standard_normal((5, 8)) * np.linspace(0.3, 3, 8)
    batch, count = 2, 1500
    sigma = g.T @ g / (batch * len(g))
    floor = float(np.linalg.eigvalsh(sigma)[-3])
    filling = WaterFilling(floor)
    draws = np.array([filling.draw(Gradients.of(g), batch, rng)[0] for _ in range(count)])
    mean = g.mean(axis=0)
    assert p_value(draws, mean, floored(sigma, floor)) > 1e-3
    assert p_value(draws, mean, sigma + floor * np.eye(8)) < 1e-9
    assert p_value(draws, mean, floored(sigma, 1.3 * floor)) < 1e-9
    assert p_value(draws, mean, floored(sigma, floor / 1.3)) < 1e-9
    assert p_value(draws, np.zeros(8), floored(sigma, floor)) < 1e-9


def test_where_sampling_is_enough_nothing_is_added() -> None:
    g = stream(2, "rich").standard_normal((12, 3))
    sigma = g.T @ g / 12
    floor = 0.5 * float(np.linalg.eigvalsh(sigma)[0])
    assert law_of(g, floor, 1)[1] == pytest.approx(sigma, abs=1e-13)
    filled = WaterFilling(floor).draw(Gradients.of(g), 1, stream(0, "draw"))
    assert filled[1][0].added_variance == 0
    assert filled[1][0].eigenvalues == pytest.approx(np.linalg.eigvalsh(sigma))
    high = WaterFilling(4.0).draw(Gradients.of(g), 1, stream(0, "draw"))[1][0]
    assert high.added_variance == pytest.approx(np.trace(floored(sigma, 4.0) - sigma))


def test_a_tiny_floor_loses_no_digits_against_huge_gradients() -> None:
    g = np.array([[1e6, 0.0, 0.0], [0.0, 1e-9, 0.0]])
    _, covariance = law_of(g, 1e-12, 1)
    assert np.diag(covariance) == pytest.approx([5e11, 1e-12, 1e-12], rel=1e-3)


def test_blocks_are_independent_and_each_is_filled() -> None:
    g = stream(3, "blocks").standard_normal((4, 7))
    _, covariance = law_of(g, 0.3, 2, blocks=3)
    expected = np.zeros((7, 7))
    for start, stop in ((0, 2), (2, 4), (4, 7)):
        part = g[:, start:stop]
        expected[start:stop, start:stop] = floored(part.T @ part / 8, 0.3)
    assert covariance == pytest.approx(expected, abs=1e-12)
    assert np.linalg.eigvalsh(covariance)[0] >= 0.3 - 1e-12
    # g = (1, 1), B = D = 1, σ² = 1, blocks of one: each block has enough. With one sampling for
    # both, nothing would be added, and the pair would have a direction without noise.
    assert law_of(np.ones((1, 2)), 1.0, 1, blocks=2)[1] == pytest.approx(np.eye(2))
    mean, isotropic = law_of(np.zeros((3, 4)), 0.5, 1)  # there is nothing to sample
    assert not mean.any()
    assert isotropic == pytest.approx(0.5 * np.eye(4))


def test_factors_and_matrix_give_the_same_draw_and_the_same_spectrum() -> None:
    rng = stream(4, "factors")
    layers = tuple(
        LayerFactors(rng.standard_normal((5, a)), rng.standard_normal((5, b)), has_bias)
        for a, b, has_bias in ((4, 3, True), (3, 2, False))
    )
    factored = Gradients(layers)
    dense = Gradients.of(factored.columns(0, factored.dim))
    for blocks in (1, 4):
        filling = WaterFilling(2.0, blocks)
        one, other = (filling.draw(g, 2, stream(0, "draw")) for g in (factored, dense))
        assert one[0] == pytest.approx(other[0], abs=1e-11)
        added = sum(spectrum.added_variance for spectrum in one[1])
        whole = np.concatenate([s.eigenvalues for s in one[1]])
        assert whole.sum() == pytest.approx(np.trace(factored.gram()) / 10)
        assert 0 < added < 2.0 * factored.dim


def test_without_a_generator_draws_come_from_the_system_and_differ() -> None:
    g = Gradients.of(np.zeros((2, 50)))
    one, other = (WaterFilling(1.0).draw(g, 1, None)[0] for _ in range(2))
    assert not np.array_equal(one, other)
    assert 0.3 < one.std() < 2.0


def test_other_bad_input_is_named() -> None:
    for sigma2 in (0.0, -1.0, float("nan"), float("inf")):
        with refuses("sigma2"):
            WaterFilling(sigma2)
    with refuses("blocks"):
        WaterFilling(1.0, 0)
    with refuses("blocks"):
        WaterFilling(1.0, 3).draw(Gradients.of(np.ones((1, 2))), 1, stream(0, "x"))
    with refuses("batch_size"):
        WaterFilling(1.0).draw(Gradients.of(np.ones((1, 2))), 0, stream(0, "x"))


def root(values: np.ndarray) -> np.ndarray:
    """Return √(1 - μ), and 0 above 1: as steep as the filling at its floor."""
    return np.sqrt(np.maximum(1 - values, 0.0))


def with_spectrum(values: np.ndarray) -> np.ndarray:
    q, _ = np.linalg.qr(stream(0, "q").standard_normal((len(values), len(values))))
    return np.asarray((q * values) @ q.T)


CASES = {
    "one": np.array([0.3]),
    "two": np.array([0.3, 2.0]),
    "three": np.array([0.3, 0.3, 2.0]),
    "zero": np.zeros(20),
    "identity": np.ones(20) * 0.7,
    "spread": np.geomspace(1e-9, 1e3, 120),
    "a large cluster": np.repeat([0.0, 0.5, 3.0], 50),
    "low rank": np.concatenate([np.zeros(140), np.linspace(0.1, 2.0, 10)]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("scale", [1.0, 1e-8])
def test_it_agrees_with_the_route_through_eigenvectors(name: str, scale: float) -> None:
    matrix = scale * with_spectrum(CASES[name])
    before = matrix.copy()
    vector = stream(1, "v").standard_normal(len(matrix))
    values, found = function_times(matrix, lambda mu: root(mu / scale), vector)
    exact, vectors = np.linalg.eigh(matrix)
    truth = vectors @ (root(exact / scale) * (vectors.T @ vector))
    size = scale * max(CASES[name].max(), 1.0)
    assert values == pytest.approx(exact, abs=1e-13 * size)
    assert found == pytest.approx(truth, abs=1e-10 * size / scale)
    assert np.array_equal(matrix, before)


def test_it_falls_back_when_the_tridiagonal_solver_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(diagonal: np.ndarray, _: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        return diagonal, np.eye(len(diagonal)), 1

    matrix, vector = with_spectrum(CASES["spread"]), np.ones(120)
    _, before = function_times(matrix, root, vector)
    monkeypatch.setattr(record_rule.lapack, "dstevd", fails, raising=False)
    _, after = function_times(matrix, root, vector)
    assert after == pytest.approx(before, abs=1e-10)


def test_a_matrix_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        function_times(np.full((4, 4), np.nan), root, np.ones(4))
