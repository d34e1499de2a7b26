"""The record-level audit: exact densities, bounds that hold, and the spectrum of the noise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from leakmeter.auditors.auditor import RoundFacts, RoundView
from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.checks import check_auditor
from leakmeter.auditors.finding import Bound, Finding
from leakmeter.auditors.noise import gaussian
from leakmeter.auditors.records.game import (
    CovarianceSpectrum,
    PairDistribution,
    RecordBudget,
    RecordCase,
    RecordLikelihoodRatio,
    audit_records,
)
from leakmeter.auditors.rng import stream
from leakmeter.auditors.verdict.claim import is_weaker
from leakmeter.auditors.wording import Assumption
from leakmeter.clients.protection.gradients import Gradients
from leakmeter.clients.protection.record_rule import WaterFilling
from leakmeter.papers.zhang2024.prices import water_filling_epsilon
from leakmeter.strategies.accounting.rdp import Contribution, RecordRelease, finding_of
from leakmeter.strategies.accounting.rdp import guarantee as guarantee_of
from tests.helpers.numbers import first_fast
from tests.helpers.refusals import refuses

DELTA = 1e-2
QUICK = RecordBudget(pairs=2, pilot=20, trials=150)


def gradients(count: int, dim: int, clip: float = 1.0, seed: int = 0) -> np.ndarray:
    rows = stream(seed, "gradients").standard_normal((count, dim))
    return clip * rows / np.linalg.norm(rows, axis=1, keepdims=True)


def case(rows: np.ndarray, **options: Any) -> RecordCase:
    given = {"records": len(rows) - 2, "batch": 2, "floor": 0.05, "rest": 0.1, **options}
    return RecordCase((Gradients.of(rows),), **given)


def dense_law(
    rows: np.ndarray, batch: int, floor: float, rest: float, more: np.ndarray | float = 0.0
) -> Any:
    """Return the sum's distribution through the whole covariance."""
    values, vectors = np.linalg.eigh(rows.T @ rows / (batch * len(rows)))
    covariance = (vectors * (np.maximum(values, floor) + rest)) @ vectors.T + more
    return stats.multivariate_normal(rows.mean(axis=0), covariance)


# The score.


@pytest.mark.parametrize("dim", [3, 6, 30])
def test_the_log_ratio_is_that_of_the_whole_densities(dim: int) -> None:
    rows = gradients(7, dim)
    own, other = np.arange(6), np.array([0, 1, 6, 3, 4, 5])
    about: dict[str, Any] = {"batch": 2, "floor": 0.05, "rest": 0.1}
    pair = PairDistribution.of(rows @ rows.T, own, other, **about)
    left, right = dense_law(rows[own], **about), dense_law(rows[other], **about)
    for point in stream(1, "points").standard_normal((5, dim)):
        found = pair.log_ratio(pair.coordinates(rows @ point))
        assert found == pytest.approx(left.logpdf(point) - right.logpdf(point), abs=1e-8)


@pytest.mark.parametrize("dim", [3, 7])
def test_noise_of_others_in_some_directions_is_in_both_densities(dim: int) -> None:
    rows, loud = gradients(7, dim), gradients(4, dim, clip=2.0, seed=5)
    own, other = np.arange(6), np.array([0, 1, 6, 3, 4, 5])
    about: dict[str, Any] = {"batch": 2, "floor": 0.05, "rest": 0.1}
    more = loud.T @ loud
    pair = PairDistribution.of(rows @ rows.T, own, other, excess=rows @ more @ rows.T, **about)
    left, right = (dense_law(rows[which], **about, more=more) for which in (own, other))
    for point in stream(1, "points").standard_normal((5, dim)):
        found = pair.log_ratio(pair.coordinates(rows @ point))
        assert found == pytest.approx(left.logpdf(point) - right.logpdf(point), abs=1e-8)
    drawn = np.array([pair.excess(rng) for rng in [stream(2, "excess")] for _ in range(4000)])
    seen = pair.lift @ (rows @ more @ rows.T)[np.ix_(pair.used, pair.used)] @ pair.lift.T
    # Relative error of a variance from 4,000 draws: 0.022; ten times that at most, fixed seed.
    np.testing.assert_allclose(np.cov(drawn.T), seen, atol=0.22 * np.abs(seen).max())


