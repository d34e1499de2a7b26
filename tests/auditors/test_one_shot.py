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

from auditors import Canary, Finding, OneShotCanaries, RoundFacts, RoundView, check_auditor
from auditors.canary import canary_vector
from auditors.gaussian import epsilon_gaussian
from auditors.rng import stream

DELTA = 1e-6
SIGMA = 0.541086831818366  # epsilon 10 at delta 1e-6, sensitivity 1

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
    known, fitted, maxima = (f for f in findings if f.server_round is None)
    return known, fitted, maxima


@pytest.mark.parametrize(
    "settings",
    [
        {"seats": 3},
        {"seats": 3, "include": "all"},
        {"seats": 3, "excluded": "honest"},
        {"seats": 4, "canaries": 6, "repetitions": 3, "seed": 5},
    ],
)
def test_it_keeps_the_contract_of_auditors(settings: dict[str, Any]) -> None:
    check_auditor(lambda: OneShotCanaries(**settings))


def test_estimates_agree_with_the_published_table() -> None:
    # d = 10,000, k = 100, epsilon 10: known std 9.80 +- 0.64 as in Table 1, fitted std, which is
    # Algorithm 1 as printed, 12.09 +- 2.14. Three standard errors: chance of failure about 0.5 %
    # over fresh seeds, none over these.
    runs = 16
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


def test_the_null_band_holds_what_is_said_when_nothing_leaks() -> None:
    # 90 % of no-leak runs; s.e. 3 %, so 9 % is three of them, for three estimates.
    runs, inside = 100, np.zeros(3)
    for seed in range(runs):
        auditor = OneShotCanaries(seats=20, delta=DELTA, seed=seed)
        said = of_the_run(play(auditor, dim=128, rounds=2, seed=seed, leak=False))
        inside += [low <= f.value <= high for f in said for low, high in [f.null_band or (1, 0)]]
    assert np.abs(inside / runs - 0.9).max() < 0.09


def test_a_leak_stands_out_of_the_null_band() -> None:
    auditor = OneShotCanaries(seats=40, delta=DELTA)
    for finding in play(auditor, dim=500, rounds=3, sigma=0.3):
        assert finding.kind == "estimate"
        assert finding.null_band is not None
        assert finding.value > finding.null_band[1]


def test_the_pool_of_null_draws_is_bounded_and_the_band_hardly_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bands = []
    for pool in (10**6, 5000):
        monkeypatch.setattr("auditors.one_shot._NULL_POOL", pool)
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
    for finding in play(OneShotCanaries(seats=20, **settings), dim=200, rounds=2):
        assert finding.adjacency == adjacency
        assert any(words in a for a in finding.assumptions)
        assert (finding.observer, finding.unit, finding.kind) == ("outsider", "client", "estimate")
        assert finding.confidence is None  # an estimate is no bound
        assert finding.null_band is not None


def test_the_two_stds_are_told_apart() -> None:
    known, fitted, maxima = of_the_run(play(OneShotCanaries(seats=20), dim=200))
    assert "known std" in known.rule
    assert "fitted std" in fitted.rule
    assert any("null's std" in a for a in known.assumptions)
    assert any("extrapolated" in a for a in maxima.assumptions)


def test_all_included_brings_as_many_unobserved_canaries() -> None:
    *_, maxima = play(OneShotCanaries(seats=5, include="all"), dim=200, rounds=4)
    assert maxima.sample_sizes == {"included": 20, "unobserved": 20}


def test_with_coins_those_that_stay_out_are_the_unobserved_ones() -> None:
    *_, maxima = play(OneShotCanaries(seats=5), dim=200, rounds=4)
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
    *_, maxima = play(auditor, dim=200, rounds=4, change=drop_half)
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
    for finding in play(OneShotCanaries(seats=3, seed=seed), dim=200):
        assert (finding.kind, finding.quantity) == ("diagnostic", "canaries")


def test_one_canary_is_enough_for_a_known_std_only() -> None:
    seed = next(s for s in range(100) if sum(coins(s, canaries=3)) == 1)
    findings = play(OneShotCanaries(seats=3, seed=seed), dim=200)
    assert [f.kind for f in findings] == ["estimate", "estimate", "diagnostic", "diagnostic"]


def test_a_model_that_comes_back_to_its_start_is_no_division_by_zero() -> None:
    def circle(view: RoundView) -> RoundView:
        step = canary_vector(0, view.server_round % 2, view.sent.size)
        return replace(view, released=view.sent + (step if view.server_round < 3 else -step))

    known, *_ = of_the_run(play(OneShotCanaries(seats=10), dim=200, rounds=4, change=circle))
    assert np.isfinite(known.value)


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
        facts = RoundFacts(aggregate=rng.standard_normal(200), num_clients=3)
        return replace(view, truth=others, replies=others, facts=facts)

    plain = play(OneShotCanaries(seats=10), dim=200, rounds=3)
    assert play(OneShotCanaries(seats=10), dim=200, rounds=3, change=disturb) == plain


def test_the_score_of_a_canary_does_not_move_with_the_coins_of_others() -> None:
    def silence_all_but_first(view: RoundView) -> RoundView:
        return replace(view, instructed={c: o for c, o in view.instructed.items() if o.id == 0})

    states = []
    for change in (silence_all_but_first, lambda view: view):
        auditor = OneShotCanaries(seats=10)
        play(auditor, dim=200, rounds=2, change=change)
        states.append(auditor.state()["products"])
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

    *_, maxima = play(OneShotCanaries(seats=10), dim=200, rounds=2, change=foreign)
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


def test_more_seats_than_clients_are_refused() -> None:
    auditor = OneShotCanaries(seats=5)
    auditor.begin(100, 2)
    with pytest.raises(ValueError, match="seats must be at most the 4 clients of round 1, got 5"):
        auditor.instruct(1, range(4))
