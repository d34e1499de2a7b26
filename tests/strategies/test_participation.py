"""Cohorts are a pure function of seed and round, and uniform."""

from __future__ import annotations

import itertools
import tracemalloc
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, chisquare, kstest

from leakmeter.auditors.rng import stream
from leakmeter.strategies.accounting.accountant import Release
from leakmeter.strategies.chosen import (
    _MANY,
    EachOnce,
    FixedSize,
    Participation,
    Poisson,
    ShuffledEpochs,
)
from tests.helpers.refusals import refuses


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


@pytest.mark.parametrize(
    "cohort",
    [
        lambda number: FixedSize(2).cohort(3, number, 6),
        lambda number: ShuffledEpochs(2).cohort(3, 3 * number + 1, 6),  # the first of its epoch
    ],
    ids=["fixed", "epochs"],
)
def test_all_cohorts_are_equally_likely(cohort: Callable[[int], list[int]]) -> None:
    # Chance of failure by bad luck: 1e-4 (fixed seed).
    assert chisquare(pair_counts([cohort(number) for number in range(1500)])).pvalue > 1e-4


def test_the_uniformity_test_rejects_neighbours_that_go_together() -> None:
    start = [FixedSize(1).cohort(3, server_round, 6)[0] for server_round in range(1500)]
    neighbours = [sorted((s, (s + 1) % 6)) for s in start]  # each client still in 1/3 of them
    assert chisquare(pair_counts(neighbours)).pvalue < 1e-9


# Each by a coin.


def test_a_poisson_round_may_be_empty_or_full() -> None:
    sizes = {len(Poisson(0.5).cohort(0, server_round, 3)) for server_round in range(1, 100)}
    assert sizes == {0, 1, 2, 3}
    assert Poisson(1.0).cohort(0, 1, 5) == [0, 1, 2, 3, 4]


# Of many.


@pytest.mark.parametrize("pattern", [FixedSize(100), Poisson(1e-7)])
def test_choosing_some_of_a_billion_takes_no_room(pattern: Participation) -> None:
    pattern.cohort(0, 1, 10**9)
    tracemalloc.start()
    try:
        cohort = pattern.cohort(0, 2, 10**9)
        assert tracemalloc.get_traced_memory()[1] < 2**18
    finally:
        tracemalloc.stop()
    assert 50 < len(cohort) < 150
    assert cohort == sorted(set(cohort))