def test_draws_by_the_law_and_by_the_code_agree_and_a_wrong_floor_is_seen() -> None:
    # Chance of failure by bad luck 1e-3, fixed seed.
    rows = gradients(7, 9)
    options: dict[str, Any] = {"records": 6, "floor": 0.15, "rest": 0.0}
    draws = 1500

    def draw(which: np.ndarray, rng: np.random.Generator, floor: float = 0.15) -> np.ndarray:
        return WaterFilling(floor).draw(Gradients.of(rows[which]), 2, rng)[0]

    def scores(by: Any) -> np.ndarray:
        found = case(rows, **options, draw=by)
        own, other = np.arange(6), np.array([6, 1, 2, 3, 4, 5])
        about: dict[str, Any] = {"batch": 2, "floor": 0.15, "rest": 0.0}
        pair = PairDistribution.of(rows @ rows.T, own, other, **about)
        if by is None:
            return pair.log_ratio(pair.worlds[0].draw(draws, stream(0, "law")))
        rng = stream(0, "code")
        block = found.blocks[0]
        return np.array(
            [
                float(pair.log_ratio(pair.coordinates(block.products(by(own, rng)))))
                for _ in range(draws)
            ]
        )

    by_law = scores(None)
    assert stats.ks_2samp(by_law, scores(draw)).pvalue > 1e-3
    wrong = scores(lambda which, rng: draw(which, rng, 0.05))
    assert stats.ks_2samp(by_law, wrong).pvalue < 1e-3


def test_blocks_are_independent_and_add_up() -> None:
    rows = gradients(8, 10)
    whole = case(rows, floor=5.0)  # the floor is above all eigenvalues: blocks make no difference
    halves = (Gradients.of(rows[:, :4]), Gradients.of(rows[:, 4:]))
    split = replace(whole, blocks=halves)
    points = stream(0, "points").standard_normal((3, 10))
    own, other = np.arange(6), np.array([7, 1, 2, 3, 4, 5])
    about: dict[str, Any] = {"batch": 2, "floor": 5.0, "rest": 0.1}
    one = PairDistribution.of(rows @ rows.T, own, other, **about)
    two = [PairDistribution.of(half.gram(), own, other, **about) for half in split.blocks]
    for point in points:
        parts = zip(two, (rows[:, :4] @ point[:4], rows[:, 4:] @ point[4:]), strict=True)
        assert sum(
            float(pair.log_ratio(pair.coordinates(p))) for pair, p in parts
        ) == pytest.approx(float(one.log_ratio(one.coordinates(rows @ point))), abs=1e-9)
    assert audit_records(split, delta=DELTA, budget=QUICK).bound.value >= 0


# The bound.


def test_where_only_means_differ_the_bound_is_below_the_exact_epsilon_and_near_it() -> None:
    # A floor above every eigenvalue leaves the same covariance in both worlds.
    rows = np.zeros((4, 5))
    rows[0, 0], rows[3, 0] = 1.0, -1.0
    mu = (2 / 3) / math.sqrt(0.5 + 0.1)
    truth = epsilon_gaussian(DELTA, mu)
    budget = RecordBudget(pairs=3, pilot=50, trials=4000)
    about = case(rows, records=3, floor=0.5)
    found = audit_records(about, delta=DELTA, budget=budget)
    assert (found.record, found.other) == (0, 3)
    assert 0.6 * truth < found.bound.value < truth
    assert found.means == pytest.approx((mu**2 / 2, -(mu**2) / 2), abs=0.1)
    assert found.bound.kind == "lower_bound"


