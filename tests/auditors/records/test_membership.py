"""Membership of records: scores of one model and of all, bounds that hold, and the auditor."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

import leakmeter
from leakmeter.auditors import Membership, check_auditor
from leakmeter.auditors.auditor import RoundFacts, RoundView
from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.bounds.lower_bound import Fixed
from leakmeter.auditors.records.membership import (
    Shadows,
    Trajectory,
    advantage_bound,
    logit_confidences,
    membership_bound,
    separation,
)
from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Floats
from leakmeter.auditors.verdict.claim import is_weaker
from leakmeter.auditors.wording import Assumption
from tests.helpers.refusals import refuses

RECORDS, DELTA = 60, 1e-5


def losses_of(confidences: Floats) -> Floats:
    """Return the losses that have these logit confidences."""
    return np.logaddexp(0, -confidences)


def uneven(seed: int, *, shift: float, models: int = 16) -> tuple[Floats, Shadows, Floats]:
    """Return confidences of members, then held-out records, that differ far more than members do.

    Each record has a difficulty of its own with deviation 4; being trained on adds `shift`.
    """
    rng = stream(seed, "uneven")
    difficulty = 4 * rng.standard_normal(2 * RECORDS)
    was_in = rng.permuted(np.arange(models)[:, None].repeat(2 * RECORDS, 1) % 2 == 0, axis=0)
    noise = rng.standard_normal((models, 2 * RECORDS))
    is_member = np.arange(2 * RECORDS) < RECORDS
    target = difficulty + shift * is_member + rng.standard_normal(2 * RECORDS)
    outside = difficulty + rng.standard_normal((models, 2 * RECORDS))
    return target, Shadows(difficulty + shift * was_in + noise, was_in), outside


@given(st.floats(1e-9, 30))
def test_logits_are_those_of_the_probability(loss: float) -> None:
    p = math.exp(-loss)
    # In whole precision of p; 1 - p would lose what the loss still has.
    expected = math.log(p) - math.log(-math.expm1(-loss))
    assert logit_confidences([loss])[0] == pytest.approx(expected, rel=1e-12)
    assert losses_of(logit_confidences([loss]))[0] == pytest.approx(loss, rel=1e-9)


def test_a_model_that_is_sure_has_a_finite_logit_right_or_wrong() -> None:
    right, wrong = logit_confidences([0.0, math.inf])
    assert right == pytest.approx(53 * math.log(2))
    assert wrong == pytest.approx(-745)


@pytest.mark.parametrize("spread", ["shared", "record"])
def test_online_scores_are_ratios_of_fitted_densities(spread: Any) -> None:
    target, shadows, _ = uneven(0, shift=1.5)
    assert shadows.was_in is not None
    shadows = Shadows(shadows.confidences, shadows.was_in, spread)
    got = shadows.scores(target)
    groups = [shadows.was_in, ~shadows.was_in]
    pooled = [
        math.sqrt(
            sum(np.var(c[w]) * w.sum() for c, w in zip(shadows.confidences.T, g.T, strict=True))
            / (g.sum() - g.shape[1])
        )
        for g in groups
    ]
    for i in range(len(target)):
        samples = [shadows.confidences[g[:, i], i] for g in groups]
        stds = pooled if spread == "shared" else [s.std(ddof=1) for s in samples]
        inside, outside = (
            norm.logpdf(target[i], s.mean(), std) for s, std in zip(samples, stds, strict=True)
        )
        assert got[i] == pytest.approx(inside - outside, rel=1e-9, abs=1e-9)


def test_offline_scores_rank_as_the_tail_probability_and_do_not_round() -> None:
    models = stream(0, "models").standard_normal((40, 3))
    shadows = Shadows(models, spread="record")
    mean, std = models.mean(0), models.std(0, ddof=1)
    np.testing.assert_allclose(shadows.scores(mean + 2 * std), 2, rtol=1e-12)
    far = shadows.scores(mean + np.array([20, 30, 40]) * std)
    assert (np.diff(far) > 9).all()  # the tail probability of all three is 0
    assert (shadows.scores(mean - 1) < 0).all()


@pytest.mark.parametrize("attack", ["loss", "online", "offline"])
def test_where_nothing_leaks_a_bound_is_claimed_no_more_often_than_promised(attack: str) -> None:
    claims, runs = 0, 100
    for seed in range(runs):
        target, shadows, outside = uneven(seed, shift=0.0, models=8)
        scores = {
            "loss": lambda t=target: -losses_of(t),
            "online": lambda t=target, s=shadows: s.scores(t),
            "offline": lambda t=target, o=outside: Shadows(o).scores(t),
        }[attack]()
        claims += membership_bound(scores[:RECORDS], scores[RECORDS:], delta=DELTA).value > 0
    assert claims <= 0.05 * runs + 3 * math.sqrt(0.05 * 0.95 * runs)


@pytest.mark.parametrize(("mu", "share"), [(0.5, 0.15), (2.0, 0.3)])
def test_the_bound_stays_below_the_truth_as_often_as_promised_and_shows_a_part_of_it(
    mu: float, share: float
) -> None:
    delta, runs, size = 0.01, 150, 400
    truth = epsilon_gaussian(delta, mu)
    values = []
    for seed in range(runs):
        rng = stream(seed, "coverage")
        ins, outs = mu + rng.standard_normal(size), rng.standard_normal(size)
        values.append(membership_bound(ins, outs, delta=delta).value)
    violations = sum(value > truth for value in values)
    assert violations <= 0.05 * runs + 3 * math.sqrt(0.05 * 0.95 * runs)
    assert np.mean(values) > share * truth


def test_planted_overfitting_reaches_the_cap() -> None:
    rng = stream(0, "overfit")
    members, held_out = 0.01 * rng.random(500), 1 + rng.random(500)
    bound = membership_bound(-members, -held_out, delta=DELTA)
    assert bound.saturated
    assert bound.value == bound.cap
    assert bound.value > 3.5
    swapped = membership_bound(-held_out, -members, delta=DELTA)
    assert swapped.value == 0


def test_the_likelihood_ratio_beats_the_loss_where_records_differ_in_difficulty() -> None:
    target, shadows, outside = uneven(1, shift=4.0)
    bounds = {
        name: membership_bound(scores[:RECORDS], scores[RECORDS:], delta=DELTA).value
        for name, scores in {
            "loss": -losses_of(target),
            "online": shadows.scores(target),
            "offline": Shadows(outside).scores(target),
        }.items()
    }
    assert bounds["online"] > bounds["loss"] + 0.5
    assert bounds["offline"] > bounds["loss"] + 0.5
    assert (
        separation(shadows.scores(target)[:RECORDS], shadows.scores(target)[RECORDS:])["auc"]
        > 0.95
        > separation(target[:RECORDS], target[RECORDS:])["auc"]
    )


def test_the_bound_says_that_scores_share_a_run_and_records_were_drawn_alike() -> None:
    bound = membership_bound([1.0, 2.0], [0.0, 1.0], delta=DELTA)
    assert {Assumption.INDEPENDENT_SCORES, Assumption.RECORDS_ALIKE} <= set(bound.assumptions)
    assert bound.is_conditional


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=20),
    st.lists(st.integers(0, 5), min_size=1, max_size=20),
)
def test_separation_agrees_with_counting(ins: list[int], outs: list[int]) -> None:
    pairs = [(i > o) + (i == o) / 2 for i in ins for o in outs]
    rates = [(np.mean([i >= t for i in ins]), np.mean([o >= t for o in outs])) for t in range(7)]
    found = separation(ins, outs)
    assert found["auc"] == pytest.approx(np.mean(pairs))
    assert found["advantage"] == pytest.approx(max(tpr - fpr for tpr, fpr in rates))
    low = max(tpr for tpr, fpr in rates if fpr <= 0.01)
    assert found["tpr at fpr 0.01"] == pytest.approx(low)


@pytest.mark.parametrize(("leaked", "seed"), [(0, 1), (40, 2), (150, 3)])
def test_the_advantage_is_a_bound_on_the_members_that_the_model_gives_away(
    leaked: int, seed: int
) -> None:
    """Others score as held-out records do; more than 5 % of 400 bounds would be wrong by chance.

    Without what chance adds, most of them are: the control that this test can fail.
    """
    wrong = naive = 0
    for trial in range(400):
        rng = stream(seed, "advantage", trial)
        scores = rng.standard_normal(450)
        scores[:leaked] += 20
        bound = advantage_bound(scores[:200], scores[200:])
        wrong += bound.value > leaked / 200
        naive += separation(scores[:200], scores[200:])["advantage"] > leaked / 200
    assert wrong <= 20
    assert naive > 100


def test_the_advantage_has_its_closed_form_and_its_condition() -> None:
    members, held_out = np.ones(200), np.zeros(50)
    chance = math.sqrt(math.log(40) / 400) + math.sqrt(math.log(40) / 100)
    bound = advantage_bound(members, held_out, alike=True)
    assert bound.value == pytest.approx(1 - chance)
    assert bound.cap == pytest.approx(1 - chance)
    assert bound.saturated
    assert not bound.is_conditional
    assert advantage_bound(members, held_out).is_conditional
    assert advantage_bound(members[:1], held_out[:1]).cap == 0
    assert Membership(fake_losses, alike=True).num_bounds == 1
    assert Membership(fake_losses).num_bounds == 0


def fake_losses(model: Floats) -> tuple[Floats, Floats]:
    """Return losses that depend on the model; members' are smaller."""
    each = np.abs(np.resize(model, 80)) + 0.1
    return 0.2 * each[:30], each[30:]


