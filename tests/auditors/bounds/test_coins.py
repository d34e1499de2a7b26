"""Bounds from p-values of canaries: closed forms, edges, properties and coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import expit, log_ndtr

from leakmeter.auditors.bounds.lower_bound import epsilon_lower_bound
from leakmeter.auditors.bounds.one_run import (
    coin_bound,
    log_mean,
    mixture_test,
    scores_at,
    share_bound,
    shares,
)
from leakmeter.auditors.rng import stream
from leakmeter.auditors.wording import Assumption
from leakmeter.papers.gaussian import gaussian_sigma
from tests.helpers.numbers import few_or_many, first_fast, most_allowed, num_examples

steady = settings(derandomize=True, deadline=None, max_examples=num_examples(60))
log_ps = st.one_of(st.floats(-60, 0), st.just(-math.inf), st.integers(-5, 0).map(float))
canaries = st.lists(st.tuples(log_ps, st.booleans()), min_size=1, max_size=40)
scores = st.lists(log_ps.map(abs), min_size=1, max_size=80)


def allowed(score, epsilon):
    """Return the largest P(in and −ln p ≥ score) under ε-DP, given the release."""
    hit, miss = math.exp(epsilon - score), math.exp(-epsilon) * -math.expm1(-score)
    return hit / (1 + hit + miss)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0, 40.0])
def test_evidence_is_measured_by_the_largest_chance_that_dp_allows(epsilon):
    for score in (epsilon, epsilon + 0.2, epsilon + 3):
        q = allowed(score, epsilon)
        assert scores_at(math.log((1 - q) / q), epsilon) == pytest.approx(score, abs=1e-9)
    assert allowed(0.0, epsilon) == pytest.approx(1 / (1 + math.exp(-epsilon)))


def test_one_canary_proves_what_its_coin_allows():
    # One canary refutes every ε with q(10) ≤ 5 %: bins and the standard errors of the draws take
    # less than 0.3 of it.
    exact = brentq(lambda epsilon: allowed(10.0, epsilon) - 0.05, 0, 10)
    assert exact - 0.3 < coin_bound([-10.0], [True], delta=0).value < exact
    assert coin_bound([-10.0], [False], delta=0).value == 0


def test_one_visible_canary_of_a_thousand_is_enough():
    # The largest of k scores proves s + ln(α/k) at best.
    log_p = np.zeros(1000)
    log_p[7] = -60.0
    value = coin_bound(log_p, np.arange(1000) < 500, delta=0).value
    best = 60 + math.log(0.05 / 1000)
    assert best - 2 < value < best


def test_the_share_bound_is_the_best_of_five_closed_forms():
    # j = 32, 16, 8, 4, 2 of 64 with a hundredth of the failures each.
    values = np.arange(64.0)
    expected = [64 - j + math.log(0.01 * j / 64 - 1e-5) for j in (32, 16, 8, 4, 2)]
    assert share_bound(values, delta=1e-5).value == pytest.approx(max(expected), rel=1e-12)
    # All five ask the same of one canary: one test, with all the failures.
    assert share_bound([50.0], delta=1e-5).value == pytest.approx(50 + math.log(0.05 - 1e-5))


@pytest.mark.parametrize(
    ("epsilon", "shown"), first_fast(1, [(3.0, 0.82), (1.0, 0.1), (10.0, 5.1), (50.0, 37.5)])
)
def test_what_coins_and_p_values_show_of_gaussian_scores(epsilon, shown):
    # 278 coins, 139 in; 100 runs. The spread of their mean is below 0.05, 0.05, 0.1 and 0.5.
    rng, included = stream(7, "headline"), np.arange(278) < 139
    values = []
    for _ in range(100):
        z = rng.normal(size=278) + included / gaussian_sigma(epsilon, 1e-5)
        values.append(coin_bound(log_ndtr(-z), included, delta=1e-5).value)
    assert np.mean(values) == pytest.approx(shown, rel=0.06, abs=0.1)
    assert sum(value > epsilon for value in values) <= most_allowed(100)


def test_nothing_is_shown_where_delta_uses_up_the_failures():
    for k, delta in ((100, 4.96e-4), (100, 0.5), (1000, 1e-4), (10**4, 1e-5)):  # k·δ > 0.0495
        assert coin_bound([-math.inf] * k, [True] * k, delta=delta).value == 0
    assert coin_bound([-math.inf] * 100, [True] * 100, delta=4.94e-4).value == math.inf


def test_delta_costs_half_as_much_at_a_large_epsilon():
    # At ε = 0 the level is 5 % − k·δ, far above it 5 % − k·δ/2.
    log_p, included = np.log(stream(7, "delta").random(100)) - 20, np.arange(100) < 50
    value = coin_bound(log_p, included, delta=4e-4).value
    assert value == coin_bound(log_p, included, delta=0, confidence=0.97).value
    assert value > coin_bound(log_p, included, delta=0, confidence=0.99).value > 10


def test_infinite_scores_count_and_never_give_nan():
    half, all_seen = np.arange(40) < 20, [math.inf] * 64
    assert coin_bound(np.where(half, -math.inf, 0.0), half, delta=1e-6).value == math.inf
    assert coin_bound(np.where(half, 0.0, -math.inf), half, delta=1e-6).value == 0
    assert coin_bound([-math.inf], [True], delta=0, confidence=1 - 1e-9).value == math.inf
    assert share_bound([0.0] * 40, delta=1e-6).value == 0
    # One of forty is at infinity: its share, 1/40, is below the smallest that is looked at.
    assert share_bound([math.inf] + [0.0] * 39, delta=1e-6).value == 0
    # 0.05/5 · j/n is at most a two-hundredth: δ ends what a share may fail.
    assert share_bound(all_seen, delta=0.005).value == 0
    assert share_bound(all_seen, delta=0.004).value == math.inf


def test_ties_are_never_split():
    # 20 equal scores reach the threshold together; a hair below, they still do.
    included = np.arange(40) < 20
    tied = coin_bound(np.full(40, -8.0), included, delta=1e-6).value
    apart = coin_bound(-8.0 - 1e-9 * np.arange(40), included, delta=1e-6).value
    assert tied == pytest.approx(apart, abs=1e-7)
    fewer = coin_bound(np.full(40, -8.0), np.arange(40) < 17, delta=1e-6).value
    assert fewer < tied


@steady
@given(canaries, st.floats(0, 0.05), st.randoms(use_true_random=False))
def test_the_order_of_canaries_and_the_p_values_of_those_out_do_not_matter(found, delta, random):
    shuffled = random.sample(found, len(found))
    log_p, included = zip(*found, strict=True)
    bound = coin_bound(log_p, included, delta=delta)
    assert coin_bound(*zip(*shuffled, strict=True), delta=delta) == bound
    other = [p if is_in else -1.0 for p, is_in in found]
    assert coin_bound(other, included, delta=delta) == bound


@steady
@given(canaries, st.integers(0, 39), st.floats(0, 30), st.floats(0, 0.02))
def test_the_coin_bound_rises_with_scores_and_falls_with_delta_and_confidence(
    found, which, more, delta
):
    log_p, included = map(list, zip(*found, strict=True))
    value = coin_bound(log_p, included, delta=delta).value
    assert 0 <= value <= max([0.0, *(-p + math.log(len(found) * 20) for p in log_p)])
    assert coin_bound(log_p, included, delta=delta + 0.01).value <= value
    assert coin_bound(log_p, included, delta=delta, confidence=0.99).value <= value
    which %= len(found)
    higher = [p - more * (i == which) for i, p in enumerate(log_p)]
    assert coin_bound(higher, included, delta=delta).value >= value
    joined = [is_in or i == which for i, is_in in enumerate(included)]
    assert coin_bound(log_p, joined, delta=delta).value >= value


@steady
@given(scores, st.integers(0, 79), st.floats(0, 30), st.floats(0, 0.01), st.randoms())
def test_the_share_bound_rises_with_scores_and_falls_with_delta(values, which, more, delta, random):
    bound = share_bound(values, delta=delta)
    assert 0 <= bound.value <= max(values)
    assert share_bound(random.sample(values, len(values)), delta=delta) == bound
    assert share_bound(values, delta=delta + 0.001).value <= bound.value
    assert share_bound(values, delta=delta, confidence=0.99).value <= bound.value
    higher = [s + more * (i == which % len(values)) for i, s in enumerate(values)]
    assert share_bound(higher, delta=delta).value >= bound.value


def test_neither_needs_a_condition_and_both_say_what_went_in():
    coins = coin_bound([-3.0, -1.0, 0.0], [True, False, True], delta=1e-5, confidence=0.9)
    assert (coins.kind, coins.delta, coins.confidence) == ("lower_bound", 1e-5, 0.9)
    assert coins.sample_sizes == {"canaries": 3, "in": 2}
    assert (coins.cap, coins.saturated, coins.is_conditional) == (None, False, False)
    assert Assumption.FAIR_COINS in coins.assumptions
    assert coins == coin_bound([-3.0, -1.0, 0.0], [1, 0, 1], delta=1e-5, confidence=0.9)
    share = share_bound([3.0, 0.0], delta=1e-5)
    assert (share.kind, share.sample_sizes) == ("lower_bound", {"in": 2})
    assert not share.is_conditional
    assert Assumption.FAIR_COINS not in share.assumptions


def worst(rng, k, epsilon):
    """Return ln p and coins with P(in and score ≥ c) = q(c): above all that DP allows."""
    u = rng.random(k)
    scores = scores_at(np.log((1 - u) / u), epsilon)
    return -np.maximum(scores, 0.0), scores >= 0


def extreme(rng, k, epsilon, above):
    """Return ln p and coins given a release, at the edge of ε-DP.

    The density of p, in relative to out, is e^ε where −ln p ≥ ε + `above`, and e^−ε elsewhere.
    """
    edge = np.exp(-epsilon - np.broadcast_to(above, k))
    hit, miss = edge * math.exp(epsilon), (1 - edge) * math.exp(-epsilon)
    place, u = rng.random(k) * (1 + hit + miss), rng.random(k)
    is_hit = (place >= 1) & (place < 1 + hit)
    return np.log(np.where(is_hit, edge * u, edge + (1 - edge) * u)), place >= 1


def random_edges(rng, k, epsilon):
    """Return canaries with an edge of their own each."""
    return extreme(rng, k, epsilon, rng.exponential(2.0, k))


def chosen_edges(rng, k, epsilon):
    """Return canaries whose edge follows what came before: low after hits, high after misses."""
    found, above = [], 1.0
    for _ in range(k):
        log_p, is_in = extreme(rng, 1, epsilon, above)
        is_hit = is_in[0] and -log_p[0] >= epsilon + above
        above = max(above / 2, 0.1) if is_hit else min(above + 0.05, 5.0)
        found.append((log_p[0], is_in[0]))
    log_p, is_in = zip(*found, strict=True)
    return np.array(log_p), np.array(is_in)


def one_flag(rng, k, epsilon):
    """Return canaries that all leak or all do not, by one coin that they share."""
    log_p, is_in = extreme(rng, k, epsilon, 0.5)
    return (log_p, is_in) if rng.random() < 0.5 else (np.log(rng.random(k)), rng.random(k) < 0.5)


EXTREMES = {
    "edge at ε + 0.2": lambda rng, k, epsilon: extreme(rng, k, epsilon, 0.2),
    "edge at ε + 2": lambda rng, k, epsilon: extreme(rng, k, epsilon, 2.0),
    "random edges": random_edges,
    "edges by what came before": chosen_edges,
    "one flag for all": one_flag,
}


@pytest.mark.parametrize("runs", few_or_many(20, 2000))
@pytest.mark.parametrize(("k", "epsilon"), first_fast(1, [(30, 4.0), (100, 1.0)]))
@pytest.mark.parametrize("name", EXTREMES)
def test_the_coin_bound_keeps_its_confidence_at_the_edge_of_dp(name, k, epsilon, runs):
    rng = stream(7, "extreme", name, k)
    found = (EXTREMES[name](rng, k, epsilon) for _ in range(runs))
    above = sum(coin_bound(*one, delta=0).value > epsilon for one in found)
    assert above <= most_allowed(runs)


@pytest.mark.parametrize("runs", few_or_many(20, 2000))
@pytest.mark.parametrize("shown", ["all", "each"])
def test_the_coin_bound_covers_what_is_shown_with_chance_delta(shown, runs):
    # On top of an edge of DP, with chance δ all canaries are shown at once, or each by itself.
    rng, delta, epsilon, above = stream(7, "shown", shown), 3e-4, 1.0, 0
    for _ in range(runs):
        log_p, included = extreme(rng, 100, epsilon, 0.5)
        is_shown = rng.random(1 if shown == "all" else 100) < delta
        log_p = np.where(is_shown, -math.inf, log_p)
        above += coin_bound(log_p, included, delta=delta).value > epsilon
    assert above <= most_allowed(runs)


@pytest.mark.parametrize("runs", few_or_many(100, 2000))
@pytest.mark.parametrize(("k", "epsilon"), [(40, 0.0), (20, 1.0), (100, 3.0)])
def test_the_coin_bound_keeps_its_confidence_and_nearly_uses_it_up(k, epsilon, runs):
    rng = stream(7, "worst", k)
    above = sum(coin_bound(*worst(rng, k, epsilon), delta=0).value > epsilon for _ in range(runs))
    assert 0.02 * runs < above <= most_allowed(runs)


@pytest.mark.slow
def test_without_its_delta_term_the_coin_bound_would_fail():
    # Each canary is shown by itself with chance δ: one of those in is, in 1 − (1 − δ/2)^100 = 4 %
    # of the runs, on top of the others.
    rng, delta = stream(7, "named"), 8e-4
    without = 0
    for _ in range(2000):
        log_p, included = worst(rng, 100, 1.0)
        log_p = np.where(rng.random(100) < delta, -math.inf, log_p)
        without += coin_bound(log_p, included, delta=0).value > 1
    assert without > most_allowed(2000)


def shared_coin(rng, p, score, k=100):
    """Return ln p and coins if one coin of chance `p` shows all canaries at `score`."""
    included = rng.random(k) < 0.5
    shown = included & (rng.random() < p)
    return np.where(shown, -score, np.log(rng.random(k))), included


@pytest.mark.parametrize(
    ("p", "delta"),
    first_fast(1, [(0.06, 1e-4), (0.8, 1e-4), (0.06, 0.045), (0.8, 0.6), (0.009, 1e-3)]),
)
def test_scores_that_hang_on_one_coin_break_independence_only(p, delta):
    # Truth: the others' scores show the coin, so ε = t + ln(1 − δ/p). 500 runs.
    rng, truth = stream(7, "shared", round(100 * p)), 20 + math.log1p(-delta / p)
    above = np.zeros(3)
    for _ in range(500):
        log_p, included = shared_coin(rng, p, 20.0)
        inside = -log_p[included]
        values = (
            coin_bound(log_p, included, delta=delta).value,
            share_bound(inside, delta=delta).value,
            epsilon_lower_bound(inside, null_logsf=np.negative, delta=delta, same_run=True).value,
        )
        above += np.array(values) > truth
    assert above[0] <= most_allowed(500)
    assert above[1] <= most_allowed(500)
    if delta == 0.6:
        assert above[2] > 300, "the conditional bound claims too much whenever the coin shows all"


# The statistic that combines canaries: what makes it valid, and its level in the worst case

NUMBERS = [1, 2, 7, 40, 1000]


def null_of(edges: np.ndarray) -> np.ndarray:
    """Return the chance of each bin if P(evidence ≥ a) = 1/(1 + e^a)."""
    return -np.diff(expit(-edges), prepend=1.0, append=0.0)


@pytest.mark.parametrize("num", NUMBERS)
def test_every_part_rises_with_the_evidence_and_has_the_mean_one(num: int) -> None:
    test = mixture_test(num)
    assert (np.diff(test.log_ratios, axis=0) >= 0).all()
    np.testing.assert_allclose(null_of(test.edges) @ np.exp(test.log_ratios), 1, rtol=1e-12)
    assert (np.diff(test.edges) > 0).all()


@pytest.mark.parametrize("num", NUMBERS)
def test_thresholds_fall_with_the_level_and_never_exceed_that_of_the_mean(num: int) -> None:
    levels = [1e-300, 1e-6, 1e-3, 0.01, 0.05, 0.2]
    needed = [mixture_test(num).threshold(level) for level in levels]
    assert needed == sorted(needed, reverse=True)
    assert needed[0] == -math.log(1e-300)  # no draw is that far out
    for level, ln_t in zip(levels[1:], needed[1:], strict=True):
        assert ln_t < -math.log(level)


@pytest.mark.parametrize("runs", few_or_many(2000, 100_000))
@pytest.mark.parametrize("num", NUMBERS)
def test_in_the_worst_case_each_level_is_kept_and_nearly_used_up(num: int, runs: int) -> None:
    # The draws that set the threshold are fixed: their three standard errors are a tenth of the
    # level, and bins take as much again from one or two canaries.
    test, rng = mixture_test(num), stream(3, "worst case", num)
    edges, null = test.edges, null_of(test.edges)
    counts = rng.multinomial(num, null / null.sum(), runs)
    reached = num - counts.cumsum(axis=1)[:, : edges.size]
    found = test.log_statistic(reached, num)
    for level in (0.2, 0.05, 0.01):
        above = (found > test.threshold(level)).sum()
        assert above <= most_allowed(runs, level)
        assert above >= 0.7 * level * runs - 3 * math.sqrt(runs * level)


def test_the_statistic_is_the_mean_of_products() -> None:
    """A slow twin that multiplies canary by canary."""
    test, rng = mixture_test(7), stream(3, "twin")
    evidence = rng.logistic(size=7)
    ratios = np.exp(test.log_ratios)[np.searchsorted(test.edges, evidence, side="right")]
    reached = (evidence[:, None] >= test.edges).sum(axis=0)
    slow = math.log(ratios.prod(axis=0).mean())
    assert float(test.log_statistic(reached, 7)) == pytest.approx(slow, rel=1e-12)
    both = test.log_statistic(np.stack([reached, np.zeros_like(reached)]), 7)
    assert both[0] == pytest.approx(slow, rel=1e-12)
    assert both[1] < both[0]  # all out


def test_shares_end_where_no_visible_canary_would_be_expected() -> None:
    found = [shares(num).tolist() for num in (1, 7, 8, 200)]
    assert found == [[1.0], [1.0], [1.0, 0.25], [1.0, 0.25, 0.0625, 0.015625]]


def test_means_of_huge_numbers_do_not_overflow() -> None:
    logs = np.array([[1000.0, 1000.0], [-2000.0, -1000.0]])
    assert log_mean(logs) == pytest.approx([1000.0, -1000 - math.log(2)])
