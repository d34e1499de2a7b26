"""P-values of canaries: exact where a formula is, honest where a simulation stands in."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import t as student

from leakmeter.auditors.bounds.lower_bound import epsilon_lower_bound
from leakmeter.auditors.bounds.one_run import coin_bound, headline, share_bound
from leakmeter.auditors.canaries.one_shot import prove
from leakmeter.auditors.canaries.transcript import log_p_of_largest, null_maxima
from leakmeter.auditors.canary_draws import MAX_SCORE, cosine_logsf
from leakmeter.auditors.finding import Bound
from leakmeter.auditors.rng import stream
from leakmeter.auditors.wording import Assumption
from leakmeter.papers.andrew2024.gaussian_sum import simulate_cosines
from leakmeter.papers.gaussian import gaussian_sigma
from tests.helpers.numbers import few_or_many, first_fast, most_allowed


@pytest.mark.parametrize("dim", [3, 100, 101, 7850, 10**6, 10**7])
def test_the_tail_of_a_cosine_is_that_of_student_t(dim: int) -> None:
    # T = √(d−1)·t/√(1−t²) has d − 1 degrees of freedom; scipy's tail is good until it underflows.
    z = np.array([-8.0, -1.0, -1e-6, 0.0, 1e-6, 1e-3, 0.5, 1.0, 3.0, 8.0, 20.0, 36.0])
    t = z[np.abs(z) < 0.99 * math.sqrt(dim)] / math.sqrt(dim)
    reference = student.logsf(t * np.sqrt((dim - 1) / (1 - t**2)), dim - 1)
    assert cosine_logsf(t, dim) == pytest.approx(reference, rel=2e-10)


@pytest.mark.parametrize("dim", [400, 10**4, 10**6, 10**7])
@pytest.mark.parametrize("z", [36.0, 37.0, 40.0, 100.0, 900.0])
def test_deep_in_the_tail_it_is_the_integral_of_the_density(dim: int, z: float) -> None:
    t, power = z / math.sqrt(dim), (dim - 3) / 2
    if t > 0.99:
        t = 0.99
    scale = dim * t

    def density(v: float) -> float:
        u = t + v / scale
        return math.exp(power * (math.log1p(-u * u) - math.log1p(-t * t))) if u < 1 else 0.0

    integral = quad(density, 0, min((1 - t) * scale, 60.0), epsabs=0, epsrel=1e-11, limit=500)[0]
    # ln B(a, ½) of the density, from the value at 0, where the tail is one half.
    half = quad(
        lambda v: math.exp(power * math.log1p(-v * v / dim)),
        *(0, min(40.0, math.sqrt(dim))),
        epsabs=0,
        epsrel=1e-12,
        limit=500,
    )[0] / math.sqrt(dim)
    reference = power * math.log1p(-t * t) + math.log(integral / scale / (2 * half))
    assert float(cosine_logsf(t, dim)) == pytest.approx(reference, rel=1e-11)


def test_the_ends_of_the_tail_are_defined() -> None:
    assert cosine_logsf([-1.0, 0.0, 1.0], 500).tolist() == [0.0, math.log(0.5), -math.inf]
    assert cosine_logsf([-2.0, 2.0], 500).tolist() == [0.0, -math.inf]  # rounding beyond the ends
    for dim in (100, 10**6):  # and it never rises
        assert (np.diff(cosine_logsf(np.linspace(-1, 1, 20_001), dim)) <= 0).all()


def gram_of(rounds: int, common: float) -> np.ndarray:
    """Return the Gram matrix of unit changes that share a direction."""
    return np.full((rounds, rounds), common) + (1 - common) * np.eye(rounds)


@pytest.mark.parametrize("runs", few_or_many(20, 60))
@pytest.mark.parametrize("common", first_fast(1, [0.5, 0.0, 0.99]))
def test_limits_on_p_values_hold_for_all_values_at_once(common: float, runs: int) -> None:
    # A fresh, far larger sample tells the true tails; the limits may fail in 5 % of the pools.
    dim, gram = 300, gram_of(8, common)
    truth = np.sort(null_maxima(gram, dim, 300_000, stream(0, "truth")))
    values = truth[-np.unique(np.geomspace(200, 270_000, 60).astype(int))]
    tail = (truth.size - np.searchsorted(truth, values)) / truth.size
    failed = 0
    for seed in range(runs):
        pool = null_maxima(gram, dim, 2000, stream(seed, "pool"))
        limits = log_p_of_largest(values, pool, dim, 8, 0.05)
        failed += bool((limits < np.log(tail) - 4 / np.sqrt(tail * truth.size)).any())
    assert failed <= most_allowed(runs)


def test_limits_on_p_values_are_close_and_have_no_floor() -> None:
    gram = gram_of(8, 0.99)
    pool = null_maxima(gram, 300, 100_000, stream(0, "pool"))
    middle = float(np.quantile(pool, 0.9))
    limits = log_p_of_largest(np.array([-1.0, middle, 0.9]), pool, 300, 8, 0.005)
    assert limits[0] == 0.0
    assert math.log(0.1) < limits[1] < math.log(0.12)  # the union bound would say 0.4 or so
    assert limits[2] == pytest.approx(float(cosine_logsf(0.9, 300)) + math.log(8))


def test_a_plain_share_of_shared_draws_breaks_the_confidence_and_limits_do_not() -> None:
    # Half of the canaries that are in have p-values e^-epsilon times as large: truth 5 at delta 0.
    # Where the largest of the shared draws are too small by chance, all canaries gain at once.
    epsilon, draws, runs = 5.0, 2000, 150
    above = np.zeros(2)
    for seed in range(runs):
        rng = stream(seed, "shared pool")
        p = rng.random(400)
        p = np.where(rng.random(400) < 0.5, 0.5 * math.exp(-epsilon) * p, p)
        pool = rng.random(draws)
        share = (1 + np.searchsorted(np.sort(pool), p)) / (1 + draws)
        plain = epsilon_lower_bound(-np.log(share), null_logsf=np.negative, delta=0.0)
        # In three dimensions a cosine is uniform: ours on the same draws.
        limits = log_p_of_largest(1 - 2 * p, 1 - 2 * pool, 3, 10**6, 0.005)
        ours = prove(
            -p, np.ones(400, bool), limits, delta=0.0, confidence=0.95, guesses=None, spent=0.005
        )[0]
        above += [plain.value > epsilon, ours.value > epsilon]
    nominal = 0.05 * runs + 3 * math.sqrt(0.05 * 0.95 * runs)
    assert above[0] > 2 * nominal
    assert above[1] <= nominal


def test_no_canary_in_proves_nothing() -> None:
    scores = np.linspace(0, 1, 9)
    assert prove(scores, scores > 2, scores, delta=1e-6, confidence=0.95, guesses=2) == []


IS_IN = np.arange(300) < 139


def both(
    log_p: np.ndarray, is_in: np.ndarray, delta: float, guesses: int, spent: float = 0.0
) -> tuple[Bound, Bound]:
    """Return the headline, and the conditional bound with the known null."""
    settings: Any = {"delta": delta, "confidence": 0.95, "guesses": guesses, "spent": spent}
    first, _ = headline(-log_p, is_in, log_p, **settings)
    return first, prove(-log_p, is_in, log_p, **settings)[0]


def gaussian_scores(epsilon: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return cosines of 139 canaries in a Gaussian sum and of 161 others, and their ln p."""
    dim, rng = 10**7, stream(seed, "headline", int(epsilon))
    inside = simulate_cosines(dim, 139, gaussian_sigma(epsilon, 1e-5), rng)
    along = rng.standard_normal(161)
    scores = np.concatenate([inside, along / np.sqrt(along**2 + rng.chisquare(dim - 1, 161))])
    return scores, cosine_logsf(scores, dim)


