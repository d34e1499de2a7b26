"""Canaries are pure functions of their names, and uniform on the sphere."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import beta, binomtest, kstest

from leakmeter.auditors.bounds.one_run import coin_bound
from leakmeter.auditors.canary_draws import (
    BLOCK,
    KINDS,
    MAX_SCORE,
    TAIL_FACTOR,
    CanaryBlocks,
    DrawnCanaries,
    KindName,
    Normals,
    SignStream,
    Sphere,
    canary_key,
    canary_products,
    canary_vector,
    cosine_logsf,
)
from leakmeter.auditors.rng import stream
from tests.helpers.numbers import few_or_many, most_allowed

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


# Signs are fair and the same for everyone, and the bound on their tail is the best there is

SIGNS = KINDS["signs"]
DIM = 2 * BLOCK + 13
KNOWN = [-1.0, -1.0, 1.0, 1.0, 1.0, -1.0, 1.0, 1.0]


def worst_ratio(weights: Sequence[float]) -> float:
    """Return the largest P(⟨s, u⟩ ≥ x·‖u‖) / P(Z ≥ x) over all x ≥ 0, from all signs."""
    u = np.asarray(weights, dtype=np.float64)
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=u.size)))
    sums = np.sort(signs @ u / np.linalg.norm(u))[::-1]
    # The ratio is largest at a value of the sum: between two of them only the normal tail falls.
    # Sums that differ by rounding are one value.
    shares = np.searchsorted(-sums, -sums + 1e-12, side="right") / sums.size
    return float((shares / ndtr(-sums))[sums >= 0].max())


def test_the_tail_bound_holds_for_all_signs_of_random_and_extreme_weights() -> None:
    rng = stream(0, "weights")
    extreme: list[list[float]] = [[1.0] * n for n in range(1, 13)]
    extreme += [[1.0] * few + [tiny] * 6 for few in range(1, 5) for tiny in (1e-9, 1e-3, 0.1)]
    extreme += [[2.0**-i for i in range(n)] for n in range(2, 13)]
    drawn = [np.abs(rng.standard_normal(n)) ** power for n in range(2, 11) for power in (1, 3)]
    worst = max(worst_ratio(weights) for weights in [*extreme, *drawn])  # type: ignore[arg-type]
    assert worst <= TAIL_FACTOR * (1 + 1e-9)
    assert pytest.approx(3.17866, abs=1e-5) == TAIL_FACTOR  # and no smaller factor holds:
    assert worst_ratio([1.0, 1.0]) == pytest.approx(TAIL_FACTOR, rel=1e-12)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(0, 2**128 - 1))
def test_parts_of_any_length_give_the_signs_of_the_whole(sizes: list[int], key: int) -> None:
    whole, parts = np.empty(sum(sizes)), SignStream(key)
    SignStream(key).fill(whole)
    found = [np.empty(size, dtype=np.float32) for size in sizes]
    for part in found:
        parts.fill(part)
    assert np.array_equal(np.concatenate(found), whole)
    assert (np.abs(whole) == 1).all()


def test_signs_are_known_and_fair_and_differ_between_keys() -> None:
    first, second = np.empty(10**5), np.empty(10**5)
    SignStream(1).fill(first)
    SignStream(2).fill(second)
    assert first[:8].tolist() == KNOWN  # on every machine
    for signs in (first, first * second, first[1:] * first[:-1]):  # fails by chance in 1e-4 each
        assert binomtest(int((signs > 0).sum()), signs.size).pvalue > 1e-4


def test_signs_show_at_most_one_point_two_less_than_the_sphere() -> None:
    dim = 10**6
    cosines = np.linspace(0, 13.2, 500) / math.sqrt(dim)
    lost = SIGNS.logsf(cosines, dim) - cosine_logsf(cosines, dim)
    assert cosine_logsf(cosines, dim)[-1] < -MAX_SCORE  # up to the largest score
    # Near 0 the limit is 1, so that less is lost.
    assert (lost[cosines > 1e-3] > 1.15).all()
    assert lost.max() < 1.2
    assert (SIGNS.logsf([-1.0, 0.0], dim) == 0).all()


@pytest.mark.parametrize("kind", ["one entry", "two entries", "Gaussian", "float16"])
def test_p_values_of_canaries_that_are_out_are_never_too_small(kind: str) -> None:
    # The worst change is one with two equal entries. Rounding is a function of the change.
    dim, level = 500, 0.05
    change = {
        "one entry": np.eye(dim)[0],
        "two entries": np.eye(dim)[0] + np.eye(dim)[1],
        "Gaussian": stream(0, "change").standard_normal(dim),
    }.get(kind, stream(1, "change").standard_normal(dim).astype(np.float16).astype(np.float64))
    cosines = canary_products(4, range(2000), change, "signs") / np.linalg.norm(change)
    p = np.exp(SIGNS.logsf(cosines, dim))
    for most in (level, 0.25, 0.5):  # three standard errors: fails by chance in 1e-3 each
        assert (p <= most + 1e-12).mean() <= most + 3 * math.sqrt(most / p.size)
    if kind == "two entries":  # the factor is used up: a smaller one would fail
        at = 2 * ndtr(-math.sqrt(2)) * TAIL_FACTOR / 2
        assert (p <= at + 1e-9).mean() == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("runs", few_or_many(60, 300))
def test_the_bound_of_signs_keeps_its_confidence(runs: int) -> None:
    # Gaussian noise of ε = 1 at δ = 1e-5, in which canaries of signs are in by a coin. Of bounds
    # at 90 %, a tenth may exceed it; three standard errors more fail by chance in 1e-3.
    dim, k, mean, wrong = 400, 60, 0.27, 0
    for run in range(runs):
        rng = stream(0, "coverage", run)
        is_in = rng.random(k) < 0.5
        rows = np.array([canary_vector(run, i, dim, "signs") for i in range(k)])
        # All canaries are in one sum: noise of standard deviation 1 per direction, means `mean`.
        total = rng.standard_normal(dim) + mean * rows[is_in].sum(axis=0)
        log_p = SIGNS.logsf(rows @ total / np.linalg.norm(total), dim)
        wrong += coin_bound(log_p, is_in, delta=1e-5, confidence=0.9).value > 1.0
    assert wrong <= most_allowed(runs, 0.1)
