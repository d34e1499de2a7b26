"""Few canaries: all take part, a bound without coins judges them, seats come from the cohort."""

from __future__ import annotations

import math
from typing import Any

import pytest

from leakmeter.auditors import Anytime, Finding, OneShotCanaries, check_auditor
from leakmeter.auditors.auditor import Project
from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.bounds.one_run import FEW, share_bound
from leakmeter.auditors.canaries.canary_auditor import CanaryPlan, seats_of
from leakmeter.auditors.wording import Assumption
from tests.helpers.canary_runs import lower_bounds, play
from tests.helpers.numbers import few_or_many, first_fast, most_allowed

DIM = 200
DELTA = 1e-5


def run(auditor: OneShotCanaries, cohorts: list[int], **more: Any) -> list[Finding]:
    """Return the findings on Gaussian sums, of cohorts of these sizes."""
    return play(auditor, dim=DIM, cohorts=cohorts, **{"sigma": 0.3, **more})


def headlines(findings: list[Finding]) -> list[Finding]:
    """Return the bounds of the run that need no condition."""
    return [f for f in lower_bounds(findings) if not f.is_conditional]


@pytest.mark.parametrize("seed", first_fast(1, range(5)))
def test_fewer_than_ten_canaries_all_take_part_and_coins_decide_about_more(seed: int) -> None:
    for rounds in (1, 3, FEW - 1):
        auditor = OneShotCanaries(seats=1, seed=seed)
        assert headlines(run(auditor, [5] * rounds, seed=seed))
        assert auditor.canaries_played == (rounds, rounds)
    found, coins, everybody = (
        run(OneShotCanaries(seats=1, include=include), [5] * FEW)  # type: ignore[arg-type]
        for include in ("auto", "coin", "all")
    )
    assert found == coins != everybody
    assert all(Assumption.FAIR_COINS in f.assumptions for f in headlines(found))


@pytest.mark.parametrize(
    ("excluded", "adjacency"), [("zero", "zero-out"), ("honest", "honest-seat")]
)
def test_the_headline_of_few_canaries_needs_no_coins_and_says_so(
    excluded: Any, adjacency: str
) -> None:
    found = headlines(run(OneShotCanaries(seats=1, excluded=excluded), [5] * 3, sigma=0.05))
    assert [f.threat_model.sees for f in found] == ["final model", "all models"]
    for bound in found:
        assert bound.value > 5
        assert bound.adjacency == adjacency
        assert bound.sample_sizes == {"in": 3}
        assert set(bound.assumptions) == {
            Assumption.ALL_CANARIES_PLAY,
            Assumption.UNIFORM_CANARIES,
            Assumption.KNOWN_NULL,
        }


