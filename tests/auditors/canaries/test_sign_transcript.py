"""Canaries of signs in a run: found where they are, nothing where they are not, and resumed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from leakmeter.auditors.auditor import DivergedError
from leakmeter.auditors.bounds.anytime import Anytime
from leakmeter.auditors.canaries.canary_auditor import CanaryPlan
from leakmeter.auditors.canaries.one_shot import OneShotCanaries
from leakmeter.auditors.canaries.single_update import SingleUpdates
from leakmeter.auditors.canaries.transcript import SignTranscript
from leakmeter.auditors.canary_draws import BLOCK, KINDS, canary_vector
from leakmeter.auditors.checks import check_auditor
from leakmeter.auditors.codec import pack, unpack
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.rng import stream
from leakmeter.auditors.wording import Assumption
from tests.helpers.canary_runs import play, shown
from tests.helpers.numbers import first_fast

DIM = BLOCK + 77
SIGNS = KINDS["signs"]


def run(auditor: OneShotCanaries, rounds: int = 6) -> list[Finding]:
    """Return the findings on rounds of 12 clients with little noise."""
    return play(auditor, dim=DIM, cohorts=[12] * rounds, sigma=0.002)


@pytest.mark.parametrize("settings", first_fast(1, [{"repetitions": 2}, {}, {"include": "all"}]))
def test_signs_keep_the_contract_of_auditors(settings: dict[str, Any]) -> None:
    check_auditor(lambda: OneShotCanaries(seats=2, kind="signs", **settings))
    check_auditor(lambda: SingleUpdates(seats=2, kind="signs", **settings))


@pytest.mark.parametrize("repetitions", [1, 2])
def test_canaries_of_signs_are_found_and_say_what_they_assume(repetitions: int) -> None:
    auditor = OneShotCanaries(seats=10, kind="signs", repetitions=repetitions, delta=1e-7)
    found = run(auditor)
    heads = [f for f in found if f.kind == "lower_bound" and "threshold" in f.facts]
    assert [f.threat_model.sees for f in heads] == ["final model", "all models"]
    for bound in heads:
        assert bound.value > 60 / repetitions
        assert not bound.is_conditional
        assert {Assumption.SIGN_CANARIES, Assumption.BOUNDED_NULL} <= set(bound.assumptions)
        assert bound.facts["tail_factor"] == pytest.approx(3.1787, abs=1e-4)
    assert heads[1].facts["directions"] == repetitions
    for f in found:
        assert not {Assumption.UNIFORM_CANARIES, Assumption.KNOWN_NULL} & set(f.assumptions)
    # Those that are out are not looked for, so that nothing is compared with them.
    assert not auditor.scores["final model"].excluded.size


def test_cosines_are_those_of_the_vectors_and_the_largest_pays_for_its_rounds() -> None:
    rng, included = stream(0, "changes"), np.array([True, False, True, True])
    found, rows = SignTranscript(5, DIM), rng.standard_normal((3, DIM))
    found.look_for(included)
    unit = np.array([canary_vector(5, i, DIM, "signs") for i in range(4)])
    cosines = rows @ unit.T / np.linalg.norm(rows, axis=1)[:, None]  # (rounds, canaries)
    for i, planned in enumerate([(0, 1), (0, 2), ()]):
        before = rng.standard_normal(DIM)
        seen = found.add(before, before + rows[i], [3], planned=planned)
        assert seen == pytest.approx(cosines[i, [3]], rel=1e-9)
    largest = found.largest(1, 0.5, rng)
    wanted = [cosines[:2, 0].max(), 0.0, cosines[1, 2], cosines[:, 3].max()]
    assert largest.cosines == pytest.approx(wanted, rel=1e-9)
    tails = SIGNS.logsf(np.array(wanted), DIM) + np.log([2, 1, 1, 3])
    assert largest.log_p == pytest.approx(np.minimum(tails, 0) * included, rel=1e-9)
    final, _ = found.final()
    total = rows.sum(axis=0)
    assert final == pytest.approx(unit @ total / np.linalg.norm(total) * included, abs=1e-7)


def test_nothing_changed_is_no_evidence_and_what_diverged_is_not_added() -> None:
    found, start = SignTranscript(5, DIM), stream(0, "start").standard_normal(DIM)
    found.look_for(np.ones(3, dtype=bool))
    assert not found.add(start, start, [0], planned=[0, 1]).any()
    broken = start + 1.0
    broken[-1] = math.nan
    with pytest.raises(DivergedError):
        found.add(start, broken, [0], planned=[0, 1])
    assert found.num_rounds == 1
    for cosines, log_p in (
        found.final(),
        (found.largest(1, 0.5, stream(0)).cosines, found._log_p()),
    ):
        assert not cosines.any()
        assert not log_p.any()  # a p-value of 1


def test_bets_on_signs_are_won_after_their_rounds() -> None:
    bets = run(OneShotCanaries(seats=10, kind="signs", delta=1e-7, confidence=Anytime(0.95)))
    found = [f for f in bets if Assumption.ALL_ROUNDS_TOGETHER in f.assumptions]
    assert max(f.value for f in found) > 10
    assert all(Assumption.SIGN_CANARIES in f.assumptions for f in found)


def test_the_length_of_the_model_decides_about_auto_and_both_auditors_share_the_kind() -> None:
    for dim, kind in ((10**6, "sphere"), (10**6 + 1, "signs")):
        both = [OneShotCanaries(seats=2), SingleUpdates(kind="sphere")]
        both[1].join(both)
        for one in both:
            one.begin(dim, 2)
        orders = both[0].instruct(1, range(4)) | both[1].instruct(1, range(4))
        assert {order.kind for order in orders.values()} == {kind}
        assert both[1].plan.kind == kind


def test_a_resumed_run_keeps_its_kind_whatever_the_setting_says_now() -> None:
    first, then = OneShotCanaries(seats=4, kind="signs"), OneShotCanaries(seats=4)
    for auditor in (first, then):
        auditor.begin(DIM, 6)  # "auto" would be the sphere here
    views, model = [], np.zeros(DIM)
    for server_round in range(1, 7):
        if server_round == 4:
            then.restore(unpack(pack(first.state())))
        view = shown(first, model, server_round, 12, 0.002, stream(0, "noise", server_round))
        first.observe(view)
        model = view.released
        views.append(view)
    for view in views[3:]:
        assert then.instruct(view.server_round, range(12)) == view.instructed
        then.observe(view)
    assert then.report() == first.report()


def test_states_of_earlier_releases_have_canaries_on_the_sphere() -> None:
    settings: dict[str, Any] = {"canaries": None, "include": "coin", "excluded": "zero", "seed": 0}
    plan = CanaryPlan("one-shot", seats=2, repetitions=1, kind="signs", **settings)
    plan.begin(200, 4)
    old = {key: value for key, value in plan.state().items() if key != "kind"}
    plan.restore(old)
    assert plan.kind == "sphere"


@pytest.mark.parametrize("dims", [(2_000, 1_000_100), (1_000_100, 2_000)])
def test_an_auditor_that_is_used_again_looks_for_the_canaries_that_it_plays(
    dims: tuple[int, int],
) -> None:
    auditor = OneShotCanaries(seats=2, seed=1)
    for dim in dims:
        auditor.begin(dim, 2)
        kind = "signs" if dim > 10**6 else "sphere"
        assert auditor._plan.kind == kind
        assert isinstance(auditor._transcript, SignTranscript) == (kind == "signs")
