"""Mask graphs, drawn by a server or by clients: regular and connected, and what they risk."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom

from leakmeter.auditors.hook.wire import RefusedError
from leakmeter.clients.secure_sum.participant import (
    MAX_EXPOSURE,
    Policy,
    check_threshold,
    draw,
    smallest_sum,
    tail,
)
from leakmeter.strategies.secure_sum import topology
from leakmeter.strategies.secure_sum.topology import (
    MAX_ABORT,
    GraphRisk,
    assess,
    assess_drawn,
    plan_drawn,
    plan_graph,
    regular_graph,
    union,
)
from tests.helpers.numbers import few_or_many, first_fast, num_examples
from tests.helpers.refusals import refuses

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
    assert regular_graph([5, 1, 9], 2, np.random.default_rng(0)) == links
    drawn = [regular_graph(range(20), 4, np.random.default_rng(s)) for s in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]  # the order comes from the generator


@given(st.integers(1, 60), st.data())
@settings(max_examples=num_examples(60), deadline=None)
def test_tails_are_hypergeometric(population: int, data: st.DataObject) -> None:
    marked = data.draw(st.integers(0, population))
    drawn = data.draw(st.integers(0, population))
    expected = hypergeom.sf(np.arange(-1, drawn + 1), population, marked, drawn)
    np.testing.assert_allclose(tail(population, marked, drawn), expected, atol=1e-12)


def test_tails_keep_their_digits_far_out() -> None:
    # All 40 drawn of 1,000 are among 50 marked.
    exact = math.log(math.comb(50, 40)) - math.log(math.comb(1000, 40))
    assert math.log(tail(1000, 50, 40)[40]) == pytest.approx(exact, rel=1e-12)


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
    bound = topology._split_probability(12, degree, missing)
    assert truth <= bound + 1e-12
    assert bound <= 4 * truth


@pytest.mark.parametrize(
    ("num_clients", "dropout_rate", "collusion_rate"),
    first_fast(3, [(10, 0.1, 0.1), (30, 0.2, 0.1), (100, 0.3, 0.2), (1000, 0.1, 0.1)]),
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
    assert assess(10, 9, 7, 0.3, 0.3) == GraphRisk(abort=0.0, exposure=0.0)
    assert assess(10, 9, 8, 0.3, 0.3) == GraphRisk(abort=1.0, exposure=0.0)
    assert assess(10, 9, 6, 0.3, 0.3) == GraphRisk(abort=0.0, exposure=1.0)


def test_risk_names_what_is_too_likely() -> None:
    GraphRisk(abort=1e-7, exposure=1e-13).check()
    with refuses("P(abort)"):
        assess(100, 14, 9, 0.1, 0.1).check()  # fourteen are a benchmark, not a default
    with refuses("P(exposure)"):
        GraphRisk(abort=0.0, exposure=0.5).check()
    assert assess(4, 3, 4, 0.25, 0.5).exposure == 1.0  # one honest survivor is always exposed
    with pytest.raises(ValueError, match="leave two honest survivors"):
        plan_graph(4, 0.25, 0.5)
    with pytest.raises(ValueError, match=r"2·dropped \+ colluding < 100, got 40 dropped and 30"):
        plan_graph(100, 0.4, 0.3)


def test_rounding_of_rates_does_not_add_a_client() -> None:
    assert topology.count("rate", 0.07, 100) == 7
    assert topology.count("rate", 0.071, 100) == 8


@pytest.mark.parametrize(("holders", "colluders", "least"), [(10, 0, 6), (10, 3, 7), (11, 3, 8)])
def test_thresholds_stay_above_half_of_holders_and_colluders(
    holders: int, colluders: int, least: int
) -> None:
    check_threshold(holders, least, colluders)
    with refuses("threshold"):
        check_threshold(holders, least - 1, colluders)
    with refuses("threshold"):
        check_threshold(holders, holders + 1, colluders)


def test_impossible_graphs_are_refused() -> None:
    rng = np.random.default_rng(0)
    for degree in (0, 3, 10, 12):
        with refuses("degree"):
            regular_graph(range(10), degree, rng)
    with refuses("num_clients"):
        plan_graph(1, 0.0, 0.0)
    with refuses("dropout_rate"):
        plan_graph(10, 1.0, 0.0)
    with refuses("threshold"):
        assess(10, 4, 6, 0.1, 0.1)


def test_draws_are_distinct_others_and_every_other_equally_often() -> None:
    counts = np.zeros(8)
    for _ in range(4000):
        drawn = draw(3, range(1, 8), 2)
        assert len(set(drawn)) == 2
        assert 3 not in drawn
        counts[list(drawn)] += 1
    others = np.delete(counts[1:], 2)
    # Each of 6 is drawn with chance 1/3: sd 30 of 1333; six sd, chance of failure below 1e-7.
    assert np.abs(others - 4000 / 3).max() < 180


def test_two_mask_if_one_has_drawn_the_other() -> None:
    assert union([1, 2, 3, 4], {1: [2], 2: [3], 3: [2]}) == {
        1: (2,),
        2: (1, 3),
        3: (2,),
        4: (),
    }


def by_hand(n: int, k: int, t: int, bad: int, size: int) -> float:
    """Return the bound for groups of one size, from binomials of whole numbers."""
    needed, marked = 2 * t - k - 2, min(size - 1 + bad, n - 1)
    ways = sum(
        math.comb(marked, x) * math.comb(n - 1 - marked, k - x)
        for x in range(needed, k + 1)
        if k - x <= n - 1 - marked
    )
    return min(math.comb(n - bad, size) * (ways / math.comb(n - 1, k)) ** size, 1.0)


@pytest.mark.parametrize(
    ("n", "k", "t", "bad"), [(30, 14, 12, 0), (100, 29, 20, 5), (60, 20, 16, 6)]
)
def test_the_smallest_sum_is_the_largest_that_the_summed_bound_allows(
    n: int, k: int, t: int, bad: int
) -> None:
    least, chance = smallest_sum(n, k, t, bad)
    total = sum(by_hand(n, k, t, bad, size) for size in range(1, least))
    assert chance == pytest.approx(total, rel=1e-9)
    assert total <= 2**-40 < total + by_hand(n, k, t, bad, least)


def closed_groups(drawn: list[set[int]], bad: set[int], needed: int, size: int) -> bool:
    """Whether some group of this size has enough draws inside it or colluding."""
    honest = [n for n in range(len(drawn)) if n not in bad]
    return any(
        all(len(drawn[n] & ({*group} | bad)) >= needed for n in group)
        for group in combinations(honest, size)
    )


@pytest.mark.parametrize("trials", few_or_many(500, 1500))
@pytest.mark.parametrize(("k", "t", "size"), [(5, 5, 1), (5, 5, 2), (5, 5, 3), (6, 6, 2)])
def test_the_bound_is_above_what_random_graphs_do(k: int, t: int, size: int, trials: int) -> None:
    n, bad = 12, {0, 1, 2}
    rng = np.random.default_rng(k * t * size)
    found = 0
    for _ in range(trials):
        drawn = [
            {int(x) for x in rng.choice([m for m in range(n) if m != own], k, replace=False)}
            for own in range(n)
        ]
        found += closed_groups(drawn, bad, 2 * t - k - 2, size)
    bound = by_hand(n, k, t, len(bad), size)
    assert found / trials <= bound + 3 * math.sqrt(max(bound * (1 - min(bound, 1)), 1e-3) / trials)


def test_a_plan_keeps_both_risks_low_and_the_sum_large() -> None:
    plan = plan_drawn(200, 0.1, 10)
    assert plan.risk.abort <= 2**-20
    assert plan.risk.exposure <= 2**-40
    assert plan.least >= 20
    assert plan.threshold <= plan.degree + 1
    assert assess_drawn(200, plan.degree, plan.threshold, 0.1, 10) == plan


def test_what_cannot_hide_anybody_is_refused() -> None:
    with pytest.raises(ValueError, match="may open a single update"):
        assess_drawn(100, 10, 7, 0.0, 5)
    with pytest.raises(ValueError, match="too few for drawn neighbours"):
        plan_drawn(10, 0.3, 3)
    for draws in (0, 7):
        with refuses("draws"):
            draw(1, range(1, 8), draws)
    with refuses("draws"):
        smallest_sum(100, 99, 60, 0)
    with refuses("threshold"):
        smallest_sum(100, 10, 12, 0)


def test_owners_may_insist_on_larger_sums() -> None:
    """The server chooses draws and threshold: it may lower the smallest sum from 17 to 5."""
    assert [smallest_sum(30, *shape, 0)[0] for shape in ((14, 13), (26, 16))] == [17, 5]
    for least in (2, 5):
        Policy(min_threshold=least).check_draws(30, 26, 16)
    with pytest.raises(RefusedError, match=r"at least 6 honest clients.* give 5"):
        Policy(min_threshold=6).check_draws(30, 26, 16)
    Policy(min_threshold=13).check_draws(30, 14, 13)
    # Of the clients in a sum, some may collude: they are not counted as honest.
    fewer = smallest_sum(30, 14, 13, 2)[0]
    Policy(min_threshold=min(fewer + 2, 13), colluders=2).check_draws(30, 14, 13)
