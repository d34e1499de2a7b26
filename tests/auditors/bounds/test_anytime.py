"""Bets gain nothing under a true ε, grow above it, and their bound never falls.

Expectations are exact: enumerated over all outcomes and over all mechanisms at the edge of DP.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from scipy.special import log_ndtr

from leakmeter.auditors.bounds.anytime import AnytimeBound, CanaryBets, trial_bets
from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.bounds.one_run import coin_bound, shares
from leakmeter.auditors.canary_draws import MAX_SCORE
from leakmeter.auditors.codec import CodecError
from leakmeter.auditors.wording import Assumption
from leakmeter.papers.coverage.streams import guess_bets

# Scores above a candidate at which the mechanisms of these tests may change.
EDGES = np.array([0.5, 1.0, 2.0, 3.0, 4.5, 6.5, 9.0])
PLANNED = 40


def scores_of_bins(epsilon: float) -> np.ndarray:
    """Return −ln p of each bin: its lower end, since a p-value may be too large."""
    return np.concatenate([[0.0], epsilon + EDGES])


def edge_mechanisms(epsilon: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield P(in and score in bin), P(out), at every corner of ε-DP, given a release.

    Out, −ln p has the tail e^−s, so a bin from s to t has mass e^−s − e^−t. In, every density ratio
    from e^−ε to e^ε is allowed; at a corner each bin takes one of the two.
    """
    mass = -np.diff(np.exp(-scores_of_bins(epsilon)), append=0.0)
    for signs in itertools.product((-1, 1), repeat=mass.size):
        inside = mass * np.exp(epsilon * np.array(signs))
        yield inside / (1 + inside.sum()), np.array(1 / (1 + inside.sum()))


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 4.0, 20.0, 80.0])
def test_no_mechanism_makes_a_bet_on_a_canary_gain(epsilon: float) -> None:
    bets = CanaryBets(np.array([epsilon]), PLANNED)
    inside = np.exp(bets.log_in(scores_of_bins(epsilon))[:, 0])  # (bins, bets)
    out = np.exp(bets.log_out[0])
    most = max((hit @ inside + no * out).max() for hit, no in edge_mechanisms(epsilon))
    assert most <= 1 + 1e-12


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 4.0, 20.0, 80.0])
def test_in_the_worst_case_each_bet_on_a_canary_is_fair(epsilon: float) -> None:
    """Integrals over all p-values of the release that is worst for each bet."""
    bets = CanaryBets(np.array([epsilon]), PLANNED)
    z = np.linspace(-9, 30, 39_001)  # a p-value of Φ(−z)
    mass = np.exp(log_ndtr(-z[:-1])) * -np.expm1(log_ndtr(-z[1:]) - log_ndtr(-z[:-1]))
    pays = np.exp(bets.log_in(-log_ndtr(-(z[1:] + z[:-1]) / 2))[:, 0])  # (p-values, bets)
    odds = np.where(pays > 1, math.exp(epsilon), math.exp(-epsilon))
    gains = mass @ (odds * (pays - 1)) + np.exp(bets.log_out[0]) - 1
    # Bets that hang on one score lose or win the step of z in which it is.
    np.testing.assert_allclose(gains, 0, atol=0.02)
    smooth = gains[: -3 * shares(PLANNED).size]
    np.testing.assert_allclose(smooth, 0, atol=2e-4)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 20.0])
def test_a_smaller_p_value_never_pays_less(epsilon: float) -> None:
    bets = CanaryBets(np.array([epsilon]), PLANNED)
    paid = bets.log_in(np.linspace(0, 88, 500))[:, 0]
    assert (np.diff(paid, axis=0) >= -1e-12).all()