def test_the_headline_is_the_coin_bound_with_all_of_the_failures() -> None:
    for epsilon in (3.0, 10.0):
        scores, log_p = gaussian_scores(epsilon, 0)
        bound, facts = headline(scores, IS_IN, log_p, delta=1e-5, confidence=0.95, guesses=60)
        by_coins = coin_bound(log_p, IS_IN, delta=1e-5, confidence=0.95)
        assert bound.value == by_coins.value > 0
        assert (bound.confidence, bound.assumptions) == (0.95, by_coins.assumptions)
        assert bound.sample_sizes == {"canaries": 300, "in": 139}
        assert bound.rule.startswith(by_coins.rule)
        share = np.mean(-log_p[IS_IN] >= facts["threshold"])
        assert facts["share_at_threshold"] == pytest.approx(share)
        assert facts["median_score"] == np.median(-log_p[IS_IN])


def test_at_the_threshold_an_attacker_is_as_sure_as_the_bound_says() -> None:
    for epsilon, seed in ((3.0, 0), (3.0, 1), (10.0, 0), (10.0, 1)):
        scores, log_p = gaussian_scores(epsilon, seed)
        bound, facts = headline(scores, IS_IN, log_p, delta=1e-5, confidence=0.95, guesses=60)
        # Of those out, a share of e^−threshold gets there: the odds from 50:50.
        odds = facts["share_at_threshold"] * math.exp(facts["threshold"])
        assert odds >= math.exp(bound.value)
        # Any lower threshold would give smaller odds.
        lower = -log_p[IS_IN][-log_p[IS_IN] < facts["threshold"]]
        shares = np.array([np.mean(-log_p[IS_IN] >= score) for score in lower])
        assert (shares * np.exp(lower) < math.exp(bound.value)).all()