@pytest.mark.parametrize(
    ("by_code", "trials"),
    first_fast(2, [(False, 4000), (True, 600), (True, 2000)]),
)
def test_the_noise_of_the_others_own_data_hides_more_than_their_floor(
    by_code: bool, trials: int
) -> None:
    rows = np.zeros((4, 5))
    rows[0, 0], rows[3, 0] = 1.0, -1.0
    more = np.zeros((5, 5))
    more[0, 0] = 5.4  # ten times the variance of 0.5 + 0.1 along the pair

    def draw(which: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        own = WaterFilling(0.5).draw(Gradients.of(rows[which]), 2, rng)[0]
        return own + gaussian(5, math.sqrt(0.1), rng)

    budget = RecordBudget(pairs=3, pilot=50, trials=trials)
    floor_only = case(rows, records=3, floor=0.5, draw=draw if by_code else None)
    of_run = replace(floor_only, excess=(rows @ more @ rows.T,))
    worst, run = (audit_records(c, delta=DELTA, budget=budget) for c in (floor_only, of_run))
    for found, variance in ((worst, 0.6), (run, 6.0)):
        mu = (2 / 3) / math.sqrt(variance)
        assert found.means == pytest.approx((mu**2 / 2, -(mu**2) / 2), abs=0.1)
        assert found.bound.value < epsilon_gaussian(DELTA, mu)
    assert run.bound.value < epsilon_gaussian(DELTA, (2 / 3) / math.sqrt(6.0)) < worst.bound.value
    assert Assumption.OTHERS_ADD_FLOOR_ONLY in worst.bound.assumptions
    assert Assumption.OTHERS_ADD_OWN_NOISE in run.bound.assumptions
    assert (worst.threat_model.game, run.threat_model.game) == ("worst-data", "rerun")


def test_the_worst_of_the_pairs_is_chosen() -> None:
    rows = np.zeros((6, 4))
    rows[0, 0], rows[4, 1], rows[5, 0] = 1.0, 0.3, -1.0
    # Exchanging 0 and 5 moves the mean furthest; exchanging 0 and 4 makes a variance twelve times
    # smaller, which tells more: 9.2 nats both ways against 2.
    found = audit_records(case(rows, floor=0.01, rest=0.0), delta=DELTA)
    assert (found.record, found.other) == (0, 4)
    by_mean = audit_records(case(rows, floor=1.0, rest=0.0), delta=DELTA)
    assert (by_mean.record, by_mean.other) == (0, 5)


def test_gradients_that_vanish_leak_nothing_even_in_one_block_of_two() -> None:
    empty = audit_records(case(np.zeros((5, 4))), delta=DELTA, budget=QUICK)
    assert (empty.bound.value, empty.means) == (0.0, (0.0, 0.0))
    rows = gradients(7, 6)
    whole = case(rows)
    beside = replace(whole, blocks=(*whole.blocks, Gradients.of(np.zeros((7, 3)))))
    one, two = (audit_records(c, delta=DELTA, budget=QUICK) for c in (whole, beside))
    assert one.means == pytest.approx(two.means, abs=1e-12)


def test_bounds_exceed_the_guarantee_no_more_often_than_promised_and_a_weak_floor_shows() -> None:
    # The most that a record may do: its gradient of norm C turns round.
    rows = np.zeros((6, 8))
    rows[0, 0], rows[1, 1], rows[4, 0], rows[5, 2] = 1.0, 0.5, -1.0, 1.0
    about = {"floor": 0.3, "clip": 1.0, "batch": 50, "examples": 4}
    guarantee = water_filling_epsilon(users=1, delta=DELTA, **about)
    budget = RecordBudget(pairs=2, pilot=20, trials=300)
    repetitions = 100

    def bounds(floor: float, number: int) -> list[Bound]:
        one = case(rows, batch=50, floor=floor, rest=0.0)
        return [audit_records(one, delta=DELTA, budget=budget, seed=s).bound for s in range(number)]

    kept = bounds(0.3, repetitions)
    assert guarantee < kept[0].cap  # else nothing could exceed it
    assert np.median([bound.value for bound in kept]) > 0.1 * guarantee  # nor is it idle
    above = sum(bound.value > guarantee for bound in kept)
    assert above / repetitions <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / repetitions)
    assert all(bound.value > guarantee for bound in bounds(0.006, 20))


def test_bounds_exceed_the_exact_epsilon_no_more_often_than_promised() -> None:
    rows = np.zeros((4, 5))
    rows[0, 0], rows[3, 0] = 1.0, -1.0
    truth = epsilon_gaussian(DELTA, (2 / 3) / math.sqrt(0.6))
    about = case(rows, records=3, floor=0.5)
    repetitions = 150
    found = [audit_records(about, delta=DELTA, budget=QUICK, seed=s) for s in range(repetitions)]
    above = sum(one.bound.value > truth for one in found)
    assert above / repetitions <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / repetitions)


