"""What a round looks like to an audit: who is in it, which noise is on its sum, what was seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from leakmeter.auditors.audited_round import AuditedRound, Claims, ResamplingAuditor, Trials
from leakmeter.auditors.auditor import Canary, DivergedError, Project, RoundFacts, RoundView
from leakmeter.auditors.bounds.lower_bound import BandAndFixed, epsilon_lower_bound
from leakmeter.auditors.finding import Finding, ThreatModel
from leakmeter.auditors.rng import stream
from leakmeter.auditors.wording import Assumption

DIM = 3
FACTS = RoundFacts(num_clients=4, total_weight=8.0, share_std=0.5, noise_std=0.25)


def view_of(facts: RoundFacts = FACTS, **more) -> RoundView:
    """Return a round of five clients of which client 9 plays a canary."""
    updates = {c: np.full(DIM, float(c)) for c in (5, 2, 9, 4, 7)}
    about = {"truth": updates, "truth_weights": dict.fromkeys(updates, 2.0)} | more
    canaries = {9: Canary(0, seed=1)}
    return RoundView(1, np.zeros(DIM), updates, np.ones(DIM), facts, instructed=canaries, **about)


class Watching(ResamplingAuditor):
    """Notes what it is asked to audit."""

    def __init__(self, *args, **more) -> None:
        super().__init__(*args, **more)
        self.seen: list[AuditedRound] = []

    def updates_drawn(self, honest: int, dim: int) -> int:
        return honest * dim

    def target_among(self, honest: Sequence[int], server_round: int) -> int | None:
        return honest[0]

    def audit(self, audited: AuditedRound) -> Sequence[Finding]:
        self.seen.append(audited)
        return ()


@pytest.fixture
def auditor(gaussian_sampler) -> Watching:
    return Watching(gaussian_sampler(np.eye(DIM)), every=2, observer="server")


def test_a_target_hides_among_honest_clients_that_do_not_collude(auditor) -> None:
    audited = replace(auditor.round_of(view_of()), colluding=frozenset({7}))
    assert audited.honest == [2, 4, 5, 7]
    assert audited.hidden == [2, 4, 5]
    assert (audited.target, audited.others) == (2, [4, 5])


def test_the_server_sees_the_noise_of_all_who_do_not_collude(gaussian_sampler) -> None:
    audited = AuditedRound(view_of(), gaussian_sampler(np.eye(DIM), scale=2.0))
    assert audited.noise_std == pytest.approx(0.5 * math.sqrt(4) / 2.0)
    knowing = replace(audited, colluding=frozenset({7}))
    assert knowing.noise_std == pytest.approx(0.5 * math.sqrt(3) / 2.0)


def test_an_outsider_sees_all_noise_and_the_server_adds_the_rest(gaussian_sampler) -> None:
    outside = AuditedRound(view_of(), gaussian_sampler(np.eye(DIM)), "outsider")
    server = replace(outside, observer="server")
    assert outside.noise_std == pytest.approx(0.25 * 8.0)
    assert outside.added_std == 0.0
    assert math.hypot(server.noise_std, server.added_std) == pytest.approx(outside.noise_std)
    divided = replace(outside, view=view_of(replace(FACTS, divisor=10.0)))
    assert divided.noise_std == pytest.approx(0.25 * 10.0)


def test_rounding_spreads_as_many_errors_of_one_step(gaussian_sampler) -> None:
    step, clients = 0.1, 4
    facts = replace(FACTS, share_std=None, quantum=clients * step / FACTS.total_weight)
    audited = AuditedRound(view_of(facts), gaussian_sampler(np.eye(DIM)))
    assert audited.rounding_std == pytest.approx(step * math.sqrt(clients / 6))
    assert audited.seen_std == pytest.approx(audited.rounding_std)


def test_what_canary_seats_have_sent_is_taken_off_the_sum(gaussian_sampler) -> None:
    facts = replace(FACTS, aggregate=np.full(DIM, 3.0))
    audited = AuditedRound(view_of(facts), gaussian_sampler(np.eye(DIM)))
    assert audited.seen_sum() == pytest.approx(3.0 * 8.0 - 2.0 * 9.0)
    assert replace(audited, view=view_of(facts, truth={})).seen_sum() is None
    assert audited.at(np.ones(DIM)).seen_sum() is None


def test_a_contribution_is_clipped_and_weighted_as_the_client_does(gaussian_sampler) -> None:
    audited = AuditedRound(view_of(), gaussian_sampler(np.eye(DIM), scale=4.0))
    assert audited.contribution(4) == pytest.approx(4.0 * 2.0 / 4.0)
    clipped = replace(audited, view=view_of(replace(FACTS, clip_norm=1.0)))
    assert np.linalg.norm(clipped.contribution(4)) == pytest.approx(2.0 / 4.0)
    assert audited.contribution(99) is None


def test_only_due_rounds_with_a_sum_are_audited(auditor) -> None:
    auditor.begin(DIM, 4)
    for server_round in (1, 2, 3):
        auditor.observe(replace(view_of(), server_round=server_round))
    auditor.observe(view_of(replace(FACTS, abandoned="nobody answered")))
    assert [one.server_round for one in auditor.seen] == [1, 3]


def test_a_model_that_is_not_finite_is_not_audited(auditor) -> None:
    auditor.begin(DIM, 4)
    diverged = replace(view_of(), sent=np.full(DIM, np.nan))
    with pytest.raises(DivergedError):
        auditor.observe(diverged)
    assert auditor.observe(replace(diverged, server_round=2)) == ()  # not due


def test_trainings_count_where_clients_are_asked_only(auditor, monkeypatch) -> None:
    project = Project(dim=DIM, num_rounds=4, clients=6, seats=1)
    assert auditor.trainings(project) == 0
    monkeypatch.setattr(type(auditor.sampler), "asks_clients", True)
    assert auditor.trainings(project) == 2 * 5 * DIM
    auditor.further_audits = 1
    assert auditor.trainings(project) == 3 * 5 * DIM
    assert auditor.trainings(replace(project, clients=None)) == 0


# Findings of one audit share their fields; trials become bounds in one place.

ATTACKER = ThreatModel(observer="server", sees="round sum", holds="two updates", game="rerun")
CLAIMS = Claims("mine", ATTACKER, seed=7, assumptions=(Assumption.KNOWN_SEATS,))


def trials(gap: float, seed: int = 0, count: int = 300) -> Trials:
    """Return trials of two Gaussians, with a threshold half way."""
    first, second = stream(seed, "trials").standard_normal((2, count))
    return Trials(first + gap, second, gap / 2)


def test_a_bound_comes_with_the_shared_fields_and_assumptions() -> None:
    played = trials(3.0)
    found = replace(CLAIMS, server_round=4).proof(played, {"target": 2})
    plain = epsilon_lower_bound(
        played.first, played.second, delta=1e-5, rule=BandAndFixed(played.threshold)
    )
    assert found.value == plain.value > 1
    assert found.assumptions == (*plain.assumptions, Assumption.KNOWN_SEATS)
    assert (found.auditor, found.threat_model, found.seed) == ("mine", ATTACKER, 7)
    assert (found.server_round, found.adjacency, found.unit) == (4, "replace", "client")
    assert found.details[0].server_round == 4


def test_the_largest_of_several_bounds_shares_the_confidence_among_all_looks() -> None:
    played = [trials(1.0, 1), trials(3.0, 2), trials(2.0, 3)]
    best, bound = CLAIMS.largest(played, looks=5)
    assert best == 1
    assert bound.value == played[1].bound(1e-5, 0.99).value < played[1].bound(1e-5, 0.95).value
    assert bound.confidence == 0.95


def test_without_a_fixed_threshold_the_band_alone_decides() -> None:
    played = trials(8.0)  # no trial errs, so the threshold that was fixed shows more
    free = replace(played, threshold=None)
    assert free.bound(1e-5, 0.95).value < played.bound(1e-5, 0.95).value
    assert Assumption.FIXED_THRESHOLD not in free.bound(1e-5, 0.95).assumptions


def test_separation_is_in_standard_deviations_and_knows_worlds_without_any() -> None:
    assert trials(2.0, count=20_000).separation == pytest.approx(2.0, abs=0.05)
    assert Trials(np.ones(5), np.zeros(5)).separation == np.inf
    assert Trials(np.ones(5), np.ones(5)).separation == 0.0


def test_a_diagnostic_claims_nothing() -> None:
    found = CLAIMS.diagnostic("separation", 2.0, "how", {"pilot": 1.0})
    assert (found.kind, found.confidence, found.assumptions) == ("diagnostic", None, ())
    assert found.facts == {"pilot": 1.0}
