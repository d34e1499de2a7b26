"""Mask graphs: regular and connected, and their risks against exact enumeration."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom

from leakmeter.clients.secure_sum import graph
from leakmeter.clients.secure_sum.graph import (
    MAX_ABORT,
    MAX_EXPOSURE,
    Risk,
    assess,
    check_threshold,
    complete_graph,
    plan_graph,
    regular_graph,
)
from tests.helpers.numbers import few_or_many, num_examples

# Neighbours on the circle 0 … n − 1; drawing who drops is the same as drawing the order.
Circle = dict[int, tuple[int, ...]]


def circle(num_clients: int, degree: int) -> Circle:
    reach = [j for h in range(1, degree // 2 + 1) for j in (-h, h)]
    return {i: tuple((i + j) % num_clients for j in reach) for i in range(num_clients)}


def is_connected(links: Circle, members: set[int]) -> bool:
    seen, todo = set(), [min(members)]
    while todo:
        node = todo.pop()
        seen.add(node)
        todo += [other for other in links[node] if other in members and other not in seen]
    return seen == members


def enumerate_risk(
    num_clients: int, degree: int, threshold: int, dropped: int, colluding: int
) -> tuple[float, float]:
    """Exact probabilities of abort and exposure over all choices of who drops and colludes."""
    links, everyone = circle(num_clients, degree), set(range(num_clients))
    holders = {i: {i, *links[i]} for i in everyone}
    aborts, exposures, cases = 0, 0, 0
    for gone in map(set, combinations(sorted(everyone), dropped)):
        short = any(len(holders[i] - gone) < threshold for i in everyone)
        for bad in map(set, combinations(sorted(everyone - gone), colluding)):
            greedy = any(
                2 * threshold <= degree + 1 + len(holders[i] & bad) for i in everyone - bad
            )
            apart = not is_connected(links, everyone - gone - bad)
            cases, aborts, exposures = cases + 1, aborts + short, exposures + (greedy or apart)
    return aborts / cases, exposures / cases


@given(st.sets(st.integers(0, 99), min_size=3, max_size=30), st.data())
def test_regular_graphs_are_regular_symmetric_and_connected(
    clients: set[int], data: st.DataObject
) -> None:
    degree = 2 * data.draw(st.integers(1, (len(clients) - 1) // 2))
    links = regular_graph(sorted(clients), degree, np.random.default_rng(len(clients)))
    assert links.keys() == clients
    for own, peers in links.items():
        assert len(set(peers)) == degree
        assert own not in peers
        assert all(own in links[peer] for peer in peers)
    assert is_connected(links, clients)


def test_complete_graph_joins_all() -> None:
    links = {1: (5, 9), 5: (1, 9), 9: (1, 5)}
    assert complete_graph([5, 1, 9]) == links
    assert regular_graph([5, 1, 9], 2, np.random.default_rng(0)) == links


def test_order_comes_from_the_generator() -> None:
    drawn = [regular_graph(range(20), 4, np.random.default_rng(s)) for s in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


@given(st.integers(1, 60), st.data())
@settings(max_examples=num_examples(60), deadline=None)
def test_tails_are_hypergeometric(population: int, data: st.DataObject) -> None:
    marked = data.draw(st.integers(0, population))
    drawn = data.draw(st.integers(0, population))
    expected = hypergeom.sf(np.arange(-1, drawn + 1), population, marked, drawn)
    np.testing.assert_allclose(graph.tail(population, marked, drawn), expected, atol=1e-12)


def test_tails_keep_their_digits_far_out() -> None:
    # All 40 drawn of 1,000 are among 50 marked.
    exact = math.log(math.comb(50, 40)) - math.log(math.comb(1000, 40))
    assert math.log(graph.tail(1000, 50, 40)[40]) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(
    ("num_clients", "degree", "threshold", "dropped", "colluding"),
    [(10, 4, 4, 3, 1), (10, 4, 3, 4, 2), (10, 6, 5, 4, 2), (11, 4, 4, 2, 3), (9, 2, 2, 3, 2)],
)
def test_risks_are_above_the_truth_and_near_it(
    num_clients: int, degree: int, threshold: int, dropped: int, colluding: int
) -> None:
    exact = enumerate_risk(num_clients, degree, threshold, dropped, colluding)
    risk = assess(num_clients, degree, threshold, dropped / num_clients, colluding / num_clients)
    for truth, bound in zip(exact, (risk.abort, risk.exposure), strict=True):
        assert truth <= bound + 1e-12
        # Adding up over clients counts overlapping failures twice; where they are rare, hardly.
        assert bound <= min(1.0, 4 * truth) + 1e-12


@pytest.mark.parametrize(("degree", "missing"), [(2, 4), (4, 5), (4, 6), (6, 7)])
def test_chance_of_falling_apart_is_above_the_truth_and_near_it(degree: int, missing: int) -> None:
    links, everyone = circle(12, degree), set(range(12))
    choices = [everyone - set(gone) for gone in combinations(range(12), missing)]
    truth = np.mean([not is_connected(links, members) for members in choices])
    bound = graph._split_probability(12, degree, missing)
    assert truth <= bound + 1e-12
    assert bound <= 4 * truth


@pytest.mark.parametrize("trials", few_or_many(1500, 3000))
def test_risks_agree_with_simulation_of_real_graphs(trials: int) -> None:
    rng, aborts, exposures = np.random.default_rng(0), 0, 0
    gone, bad, everyone = set(range(8)), set(range(8, 14)), set(range(40))
    for _ in range(trials):
        links = regular_graph(range(40), 12, rng)
        holders = {i: {i, *links[i]} for i in everyone}
        aborts += any(len(holders[i] - gone) < 7 for i in everyone)
        greedy = any(13 + len(holders[i] & bad) >= 2 * 9 for i in everyone - bad)
        exposures += greedy or not is_connected(links, everyone - gone - bad)
    low, high = assess(40, 12, 7, 0.2, 0.15), assess(40, 12, 9, 0.2, 0.15)
    for seen, bound in ((aborts / trials, low.abort), (exposures / trials, high.exposure)):
        error = 3 * math.sqrt(seen / trials)
        assert 0.01 < seen <= bound + error
        assert bound <= 6 * seen  # neighbours on the circle fail together and are counted each


@pytest.mark.parametrize(
    ("num_clients", "dropout_rate", "collusion_rate"),
    [(10, 0.1, 0.1), (30, 0.2, 0.1), (100, 0.1, 0.1), (100, 0.3, 0.2), (1000, 0.1, 0.1)],
)
def test_plans_are_the_smallest_that_hold(
    num_clients: int, dropout_rate: float, collusion_rate: float
) -> None:
    plan = plan_graph(num_clients, dropout_rate, collusion_rate)
    rates = (dropout_rate, collusion_rate)
    assert assess(num_clients, plan.degree, plan.threshold, *rates) == plan.risk
    assert plan.risk.abort <= MAX_ABORT
    assert plan.risk.exposure <= MAX_EXPOSURE
    for degree in range(2, plan.degree, 2):
        for threshold in range(1, degree + 2):
            risk = assess(num_clients, degree, threshold, *rates)
            assert risk.abort > MAX_ABORT or risk.exposure > MAX_EXPOSURE
    lower = assess(num_clients, plan.degree, plan.threshold - 1, *rates)
    assert lower.exposure > MAX_EXPOSURE


def test_complete_graph_has_no_chance_in_it() -> None:
    # 2·threshold > n + T and threshold ≤ survivors, nothing else.
    assert assess(10, 9, 7, 0.3, 0.3) == Risk(abort=0.0, exposure=0.0)
    assert assess(10, 9, 8, 0.3, 0.3) == Risk(abort=1.0, exposure=0.0)
    assert assess(10, 9, 6, 0.3, 0.3) == Risk(abort=0.0, exposure=1.0)


def test_fourteen_neighbours_are_a_benchmark_not_a_default() -> None:
    with pytest.raises(ValueError, match="must be at most"):
        assess(100, 14, 9, 0.1, 0.1).check()
    assert plan_graph(100, 0.1, 0.1).degree > 14


def test_risk_names_what_is_too_likely() -> None:
    Risk(abort=1e-7, exposure=1e-13).check()
    with pytest.raises(ValueError, match=r"P\(abort\) must be at most 9.54e-07, got 0.5"):
        Risk(abort=0.5, exposure=0.0).check()
    with pytest.raises(ValueError, match=r"P\(exposure\) must be at most 9.09e-13, got 0.5"):
        Risk(abort=0.0, exposure=0.5).check()


def test_one_honest_survivor_is_always_exposed() -> None:
    assert assess(4, 3, 4, 0.25, 0.5).exposure == 1.0
    with pytest.raises(ValueError, match="leave two honest survivors"):
        plan_graph(4, 0.25, 0.5)


def test_rates_that_leave_no_threshold_are_refused() -> None:
    with pytest.raises(ValueError, match=r"2·dropped \+ colluding < 100, got 40 dropped and 30"):
        plan_graph(100, 0.4, 0.3)


def test_rounding_of_rates_does_not_add_a_client() -> None:
    assert graph.count("rate", 0.07, 100) == 7
    assert graph.count("rate", 0.071, 100) == 8


@pytest.mark.parametrize(("holders", "colluders", "least"), [(10, 0, 6), (10, 3, 7), (11, 3, 8)])
def test_thresholds_stay_above_half_of_holders_and_colluders(
    holders: int, colluders: int, least: int
) -> None:
    check_threshold(holders, least, colluders)
    with pytest.raises(ValueError, match=rf"threshold must be in \[{least}, {holders}\]"):
        check_threshold(holders, least - 1, colluders)
    with pytest.raises(ValueError, match=f"got {holders + 1}"):
        check_threshold(holders, holders + 1, colluders)


def test_impossible_graphs_are_refused() -> None:
    rng = np.random.default_rng(0)
    for degree in (0, 3, 10, 12):
        with pytest.raises(ValueError, match=rf"degree must be even and .* got {degree}"):
            regular_graph(range(10), degree, rng)
    with pytest.raises(ValueError, match="clients must be at least two and distinct"):
        complete_graph([1, 1])
    with pytest.raises(ValueError, match="num_clients must be at least 2, got 1"):
        plan_graph(1, 0.0, 0.0)
    with pytest.raises(ValueError, match=r"dropout_rate must be in \[0, 1\), got 1.0"):
        plan_graph(10, 1.0, 0.0)
    with pytest.raises(ValueError, match=r"threshold must be in \[1, 5\], got 6"):
        assess(10, 4, 6, 0.1, 0.1)
