"""Canaries that are bet on after their last round: exact scores, and a bound after every round."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import kstest

from leakmeter.auditors import Anytime, Finding, OneShotCanaries
from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.canaries.canary_auditor import schedule
from leakmeter.auditors.canaries.transcript import Transcript
from leakmeter.auditors.canary_draws import canary_vector, cosine_logsf
from tests.helpers.canary_runs import play
from tests.helpers.refusals import refuses

DIM = 300


def bet(auditor: OneShotCanaries, rounds: int, sigma: float, *, leak: bool = True) -> list[Finding]:
    """Return the bounds that hold at all rounds together, of Gaussian sums."""
    found = play(auditor, dim=DIM, rounds=rounds, sigma=sigma, seed=3, leak=leak)
    return [f for f in found if f.is_anytime]


def test_the_bound_grows_round_by_round_and_stays_below_the_truth() -> None:
    sigma = 0.25  # four standard deviations: ε = 24 at δ = 1e-5
    found = bet(OneShotCanaries(seats=8, confidence=Anytime(0.95)), 12, sigma)
    *so_far, of_run = found
    assert [f.server_round for f in so_far] == list(range(1, 13))
    assert all(a.value <= b.value for a, b in pairwise(so_far))
    assert of_run.server_round is None
    assert of_run.value == so_far[-1].value
    # It may fail in 5 % of runs; at this seed it is far below.
    assert 3 < of_run.value < epsilon_gaussian(1e-5, 1 / sigma)
    assert of_run.threat_model.sees == "all models"
    assert of_run.adjacency == "zero-out"
    assert not of_run.is_conditional


def test_nothing_is_proven_where_nothing_leaks() -> None:
    found = bet(OneShotCanaries(seats=8, confidence=Anytime(0.95)), 12, 0.25, leak=False)
    assert {f.value for f in found} == {0.0}


@pytest.mark.parametrize("repetitions", [1, 3])
def test_each_coin_is_bet_on_once_after_the_last_round_of_its_canary(repetitions: int) -> None:
    auditor = OneShotCanaries(seats=3, repetitions=repetitions, confidence=Anytime(0.95), seed=2)
    found = bet(auditor, 6, 1.0)
    plan = schedule(18 // repetitions, repetitions, 6, 2)
    last = {canary: r for r in range(1, 7) for canary in plan[r]}
    for f in found[:-1]:
        assert f.sample_sizes["canaries"] == sum(r <= (f.server_round or 0) for r in last.values())
    assert found[-1].sample_sizes["canaries"] == 18 // repetitions
    # Before the first bet there is no number that would sound like a search.
    assert found[0].server_round == min(last.values())


def test_more_rounds_of_a_canary_show_more() -> None:
    once, often = (
        bet(OneShotCanaries(seats=6, repetitions=r, confidence=Anytime(0.95)), 12, 0.5)[-1].value
        for r in (1, 4)
    )
    assert often > 1.5 * once


def changes(count: int) -> list[np.ndarray]:
    """Return changes of a model that are correlated, of very different lengths, one of them 0."""
    rng = np.random.default_rng(0)
    common = rng.standard_normal(DIM)
    made = [(common + rng.standard_normal(DIM)) * 10.0 ** (i % 4) for i in range(count)]
    return [*made[:-1], np.zeros(DIM)]


def test_the_score_is_the_cosine_with_the_sum_of_normalised_changes() -> None:
    transcript, steps = Transcript(9, range(4), DIM), changes(6)
    for step in steps:
        transcript.add(np.zeros(DIM), step)
    rows = [[0], [0, 3], [1, 2, 4, 5], [5]]
    got = transcript.together([0, 1, 2, 3], rows)
    kept = [s.astype(np.float32).astype(np.float64) for s in steps]
    for canary, some in enumerate(rows[:3]):
        total = sum(kept[row] / np.linalg.norm(kept[row]) for row in some if row != 5)
        expected = canary_vector(9, canary, DIM) @ total / np.linalg.norm(total)
        assert got[canary] == pytest.approx(expected, abs=1e-12)
    assert got[3] == 0  # nothing changed, so there is no evidence
    assert transcript.together([], []).shape == (0,)


def test_changes_that_cancel_are_no_evidence() -> None:
    transcript, step = Transcript(9, range(1), DIM), changes(2)[0]
    transcript.add(np.zeros(DIM), step)
    transcript.add(np.zeros(DIM), -step)
    assert transcript.together([0], [[0, 1]])[0] == 0


def test_p_values_of_canaries_that_are_out_are_uniform() -> None:
    """A right null fails in 1 of 1,000 seeds; scores of half the rounds must fail."""
    transcript = Transcript(1, range(600), DIM)
    for step in changes(6):
        transcript.add(np.zeros(DIM), step)
    cosines = transcript.together(list(range(600)), [[0, 1, 2]] * 600)
    p = np.exp(cosine_logsf(cosines, DIM))
    assert kstest(p, "uniform").pvalue > 0.001
    wrong = np.exp(cosine_logsf(1.3 * cosines, DIM))
    assert kstest(wrong, "uniform").pvalue < 0.001


def test_a_delta_that_uses_up_the_confidence_is_refused() -> None:
    auditor = OneShotCanaries(seats=5, delta=0.002, confidence=Anytime(0.95))
    with refuses("delta"):
        auditor.begin(1000, 10)  # 50 canaries
    auditor.begin(1000, 2)