def test_few_of_many_are_a_uniform_choice() -> None:
    # Chance of failure by bad luck: 1e-4 each (fixed seed).
    draws = [FixedSize(3).cohort(8, server_round, 10**6) for server_round in range(4000)]
    for place in range(1000, 10**6, 333_333):  # parts of equal size, by low and by high digits
        counts = Counter(client * 50 // 10**6 for cohort in draws for client in cohort)
        low = Counter((client + place) % 50 for cohort in draws for client in cohort)
        assert chisquare([counts[i] for i in range(50)]).pvalue > 1e-4
        assert chisquare([low[i] for i in range(50)]).pvalue > 1e-4
    # The smallest of three uniform numbers is Beta(1, 3); three that go together would be uniform.
    assert kstest([cohort[0] / 10**6 for cohort in draws], beta(1, 3).cdf).pvalue > 1e-4
    assert kstest([cohort[0] / 10**6 for cohort in draws], "uniform").pvalue < 1e-9


@pytest.mark.parametrize("is_lazy", [False, True])
def test_both_ways_to_draw_a_poisson_round_give_independent_coins(
    is_lazy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Chance of failure by bad luck: 1e-4 (fixed seed).
    monkeypatch.setattr("leakmeter.strategies.chosen._MANY", 1 if is_lazy else 100)
    found = Counter(tuple(Poisson(0.3).cohort(6, number, 4)) for number in range(1, 4001))
    subsets = [c for size in range(5) for c in itertools.combinations(range(4), size)]
    expected = [4000 * 0.3 ** len(c) * 0.7 ** (4 - len(c)) for c in subsets]
    assert chisquare([found[c] for c in subsets], expected).pvalue > 1e-4
    wrong = [4000 * 0.33 ** len(c) * 0.67 ** (4 - len(c)) for c in subsets]
    assert chisquare([found[c] for c in subsets], wrong).pvalue < 1e-4


def test_few_clients_have_the_coins_of_earlier_releases_and_many_their_number_first() -> None:
    for clients, is_lazy in ((_MANY - 1, False), (_MANY, True)):
        rng = stream(4, "cohort", 9)
        coins = np.flatnonzero(rng.random(clients) < 1e-3).tolist()
        assert (Poisson(1e-3).cohort(4, 9, clients) != coins) == is_lazy


# In shuffled epochs.


def test_the_order_of_an_epoch_is_drawn_once_for_all_of_its_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[tuple[Any, ...]] = []

    def noted(*path: Any) -> np.random.Generator:
        drawn.append(path)
        return stream(*path)

    monkeypatch.setattr("leakmeter.strategies.chosen.stream", noted)
    cohorts = [ShuffledEpochs(3).cohort(77, number, 12) for number in range(1, 9)]
    assert drawn == [(77, "cohort", "epoch", epoch) for epoch in (0, 1)]
    order = stream(77, "cohort", "epoch", 1).permutation(12)
    assert cohorts[5] == sorted(order[3:6].tolist())


@given(st.data())
def test_in_each_epoch_everybody_plays_at_most_once(data: st.DataObject) -> None:
    num_clients = data.draw(st.integers(1, 30))
    size = data.draw(st.integers(1, num_clients))
    seed = data.draw(st.integers(0, 2**63))
    turns = num_clients // size
    pattern = ShuffledEpochs(size)
    for epoch in range(2):
        rounds = range(epoch * turns + 1, (epoch + 1) * turns + 1)
        played = [c for r in rounds for c in pattern.cohort(seed, r, num_clients)]
        assert len(played) == len(set(played)) == turns * size
        assert set(played) <= set(range(num_clients))


def test_epochs_have_orders_of_their_own() -> None:
    pattern = ShuffledEpochs(5)
    first, second = ([pattern.cohort(1, r + 4 * e, 20) for r in range(1, 5)] for e in (0, 1))
    assert first != second
    assert all(sorted(chain(*epoch)) == list(range(20)) for epoch in (first, second))


def test_each_once_ends_when_all_have_played() -> None:
    pattern = EachOnce(4)
    played = [c for r in (1, 2) for c in pattern.cohort(9, r, 11)]
    assert len(set(played)) == 8
    assert pattern.max_rounds(11) == 2
    with refuses("rounds"):
        pattern.cohort(9, 3, 11)
    assert ShuffledEpochs(4).max_rounds(11) is None


def test_impossible_patterns_are_refused() -> None:
    for size in (0, -1):
        with refuses("size"):
            FixedSize(size)
    with refuses("size"):
        FixedSize(5).cohort(0, 1, 4)
    with refuses("size"):
        EachOnce(5).check(4)
    for rate in (0.0, -0.1, 1.1, float("nan")):
        with refuses("rate"):
            Poisson(rate)
    with refuses("epochs"):
        ShuffledEpochs(2, epochs=0)


@pytest.mark.parametrize("pattern", [FixedSize(3), Poisson(0.4), ShuffledEpochs(3)])
def test_the_same_seed_names_the_same_cohorts(pattern: Participation) -> None:
    draw = [[pattern.cohort(seed, r, 12) for r in range(1, 9)] for seed in (4, 4, 5)]
    assert draw[0] == draw[1]
    assert draw[0] != draw[2]


def test_the_accounting_learns_how_clients_are_drawn() -> None:
    assert Release(1.0, 1.0, **Poisson(0.25).sampling(40)).rate == 0.25
    sampled = Release(1.0, 1.0, **FixedSize(3).sampling(12))
    assert (sampled.sampling, sampled.cohort, sampled.population) == ("fixed", 3, 12)
    assert Release(1.0, 1.0, **EachOnce(3).sampling(12)).sampling == "none"
