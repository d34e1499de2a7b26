"""Scores from all models of a run, by hand and against what a client's rounds show."""

from __future__ import annotations

import math

import numpy as np
import pytest

import leakmeter
from leakmeter.auditors.records.membership import Trajectory, membership_bound, separation
from leakmeter.auditors.rng import stream

MEMBERS, HELD_OUT, ROUNDS = 40, 60, 12


def played(seed: int, gain: float) -> tuple[Trajectory, np.ndarray]:
    """Return a trajectory where a member's loss falls by `gain` more in its client's rounds."""
    rng, records = stream(seed, "trajectory"), MEMBERS + HELD_OUT
    found, losses = Trajectory(), 10 + rng.random(records)
    found.start(losses)
    asked = rng.random((ROUNDS, records)) < 0.4
    is_member = np.arange(records) < MEMBERS
    for took_part in asked:
        losses = losses - rng.normal(0.1, 0.05, records) - gain * (took_part & is_member)
        found.add(losses, took_part, MEMBERS)
    return found, asked


def test_a_score_is_the_sum_of_standardised_drops_less_what_other_rounds_brought() -> None:
    found = Trajectory()
    losses = np.array([[5.0, 4, 3, 2], [4, 4, 2, 2], [1, 3, 2, 1]])
    asked = np.array([[True, False, True, False], [True, True, False, False]])
    found.start(losses[0])
    for row, took_part in zip(losses[1:], asked, strict=True):
        found.add(row, took_part, 2)
    # Round 1: drops 1, 0, 1, 0 with mean 1/2 and deviation 1/2 among the last two; round 2: drops
    # 3, 1, 0, 1 with the same two.
    z = np.array([[1.0, -1, 1, -1], [5, 1, -1, 1]])
    inside, outside = (z * asked).sum(0), (z * ~asked).sum(0)
    count = asked.sum(0)
    share = count / np.maximum(2 - count, 1)
    expected = (inside - outside * share) / np.sqrt(np.maximum(count * (1 + share), 1))
    np.testing.assert_allclose(found.scores(), expected)
    assert found.is_seen.tolist() == [True, True, True, False]


def test_infinite_losses_and_rounds_without_a_change_add_nothing() -> None:
    found = Trajectory()
    found.start(np.array([1.0, 2.0, math.inf, 3.0]))
    found.add(np.array([1.0, 2.0, math.inf, 3.0]), np.ones(4, dtype=bool), 2)
    assert found.rounds == 0
    found.add(np.array([0.5, 2.0, math.inf, 1.0]), np.ones(4, dtype=bool), 2)
    assert found.rounds == 1
    assert np.isfinite(found.scores()).all()


def test_where_nothing_leaks_a_bound_is_claimed_no_more_often_than_promised() -> None:
    """More than 5 % + 3 deviations of 200 would happen by chance once in 700."""
    claims = 0
    for seed in range(200):
        scores = played(seed, gain=0.0)[0].scores()
        claims += membership_bound(scores[:MEMBERS], scores[MEMBERS:], delta=1e-5).value > 0
    assert claims <= 0.05 * 200 + 3 * math.sqrt(0.05 * 0.95 * 200)


def test_drops_in_the_clients_rounds_give_members_away_that_the_last_losses_hide() -> None:
    found, asked = played(0, gain=0.1)
    scores = found.scores()
    assert separation(scores[:MEMBERS], scores[MEMBERS:])["auc"] > 0.95
    last = -found._last
    assert separation(last[:MEMBERS], last[MEMBERS:])["auc"] < 0.95
    assert asked.shape == (ROUNDS, MEMBERS + HELD_OUT)


def test_an_interrupted_trajectory_goes_on_where_it_was() -> None:
    found, _ = played(1, gain=0.1)
    again = Trajectory()
    again.restore(found.state())
    for one in (found, again):
        one.add(np.arange(100.0), np.arange(100) % 2 == 0, MEMBERS)
    np.testing.assert_array_equal(found.scores(), again.scores())


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"dataset": "digits", "clients": 50},
        {"dataset": "adult", "model": "mlp", "clients": 200},
    ],
    ids=lambda settings: settings["dataset"],
)
def test_all_models_find_more_members_than_the_final_one_at_one_false_positive_in_a_hundred(
    settings: dict,
) -> None:
    """Ten seeds; the 95 % interval of the mean difference (Student, 9 degrees) is above 0."""
    differences = []
    for seed in range(10):
        result = leakmeter.run(
            rounds=30, sample=5, epochs=5, auditors="membership", seed=seed, **settings
        )
        found = [f for f in result.findings if f.quantity == "epsilon"]
        rates = {f.threat_model.sees: f.facts["tpr at fpr 0.01"] for f in found}
        differences.append(rates["all models"] - rates["final model"])
    spread = 2.262 * np.std(differences, ddof=1) / math.sqrt(10)
    assert np.mean(differences) > spread
