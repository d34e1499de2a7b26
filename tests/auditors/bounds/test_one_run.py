"""One-run bounds from right guesses: golden values, coverage and closeness."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.bounds.one_run import (
    guess_by_rank,
    one_run_epsilon,
    one_run_gaussian_epsilon,
)
from leakmeter.auditors.rng import stream
from leakmeter.auditors.wording import Assumption
from tests.helpers.numbers import few_or_many, most_allowed, num_examples

steady = settings(derandomize=True, deadline=None, max_examples=num_examples(40))

BOUNDS = (one_run_epsilon, one_run_gaussian_epsilon)
# canaries, guesses, right, delta, epsilon of Steinke et al. 2023 by 40-digit arithmetic, and of
# Mahloujifar et al. 2024 by jax_privacy, which searches to 1e-6.
GOLDEN = [
    (1000, 250, 214, 1e-5, 1.47666952865341, 2.416840842667708),
    (1000, 100, 90, 1e-5, 1.62614348069573, 2.4564050672094146),
    (1000, 250, 246, 1e-5, 3.27288649091017, 5.579151049053996),
]


@pytest.mark.parametrize(("canaries", "guesses", "correct", "delta", "free", "gaussian"), GOLDEN)
def test_bounds_match_golden_values(canaries, guesses, correct, delta, free, gaussian):
    counts = (canaries, guesses, correct, delta)
    assert one_run_epsilon(*counts).value == pytest.approx(free, rel=1e-13)
    assert one_run_gaussian_epsilon(*counts).value == pytest.approx(gaussian, rel=1e-6)


def test_all_right_without_delta_has_a_closed_form():
    # q^100 = 0.05 for q = 1 / (1 + e^-eps).
    bound = one_run_epsilon(100, 100, 100, 0)
    assert bound.value == pytest.approx(-math.log(0.05**-0.01 - 1), rel=1e-13)
    assert bound.saturated
    assert one_run_gaussian_epsilon(100, 100, 100, 1e-5).value == pytest.approx(8.216186, rel=1e-6)
    for none in (*BOUNDS,):  # nothing guessed, nothing right, one guess
        assert none(10, 0, 0, 1e-5).value == none(10, 10, 0, 1e-5).value == 0
        assert none(1, 1, 1, 0).value == 0


def plain_p_value(epsilon, canaries, guesses, correct, delta):
    """Steinke et al. 2023, Theorem 5.2, term by term."""
    law = binom(guesses, 1 / (1 + math.exp(-epsilon)))
    shifts = [(law.cdf(correct - 1) - law.cdf(correct - i - 1)) / i for i in range(1, canaries)]
    return law.sf(correct - 1) + 2 * canaries * delta * max(shifts)


@pytest.mark.parametrize("counts", [(40, 20, 18, 1e-3), (40, 40, 33, 1e-4), (30, 10, 10, 1e-3)])
def test_the_refuted_epsilon_has_a_p_value_of_one_minus_confidence(counts):
    bound = one_run_epsilon(*counts, 0.9)
    canaries, guesses, correct, delta = counts
    p_value = plain_p_value(bound.value, canaries, guesses, correct, delta)
    assert p_value == pytest.approx(0.1, rel=1e-9)


def scores_of_one_run(case, rng, num_canaries):
    """Return scores of canaries in and out by fair coins."""
    coins = rng.random(num_canaries) < 0.5
    noise = rng.laplace(0, 1, num_canaries) if case == "Laplace" else rng.normal(size=num_canaries)
    shift = {"no leak": 0.0, "Laplace": 1.0, "Gaussian": 1.0}[case]
    scores = noise + shift * coins
    return scores[coins], scores[~coins]


@pytest.mark.parametrize(
    ("bound", "case", "delta", "truth"),
    [
        (one_run_epsilon, "no leak", 1e-5, 0.0),
        (one_run_epsilon, "Laplace", 0.0, 1.0),
        (one_run_epsilon, "Gaussian", 1e-5, epsilon_gaussian(1e-5, 1.0)),
        (one_run_gaussian_epsilon, "no leak", 1e-5, 0.0),
        (one_run_gaussian_epsilon, "Gaussian", 1e-5, epsilon_gaussian(1e-5, 1.0)),
    ],
)
@pytest.mark.parametrize("runs", few_or_many(40, 200))
def test_the_confidence_is_kept(bound, case, delta, truth, runs):
    rng = stream(7, "one run", case)
    violations = 0
    for _ in range(runs):
        correct = guess_by_rank(*scores_of_one_run(case, rng, 200), 60)
        violations += bound(200, 60, correct, delta).value > truth
    assert violations <= most_allowed(runs)


def refuted_share(refutes, rights):
    """Return in how many runs a claim, looked up by the number of right guesses, is refuted."""
    claims = {right: refutes(right) for right in set(rights)}
    return sum(claims[right] for right in rights)


def test_the_confidence_is_used_up_by_randomised_response_and_a_wrong_one_is_caught():
    # The hardest mechanism for a bound: each guess is right with chance e^eps / (1 + e^eps).
    rights = stream(7, "response").binomial(300, 1 / (1 + math.exp(-1)), 4000).tolist()
    kept = refuted_share(lambda v: one_run_epsilon(300, 300, v, 0).value > 1, rights)
    assert 4000 * 0.03 < kept <= most_allowed(4000)
    # Without a limit, the observed share itself is taken: right only half of the time.
    naive = refuted_share(lambda v: v / 300 > 1 / (1 + math.exp(-1)), rights)
    assert naive > most_allowed(4000)


def test_the_delta_term_covers_a_mechanism_that_sometimes_reveals_all():
    # (0, delta)-DP: with chance delta every guess is right.
    delta, rng = 0.08, stream(7, "reveal")
    reveals = rng.random(4000) < delta
    rights = np.where(reveals, 20, rng.binomial(20, 0.5, 4000)).tolist()
    with_term = refuted_share(lambda v: one_run_epsilon(20, 20, v, delta).value > 0, rights)
    without = refuted_share(lambda v: one_run_epsilon(20, 20, v, 0).value > 0, rights)
    assert with_term <= most_allowed(4000)
    assert without > most_allowed(4000)


def test_the_gaussian_bound_is_void_outside_its_family():
    # Randomised response is not mu-GDP with the same epsilon at delta; the assumption says so.
    right = round(1000 / (1 + math.exp(-1)))
    bound = one_run_gaussian_epsilon(1000, 1000, right, 1e-5)
    assert bound.value > 1
    assert bound.is_conditional
    assert Assumption.GAUSSIAN_MECHANISM in bound.assumptions
    assert not one_run_epsilon(1000, 1000, right, 1e-5).is_conditional


def test_bounds_come_near_the_truth():
    right = round(20_000 / (1 + math.exp(-1)))
    assert 0.95 < one_run_epsilon(20_000, 20_000, right, 0).value < 1
    # One canary in a hundred guessed, by a Gaussian score with mu = 1.
    ins = norm.ppf((np.arange(20_000) + 0.5) / 20_000, loc=1)
    right = guess_by_rank(ins, ins - 1, 400)
    truth = epsilon_gaussian(1e-5, 1.0)
    free, gaussian = (b(40_000, 400, right, 1e-5).value for b in BOUNDS)
    assert 0.55 * truth < free < 0.7 * truth < gaussian < truth


@steady
@given(st.integers(1, 60), st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.2))
def test_bounds_rise_with_right_guesses_and_fall_with_delta(canaries, share, right, delta):
    guesses = round(share * canaries)
    correct = round(right * guesses)
    for bound in BOUNDS:
        result = bound(canaries, guesses, correct, delta)
        assert 0 <= result.value <= result.cap
        assert bound(canaries, guesses, correct, min(0.99, 2 * delta + 1e-9)).value <= result.value
        if correct:
            assert bound(canaries, guesses, correct - 1, delta).value <= result.value


def test_guesses_are_ranked_and_ties_count_as_wrong():
    assert guess_by_rank([5.0, 6.0], [1.0, 2.0], 4) == 4
    assert guess_by_rank([5.0, 6.0], [1.0, 2.0], 3) == 3
    assert guess_by_rank([1.0, 2.0], [5.0, 6.0], 4) == 0
    assert guess_by_rank([0.0] * 5, [0.0] * 5, 10) == 0
    assert guess_by_rank([0.0], [0.0] * 3, 4) == 1  # called out twice, and only one is in
    assert guess_by_rank([math.inf], [-math.inf], 2) == 2