def test_the_threshold_counts_all_canaries_that_are_clearly_seen() -> None:
    # 20 of 50 reach 30, one of them 33, and the others show nothing.
    log_p = -np.concatenate([[33.0], np.full(19, 30.0), np.linspace(0, 3, 80)])
    is_in = np.arange(100) < 50
    bound, facts = headline(-log_p, is_in, log_p, delta=1e-6, confidence=0.95, guesses=20)
    assert (facts["threshold"], facts["share_at_threshold"]) == (30.0, 0.4)
    assert facts["median_score"] == np.median(-log_p[is_in])
    assert 26 < bound.value < 30
    weaker = log_p.copy()
    weaker[1:11] = -20.0
    less, _ = headline(-weaker, is_in, weaker, delta=1e-6, confidence=0.95, guesses=20)
    assert less.value < bound.value


@pytest.mark.parametrize(("guesses", "delta"), [(None, 1e-6), (20, 4e-4)])
def test_without_coins_or_with_a_large_delta_the_headline_is_the_share_bound(
    guesses: int | None, delta: float
) -> None:
    log_p = -np.concatenate([np.full(50, 30.0), np.zeros(50)])
    is_in = np.arange(100) < 50
    bound, facts = headline(
        -log_p, is_in, log_p, delta=delta, confidence=0.95, guesses=guesses, spent=0.01
    )
    assert bound.value == share_bound(-log_p[is_in], delta=delta, confidence=0.96).value > 20
    assert (bound.confidence, bound.is_conditional) == (0.95, False)
    assert Assumption.FAIR_COINS not in bound.assumptions
    assert facts["share_at_threshold"] == 1.0


def test_what_was_spent_on_the_null_is_taken_from_headline_and_known_null() -> None:
    _, log_p = gaussian_scores(10.0, 0)
    free, paid = (both(log_p, IS_IN, 1e-5, 60, spent=spent) for spent in (0.0, 0.005))
    inside = -log_p[IS_IN]
    headline_paid = coin_bound(log_p, IS_IN, delta=1e-5, confidence=0.955)
    known_paid = epsilon_lower_bound(
        inside, null_logsf=np.negative, delta=1e-5, confidence=0.955, same_run=True
    )
    for less, more, wanted in zip(paid, free, (headline_paid, known_paid), strict=True):
        assert less.value == wanted.value < more.value
        assert less.confidence == more.confidence == 0.95


def test_scores_are_capped_at_what_seeds_of_128_bits_can_mean() -> None:
    assert pytest.approx(88.7228, abs=1e-4) == MAX_SCORE
    is_in, found = np.arange(100) < 50, []
    for score in (MAX_SCORE, 1000.0, math.inf):
        bounds = both(np.where(is_in, -score, -1.0), is_in, 1e-6, 20)
        assert all(bound.saturated for bound in bounds)
        found.append(tuple(bound.value for bound in bounds))
    assert found[0] == found[1] == found[2]
    assert max(found[0]) < MAX_SCORE


@pytest.mark.parametrize("runs", few_or_many(60, 400))
def test_scores_that_share_their_luck_break_the_conditional_bound_and_not_the_headline(
    runs: int,
) -> None:
    # With a chance of 0.2 the run shows all canaries that are in at a score of 10. At δ = 0.19 the
    # truth is ε = 10 + ln(1 − 0.19/0.2) = 7; the known null alone claims more in 20 % of the runs.
    truth, is_in = 10 + math.log(1 - 0.19 / 0.2), np.arange(60) < 30
    above = np.zeros(2)
    for seed in range(runs):
        rng = stream(seed, "shared luck")
        log_p = np.log(rng.random(60))
        if rng.random() < 0.2:
            log_p[is_in] -= 10
        bound, known = both(log_p, is_in, 0.19, 12)
        assert known.is_conditional
        above += [bound.value > truth, known.value > truth]
    assert above[0] <= most_allowed(runs) < above[1]