def everybody(_: RoundView) -> tuple[Any, Any]:
    """Say that all records were used, and that clients of every other one took part."""
    return (np.arange(30), np.arange(0, 80, 2))


@pytest.mark.parametrize("used", [None, everybody])
@pytest.mark.parametrize("every", [0, 2])
@pytest.mark.parametrize("attack", ["loss", "offline", "online"])
def test_the_auditor_keeps_the_contract(every: int, attack: str, used: Any) -> None:
    models = stream(0, "shadows").standard_normal((8, 80))
    was_in = (np.arange(8)[:, None] + np.arange(80)) % 2 == 0 if attack == "online" else None
    shadows = None if attack == "loss" else Shadows(models, was_in)
    check_auditor(lambda: Membership(fake_losses, every=every, shadows=shadows, used=used))


def view(server_round: int, released: Floats) -> RoundView:
    return RoundView(server_round, np.zeros_like(released), {}, released, RoundFacts())


def test_the_final_model_is_audited_and_those_of_every_so_many_rounds() -> None:
    auditor = Membership(fake_losses, every=2, delta=0.01)
    auditor.begin(4, 5)
    models = [stream(i).standard_normal(4) for i in range(5)]
    found = [f for i, m in enumerate(models, start=1) for f in auditor.observe(view(i, m))]
    assert [f.server_round for f in found] == [1, 3, 5]
    told, last = auditor.report()
    scores = [-part for part in fake_losses(models[-1])]
    assert last.value == membership_bound(*scores, delta=0.01).value
    assert (last.unit, last.adjacency, last.observer) == ("record", "replace", "outsider")
    assert (last.kind, last.confidence, last.server_round) == ("lower_bound", 0.95, None)
    assert last.sample_sizes == {"in": 30, "out": 50}
    assert last.facts == {"attack": "loss threshold", **separation(*scores)}
    json.dumps(last.to_json())
    assert (told.quantity, told.adjacency) == ("membership advantage", None)
    assert told.value == advantage_bound(*scores).value
    assert told.is_conditional  # nobody says that chance alone chose the held-out records


