"""Canaries are pure functions of their names, and uniform on the sphere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, kstest

from leakmeter.auditors.canary_draws import (
    BLOCK,
    KINDS,
    CanaryBlocks,
    DrawnCanaries,
    KindName,
    Normals,
    Sphere,
    canary_key,
    canary_products,
    canary_vector,
)
from leakmeter.auditors.rng import stream

# Statistical tests: fixed seeds, each fails by bad luck with a chance of 1e-4, and the wrong law
# beside it is rejected at 1e-6.
ACCEPT, REJECT = 1e-4, 1e-6


def test_a_canary_is_a_pure_function_of_seed_id_and_size() -> None:
    assert np.array_equal(canary_vector(3, 5, 100), canary_vector(3, 5, 100))
    for other in (canary_vector(3, 6, 100), canary_vector(4, 5, 100)):
        assert abs(other @ canary_vector(3, 5, 100)) < 0.5
    # Golden: clients and auditor may run different releases.
    np.testing.assert_allclose(canary_vector(3, 5, 2), [-0.92380, 0.38286], atol=1e-5)


@given(st.integers(0, 10**6), st.integers(1, 50))
def test_a_canary_has_length_one(canary: int, dim: int) -> None:
    assert np.linalg.norm(canary_vector(0, canary, dim)) == pytest.approx(1.0, abs=1e-12)


def uniformity(vectors: np.ndarray) -> float:
    """Return the smallest p-value of several directions against the distribution of a cosine."""
    dim = vectors.shape[1]
    law = beta(0.5, (dim - 1) / 2)  # of the squared cosine with any fixed direction
    directions = np.stack([np.eye(dim)[0], np.ones(dim) / np.sqrt(dim), np.arange(dim) - 1.0])
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    squares = (vectors @ directions.T) ** 2
    return min(kstest(column, law.cdf).pvalue for column in squares.T)


def test_canaries_are_uniform_on_the_sphere() -> None:
    vectors = np.stack([canary_vector(1, i, 6) for i in range(8000)])
    assert uniformity(vectors) > ACCEPT / 3
    signs = (vectors > 0).mean(axis=0)
    assert np.abs(signs - 0.5).max() < 4.5 * 0.5 / np.sqrt(8000)


def test_the_uniformity_test_rejects_points_of_a_cube_and_signs() -> None:
    cube = stream(1, "cube").uniform(-1, 1, (8000, 6))
    signs = stream(1, "signs").choice([-1.0, 1.0], (8000, 6))
    for wrong in (cube, signs):
        assert uniformity(wrong / np.linalg.norm(wrong, axis=1, keepdims=True)) < REJECT


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("count", "dim"), [(0, 200), (1, 200), (5, 2 * BLOCK + 13), (17, 200)])
def test_products_in_blocks_equal_one_matrix_product(count: int, dim: int, kind: KindName) -> None:
    vector, ids = stream(0, "vector").standard_normal(dim), range(5, 5 + count)
    matrix = np.array([canary_vector(9, i, dim, kind) for i in ids]).reshape(count, dim)
    np.testing.assert_allclose(canary_products(9, ids, vector, kind), matrix @ vector, atol=1e-11)
    if kind == "signs":
        np.testing.assert_allclose(np.abs(matrix), dim**-0.5, rtol=1e-12)


def test_every_bit_of_a_seed_of_128_bits_counts() -> None:
    seed = 2**127 + 5
    for bit in (0, 31, 32, 63, 64, 100, 127):
        other = canary_vector(seed ^ (1 << bit), 0, 400)
        assert abs(other @ canary_vector(seed, 0, 400)) < 0.3  # six standard deviations


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 200, 2**15 + 3])
def test_a_canary_is_added_in_place_part_by_part(dim: int, kind: KindName, dtype: type) -> None:
    start = stream(0, "start").standard_normal(dim).astype(dtype)
    vector, add = start.copy(), KINDS[kind].planted(canary_key(7, 2), dim, 3.5)
    for part in np.split(vector, [min(3, dim), min(190, dim)]):
        add(part)
    wanted = start + 3.5 * canary_vector(7, 2, dim, kind)
    np.testing.assert_allclose(vector, wanted, atol=1e-13 if dtype is np.float64 else 1e-6)


def test_remembered_canaries_are_drawn_once_and_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dim, drawn = BLOCK + 100, DrawnCanaries(most=2 * (BLOCK + 100))
    rows = np.random.default_rng(0).standard_normal((2, dim))

    def products(remembered: DrawnCanaries | None) -> np.ndarray:
        blocks, found = CanaryBlocks(5, [3, 1, 7], remembered, dim), np.zeros((2, 3))
        for start in range(0, dim, BLOCK):
            blocks.add_products(rows[:, start : start + BLOCK], found)
        return np.asarray(found / blocks.norms())

    wanted, made = products(None), list[int]()
    number_of, usual = {canary_key(5, canary): canary for canary in range(8)}, Sphere.numbers

    def counted(self: Sphere, key: int) -> Normals:
        made.append(number_of[key])
        return usual(self, key)

    monkeypatch.setattr(Sphere, "numbers", counted)
    for _ in range(2):
        assert np.array_equal(products(drawn), wanted)
    assert made == [3, 1, 7, 7]  # there is room for two
    drawn.forget()
    products(drawn)
    assert made[4:] == [3, 1, 7]
