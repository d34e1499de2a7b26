"""Cohorts are a pure function of seed and round, and uniform."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from strategies import FixedSize


@given(st.data())
def test_a_cohort_has_the_right_size_and_is_sorted_without_repeats(data: st.DataObject) -> None:
    num_clients = data.draw(st.integers(1, 50))
    size = data.draw(st.integers(1, num_clients))
    seed, server_round = data.draw(st.integers(0, 2**63)), data.draw(st.integers(1, 10**6))
    cohort = FixedSize(size).cohort(seed, server_round, num_clients)
    assert len(cohort) == size
    assert cohort == sorted(set(cohort))
    assert set(cohort) <= set(range(num_clients))
    assert cohort == FixedSize(size).cohort(seed, server_round, num_clients)


def test_seed_and_round_both_change_the_cohort() -> None:
    draw = FixedSize(20).cohort
    assert draw(0, 1, 100) != draw(0, 2, 100)
    assert draw(0, 1, 100) != draw(1, 1, 100)
    # The trap: seed + round as the stream's name would make these two equal.
    assert draw(0, 2, 100) != draw(1, 1, 100)


def pair_counts(cohorts: list[list[int]]) -> list[int]:
    pairs = list(itertools.combinations(range(6), 2))
    return [sum(cohort == list(pair) for cohort in cohorts) for pair in pairs]


def test_all_cohorts_are_equally_likely() -> None:
    # Chance of failure by bad luck: 1e-4 (fixed seed).
    cohorts = [FixedSize(2).cohort(3, server_round, 6) for server_round in range(3000)]
    assert chisquare(pair_counts(cohorts)).pvalue > 1e-4


def test_the_uniformity_test_rejects_neighbours_that_go_together() -> None:
    start = [FixedSize(1).cohort(3, server_round, 6)[0] for server_round in range(3000)]
    neighbours = [sorted((s, (s + 1) % 6)) for s in start]  # each client still in 1/3 of them
    assert chisquare(pair_counts(neighbours)).pvalue < 1e-9


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_below_one_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"size must be at least 1, got {size}"):
        FixedSize(size)


def test_more_than_there_are_clients_is_refused() -> None:
    with pytest.raises(ValueError, match="size must be at most num_clients = 4, got 5"):
        FixedSize(5).cohort(0, 1, 4)