def test_wealth_over_canaries_gains_nothing_against_a_mechanism_that_reacts() -> None:
    """The largest mean wealth over all mechanisms that choose again after every coin.

    Backward induction over three coins: the wealth of every outcome, then the best corner before
    each coin.
    """
    epsilon, coins = 1.0, 3
    corners = [np.append(inside, out) for inside, out in edge_mechanisms(epsilon)]
    scores = scores_of_bins(epsilon)  # one in each bin; out comes after them

    def best(outcomes: tuple[int, ...]) -> float:
        if len(outcomes) == coins:
            bound = AnytimeBound(delta=0.0, planned=coins, candidates=[epsilon])
            index = np.array(outcomes)
            bound.add_canaries(-np.append(scores, 0.0)[index], index < scores.size)
            return float(np.exp(bound.log_wealth()[0]))
        after = np.array([values[tuple(sorted((*outcomes, i)))] for i in range(scores.size + 1)])
        return max(float(corner @ after) for corner in corners)

    values: dict[tuple[int, ...], float] = {}
    for length in range(coins, -1, -1):
        for outcomes in itertools.combinations_with_replacement(range(scores.size + 1), length):
            values[outcomes] = best(outcomes)
    assert values[()] <= 1 + 1e-12
    assert max(values.values()) > 50  # and yet some outcomes pay


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 2.0])
def test_delta_pays_for_what_no_pure_mechanism_does(epsilon: float) -> None:
    """Random mechanisms, exactly: outcomes differ from those of an ε-DP one by δ on average.

    Q1 and Q0 are joint probabilities of canary (rows) and release (columns), in and out. Out, the
    canary is uniform. Given a release, r = Q1/Q0 is clipped to what ε-DP allows.
    """
    rng = np.random.default_rng(8)
    for _ in range(300):
        canaries, releases = rng.integers(1, 6, 2)
        q0 = np.tile(rng.dirichlet(np.full(releases, 0.5)), (canaries, 1)) / canaries
        q1 = rng.dirichlet(np.full(canaries * releases, 0.3)).reshape(q0.shape)
        odds = math.exp(epsilon)
        excess = (q1 - odds * q0).clip(0).sum(), (q0 - odds * q1).clip(0).sum()
        delta = max(excess)
        clipped = np.clip(q1, q0 / odds, q0 * odds)
        differ = 0.0
        for t in range(releases):
            real, pure = (np.append(q[:, t], q0[:, t]) for q in (q1, clipped))
            share = np.abs(real / real.sum() - pure / pure.sum()).sum() / 2
            differ += share * real.sum() / 2  # the coin is fair
        assert differ <= delta * (1 + 1 / odds) / 2 + 1e-12
        assert differ <= delta + 1e-12


@pytest.mark.parametrize("epsilon", [0.0, 0.2])
def test_the_truth_is_ever_refuted_as_rarely_as_promised(epsilon: float) -> None:
    """All 4,096 ways in which 12 guesses can go, at the odds of randomised response."""
    right, wrong = np.moveaxis(guess_bets(np.array([epsilon]))[0, 0], -1, 0)
    ways = np.array(list(itertools.product((0, 1), repeat=12)))
    counts = ways.cumsum(axis=1)[..., None]
    wealth = np.exp(counts * right + (np.arange(1, 13)[:, None] - counts) * wrong).mean(axis=-1)
    chance = 1 / (1 + math.exp(-epsilon))
    each = chance ** ways.sum(axis=1) * (1 - chance) ** (12 - ways.sum(axis=1))
    assert each.sum() == pytest.approx(1)
    assert 0 < each[wealth.max(axis=1) >= 20].sum() <= 0.05
    # At odds for a smaller ε than the true one, it is refuted too often.
    true = 1 / (1 + math.exp(-epsilon - 2))
    more = true ** ways.sum(axis=1) * (1 - true) ** (12 - ways.sum(axis=1))
    assert more[wealth.max(axis=1) >= 20].sum() > 0.05


@pytest.mark.parametrize("delta", [1e-6, 0.05])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0, 12.0])
def test_no_mechanism_makes_a_bet_on_a_trial_gain(epsilon: float, delta: float) -> None:
    """Both answers are at the edge of DP together, whatever share of the trials is decided."""
    pays = np.exp(trial_bets(np.array([epsilon]), delta)[0, 0])  # (stakes, 4)
    assert (pays >= 0).all()
    odds = math.exp(epsilon)
    # P(right) = e^ε·P(wrong) + δ for each of the two answers, with the largest P(wrong) possible
    # and with none: everything between is linear.
    for wrong in (0.0, (1 - 2 * delta) / (2 * odds)):
        right = odds * wrong + delta  # of one answer
        # A wrong answer comes with a right one; the other right answers fall together, or do not.
        alone = 2 * right - 2 * wrong
        for both in (0.0, min(alone / 2, 1 - 2 * wrong)):
            one = alone - 2 * both
            none = 1 - both - one - 2 * wrong
            if none < -1e-12:
                continue
            chances = np.array([both, one, none, 2 * wrong])
            assert (pays @ chances <= 1 + 1e-9).all()


def scores_of(rng: np.random.Generator, k: int, mu: float) -> tuple[np.ndarray, np.ndarray]:
    """Return ln p of canaries and their coins, of a Gaussian mechanism."""
    is_in = rng.random(k) < 0.5
    return np.asarray(log_ndtr(-rng.standard_normal(k) - mu * is_in)), is_in


