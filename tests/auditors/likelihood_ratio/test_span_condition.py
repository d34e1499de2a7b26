"""The span condition on rounds, and the sum of few directions that hides nothing."""

from __future__ import annotations

import runpy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from leakmeter.auditors.auditor import Canary, Project, RoundFacts, RoundView
from leakmeter.auditors.checks import check_auditor
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.likelihood_ratio.auditor import LikelihoodRatio
from leakmeter.auditors.likelihood_ratio.game import SampleBudget
from leakmeter.auditors.likelihood_ratio.span import SpanCondition, spans
from leakmeter.auditors.rng import stream
from tests.helpers.numbers import first_fast
from tests.helpers.project import ROOT
from tests.helpers.refusals import refuses


@pytest.fixture(scope="module")
def example() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(ROOT / "examples" / "sum_of_few_directions.py")))


def test_the_example_is_separated_by_support(example: SimpleNamespace) -> None:
    found = example.span()
    assert found.separated
    assert found.idle_columns == 10
    assert found.rank == 30


def test_the_example_is_found_with_certainty(example: SimpleNamespace) -> None:
    bare = example.audit()
    assert bare.saturated  # as much as this many trials can ever show
    assert bare.value > 3.5


def test_noise_in_the_missing_directions_ends_it(
    example: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    from leakmeter.auditors.bounds.gaussian import epsilon_gaussian

    first, second = example.candidates()
    most = epsilon_gaussian(example.DELTA, float(np.linalg.norm(first - second)))
    assert 0 < example.audit(sigma=1.0).value < most
    example.main()
    assert "no error in 600 sums" in capsys.readouterr().out


def test_the_likelihood_ratio_audit_finds_it_by_support_where_its_scores_miss_it(
    gaussian_sampler: type,
) -> None:
    dim = 40
    few = gaussian_sampler(np.eye(dim), others=np.diag([10.0] * 30 + [0.0] * 10))
    budget = SampleBudget(fit=200, candidates=10, pilot=30, trials=200)
    auditor = LikelihoodRatio(few, target=0, budget=budget)
    auditor.begin(dim, 1)
    replies = {client: np.zeros(dim) for client in range(4)}
    known = RoundFacts(aggregate=np.zeros(dim), num_clients=4, total_weight=4.0)
    found = auditor.observe(RoundView(1, np.zeros(dim), replies, np.zeros(dim), known))
    [bound] = [f for f in found if f.quantity == "epsilon" and f.kind == "lower_bound"]
    [support] = [f for f in found if f.quantity == "certain separation"]
    assert support.facts["draws"] == 200
    # The fitted covariance is shrunk towards the loud directions, so the silent ones look noisy.
    assert bound.value < 1.0


def updates(seed: int, clients: int = 4, dim: int = 12) -> dict[int, np.ndarray]:
    """Return the counterexample as one round: all but the last client leave a quarter out."""
    rows = stream(seed, "updates").standard_normal((clients, dim))
    rows[:-1, -dim // 4 :] = 0.0
    return dict(enumerate(rows))


def view(number: int, truth: dict[int, np.ndarray], **more: Any) -> RoundView:
    return RoundView(number, np.zeros(12), {}, np.zeros(12), RoundFacts(), truth, **more)


def test_it_keeps_the_contract_of_auditors() -> None:
    check_auditor(lambda: SpanCondition(every=2))


def test_every_client_is_held_against_the_others_of_its_round() -> None:
    found = spans(updates(0))
    assert list(found) == [0, 1, 2, 3]
    assert found[3].idle_columns == 3
    assert found[3].separated
    # Three updates in twelve dimensions reach little: most of any other lies outside as well.
    assert all(one.outside for one in found.values())
    assert not found[0].idle_norm > 0


def test_a_combination_of_the_others_lies_within() -> None:
    rows = stream(1, "rows").standard_normal((5, 20))
    last = spans(dict(enumerate([*rows, rows.T @ np.arange(1.0, 6.0)])))[5]
    assert last.share < 1e-6
    assert not last.outside


def test_the_client_that_sticks_out_most_is_named() -> None:
    rows = np.eye(12)[:4] + np.eye(12)[0]
    rows[3] += 5 * np.eye(12)[11]
    truth = dict(enumerate(rows))
    [found] = SpanCondition().observe(view(7, truth))
    assert (found.auditor, found.kind, found.server_round) == ("span", "diagnostic", 7)
    assert found.facts["client"] == 3
    assert found.value == pytest.approx(spans(truth)[3].share)
    (each,) = found.details
    assert each.clients == (0, 1, 2, 3)
    assert found.value == max(each.values)


def test_one_round_is_no_certain_separation() -> None:
    """Each of the others was seen once: that shows nothing about what they never send."""
    [found] = SpanCondition().observe(view(7, updates(0)))
    assert found.facts["draws"] == 1
    assert "separated" not in found.facts


def test_canary_seats_and_rounds_without_kept_updates_are_passed_over() -> None:
    auditor = SpanCondition(every=2)
    canary = {3: Canary(id=0, seed=0)}
    [found] = auditor.observe(view(1, updates(0), instructed=canary))
    assert found.details[0].clients == (0, 1, 2)
    assert auditor.observe(view(2, updates(0))) == ()
    assert auditor.observe(view(3, {})) == ()
    assert auditor.observe(view(3, {0: np.ones(12)})) == ()


def test_a_single_honest_client_is_said_before_anybody_trains() -> None:
    assert SpanCondition().limits(Project(12, 3)) == []
    [words] = SpanCondition().limits(Project(12, 3, clients=2, seats=1))
    assert words.startswith("round 1 has 1 honest client and 1 canary seat: no other update")


def test_wrong_arguments_are_named() -> None:
    with refuses("updates"):
        spans({0: np.ones(3)})
    with refuses("every"):
        SpanCondition(every=-2)


def stands_out(truth: dict[int, np.ndarray], **settings: Any) -> Finding:
    auditor = SpanCondition(**settings)
    auditor.observe(view(1, truth))
    test, _ = auditor.report()
    assert (test.quantity, test.kind) == ("clients that stand out", "lower_bound")
    return test


def test_a_client_fixed_beforehand_stands_out_if_it_is_first_of_enough() -> None:
    rows = stream(2, "alike").standard_normal((20, 12)) @ np.diag([1.0] * 9 + [0.0] * 3)
    rows[0, -3:] = 9.0
    found = stands_out(dict(enumerate(rows)))
    assert (found.value, found.cap, found.facts["rank"]) == (1.0, 1.0, 1)
    assert found.confidence == pytest.approx(0.95)
    # The same client as the last of them was not the one to be tested.
    assert stands_out(dict(enumerate(rows[::-1]))).value == 0.0
    # Nineteen would be too few: the first of them is first in 1 of 19 rounds by chance.
    few = stands_out(dict(enumerate(rows[:19])))
    assert (few.value, few.cap, few.confidence) == (0.0, 0.0, 0.95)
    assert stands_out(dict(enumerate(rows)), confidence=0.99).cap == 0.0


@pytest.mark.parametrize(("rounds", "least", "most"), first_fast(1, [(24, 0, 6), (400, 5, 41)]))
def test_clients_that_send_alike_updates_stand_out_as_seldom_as_stated(
    rounds: int, least: int, most: int
) -> None:
    """One in 20 rounds: of 400, 20 are expected; fewer than 5 or more than 41 with 2e-5.

    Of 24, 1 is expected; more than 6 with 2e-4.
    """
    alike = (stream(seed, "alike").standard_normal((20, 24)) for seed in range(rounds))
    assert least <= sum(stands_out(dict(enumerate(rows))).value for rows in alike) <= most


def test_what_the_others_span_stands_out_in_no_round() -> None:
    """Twenty updates of twelve numbers: each is a sum of others, but for rounding."""
    alike = (stream(seed, "alike").standard_normal((20, 12)) for seed in range(8))
    assert not any(stands_out(dict(enumerate(rows))).value for rows in alike)