def test_records_may_have_been_in_every_round_so_far() -> None:
    auditor = Membership(fake_losses, every=2)
    found = [f for r in range(1, 4) for f in auditor.observe(view(r, np.ones(4)))]
    found += auditor.report()
    assert [f.threat_model.participations for f in found] == [1, 3, 3, 3]
    for finding in found[1:]:
        # A guarantee that is priced for fewer rounds may not cover the record's client.
        enough = replace(finding.threat_model, sees="all models", holds=None, knows_cohort=True)
        fewer = replace(enough, participations=1)
        assert is_weaker(finding.threat_model, enough)
        assert not is_weaker(finding.threat_model, fewer)


def test_an_auditor_that_saw_no_round_says_nothing() -> None:
    assert Membership(fake_losses).report() == ()


def test_both_attacks_are_reported_and_the_rule_is_the_one_asked_for() -> None:
    shadows = Shadows(stream(0).standard_normal((3, 80)))
    auditor = Membership(fake_losses, shadows=shadows, rule=Fixed(-0.3))
    auditor.observe(view(1, np.ones(4)))
    _, loss, ratio = auditor.report()
    assert ratio.facts["attack"] == "likelihood ratio, offline, 3 shadow models"
    assert "threshold -0.3 fixed beforehand" in loss.rule
    assert loss.value > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: logit_confidences([]), "losses"),
        (lambda: logit_confidences([[1.0]]), "losses"),
        (lambda: logit_confidences([1.0, -0.1]), "losses"),
        (lambda: logit_confidences([np.nan]), "losses"),
        (lambda: Shadows(np.ones(3)), "confidences"),
        (lambda: Shadows(np.full((2, 3), np.inf)), "confidences"),
        (lambda: Shadows(np.ones((2, 3)), np.ones((3, 2), bool)), "was_in"),
        (lambda: Shadows(np.ones((2, 3)), spread="wide"), "spread"),
        (lambda: Shadows(np.ones((4, 3))).scores([1.0]), "confidences"),
        (lambda: Shadows(np.ones((4, 3))).scores(np.ones(3)), "confidences"),
        (
            lambda: Shadows(np.eye(3), np.ones((3, 3), bool)).scores(np.ones(3)),
            "was_in",
        ),
        (
            lambda: Shadows(np.eye(3), np.eye(3, dtype=bool), "record").scores(np.ones(3)),
            "was_in",
        ),
        (lambda: Membership(fake_losses, every=-2), "every"),
        (lambda: Membership(fake_losses, delta=1.0), "delta"),
        (lambda: Membership(fake_losses, confidence=1.0), "confidence"),
    ],
)
def test_bad_input_names_field_range_and_value(make: Any, message: str) -> None:
    with refuses(message):
        make()


