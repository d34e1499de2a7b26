"""One-shot canaries: right on mechanisms whose epsilon is known, honest where there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from leakmeter.auditors import (
    Canary,
    Finding,
    OneShotCanaries,
    RoundFacts,
    RoundView,
    check_auditor,
)
from leakmeter.auditors.canary import canary_vector
from leakmeter.auditors.gaussian.pair import epsilon_gaussian
from leakmeter.auditors.rng import stream

DELTA = 1e-6
SIGMA = 0.541086831818366  # epsilon 10 at delta 1e-6, sensitivity 1

METHODS = ("known null", "sampled null", "randomised response", "Gaussian trade-off")

Orders = Mapping[int, Canary]
Change = Callable[[RoundView], RoundView]


def play(
    auditor: OneShotCanaries,
    *,
    dim: int,
    rounds: int = 1,
    sigma: float = 1.0,
    seed: int = 0,
    leak: bool = True,
    change: Change = lambda view: view,
) -> list[Finding]:
    """Return the findings on Gaussian mechanisms: each round releases a sum and its noise."""
    auditor.begin(dim, rounds)
    rng = stream(seed, "mechanism")
    findings: list[Finding] = []
    model = rng.standard_normal(dim)  # an adversary who forgets the initial model sees nothing
    for server_round in range(1, rounds + 1):
        orders = auditor.instruct(server_round, range(auditor.seats))
        released = model + sigma * rng.standard_normal(dim)
        for order in orders.values():
            if order.included and leak:
                released = released + canary_vector(order.seed, order.id, dim)
        view = RoundView(server_round, model, {}, released, RoundFacts(), instructed=orders)
        view = change(view)
        findings += auditor.observe(view)
        model = view.released
    return [*findings, *auditor.report()]


def of_the_run(findings: list[Finding]) -> tuple[Finding, Finding, Finding]:
    """Return the findings on the final model with known and fitted std, and on all rounds."""
    known, fitted, maxima = (f for f in estimates(findings) if f.server_round is None)
    return known, fitted, maxima


def estimates(findings: list[Finding]) -> list[Finding]:
    """Return the estimates, or what stands for them where there are too few canaries."""
    return [f for f in findings if f.kind == "estimate" or f.quantity == "canaries"]


def bounds(findings: list[Finding], threat: str) -> dict[str, Finding]:
    """Return the lower bounds for whoever has the "final" or "every" model, by method."""
    found = [f for f in findings if f.kind == "lower_bound" and threat in f.threat_model]
    return {next(word for word in METHODS if word in f.rule): f for f in found}


@pytest.mark.parametrize(
    "settings",
    [
        {"seats": 3},
        {"seats": 3, "include": "all"},
        {"seats": 3, "excluded": "honest"},
        {"seats": 4, "canaries": 6, "repetitions": 3, "seed": 5},
    ],
)
def test_it_keeps_the_contract_of_auditors(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leakmeter.auditors.canaries.auditor._NULL_POOL", 2000)
    monkeypatch.setattr("leakmeter.auditors.canaries.auditor._NULL_RUNS", 50)
    check_auditor(lambda: OneShotCanaries(**settings))


def test_estimates_agree_with_the_published_table() -> None:
    # d = 10,000, k = 100, epsilon 10: known std 9.80 +- 0.64 as in Table 1, fitted std, which is
    # Algorithm 1 as printed, 12.09 +- 2.14. Three standard errors: chance of failure about 0.5 %
    # over fresh seeds, none over these.
    runs = 8
    values = []
    for seed in range(runs):
        auditor = OneShotCanaries(seats=100, include="all", delta=DELTA, seed=seed)
        known, fitted, _ = of_the_run(play(auditor, dim=10_000, sigma=SIGMA, seed=seed))
        assert known.sample_sizes == {"included": 100}
        values.append((known.value, fitted.value))
    known_mean, fitted_mean = np.mean(values, axis=0)
    assert abs(known_mean - 9.80) < 3 * 0.64 / np.sqrt(runs)
    assert abs(fitted_mean - 12.09) < 3 * 2.14 / np.sqrt(runs)


def test_the_estimate_is_near_the_truth_that_interference_leaves() -> None:
    # sqrt(d) E[cos] = 1 / sqrt(sigma² + k / d), k the canaries that are in; s.e. about 1.6 %.
    dim, values, truths = 500, [], []
    for seed in range(25):
        auditor = OneShotCanaries(seats=200, delta=DELTA, seed=seed)
        known, fitted, _ = of_the_run(play(auditor, dim=dim, sigma=SIGMA, seed=seed))
        k = known.sample_sizes["included"]
        assert 60 < k < 140  # about half: the others' coins keep them out
        truths.append(epsilon_gaussian(DELTA, 1 / np.sqrt(SIGMA**2 + k / dim)))
        values.append((known.value, fitted.value))
    known_mean, fitted_mean = np.mean(values, axis=0)
    assert known_mean == pytest.approx(np.mean(truths), rel=0.05)
    assert known_mean < 8.5  # far from 10, the epsilon without interference
    assert fitted_mean > 1.15 * known_mean


def test_the_final_model_shows_less_than_all_rounds_when_canaries_play_once() -> None:
    auditor = OneShotCanaries(seats=20, delta=DELTA)
    known, _, maxima = of_the_run(play(auditor, dim=400, rounds=10, sigma=0.2))
    assert maxima.value > known.value > (known.null_band or (0, np.inf))[1]


def test_repetitions_make_the_final_model_show_more() -> None:
    values = []
    for repetitions in (1, 5):
        auditor = OneShotCanaries(seats=10, canaries=20, repetitions=repetitions, delta=DELTA)
        known, *_ = of_the_run(play(auditor, dim=1000, rounds=10, sigma=1.0))
        values.append(known.value)
    assert values[1] > 2 * values[0]


def test_the_null_band_holds_what_is_said_when_nothing_leaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("leakmeter.auditors.canaries.auditor._NULL_POOL", 10_000)
    monkeypatch.setattr("leakmeter.auditors.canaries.auditor._NULL_RUNS", 200)
    # 90 % of no-leak runs; s.e. 3 %, so 9 % is three of them, for three estimates.
    runs, inside = 100, np.zeros(3)
    for seed in range(runs):
        auditor = OneShotCanaries(seats=20, delta=DELTA, seed=seed)
        said = of_the_run(play(auditor, dim=128, rounds=2, seed=seed, leak=False))
        inside += [low <= f.value <= high for f in said for low, high in [f.null_band or (1, 0)]]
    assert np.abs(inside / runs - 0.9).max() < 0.09


def test_a_leak_stands_out_of_the_null_band() -> None:
    auditor = OneShotCanaries(seats=40, delta=DELTA)
    for finding in estimates(play(auditor, dim=500, rounds=3, sigma=0.3)):
        assert finding.kind == "estimate"
        assert finding.null_band is not None
        assert finding.value > finding.null_band[1]


def test_the_pool_of_null_draws_is_bounded_and_the_band_hardly_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bands = []
    for pool in (10**6, 5000):
        monkeypatch.setattr("leakmeter.auditors.canaries.auditor._NULL_POOL", pool)
        auditor = OneShotCanaries(seats=20, delta=DELTA)
        bands.append(of_the_run(play(auditor, dim=200, rounds=4))[2].null_band)
    assert bands[0] != bands[1]
    assert bands[0] is not None
    assert bands[0] == pytest.approx(bands[1], rel=0.25)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_every_seat_of_the_plan_is_served(data: st.DataObject) -> None:
    rounds, seats = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 8))
    repetitions = data.draw(st.integers(1, rounds))
    most = seats * rounds // repetitions
    if most < 2:
        return
    canaries = data.draw(st.none() | st.integers(2, most))
    auditor = OneShotCanaries(
        seats=seats, canaries=canaries, repetitions=repetitions, include="all"
    )
    auditor.begin(100, rounds)
    chosen = data.draw(
        st.lists(st.integers(0, 10**6), min_size=seats, max_size=seats + 5, unique=True)
    )
    played: list[int] = []
    for server_round in range(1, rounds + 1):
        orders = auditor.instruct(server_round, sorted(chosen))
        assert set(orders) <= set(chosen)
        ids = [order.id for order in orders.values()]
        assert len(ids) == len(set(ids)) <= seats
        played += ids
    assert np.bincount(played).tolist() == [repetitions] * (canaries or most)


def test_the_plan_is_free_of_which_clients_are_chosen() -> None:
    ids = []
    for chosen in (range(10), range(500, 520)):
        auditor = OneShotCanaries(seats=4, seed=3)
        auditor.begin(100, 5)
        ids.append([sorted(o.id for o in auditor.instruct(3, chosen).values())])
    assert ids[0] == ids[1]


def test_seats_wander_among_the_chosen() -> None:
    auditor = OneShotCanaries(seats=3)
    auditor.begin(100, 50)
    served = {c for r in range(1, 51) for c in auditor.instruct(r, range(10))}
    assert served == set(range(10))


def coins(seed: int, canaries: int = 400) -> list[bool]:
    auditor = OneShotCanaries(seats=canaries, seed=seed)
    auditor.begin(100, 1)
    orders = auditor.instruct(1, range(canaries)).values()
    return [order.included for order in sorted(orders, key=lambda o: o.id)]


def test_coins_are_fair_and_differ_between_seeds() -> None:
    tossed = np.array([coins(seed) for seed in range(20)])
    assert binomtest(int(tossed.sum()), tossed.size).pvalue > 1e-4  # chance of failure 1e-4
    agree = (tossed[1:] == tossed[:-1]).mean()
    assert abs(agree - 0.5) < 4 * 0.5 / np.sqrt(tossed[1:].size)


def test_a_seat_whose_canary_is_out_sends_zero_or_stays_honest() -> None:
    counts = {}
    for excluded in ("zero", "honest"):
        auditor = OneShotCanaries(seats=50, excluded=excluded)  # type: ignore[arg-type]
        auditor.begin(100, 1)
        orders = auditor.instruct(1, range(50)).values()
        counts[excluded] = (len(orders), sum(o.included for o in orders))
    assert counts["zero"][0] == 50
    assert counts["honest"][0] == counts["honest"][1] == counts["zero"][1] < 50


@pytest.mark.parametrize(
    ("settings", "adjacency", "words"),
    [
        ({}, "zero-out", "sends a zero update of the same weight"),
        ({"excluded": "honest"}, "honest-seat", "weaker than zero-out"),
        ({"include": "all"}, "add-remove", "all canaries take part"),
    ],
)
def test_findings_name_the_world_they_speak_of(
    settings: dict[str, Any], adjacency: str, words: str
) -> None:
    findings = play(OneShotCanaries(seats=20, **settings), dim=200, rounds=2)
    for finding in findings:
        assert (finding.observer, finding.unit) == ("outsider", "client")
        assert finding.adjacency == adjacency
        if finding.kind == "diagnostic":
            continue
        assert any(words in a for a in finding.assumptions)
        assert "a canary stands for a client that takes part in 1 round" in finding.assumptions
        # An estimate has a null band, a bound its confidence, and none of them both.
        is_bound = finding.kind == "lower_bound"
        assert (finding.confidence, finding.null_band is None) == (
            (0.95, True) if is_bound else (None, False)
        )


def test_the_two_stds_are_told_apart() -> None:
    known, fitted, maxima = of_the_run(play(OneShotCanaries(seats=20), dim=200))
    assert "known std" in known.rule
    assert "fitted std" in fitted.rule
    assert any("null's std" in a for a in known.assumptions)
    assert any("extrapolated" in a for a in maxima.assumptions)


def test_all_included_brings_as_many_unobserved_canaries() -> None:
    *_, maxima = of_the_run(play(OneShotCanaries(seats=5, include="all"), dim=200, rounds=4))
    assert maxima.sample_sizes == {"included": 20, "unobserved": 20}


def test_with_coins_those_that_stay_out_are_the_unobserved_ones() -> None:
    *_, maxima = of_the_run(play(OneShotCanaries(seats=5), dim=200, rounds=4))
    assert maxima.sample_sizes["included"] + maxima.sample_sizes["unobserved"] == 20
    assert min(maxima.sample_sizes.values()) > 2


def test_unobserved_canaries_are_never_played() -> None:
    auditor = OneShotCanaries(seats=5, include="all")
    auditor.begin(200, 4)
    played = {o.id for r in range(1, 5) for o in auditor.instruct(r, range(5)).values()}
    assert played == set(range(20))


def test_a_seat_that_failed_does_not_count_as_played() -> None:
    def drop_half(view: RoundView) -> RoundView:
        answered = {c: o for c, o in view.instructed.items() if c % 2}
        return replace(view, instructed=answered)

    auditor = OneShotCanaries(seats=10, include="all")
    *_, maxima = of_the_run(play(auditor, dim=200, rounds=4, change=drop_half))
    assert maxima.sample_sizes == {"included": 20, "unobserved": 60}


def test_canaries_of_an_abandoned_round_count_as_unobserved() -> None:
    def abandon(view: RoundView) -> RoundView:
        return replace(view, released=view.sent) if view.server_round == 2 else view

    auditor = OneShotCanaries(seats=10, include="all")
    findings = play(auditor, dim=200, rounds=4, sigma=0.2, change=abandon)
    assert [f.kind for f in findings[:4]] == ["estimate", "diagnostic", "estimate", "estimate"]
    known, _, maxima = of_the_run(findings)
    assert maxima.sample_sizes == {"included": 30, "unobserved": 50}
    assert known.value > (known.null_band or (0, np.inf))[1]  # the others are still found


def test_a_run_without_a_single_release_says_nothing_of_epsilon() -> None:
    def abandon(view: RoundView) -> RoundView:
        return replace(view, released=view.sent)

    for finding in play(OneShotCanaries(seats=10), dim=200, rounds=3, change=abandon):
        assert (finding.kind, finding.quantity) == ("diagnostic", "canaries")
        assert (finding.value, finding.delta) == (0.0, None)


def test_a_run_whose_coins_all_say_out_says_nothing_of_epsilon() -> None:
    seed = next(s for s in range(100) if not any(coins(s, canaries=3)))
    findings = play(OneShotCanaries(seats=3, seed=seed), dim=200)
    assert estimates(findings) == findings
    for finding in findings:
        assert (finding.kind, finding.quantity) == ("diagnostic", "canaries")


def test_one_canary_is_enough_for_a_known_std_only() -> None:
    seed = next(s for s in range(100) if sum(coins(s, canaries=3)) == 1)
    findings = estimates(play(OneShotCanaries(seats=3, seed=seed), dim=200))
    assert [f.kind for f in findings] == ["estimate", "estimate", "diagnostic", "diagnostic"]


def test_a_model_that_comes_back_to_its_start_is_no_division_by_zero() -> None:
    def circle(view: RoundView) -> RoundView:
        step = canary_vector(0, view.server_round % 2, view.sent.size)
        return replace(view, released=view.sent + (step if view.server_round < 3 else -step))

    findings = play(OneShotCanaries(seats=10), dim=200, rounds=4, change=circle)
    assert np.isfinite(of_the_run(findings)[0].value)
    # Equal scores are no evidence: a cosine of 0 has a p-value of 1/2 only if something changed.
    assert {f.value for f in bounds(findings, "final").values()} == {0.0}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_model_that_diverged_is_an_error_not_an_epsilon_of_zero(bad: float) -> None:
    def diverge(view: RoundView) -> RoundView:
        return replace(view, released=view.released * bad)

    with pytest.raises(ValueError, match="must change by finite numbers"):
        play(OneShotCanaries(seats=10), dim=200, change=diverge)


def test_rounds_beyond_the_plan_are_watched_without_canaries() -> None:
    auditor = OneShotCanaries(seats=2)
    auditor.begin(100, 2)
    assert auditor.instruct(3, range(10)) == {}


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

    states = []
    for change in (silence_all_but_first, lambda view: view):
        auditor = OneShotCanaries(seats=10)
        play(auditor, dim=200, rounds=2, change=change)
        states.append(auditor.state()["transcript"]["products"])
    assert np.array_equal(states[0], states[1])


def test_the_score_moves_with_the_released_model() -> None:
    def nudge(view: RoundView) -> RoundView:
        return replace(view, released=view.released + 0.1)

    plain = play(OneShotCanaries(seats=10), dim=200, rounds=3)
    assert play(OneShotCanaries(seats=10), dim=200, rounds=3, change=nudge) != plain


def test_canaries_of_another_auditor_are_not_counted() -> None:
    def foreign(view: RoundView) -> RoundView:
        orders = {c: replace(o, seed=o.seed + 1) for c, o in view.instructed.items()}
        return replace(view, instructed=orders)

    *_, maxima = of_the_run(play(OneShotCanaries(seats=10), dim=200, rounds=2, change=foreign))
    assert maxima.sample_sizes["included"] == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seats": 0}, "seats must be at least 1, got 0"),
        ({"canaries": 1}, "canaries must be at least 2, or None for all seats, got 1"),
        ({"repetitions": 0}, "repetitions must be at least 1, got 0"),
        ({"delta": 0.0}, r"delta must be in \(0, 1\), got 0.0"),
        ({"delta": 1.0}, "delta must be in"),
        ({"include": "some"}, "include must be 'coin' or 'all', got 'some'"),
        ({"excluded": "random"}, "excluded must be 'zero' or 'honest', got 'random'"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OneShotCanaries(**{"seats": 2, **settings})


@pytest.mark.parametrize(
    ("settings", "dim", "rounds", "message"),
    [
        ({}, 99, 4, "at least 100 parameters for canaries, got 99"),
        ({"canaries": 9}, 100, 4, r"at most seats x rounds = 8 .* got 9 x 1"),
        ({"canaries": 3, "repetitions": 3}, 100, 4, r"at most seats x rounds = 8 .* got 3 x 3"),
        ({"repetitions": 5}, 100, 4, r"with at least 2 canaries, got 1 x 5"),
        (
            {"seats": 4, "repetitions": 5},
            100,
            4,
            "repetitions must be at most the rounds, 4, got 5",
        ),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_before_the_first_round(
    settings: dict[str, Any], dim: int, rounds: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        OneShotCanaries(**{"seats": 2, **settings}).begin(dim, rounds)


def test_fewer_canaries_than_seats_may_play_several_times() -> None:
    auditor = OneShotCanaries(seats=10, canaries=4, repetitions=3, include="all")
    auditor.begin(100, 3)
    assert [len(auditor.instruct(r, range(20))) for r in (1, 2, 3)] == [4, 4, 4]


def test_a_small_round_plays_fewer_canaries_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    auditor = OneShotCanaries(seats=5)
    auditor.begin(100, 2)
    assert set(auditor.instruct(1, [7, 3, 8, 1])) == {1, 3, 7, 8}
    assert "round 1 has 4 clients for 5 canaries" in caplog.text
    assert auditor.instruct(2, []) == {}


# Lower bounds: what they carry, that they hold, and that they are worth having.


def test_every_bound_is_there_with_what_it_depends_on() -> None:
    findings = play(OneShotCanaries(seats=40, delta=DELTA, confidence=0.9), dim=200, rounds=2)
    for threat in ("final", "every"):
        found = bounds(findings, threat)
        assert tuple(found) == METHODS  # the known null stands first
        for bound in found.values():
            assert (bound.kind, bound.confidence, bound.delta) == ("lower_bound", 0.9, DELTA)
            assert bound.seed == 0
        for method in METHODS[:2]:
            assert any("independent, though they share" in a for a in found[method].assumptions)
        for method in METHODS[2:]:
            assert found[method].sample_sizes["guesses"] == 16  # every fifth, whatever was seen
            assert any("fair coin" in a for a in found[method].assumptions)
        assert any("mu-GDP" in a for a in found["Gaussian trade-off"].assumptions)
        assert any("uniform on the sphere" in a for a in found["known null"].assumptions)
        assert found["known null"].cap is None
        assert found["sampled null"].cap is not None
    assert (
        "known null (simulated, at 0.01 of the failures)"
        in bounds(findings, "every")["known null"].rule
    )


def test_unobserved_canaries_allow_no_guess_of_coins() -> None:
    findings = play(OneShotCanaries(seats=40, include="all"), dim=200, rounds=2, sigma=0.1)
    found = bounds(findings, "final")
    assert tuple(found) == METHODS[:2]
    assert found["sampled null"].sample_sizes == {"in": 80, "out": 80}
    assert min(f.value for f in found.values()) > 1


def bounds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the time that estimates take."""
    monkeypatch.setattr("leakmeter.auditors.canaries.auditor._NULL_POOL", 2000)
    monkeypatch.setattr("leakmeter.auditors.canaries.auditor._NULL_RUNS", 2)
    monkeypatch.setattr(
        "leakmeter.auditors.canaries.auditor.one_fit", lambda z, *_: np.zeros(len(z))
    )
    monkeypatch.setattr(
        "leakmeter.auditors.canaries.auditor.two_fits", lambda z, *_: np.zeros(len(z))
    )