@pytest.mark.parametrize(("canaries", "tests"), [(1, 1), (3, 2), (9, 4), (10, 5), (20, 5)])
def test_shares_of_few_canaries_that_are_the_same_are_paid_for_once(
    canaries: int, tests: int
) -> None:
    bound = share_bound([50.0] * canaries, delta=0.0, confidence=0.95)
    share = -(-canaries // 2) / canaries
    assert bound.value == pytest.approx(50 + math.log(0.05 / tests * share), rel=1e-12)


def violations(canaries: int, runs: int, truth: float, **mechanism: Any) -> int:
    """Return in how many runs any headline is above the true ε."""
    count = 0
    for seed in range(runs):
        auditor = OneShotCanaries(seats=1, delta=DELTA, seed=seed)
        auditor.confidence = 0.975  # both bounds of a run share its confidence
        found = headlines(run(auditor, [3] * canaries, seed=seed, **mechanism))
        assert len(found) == 2
        count += max(f.value for f in found) > truth
    return count


@pytest.mark.parametrize("runs", few_or_many(10, 1000))
@pytest.mark.parametrize("canaries", first_fast(1, [3, 1, 9]))
def test_few_canaries_that_nobody_sent_show_nothing(canaries: int, runs: int) -> None:
    assert violations(canaries, runs, 0.0, leak=False) <= most_allowed(runs)


@pytest.mark.parametrize("runs", few_or_many(4, 1000))
@pytest.mark.parametrize("sigma", first_fast(1, [1.0, 0.2]))
@pytest.mark.parametrize("canaries", first_fast(1, [3, 1, 9]))
def test_few_canaries_stay_below_the_epsilon_of_a_gaussian_sum(
    canaries: int, sigma: float, runs: int
) -> None:
    truth = epsilon_gaussian(DELTA, 1 / sigma)
    assert violations(canaries, runs, truth, sigma=sigma) <= most_allowed(runs)


@pytest.mark.parametrize("clients", [1, 2])
def test_a_cohort_without_an_honest_majority_gets_no_seats_and_the_reason(clients: int) -> None:
    auditor = OneShotCanaries(seats="auto")
    [finding] = run(auditor, [clients] * 3)[-1:]
    assert (finding.kind, finding.quantity) == ("diagnostic", "canaries")
    assert auditor.canaries_played == (0, 0)
    reason = "seats='auto' needs three clients in a round, so that most of them stay honest"
    assert reason in str(auditor.unplayed)
    [words] = auditor.limits(Project(DIM, 3, clients=clients))
    assert reason in words
    assert auditor.limits(Project(DIM, 3, clients=3)) == []


@pytest.mark.parametrize("clients", [3, 10])
def test_seats_come_from_the_first_cohort(clients: int) -> None:
    auditor = OneShotCanaries()
    findings = run(auditor, [clients] * 3)
    seats = seats_of(clients)
    assert findings == run(OneShotCanaries(seats=seats), [clients] * 3)
    assert auditor.canaries_played is not None


@pytest.mark.parametrize(("seats", "played"), [("auto", 8), (2, 1)])
def test_how_often_clients_send_is_known_whoever_chose_the_seats(seats: Any, played: int) -> None:
    plan = CanaryPlan(
        "one-shot",
        seats=seats,
        canaries=None,
        repetitions="auto",
        include="auto",
        excluded="zero",
        seed=0,
    )
    plan.begin(DIM, 10)
    plan.orders("one-shot", 1, range(10), population=10)
    assert (plan.client_rounds, plan.repetitions) == (8, played)
    plan.orders("one-shot", 2, range(5), population=10)  # the first cohort has said it
    assert plan.client_rounds == 8


def test_the_plan_waits_for_a_cohort_that_is_large_enough_and_never_takes_half() -> None:
    auditor = OneShotCanaries()
    auditor.begin(DIM, 4)
    seats = [len(auditor.instruct(r, range(n))) for r, n in enumerate([2, 20, 6, 2], 1)]
    assert seats == [0, 4, 1, 0]


def test_bets_find_their_rounds_when_the_plan_has_waited() -> None:
    settings: dict[str, Any] = {"confidence": Anytime(0.95), "delta": 1e-6}
    waited = run(OneShotCanaries(**settings), [2] + [50] * 4, sigma=0.05)
    assert max(f.value for f in headlines(waited) if f.threat_model.sees == "all models") > 5


def test_an_interrupted_run_keeps_the_seats_of_its_first_cohort() -> None:
    check_auditor(OneShotCanaries)
    before, after = OneShotCanaries(), OneShotCanaries()
    for auditor in (before, after):
        auditor.begin(DIM, 4)
    before.instruct(1, range(20))
    after.restore(before.state())
    for server_round in (2, 3, 4):
        chosen = range(7 * server_round)
        assert after.instruct(server_round, chosen) == before.instruct(server_round, chosen)


def test_most_of_a_cohort_stays_honest_whatever_its_size() -> None:
    seats = [seats_of(clients) for clients in range(1000)]
    assert seats[:3] == [0, 0, 0]
    assert all(2 * one < clients for clients, one in enumerate(seats) if clients)
    assert all(seats[3:])
    assert all(abs(one - clients / 5) < 1 for clients, one in enumerate(seats) if clients >= 5)
