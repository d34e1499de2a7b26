"""One-shot canaries: right on mechanisms whose epsilon is known, honest where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from leakmeter.auditors import (
    Anytime,
    Finding,
    OneShotCanaries,
    RoundView,
    check_auditor,
)
from leakmeter.auditors.auditor import (
    Canary,
    Project,
    RoundFacts,
    UnableError,
)
from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.canary_draws import MAX_SCORE, SEED_BITS, canary_vector
from leakmeter.auditors.rng import stream
from leakmeter.auditors.wording import Assumption
from tests.helpers.canary_runs import lower_bounds, play
from tests.helpers.numbers import few_or_many, first_fast, most_allowed, num_examples
from tests.helpers.refusals import refuses

DELTA = 1e-6
SIGMA = 0.541086831818366  # epsilon 10 at delta 1e-6, sensitivity 1

METHODS = ("headline", "known null", "sampled null", "Gaussian trade-off")
KNOWN = Assumption.GAUSSIAN_COSINES_NULL_STD
FITTED = Assumption.GAUSSIAN_COSINES
LARGEST = Assumption.GAUSSIAN_MAXIMA

Orders = Mapping[int, Canary]


def of_the_run(findings: list[Finding]) -> dict[str, Finding]:
    """Return the estimates on the whole run, by what they assume."""
    found = (f for f in findings if f.kind == "estimate" and f.server_round is None)
    return {f.assumptions[0]: f for f in found}


def method(bound: Finding) -> str:
    """Return which of the lower bounds it is."""
    if not bound.is_conditional:
        return "headline"
    if Assumption.GAUSSIAN_MECHANISM in bound.assumptions:
        return "Gaussian trade-off"
    return "known null" if Assumption.UNIFORM_CANARIES in bound.assumptions else "sampled null"


def bounds(findings: list[Finding], sees: str) -> dict[str, Finding]:
    """Return the lower bounds for whoever sees the "final model" or "all models", by method."""
    return {method(f): f for f in lower_bounds(findings, sees)}


def checked(findings: list[Finding], sees: str) -> Finding:
    """Return the test for normality of what an attacker sees."""
    (found,) = (f for f in findings if f.quantity == "normality" and f.threat_model.sees == sees)
    return found


@pytest.mark.parametrize(
    ("settings", "has_folder"),
    first_fast(
        2,
        [
            ({"seats": 3}, True),
            ({"seats": 4, "repetitions": 2, "confidence": Anytime(0.95)}, False),
            ({"seats": 3, "include": "all"}, False),
            ({"seats": 3, "excluded": "honest"}, False),
            ({"seats": 3, "excluded": "full"}, False),
            ({"seats": 4, "canaries": 6, "repetitions": 3, "seed": 5}, False),
        ],
    ),
)
def test_it_keeps_the_contract_of_auditors(
    settings: dict[str, Any], has_folder: bool, tmp_path: Path
) -> None:
    def made() -> OneShotCanaries:
        auditor = OneShotCanaries(**settings)
        auditor.folder = tmp_path if has_folder else None
        return auditor

    check_auditor(made)
    assert [path.name for path in tmp_path.iterdir()] == ["one-shot-changes.f32"] * has_folder


@pytest.mark.parametrize("runs", few_or_many(3, 8))
def test_estimates_agree_with_the_published_table(runs: int) -> None:
    # d = 10,000, k = 100, epsilon 10: known std 9.80 +- 0.64 as in Table 1, fitted std, which is
    # Algorithm 1 as printed, 12.09 +- 2.14. Three standard errors: chance of failure about 0.5 %
    # over fresh seeds, none over these.
    values = []
    for seed in range(runs):
        auditor = OneShotCanaries(seats=100, include="all", delta=DELTA, seed=seed)
        found = of_the_run(play(auditor, dim=10_000, sigma=SIGMA, seed=seed))
        assert found[KNOWN].sample_sizes == {"included": 100}
        values.append((found[KNOWN].value, found[FITTED].value))
    known_mean, fitted_mean = np.mean(values, axis=0)
    assert abs(known_mean - 9.80) < 3 * 0.64 / np.sqrt(runs)
    assert abs(fitted_mean - 12.09) < 3 * 2.14 / np.sqrt(runs)


@pytest.mark.parametrize("runs", few_or_many(4, 10))
def test_the_estimate_is_near_the_truth_that_interference_leaves(runs: int) -> None:
    # sqrt(d) E[cos] = 1 / sqrt(sigma² + k / d), k the canaries that are in; two s.e. of 8 % a run.
    dim, values, truths = 500, [], []
    for seed in range(runs):
        auditor = OneShotCanaries(seats=200, delta=DELTA, seed=seed)
        found = of_the_run(play(auditor, dim=dim, sigma=SIGMA, seed=seed))
        k = found[KNOWN].sample_sizes["included"]
        assert 60 < k < 140  # about half: the others' coins keep them out
        truths.append(epsilon_gaussian(DELTA, 1 / np.sqrt(SIGMA**2 + k / dim)))
        values.append((found[KNOWN].value, found[FITTED].value))
    known_mean, fitted_mean = np.mean(values, axis=0)
    assert known_mean == pytest.approx(np.mean(truths), rel=0.16 / np.sqrt(runs))
    assert known_mean < 8.5  # far from 10, the epsilon without interference
    assert fitted_mean > 1.15 * known_mean


def test_the_final_model_shows_less_than_all_rounds_when_canaries_play_once() -> None:
    auditor = OneShotCanaries(seats=20, delta=DELTA)
    findings = play(auditor, dim=400, rounds=10, sigma=0.2)
    known = of_the_run(findings)[KNOWN]
    assert known.value > (known.null_band or (0, np.inf))[1]
    final, every = (bounds(findings, sees)["headline"] for sees in ("final model", "all models"))
    assert every.value > known.value > final.value


def test_repetitions_make_the_final_model_show_more() -> None:
    values = []
    for repetitions in (1, 5):
        auditor = OneShotCanaries(seats=10, canaries=20, repetitions=repetitions, delta=DELTA)
        found = of_the_run(play(auditor, dim=1000, rounds=10, sigma=1.0))
        values.append(found[KNOWN].value)
    assert values[1] > 2 * values[0]


@pytest.mark.parametrize("runs", few_or_many(8, 100))
def test_the_null_band_holds_what_is_said_when_nothing_leaks(
    runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakmeter.auditors.canaries.one_shot._NULL_POOL", 10_000)
    monkeypatch.setattr("leakmeter.auditors.canaries.canary_auditor.NULL_RUNS", 200)
    # 90 % of no-leak runs, within three standard errors, for three estimates.
    inside = dict.fromkeys((KNOWN, FITTED, LARGEST), 0)
    for seed in range(runs):
        auditor = OneShotCanaries(seats=20, include="all", delta=DELTA, seed=seed)
        said = of_the_run(play(auditor, dim=128, rounds=2, seed=seed, leak=False))
        for name in inside:
            low, high = said[name].null_band or (1, 0)
            inside[name] += low <= said[name].value <= high
    shares = np.array([*inside.values()]) / runs
    assert np.abs(shares - 0.9).max() < 3 * np.sqrt(0.9 * 0.1 / runs)


def test_a_leak_stands_out_of_the_null_band() -> None:
    auditor = OneShotCanaries(seats=40, delta=DELTA)
    found = [f for f in play(auditor, dim=500, rounds=3, sigma=0.3) if f.kind == "estimate"]
    assert len(found) > 3
    for finding in found:
        assert finding.null_band is not None
        assert finding.value > finding.null_band[1]


@settings(max_examples=num_examples(50), deadline=None)
@given(st.data())
def test_every_canary_plays_as_often_as_planned_and_never_twice_a_round(
    data: st.DataObject,
) -> None:
    rounds, seats = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 8))
    repetitions = data.draw(st.integers(1, rounds))
    most = seats * rounds // repetitions
    canaries = data.draw(st.none() | st.integers(1, most))
    auditor = OneShotCanaries(
        seats=seats, canaries=canaries, repetitions=repetitions, include="all"
    )
    auditor.begin(100, rounds)
    clients = st.lists(st.integers(0, 10**6), min_size=seats, max_size=seats + 5, unique=True)
    chosen = sorted(data.draw(clients))
    orders = [auditor.instruct(r, chosen) for r in range(1, rounds + 1)]
    assert all(set(told) <= set(chosen) for told in orders)
    played = [[order.id for order in told.values()] for told in orders]
    sizes = [len(ids) for ids in played]
    assert sizes == [len(set(ids)) for ids in played]
    assert max(sizes) - min(sizes) <= 1  # spread evenly
    counts = np.bincount([canary for ids in played for canary in ids])
    assert counts.tolist() == [repetitions] * (canaries or most)


def test_the_plan_is_free_of_which_clients_are_chosen_and_seats_wander_among_them() -> None:
    ids, served = [], set()
    for chosen in (range(10), range(500, 520)):
        auditor = OneShotCanaries(seats=4, seed=3)
        auditor.begin(100, 30)
        told = [auditor.instruct(r, chosen) for r in range(1, 31)]
        ids.append([sorted(o.id for o in orders.values()) for orders in told])
        served |= {client for orders in told for client in orders}
        assert auditor.instruct(31, chosen) == {}  # beyond the plan
    assert ids[0] == ids[1]
    assert served == {*range(10), *range(500, 520)}


def coins(seed: int, canaries: int = 400) -> list[bool]:
    auditor = OneShotCanaries(seats=canaries, seed=seed, include="coin")
    auditor.begin(100, 1)
    orders = auditor.instruct(1, range(canaries)).values()
    return [order.included for order in sorted(orders, key=lambda o: o.id)]


def test_coins_are_fair_and_differ_between_seeds() -> None:
    tossed = np.array([coins(seed) for seed in range(20)])
    assert binomtest(int(tossed.sum()), tossed.size).pvalue > 1e-4  # chance of failure 1e-4
    agree = (tossed[1:] == tossed[:-1]).mean()
    assert abs(agree - 0.5) < 4 * 0.5 / np.sqrt(tossed[1:].size)


def test_a_seat_whose_canary_is_out_sends_zero_or_nobodys_canary_or_stays_honest() -> None:
    told = {}
    for excluded in ("zero", "honest", "full"):
        auditor = OneShotCanaries(seats=50, excluded=excluded)  # type: ignore[arg-type]
        auditor.begin(100, 1)
        told[excluded] = auditor.instruct(1, range(50))
    included = {client for client, order in told["zero"].items() if order.included}
    assert len(told["zero"]) == 50
    assert 0 < len(included) < 50
    assert set(told["honest"]) == included
    assert all(
        order.included for excluded in ("honest", "full") for order in told[excluded].values()
    )
    for client, order in told["zero"].items():
        assert told["full"][client].id == (order.id if order.included else 50 + order.id)
    view = RoundView(1, np.zeros(100), {}, np.ones(100), RoundFacts(), instructed=told["full"])
    auditor.observe(view)
    assert auditor.canaries_played == (len(included),) * 2


@pytest.mark.parametrize(
    ("settings", "adjacency", "world"),
    [
        ({}, "zero-out", Assumption.SEAT_SENDS_ZERO),
        ({"excluded": "honest"}, "honest-seat", Assumption.SEAT_STAYS_HONEST),
        ({"excluded": "full"}, "replace", Assumption.SEAT_SENDS_OTHER),
        ({"include": "all"}, "add-remove", Assumption.ALL_CANARIES_PLAY),
    ],
)
def test_findings_name_the_world_they_speak_of(
    settings: dict[str, Any], adjacency: str, world: str
) -> None:
    findings = play(OneShotCanaries(seats=20, **settings), dim=200, rounds=2)
    for finding in findings:
        assert (finding.observer, finding.unit) == ("outsider", "client")
        assert finding.adjacency == adjacency
        if finding.kind == "diagnostic":
            continue
        assert world in finding.assumptions
        # An estimate has a null band, a bound its confidence, and none of them both.
        is_bound = finding.kind == "lower_bound"
        assert (finding.confidence, finding.null_band is None) == (
            (0.95, True) if is_bound else (None, False)
        )


@pytest.mark.parametrize(("include", "seats", "unobserved"), [("all", 10, 40), ("coin", 20, None)])
def test_those_that_stay_out_or_as_many_others_are_unobserved(
    include: Any, seats: int, unobserved: int | None
) -> None:
    auditor, played = OneShotCanaries(seats=seats, include=include), set()

    def seen(view: RoundView) -> RoundView:
        played.update(order.id for order in view.instructed.values())
        return view

    sizes = checked(play(auditor, dim=200, rounds=4, change=seen), "all models").sample_sizes
    assert sizes["included"] + sizes["unobserved"] == 80
    assert unobserved in (None, sizes["unobserved"])
    assert played == set(range(4 * seats))  # nobody plays those beyond them


def test_a_seat_that_failed_does_not_count_as_played() -> None:
    def drop_half(view: RoundView) -> RoundView:
        answered = {c: o for c, o in view.instructed.items() if c % 2}
        return replace(view, instructed=answered)

    auditor = OneShotCanaries(seats=20, include="all")
    assert auditor.canaries_played == (0, 0)  # before it has a plan
    findings = play(auditor, dim=200, rounds=4, change=drop_half)
    assert checked(findings, "all models").sample_sizes == {"included": 40, "unobserved": 120}
    assert auditor.canaries_played == (40, 80)


NOBODY = ("diagnostic", "canaries", 0.0, None)


def without_release(view: RoundView) -> RoundView:
    """Return a round that was abandoned."""
    return replace(view, released=view.sent)


def test_canaries_of_an_abandoned_round_count_as_unobserved() -> None:
    def abandon(view: RoundView) -> RoundView:
        return without_release(view) if view.server_round == 2 else view

    auditor = OneShotCanaries(seats=10, include="all")
    findings = play(auditor, dim=200, rounds=4, sigma=0.2, change=abandon)
    assert [f.kind for f in findings[:4]] == ["estimate", "diagnostic", "estimate", "estimate"]
    assert checked(findings, "all models").sample_sizes == {"included": 30, "unobserved": 50}
    assert auditor.canaries_played == (30, 40)
    known = of_the_run(findings)[KNOWN]
    assert known.value > (known.null_band or (0, np.inf))[1]  # the others are still found


def test_a_run_without_a_single_release_says_nothing_of_epsilon() -> None:
    findings = play(OneShotCanaries(seats=10), dim=200, rounds=3, change=without_release)
    assert findings
    assert {(f.kind, f.quantity, f.value, f.delta) for f in findings} == {NOBODY}


def test_a_run_whose_coins_all_say_out_says_nothing_of_epsilon_and_so_beforehand() -> None:
    seed = next(s for s in range(100) if not any(coins(s, canaries=3)))
    auditor = OneShotCanaries(seats=3, seed=seed, include="coin")
    findings = play(auditor, dim=200)
    assert auditor.canaries_played == (0, 3)
    reason = "the coins of all 3 planned canaries say out; use more seats, another seed, or"
    assert reason in str(auditor.unplayed)
    assert auditor.limits(Project(200, 1))[0].startswith(f"no canary will be played: {reason}")
    assert findings
    assert {(f.kind, f.quantity, f.value, f.delta) for f in findings} == {NOBODY}


@pytest.mark.parametrize(
    ("canaries", "names"), [(1, {KNOWN}), (29, {KNOWN}), (30, {KNOWN, FITTED, LARGEST})]
)
def test_no_std_is_fitted_to_fewer_than_30_canaries(canaries: int, names: set[str]) -> None:
    # Fitted to 5 canaries, it makes 27 of an ε of 3.
    findings = play(OneShotCanaries(seats=canaries, include="all"), dim=200, leak=False)
    assert set(of_the_run(findings)) == names


def test_a_model_that_comes_back_to_its_start_is_no_division_by_zero() -> None:
    def circle(view: RoundView) -> RoundView:
        step = canary_vector(0, view.server_round % 2, view.sent.size)
        return replace(view, released=view.sent + (step if view.server_round < 3 else -step))

    findings = play(OneShotCanaries(seats=10), dim=200, rounds=4, change=circle)
    assert np.isfinite(of_the_run(findings)[KNOWN].value)
    # Equal scores are no evidence: a cosine of 0 has a p-value of 1/2 only if something changed.
    found = bounds(findings, "final model")
    assert {f.value for f in found.values()} == {0.0}
    assert "threshold" not in found["headline"].facts  # none has shown anything


# The adversary holds one canary and sees the models. Nothing else may move its score.


def test_scores_do_not_move_with_what_other_clients_did() -> None:
    def disturb(view: RoundView) -> RoundView:
        rng = stream(9, "others", view.server_round)
        others = {c: rng.standard_normal(200) for c in range(30)}
        noised = rng.standard_normal(200)
        facts = RoundFacts(aggregate=noised + 1, noised=noised, noise_std=0.5, num_clients=3)
        return replace(view, truth=others, replies=others, facts=facts)

    plain = play(OneShotCanaries(seats=10), dim=200, rounds=3)
    disturbed = play(OneShotCanaries(seats=10), dim=200, rounds=3, change=disturb)
    assert disturbed[:-1] == plain  # the last one says how good the others are
    assert disturbed[-1].quantity == "interference"


def test_the_score_of_a_canary_does_not_move_with_the_coins_of_others() -> None:
    def silence_all_but_first(view: RoundView) -> RoundView:
        return replace(view, instructed={c: o for c, o in view.instructed.items() if o.id == 0})

    scores = []
    for change in (silence_all_but_first, lambda view: view):
        auditor = OneShotCanaries(seats=10)
        play(auditor, dim=200, rounds=2, change=change)
        scores.append(auditor._transcript.final()[0])
    assert np.array_equal(scores[0], scores[1])


def test_canaries_of_another_auditor_are_not_counted() -> None:
    def foreign(view: RoundView) -> RoundView:
        orders = {c: replace(o, seed=o.seed + 1) for c, o in view.instructed.items()}
        return replace(view, instructed=orders)

    auditor = OneShotCanaries(seats=10)
    play(auditor, dim=200, rounds=2, change=foreign)
    assert auditor.canaries_played[0] == 0


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("seats", {"seats": 0}),
        ("seats", {"seats": "many"}),
        ("canaries", {"canaries": 0}),
        ("canaries", {"canaries": 1, "include": "coin"}),
        ("repetitions", {"repetitions": 0}),
        ("delta", {"delta": 0.0}),
        ("delta", {"delta": 1.0}),
        ("confidence", {"confidence": 1.5}),
        ("include", {"include": "some"}),
        ("include", {"include": "all", "confidence": Anytime(0.95)}),  # it bets on coins
        ("excluded", {"excluded": "random"}),
        ("kind", {"kind": "cube"}),
    ],
)
def test_bad_settings_are_named(name: str, settings: dict[str, Any]) -> None:
    with refuses(name):
        OneShotCanaries(**{"seats": 2, **settings})


@pytest.mark.parametrize(
    ("settings", "dim", "kind", "message"),
    [
        ({}, 99, UnableError, "at least 100 parameters for canaries, got 99"),
        ({"canaries": 9}, 100, ValueError, r"at most seats x rounds = 8 .* got 9 x 1"),
        ({"canaries": 3, "repetitions": 3}, 100, ValueError, r"seats x rounds = 8 .* got 3 x 3"),
        ({"repetitions": 5}, 100, UnableError, "5 rounds, got 2 seats and 4 rounds"),
        ({"repetitions": 4, "seats": 1, "include": "coin"}, 100, UnableError, "need at least 8"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_before_the_first_round(
    settings: dict[str, Any], dim: int, kind: type[ValueError], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        OneShotCanaries(**{"seats": 2, **settings}).begin(dim, 4)
    assert caught.type is kind  # a project that is too small leaves the auditor out


def test_a_small_round_plays_fewer_canaries_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    auditor = OneShotCanaries(seats=5)
    auditor.begin(100, 2)
    assert set(auditor.instruct(1, [7, 3, 8, 1])) == {1, 3, 7, 8}
    assert "round 1 has 4 clients for 5 canaries" in caplog.text
    assert auditor.instruct(2, []) == {}
    few = OneShotCanaries(seats=10, canaries=4, repetitions=3, include="all")
    few.begin(100, 3)
    assert [len(few.instruct(r, range(20))) for r in (1, 2, 3)] == [4, 4, 4]


# Lower bounds: what they carry, that they hold, and that they are worth having.


def test_every_bound_is_there_with_what_it_depends_on() -> None:
    findings = play(OneShotCanaries(seats=40, delta=DELTA, confidence=0.9), dim=200, rounds=2)
    for sees in ("final model", "all models"):
        found = bounds(findings, sees)
        assert tuple(found) == METHODS  # the headline is the first
        for name, bound in found.items():
            assert (bound.kind, bound.confidence, bound.delta) == ("lower_bound", 0.9, DELTA)
            assert bound.seed == 0
            assert bound.is_conditional == (name != "headline")
        for name in ("known null", "sampled null"):
            assert Assumption.INDEPENDENT_SCORES in found[name].assumptions
        for name in ("headline", "Gaussian trade-off"):
            assert Assumption.FAIR_COINS in found[name].assumptions
            assert found[name].sample_sizes["canaries"] == 80
        # Every fifth, whatever was seen.
        assert found["Gaussian trade-off"].sample_sizes["guesses"] == 16
        for name in ("headline", "known null"):
            assert 80 < (found[name].cap or 0) < MAX_SCORE


def test_unobserved_canaries_allow_no_guess_of_coins() -> None:
    findings = play(OneShotCanaries(seats=40, include="all"), dim=2000, rounds=2, sigma=0.01)
    found = bounds(findings, "final model")
    assert tuple(found) == METHODS[:3]
    assert found["headline"].sample_sizes == {"in": 80}
    assert found["sampled null"].sample_sizes == {"in": 80, "out": 80}
    assert min(f.value for f in found.values()) > 1


def test_no_score_means_more_than_the_seed_of_the_canaries() -> None:
    # Without noise p-values go far below 2^-128, and ε >= 586 was printed.
    auditor = OneShotCanaries(seats=30, delta=DELTA)
    found = bounds(play(auditor, dim=20_000, sigma=1e-4), "final model")
    assert max(bound.value for bound in found.values()) < MAX_SCORE == SEED_BITS * np.log(2)
    assert found["headline"].facts["threshold"] == MAX_SCORE
    assert 2**63 < auditor.plan.canary_seed < 2**SEED_BITS


def test_findings_say_in_how_many_rounds_a_canary_plays() -> None:
    findings = play(OneShotCanaries(seats=20, canaries=20, repetitions=3), dim=200, rounds=5)
    for finding in findings:
        wanted = 3 if finding.server_round is None else None
        assert finding.threat_model.participations == wanted


def test_an_estimate_below_a_bound_for_the_same_attacker_is_left_out() -> None:
    # One of few canaries is seen clearly: the mean of the cosines makes ε̂ = 26, the bound 80.
    def one(view: RoundView) -> RoundView:
        first = next(o for o in view.instructed.values() if o.included)
        vector = canary_vector(first.seed, first.id, view.sent.size)
        noise = 0.02 * stream(1).standard_normal(view.sent.size)
        return replace(view, released=view.sent + vector + noise)

    findings = play(OneShotCanaries(seats=12, delta=DELTA), dim=4000, change=one)
    found = bounds(findings, "final model")
    assert of_the_run(findings) == {}
    assert not [f for f in findings if f.facts.get("rejected")]  # which would be another reason
    assert "refuted_known_std" in found["headline"].facts
    for bound in found.values():
        refuted = bound.facts.get("refuted_known_std")
        assert (refuted is not None) == (bound.value > 60)
        assert refuted is None or 5 < float(refuted) < bound.value


def test_cosines_that_are_not_gaussian_give_no_gaussian_estimate() -> None:
    # Half of the canaries are lost on their way: two heaps of cosines.
    def half(view: RoundView) -> RoundView:
        sent = [o for o in view.instructed.values() if o.included and o.id % 2]
        step = sum(canary_vector(o.seed, o.id, view.sent.size) for o in sent)
        noise = 0.05 * stream(1, view.server_round).standard_normal(view.sent.size)
        return replace(view, released=view.sent + step + noise)

    findings = play(OneShotCanaries(seats=160), dim=4000, change=half)
    assert not [f for f in findings if f.kind == "estimate"]
    (of_the_round,) = (f for f in findings if f.server_round == 1)
    for check in (of_the_round, checked(findings, "final model"), checked(findings, "all models")):
        assert (check.kind, check.quantity) == ("diagnostic", "normality")
        assert check.facts["rejected"] is True
        assert float(check.facts["p_value"] or 0) < 1e-3
    assert bounds(findings, "final model")["headline"].value > 10
    gaussian = play(OneShotCanaries(seats=160), dim=4000)
    assert checked(gaussian, "final model").facts["rejected"] is False
    assert set(of_the_run(gaussian)) >= {KNOWN, FITTED}


@pytest.mark.parametrize("runs", few_or_many(4, 200))
@pytest.mark.parametrize("settings", [{}, {"include": "all"}, {"repetitions": 2}], ids=str)
def test_no_bound_claims_a_leak_without_one_too_often(settings: dict[str, Any], runs: int) -> None:
    claims: dict[tuple[str, str], int] = {}
    for seed in range(runs):
        auditor = OneShotCanaries(**{"seats": 25, "delta": DELTA, "seed": seed, **settings})
        findings = play(auditor, dim=200, rounds=2, seed=seed, leak=False)
        for sees in ("final model", "all models"):
            for method, bound in bounds(findings, sees).items():
                key = (sees, method)
                claims[key] = claims.get(key, 0) + (bound.value > 0)
    assert len(claims) == (6 if settings.get("include") == "all" else 8)
    assert max(claims.values()) <= most_allowed(runs)


@pytest.mark.parametrize("runs", few_or_many(4, 40))
@pytest.mark.parametrize("settings", [{}, {"include": "all"}, {"excluded": "honest"}], ids=str)
def test_bounds_stay_below_the_epsilon_of_a_gaussian_mechanism(
    settings: dict[str, Any], runs: int
) -> None:
    # Truth 10, for both adversaries: a canary plays once. With no assumption on their law, 75
    # scores can show about 4 of it in the one round and less in the sum of two.
    values: dict[tuple[str, str], list[float]] = {}
    for seed in range(runs):
        auditor = OneShotCanaries(seats=75, delta=DELTA, seed=seed, **settings)
        findings = play(auditor, dim=1000, rounds=2, sigma=SIGMA, seed=seed)
        for sees in ("final model", "all models"):
            for method, bound in bounds(findings, sees).items():
                values.setdefault((sees, method), []).append(bound.value)
    above = {key: sum(v > 10 for v in found) for key, found in values.items()}
    assert max(above.values()) <= most_allowed(runs)
    means = {key: float(np.mean(found)) for key, found in values.items()}
    assert 10 > means["all models", "known null"] > means["final model", "known null"] > 1
    assert means["all models", "known null"] > 2
    if "include" not in settings:
        assert 10 > means["all models", "headline"] > 2
    for sees in ("final model", "all models"):
        assert means[sees, "known null"] > means[sees, "sampled null"] > 0.3


def test_the_known_null_comes_near_a_large_epsilon() -> None:
    # 120 canaries of which half are in, in 5,000 dimensions: separation 1/sqrt(σ² + 60/5000).
    auditor = OneShotCanaries(seats=120, delta=DELTA)
    found = bounds(play(auditor, dim=5000, sigma=0.05), "final model")
    truth = epsilon_gaussian(DELTA, 1 / 0.05)
    left = epsilon_gaussian(DELTA, 1 / np.sqrt(0.05**2 + 60 / 5000))
    for name in ("headline", "known null"):
        assert 0.4 * left < found[name].value < left < truth
    assert found["sampled null"].value < 4  # all that 120 scores could ever count
    assert min(f.value for f in found.values()) > 1


def test_canaries_that_found_no_seat_only_weaken_the_bounds() -> None:
    class Halved(OneShotCanaries):
        def instruct(self, server_round: int, chosen: Any) -> Orders:
            return super().instruct(server_round, list(chosen)[::2])

    full, half = (
        bounds(play(make(seats=60, delta=DELTA), dim=2000, sigma=0.3), "final model")
        for make in (OneShotCanaries, Halved)
    )
    for method in METHODS:
        assert full[method].sample_sizes.get("in") == half[method].sample_sizes.get("in")
    # The headline may find those that are left more clearly: fewer canaries hide each other less.
    for method in METHODS[1:]:
        assert half[method].value <= full[method].value
    assert half["known null"].value < full["known null"].value


@pytest.mark.parametrize("is_alone", [True, False])
def test_interference_is_measured_and_warned_about(
    is_alone: bool, caplog: pytest.LogCaptureFixture
) -> None:
    # k unit vectors in the sum: (k + |X|²)/(d σ²), in a run of 4 equal rounds 4 times the X part.
    def released(view: RoundView) -> RoundView:
        noised = view.released - view.sent + np.sqrt(0.2)  # |X|² = 0.2 d
        if is_alone:
            noised = stream(3, view.server_round).standard_normal(2000)
        return replace(view, facts=RoundFacts(noised=noised, noise_std=1.0))

    auditor = OneShotCanaries(seats=5 if is_alone else 200, include="all", delta=DELTA)
    *_, found = play(auditor, dim=2000, rounds=4, change=released)
    assert (found.kind, found.quantity, found.delta) == ("diagnostic", "interference", None)
    unsure = float(found.facts["standard_deviation"] or 0)
    assert unsure == pytest.approx(np.sqrt(2 / 2000))
    assert found.value == pytest.approx(0.0 if is_alone else 0.1 + 4 * 0.2, abs=6 * unsure)
    assert ("to the noise" in caplog.text) != is_alone