@pytest.mark.parametrize(("mu", "least"), [(3.0, 0.35), (8.0, 0.6)])
def test_the_bound_is_below_the_truth_and_near_it(mu: float, least: float) -> None:
    # A wrong bound above the truth has a chance of at most 5 %; at this seed it is far below.
    log_p, is_in = scores_of(np.random.default_rng(1), 400, mu)
    bound = AnytimeBound(delta=1e-5, planned=400)
    for part in np.split(np.arange(400), 20):
        bound.add_canaries(log_p[part], is_in[part])
    truth = epsilon_gaussian(1e-5, mu)
    assert least * truth < bound.value < truth
    # Near the bound for a single look, although it holds after each of 20.
    assert bound.value > 0.85 * coin_bound(log_p, is_in, delta=1e-5).value


def test_more_trials_show_more_although_every_round_is_looked_at() -> None:
    bound = AnytimeBound(delta=1e-6)
    values = [bound.add_trials(np.full(500, 9.0), np.full(500, -9.0)) for _ in range(8)]
    assert values == sorted(values)
    # Without an error, ε grows like ln of the trials: ln 8 = 2.08.
    assert 1.8 < values[-1] - values[0] < 2.1
    assert bound.bound().saturated


def test_the_bound_never_falls_resumes_bit_for_bit_and_takes_evidence_in_any_portions() -> None:
    rng = np.random.default_rng(5)
    log_p, is_in = scores_of(rng, 60, 5.0)
    log_p[30:] = np.log(rng.random(30))  # from here on nothing leaks
    at_once, whole, resumed = (
        AnytimeBound(delta=1e-5, planned=60, candidates=np.arange(100) / 4) for _ in range(3)
    )
    at_once.add_canaries(log_p, is_in)
    values = []
    for i in range(60):
        if i == 33:
            resumed.restore(whole.state())
        values.append(whole.add_canaries(log_p[i : i + 1], is_in[i : i + 1]))
        if i >= 33:
            assert resumed.add_canaries(log_p[i : i + 1], is_in[i : i + 1]) == values[-1]
    assert values == sorted(values)
    assert values[-1] >= at_once.value > 0  # it looked more often
    assert resumed.bound() == whole.bound()
    for other in (resumed, at_once):
        np.testing.assert_array_equal(other.log_wealth(), whole.log_wealth())


@pytest.mark.parametrize("scores", [[3.0], [3.0, -1.0], [3.0, math.nan]])
def test_a_state_with_other_scores_is_refused(scores: list[float]) -> None:
    bound = AnytimeBound(delta=1e-5, planned=3, candidates=[1.0])
    bound.add_canaries([-3.0, -4.0, -5.0], [True, False, True])
    with pytest.raises(CodecError, match="scores must be those of 2 canaries"):
        AnytimeBound(delta=1e-5, planned=3, candidates=[1.0]).restore(
            {**bound.state(), "scores": scores}
        )


def test_infinite_scores_count_as_the_largest_that_seeds_can_show() -> None:
    found = []
    for log_p in (-math.inf, -1000.0, -MAX_SCORE):
        bound = AnytimeBound(delta=1e-6, planned=10)
        found.append(bound.add_canaries(np.full(10, log_p), np.arange(10) < 5))
        assert bound.bound().saturated
    assert found[0] == found[1] == found[2] > 80


def test_delta_is_paid_once_for_all_planned_coins() -> None:
    """A mechanism that reveals everything with chance δ refutes only if δ was not paid."""
    revealed = np.full(20, -50.0), np.arange(20) < 10
    paid = AnytimeBound(delta=0.1, planned=20, candidates=[1.0])
    paid.add_canaries(*revealed)
    assert paid.value == 0  # 20·δ is more than any level: nothing can be refuted
    little = AnytimeBound(delta=1e-4, planned=20, candidates=[1.0])
    assert little.add_canaries(*revealed) == 1.0
    with pytest.raises(ValueError, match="planned must be at least the number of coins bet on, 21"):
        little.add_canaries([-50.0], [True])


def test_a_bound_says_that_it_holds_at_all_rounds_together() -> None:
    bound = AnytimeBound(delta=1e-5, planned=10)
    bound.add_canaries(np.full(10, -30.0), np.arange(10) % 2 == 0)
    said = bound.bound()
    assert said.is_anytime
    assert not said.is_conditional
    assert Assumption.FAIR_COINS in said.assumptions
    assert said.sample_sizes == {"canaries": 10, "in": 5}
    assert not coin_bound([-30.0], [True], delta=1e-5).is_anytime
