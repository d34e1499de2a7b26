"""Signs are fair and the same for everyone, and the bound on their tail is the best there is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import binomtest

from leakmeter.auditors.bounds.one_run import coin_bound
from leakmeter.auditors.canary_draws import (
    BLOCK,
    KINDS,
    MAX_SCORE,
    TAIL_FACTOR,
    SignStream,
    canary_products,
    canary_vector,
    cosine_logsf,
)
from leakmeter.auditors.rng import stream
from tests.helpers.numbers import few_or_many, most_allowed

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
