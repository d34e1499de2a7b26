"""Canaries are uniform on the sphere, and the law of those that stay out is exact."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, ks_2samp, kstest

from leakmeter.auditors.canaries.canary import canary_products, canary_vector, null_maxima, schedule
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
    """Return the smallest p-value of several directions against the law of a cosine."""
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


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 40])
def test_products_in_blocks_equal_one_matrix_product(count: int) -> None:
    vector = stream(0, "vector").standard_normal(200)
    ids = range(5, 5 + count)
    matrix = np.array([canary_vector(9, i, 200) for i in ids]).reshape(count, 200)
    np.testing.assert_allclose(canary_products(9, ids, vector), matrix @ vector, atol=1e-12)


def transcript(*, rounds: int, dim: int, rank: int | None = None) -> np.ndarray:
    """Return round deltas that go in related directions with very different lengths."""
    rng = stream(0, "transcript")
    drift = rng.standard_normal(dim)
    if rank is not None:
        basis = rng.standard_normal((rank, dim))
        return rng.standard_normal((rounds, rank)) @ basis
    lengths = 10.0 ** np.arange(rounds)[:, None]
    return lengths * (drift + rng.standard_normal((rounds, dim)))


def brute_maxima(deltas: np.ndarray, draws: int) -> np.ndarray:
    """Return largest cosines of real vectors with real deltas."""
    vectors = stream(5, "fresh").standard_normal((draws, deltas.shape[1]))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    lengths = np.linalg.norm(deltas, axis=1)
    cosines = vectors @ deltas.T / np.where(lengths > 0, lengths, 1.0)
    return cosines.max(axis=1)


TRANSCRIPTS = {
    "related rounds": transcript(rounds=5, dim=30),
    "one round": transcript(rounds=1, dim=30),
    "dependent rounds": transcript(rounds=8, dim=30, rank=3),
    "more rounds than parameters": transcript(rounds=12, dim=5, rank=5),
    "a round that changed nothing": np.vstack([transcript(rounds=2, dim=30), np.zeros((1, 30))]),
}


@pytest.mark.parametrize("name", TRANSCRIPTS)
@pytest.mark.parametrize("block", [2**22, 100])
def test_null_maxima_have_the_law_of_real_vectors(name: str, block: int) -> None:
    deltas = TRANSCRIPTS[name]
    draws = null_maxima(deltas @ deltas.T, deltas.shape[1], 20_000, stream(1, "null"), block)
    assert ks_2samp(draws, brute_maxima(deltas, 20_000)).pvalue > ACCEPT


def test_wrong_nulls_are_rejected() -> None:
    deltas = TRANSCRIPTS["related rounds"]
    real, gram = brute_maxima(deltas, 20_000), deltas @ deltas.T
    unrelated = null_maxima(np.diag(np.diag(gram)), 30, 20_000, stream(1, "null"))
    wrong_size = null_maxima(gram, 40, 20_000, stream(1, "null"))
    # Without the part of a canary that no delta sees, cosines would be far too large.
    without_rest = null_maxima(gram, 5, 20_000, stream(1, "null"))
    for wrong in (unrelated, wrong_size, without_rest):
        assert ks_2samp(wrong, real).pvalue < REJECT


def test_the_last_block_may_be_smaller() -> None:
    deltas = TRANSCRIPTS["related rounds"]
    draws = null_maxima(deltas @ deltas.T, 30, 1003, stream(1, "null"), block=100)
    assert draws.shape == (1003,)
    assert np.isfinite(draws).all()
    assert len(set(draws)) == 1003


def test_a_run_that_changed_nothing_shows_only_zeros() -> None:
    assert np.array_equal(null_maxima(np.zeros((3, 3)), 30, 7, stream(1, "null")), np.zeros(7))


@given(st.data())
def test_every_canary_plays_as_often_as_planned_and_never_twice_a_round(
    data: st.DataObject,
) -> None:
    rounds, seats = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 8))
    repetitions = data.draw(st.integers(1, rounds))
    canaries = data.draw(st.integers(1, seats * rounds // repetitions))
    plan = schedule(canaries, repetitions, rounds, seed=data.draw(st.integers(0, 5)))
    assert list(plan) == list(range(1, rounds + 1))
    counts = np.bincount(list(itertools.chain(*plan.values())), minlength=canaries)
    assert counts.tolist() == [repetitions] * canaries
    for ids in plan.values():
        assert len(ids) == len(set(ids)) <= seats
    sizes = [len(ids) for ids in plan.values()]
    assert max(sizes) - min(sizes) <= 1  # spread evenly


def test_another_seed_plans_other_rounds() -> None:
    assert schedule(20, 2, 10, seed=0) != schedule(20, 2, 10, seed=1)