def test_losses_that_are_none_are_named() -> None:
    auditor = Membership(lambda _: ([0.1], [math.nan]))
    auditor.observe(view(1, np.ones(4)))
    with refuses("losses of held-out records"):
        auditor.report()


def test_members_that_no_round_has_used_are_left_out_and_nothing_is_said_without_any() -> None:
    few = Membership(fake_losses, used=lambda _: (np.arange(7), np.arange(40)))
    none = Membership(fake_losses, used=lambda _: (np.arange(0), np.arange(0)))
    for auditor in (few, none):
        for i in range(1, 4):
            auditor.observe(view(i, stream(i).standard_normal(4)))
    told, loss, drops = few.report()
    assert told.sample_sizes == {"members": 7, "held-out": 50}
    assert loss.sample_sizes == {"in": 7, "out": 50}
    assert drops.sample_sizes == {"in": 7, "out": 10}  # the others' clients never took part
    assert {f.threat_model.participations for f in (told, loss, drops)} == {3}
    assert (drops.threat_model.sees, drops.threat_model.knows_cohort) == ("all models", True)
    assert not loss.threat_model.knows_cohort
    assert drops.is_conditional
    assert not none.report()


def test_an_abandoned_round_is_no_part_of_the_trajectory() -> None:
    def play(*facts: RoundFacts) -> Any:
        auditor = Membership(fake_losses, used=everybody)
        for number, fact in enumerate(facts, start=1):
            before, after = (
                stream(number - (1 if fact.abandoned else k)).standard_normal(4) for k in (1, 0)
            )
            auditor.observe(RoundView(number, before, {}, after, fact))
        return auditor._trajectory.state()

    kept = play(RoundFacts(), RoundFacts(abandoned="too few"))
    alone = play(RoundFacts())
    assert all(np.array_equal(kept[name], alone[name]) for name in alone)


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


def test_where_no_round_leaks_a_bound_is_claimed_no_more_often_than_promised() -> None:
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