@pytest.mark.parametrize("settings", [{}, {"include": "all"}, {"repetitions": 2}], ids=str)
def test_no_bound_claims_a_leak_without_one_too_often(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nominal 5 %; three standard errors of 200 runs are 4.6 %.
    bounds_only(monkeypatch)
    runs, claims = 200, {}
    for seed in range(runs):
        auditor = OneShotCanaries(**{"seats": 25, "delta": DELTA, "seed": seed, **settings})
        findings = play(auditor, dim=200, rounds=2, seed=seed, leak=False)
        for threat in ("final", "every"):
            for method, bound in bounds(findings, threat).items():
                key = (threat, method)
                claims[key] = claims.get(key, 0) + (bound.value > 0)
    assert len(claims) == (4 if settings.get("include") == "all" else 8)
    assert max(claims.values()) <= 0.05 * runs + 3 * np.sqrt(0.05 * 0.95 * runs)


@pytest.mark.parametrize("settings", [{}, {"include": "all"}, {"excluded": "honest"}], ids=str)
def test_bounds_stay_below_the_epsilon_of_a_gaussian_mechanism(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Truth 10, for both adversaries: a canary plays once. With no assumption on their law, 75
    # scores can show about 4 of it in the one round and less in the sum of two.
    bounds_only(monkeypatch)
    values: dict[tuple[str, str], list[float]] = {}
    for seed in range(40):
        auditor = OneShotCanaries(seats=75, delta=DELTA, seed=seed, **settings)
        findings = play(auditor, dim=1000, rounds=2, sigma=SIGMA, seed=seed)
        for threat in ("final", "every"):
            for method, bound in bounds(findings, threat).items():
                values.setdefault((threat, method), []).append(bound.value)
    above = {key: sum(v > 10 for v in found) for key, found in values.items()}
    assert max(above.values()) <= 0.05 * 40 + 3 * np.sqrt(0.05 * 0.95 * 40)
    means = {key: float(np.mean(found)) for key, found in values.items()}
    assert 10 > means["every", "known null"] > means["final", "known null"] > 1
    assert means["every", "known null"] > 2
    for threat in ("final", "every"):
        assert means[threat, "known null"] > means[threat, "sampled null"] > 0.3


def test_the_known_null_comes_near_a_large_epsilon() -> None:
    # 120 canaries of which half are in, in 5,000 dimensions: separation 1/sqrt(σ² + 60/5000).
    auditor = OneShotCanaries(seats=120, delta=DELTA)
    found = bounds(play(auditor, dim=5000, sigma=0.05), "final")
    truth = epsilon_gaussian(DELTA, 1 / 0.05)
    left = epsilon_gaussian(DELTA, 1 / np.sqrt(0.05**2 + 60 / 5000))
    assert 0.4 * left < found["known null"].value < left < truth
    assert found["sampled null"].value < 4  # all that 120 scores could ever count


def test_a_run_without_noise_is_detected_by_every_bound() -> None:
    findings = play(OneShotCanaries(seats=60, delta=DELTA), dim=2000, rounds=3, sigma=1e-3)
    for threat, least in (("final", 5.0), ("every", 40.0)):
        found = bounds(findings, threat)
        assert min(f.value for f in found.values()) > 1
        assert found["known null"].value > least  # no cap: far more than 180 canaries could count


def test_canaries_that_found_no_seat_only_weaken_the_bounds() -> None:
    class Halved(OneShotCanaries):
        def instruct(self, server_round: int, chosen: Any) -> Orders:
            return super().instruct(server_round, list(chosen)[::2])

    full, half = (
        bounds(play(make(seats=60, delta=DELTA), dim=2000, sigma=0.3), "final")
        for make in (OneShotCanaries, Halved)
    )
    for method in METHODS:
        assert full[method].sample_sizes.get("in") == half[method].sample_sizes.get("in")
        assert half[method].value < full[method].value or full[method].value == 0


def test_interference_is_measured_and_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    # k unit vectors in the sum: (k + |X|²)/(d σ²), in a run of 4 equal rounds 4 times the X part.
    def crowd(view: RoundView) -> RoundView:
        noised = view.released - view.sent + np.sqrt(0.2)  # |X|² = 0.2 d
        return replace(view, facts=RoundFacts(noised=noised, noise_std=1.0))

    auditor = OneShotCanaries(seats=200, include="all", delta=DELTA)
    *_, found = play(auditor, dim=2000, rounds=4, change=crowd)
    assert (found.kind, found.quantity, found.delta) == ("diagnostic", "interference", None)
    unsure = found.details["standard_deviation"]
    assert unsure == pytest.approx(np.sqrt(2 / 2000))
    assert np.array(found.details["rounds"]) == pytest.approx([0.3] * 4, abs=6 * unsure)
    assert found.value == pytest.approx(0.1 + 4 * 0.2, abs=6 * unsure)
    assert "to the noise" in caplog.text


def test_noise_alone_is_no_interference(caplog: pytest.LogCaptureFixture) -> None:
    def alone(view: RoundView) -> RoundView:
        noised = stream(3, view.server_round).standard_normal(2000)
        return replace(view, facts=RoundFacts(noised=noised, noise_std=1.0))

    *_, found = play(OneShotCanaries(seats=5), dim=2000, rounds=4, change=alone)
    assert found.value < 3 * found.details["standard_deviation"]
    assert caplog.text == ""