def test_without_the_floor_the_guarantee_is_exceeded() -> None:
    about = {"floor": 0.3, "clip": 1.0, "batch": 2, "examples": 5}
    guarantee = water_filling_epsilon(users=3, delta=DELTA, **about)
    rows = gradients(7, 12)

    def filled(which: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        own = WaterFilling(0.3).draw(Gradients.of(rows[which]), 2, rng)[0]
        return own + gaussian(12, math.sqrt(2 * 0.3), rng)

    def bare(which: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        weights = 1 / len(which) + gaussian(len(which), 1 / math.sqrt(2 * len(which)), rng)
        return weights @ rows[which]

    budget = RecordBudget(pairs=2, pilot=20, trials=300)
    kept = audit_records(case(rows, floor=0.3, rest=0.6, draw=filled), delta=DELTA, budget=budget)
    broken = audit_records(case(rows, floor=0.0, rest=0.0, draw=bare), delta=DELTA, budget=budget)
    assert kept.bound.value <= guarantee < 3.0 < broken.bound.value
    assert broken.bound.saturated  # no error at all in 300 trials


# The auditor.


def view(server_round: int = 1, **facts: Any) -> RoundView:
    return RoundView(server_round, np.zeros(9), {}, np.zeros(9), RoundFacts(**facts))


def test_the_auditor_speaks_of_a_record_that_is_replaced() -> None:
    auditor = RecordLikelihoodRatio(lambda _: case(gradients(7, 9)), budget=QUICK, delta=DELTA)
    [found] = auditor.observe(view())
    assert (found.unit, found.adjacency, found.observer) == ("record", "replace", "server")
    assert (found.kind, found.server_round, found.delta) == ("lower_bound", 1, DELTA)
    assert not found.is_conditional
    assert auditor.observe(view(2)) == ()


def test_worst_case_and_this_run_are_two_findings_that_one_guarantee_covers() -> None:
    rows = gradients(7, 9)
    about = case(rows, excess=(4.0 * np.eye(7),))
    auditor = RecordLikelihoodRatio(lambda _: about, budget=QUICK, delta=DELTA)
    auditor.begin(9, 1)
    of_round, of_run = auditor.observe(view()), auditor.report()
    guarantee = guarantee_of([RecordRelease((Contribution(0.05, 1.0, 2, 5),) * 3)], DELTA)
    priced = finding_of(guarantee, participations=1).threat_model
    for found in (of_round, of_run):
        assert [f.threat_model.game for f in found] == ["worst-data", "rerun"]
        assert all(is_weaker(f.threat_model, priced) for f in found)
        assert len({f.threat_model for f in found}) == 2  # so no table puts them into one row
    assert [len(f.details) for f in of_run] == [2, 2]


def test_rounds_that_gave_no_sum_are_not_audited() -> None:
    auditor = RecordLikelihoodRatio(lambda _: case(gradients(7, 9)), budget=QUICK, every=2)
    assert [len(auditor.observe(view(r))) for r in (1, 2, 3)] == [1, 0, 1]
    assert auditor.observe(view(1, abandoned="too few")) == ()


def test_the_run_gets_the_largest_bound_at_a_confidence_that_rounds_share() -> None:
    def auditor() -> RecordLikelihoodRatio:
        made = RecordLikelihoodRatio(
            lambda _: case(gradients(7, 9), floor=0.0, rest=0.0), budget=QUICK, every=2
        )
        made.begin(9, 4)
        return made

    one, other = auditor(), auditor()
    assert not one.report()
    rounds = [f.value for r in (1, 2, 3, 4) for f in one.observe(view(r))]
    [whole] = one.report()
    assert len(rounds) == 2
    assert 0 < whole.value < max(rounds)  # half the chance of failure for each of two rounds
    assert (whole.server_round, whole.confidence, whole.unit) == (None, 0.95, "record")
    other.restore(one.state())
    assert other.report() == one.report()


def test_rounds_beyond_the_plan_share_the_confidence_too() -> None:
    def found(planned: int) -> Finding:
        about = case(gradients(7, 9), floor=0.0, rest=0.0)
        auditor = RecordLikelihoodRatio(lambda _: about, budget=QUICK, every=1, delta=DELTA)
        auditor.begin(9, planned)
        for r in (1, 2, 3, 4):
            auditor.observe(view(r))
        [whole] = auditor.report()
        return whole

    short, long = found(planned=1), found(planned=4)
    assert short.value == long.value  # four rounds share the confidence, planned or not
    assert short.facts["sharing confidence"] == 4
    assert found(planned=8).value < long.value  # and a plan that was not played out counts


def test_the_auditor_keeps_the_contract() -> None:
    check_auditor(lambda: RecordLikelihoodRatio(lambda _: case(gradients(7, 9)), budget=QUICK))


@pytest.mark.parametrize(
    ("options", "field"),
    [({"records": 0}, "records"), ({"records": 7}, "records"), ({"batch": -1}, "batch")]
    + [({name: value}, name) for name in ("floor", "rest") for value in (-1.0, math.inf)],
)
def test_what_cannot_be_is_refused(options: dict[str, float], field: str) -> None:
    with refuses(field):
        case(gradients(7, 9), **options)


def test_blocks_of_different_records_and_draws_of_another_length_are_refused() -> None:
    rows = gradients(7, 9)
    with refuses("blocks"):
        replace(case(rows), blocks=(Gradients.of(rows), Gradients.of(rows[:5])))
    with refuses("draw"):
        audit_records(case(rows, draw=lambda *_: np.zeros(3)), delta=DELTA, budget=QUICK)
    with refuses("excess"):
        case(rows, excess=(np.eye(9),))
    with refuses("trials"):
        RecordBudget(trials=0)


BATCH = 4


@pytest.mark.parametrize(("count", "dim", "rank"), [(5, 8, 5), (8, 5, 5), (8, 5, 2), (1, 1, 1)])
@pytest.mark.parametrize("floor", [0.0, 0.1, 1e6])
def test_the_gram_matrix_tells_what_the_covariance_would(
    count: int, dim: int, rank: int, floor: float
) -> None:
    rng = stream(count, "g", dim, rank)
    g = rng.standard_normal((count, rank)) @ rng.standard_normal((rank, dim))
    found = CovarianceSpectrum.of_gram(g @ g.T, dim, batch=BATCH, floor=floor)
    truth = np.linalg.eigvalsh(g.T @ g / (BATCH * count))
    size = truth[-1]
    assert found.rank == np.linalg.matrix_rank(g) == rank
    assert found.smallest == pytest.approx(truth[0], abs=1e-13 * size)
    added = np.maximum(floor - truth, 0.0).sum()
    assert found.added_variance == pytest.approx(added, abs=1e-12 * size)
    if floor:
        assert found.share_saved == pytest.approx(1 - added / (dim * floor), abs=1e-9)
        assert found.num_covered == (truth >= floor).sum()


def test_without_gradients_nothing_is_saved() -> None:
    found = CovarianceSpectrum.of_gram(np.zeros((3, 3)), 7, batch=1, floor=2.0)
    assert (found.rank, found.smallest, found.num_covered) == (0, 0.0, 0)
    assert (found.added_variance, found.share_saved) == (14.0, 0.0)


def test_the_curve_runs_from_the_largest_eigenvalue_through_all_directions() -> None:
    found = CovarianceSpectrum(np.array([0.1, 0.5, 3.0]), 1000, floor=1.0)
    drawn = found.drawn()
    assert (drawn.dim, drawn.floor) == (1000, 1.0)
    for most, curve in (
        (20, found.curve(20)),
        (25, tuple(zip(drawn.index, drawn.variance, drawn.added, strict=True))),
    ):
        assert curve[:3] == ((1, 3.0, 0.0), (2, 0.5, 0.5), (3, 0.1, 0.9))
        assert curve[-1] == (1000, 0.0, 1.0)
        assert len(curve) <= most
    assert CovarianceSpectrum(np.array([2.0]), 1).curve() == ((1, 2.0, 0.0),)


def test_bad_input_is_named() -> None:
    with refuses("eigenvalues"):
        CovarianceSpectrum(np.ones(3), 2)
    with refuses("floor"):
        CovarianceSpectrum(np.ones(2), 2, -1.0)
    with refuses("batch"):
        CovarianceSpectrum.of_gram(np.eye(2), 2, batch=0)
    with refuses("points"):
        CovarianceSpectrum(np.ones(2), 2).curve(0)
