"""The likelihood-ratio auditor: the contract, the rounds it audits, and what it may claim."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leakmeter.auditors import LikelihoodRatio, check_auditor
from leakmeter.auditors.auditor import Canary, RoundFacts, RoundView
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.likelihood_ratio.game import Effort
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampler import PerRound

DIM, CLIENTS = 40, 6
QUICK = Effort(fit=300, candidates=20, pilot=30, trials=300)


def view_of(server_round: int = 1, *, update_of=None, clients: int = CLIENTS, **facts) -> RoundView:
    """Return a round whose clients have sent Gaussian updates, with equal weights."""
    rng = stream(5, "round", server_round)
    truth = {c: rng.standard_normal(DIM) for c in range(clients)}
    if update_of is not None:
        truth[0] = update_of
    mean = np.mean(list(truth.values()), axis=0)
    sent = np.zeros(DIM)
    known = {"aggregate": mean, "num_clients": clients, "total_weight": float(clients)}
    return RoundView(
        server_round,
        sent,
        dict(truth),
        sent + mean,
        RoundFacts(**(known | facts)),
        truth,
        truth_weights=dict.fromkeys(truth, 1.0),
    )


def by_name(findings, quantity: str, kind: str | None = None) -> list[Finding]:
    """Return the findings of one quantity."""
    return [f for f in findings if f.quantity == quantity and kind in (None, f.kind)]


def test_it_keeps_the_contract_of_auditors(gaussian_sampler) -> None:
    effort = Effort(fit=60, candidates=10, pilot=20, trials=40)
    check_auditor(lambda: LikelihoodRatio(gaussian_sampler(np.eye(128)), every=3, effort=effort))


def test_few_others_are_told_apart_and_many_are_not(gaussian_sampler) -> None:
    bounds = []
    for clients in (3, 200):
        auditor = LikelihoodRatio(gaussian_sampler(np.eye(DIM)), target=0, effort=QUICK)
        auditor.begin(DIM, 1)
        found = auditor.observe(view_of(clients=clients))
        (bound,) = by_name(found, "epsilon", "lower_bound")
        (model,) = by_name(found, "epsilon", "approximation")
        assert bound.value <= model.value + 0.5
        assert bound.adjacency == "replace"
        assert "game independent" in bound.threat_model
        bounds.append(bound)
    assert bounds[0].value > 2 * bounds[1].value
    assert bounds[0].value == bounds[0].cap
    assert bounds[0].saturated


def test_the_curve_is_a_lower_bound_at_every_delta_and_has_its_cap(gaussian_sampler) -> None:
    auditor = LikelihoodRatio(gaussian_sampler(np.eye(DIM)), effort=QUICK)
    auditor.begin(DIM, 1)
    (bound,) = by_name(auditor.observe(view_of()), "epsilon", "lower_bound")
    curve = bound.details
    assert len(curve["deltas"]) == len(curve["epsilons"]) == len(curve["caps"]) == 20
    assert (np.diff(curve["epsilons"]) <= 1e-12).all()
    assert (np.asarray(curve["epsilons"]) <= np.asarray(curve["caps"]) + 1e-12).all()
    assert curve["tradeoff"]["fpr"] == sorted(curve["tradeoff"]["fpr"])


@pytest.mark.parametrize(("every", "audited"), [(0, [1]), (2, [1, 3, 5]), (1, [1, 2, 3, 4, 5])])
def test_it_audits_the_rounds_that_are_due(gaussian_sampler, every, audited) -> None:
    effort = Effort(fit=60, candidates=5, pilot=10, trials=20)
    auditor = LikelihoodRatio(gaussian_sampler(np.eye(DIM)), every=every, effort=effort)
    auditor.begin(DIM, 5)
    rounds = [r for r in range(1, 6) if auditor.observe(view_of(r))]
    assert rounds == audited
    (total,) = auditor.report()
    assert total.details["rounds"] == audited
    assert total.confidence == 0.95


def test_several_rounds_share_the_confidence(gaussian_sampler) -> None:
    auditor = LikelihoodRatio(gaussian_sampler(np.eye(DIM)), every=1, target=0, effort=QUICK)
    auditor.begin(DIM, 4)
    single = [by_name(auditor.observe(view_of(r)), "epsilon")[0].value for r in range(1, 5)]
    (total,) = auditor.report()
    assert total.value < max(single)
    assert "share the confidence" in total.rule


def test_a_round_without_the_target_or_without_others_is_not_audited(gaussian_sampler) -> None:
    auditor = LikelihoodRatio(gaussian_sampler(np.eye(DIM)), target=17, effort=QUICK)
    auditor.begin(DIM, 1)
    assert auditor.observe(view_of()) == ()
    assert auditor.report() == ()
    alone = LikelihoodRatio(gaussian_sampler(np.eye(DIM)), effort=QUICK)
    alone.begin(DIM, 1)
    assert alone.observe(view_of(clients=1)) == ()


def test_canary_seats_do_not_count_as_clients(gaussian_sampler) -> None:
    auditor = LikelihoodRatio(gaussian_sampler(np.eye(DIM)), target=0, effort=QUICK)
    auditor.begin(DIM, 1)
    view = replace(view_of(), instructed={1: Canary(0, 0), 4: Canary(1, 0)})
    (bound,) = by_name(auditor.observe(view), "epsilon", "lower_bound")
    assert bound.details["others"] == CLIENTS - 3


def test_the_verdict_on_the_released_sum_is_mostly_right(gaussian_sampler) -> None:
    # Separations are above 3 standard deviations: errors are rarer than 7 %.
    right = []
    for key in range(30):
        auditor = LikelihoodRatio(gaussian_sampler(np.eye(DIM)), target=0, seed=key, effort=QUICK)
        auditor.begin(DIM, 1)
        update = stream(key, "sent").standard_normal(DIM)
        view = view_of(1, update_of=update)
        (verdict,) = by_name(auditor.observe(view), "verdict")
        assert verdict.kind == "diagnostic"
        right.append(verdict.details["right"])
    assert sum(right) >= 24


def test_the_verdict_sees_the_sum_and_not_who_sent_what(gaussian_sampler) -> None:
    """Exchange what two others have sent: the sum is the same, and so must be the verdict."""
    auditor = LikelihoodRatio(gaussian_sampler(np.eye(DIM)), target=0, effort=QUICK)
    auditor.begin(DIM, 1)
    view = view_of()
    swapped = dict(view.truth) | {1: view.truth[2] + 1.0, 2: view.truth[1] - 1.0}
    first = [f.to_json() for f in auditor.observe(view)]
    auditor.begin(DIM, 1)
    second = [f.to_json() for f in auditor.observe(replace(view, truth=swapped))]
    assert first == second


def test_without_the_truth_there_is_no_verdict(gaussian_sampler) -> None:
    auditor = LikelihoodRatio(gaussian_sampler(np.eye(DIM)), effort=QUICK)
    auditor.begin(DIM, 1)
    assert not by_name(auditor.observe(replace(view_of(), truth={})), "verdict")


def test_server_noise_hides_from_outsiders_only(gaussian_sampler) -> None:
    facts = {"noise_std": 4.0, "divisor": float(CLIENTS), "share_std": 0.0}
    noised = {"noised": np.zeros(DIM)}
    bounds = {}
    for observer in ("server", "outsider"):
        sampler = gaussian_sampler(np.eye(DIM))
        auditor = LikelihoodRatio(sampler, target=0, observer=observer, effort=QUICK)
        auditor.begin(DIM, 1)
        (bound,) = by_name(auditor.observe(view_of(**facts, **noised)), "epsilon", "lower_bound")
        bounds[observer] = bound.value
        assert bound.observer == observer
    assert bounds["server"] > 3
    assert bounds["outsider"] < 0.5


def test_noise_of_the_clients_hides_from_the_server_too(gaussian_sampler) -> None:
    auditor = LikelihoodRatio(gaussian_sampler(np.eye(DIM)), target=0, effort=QUICK)
    auditor.begin(DIM, 1)
    facts = {"noise_std": 4.0, "divisor": float(CLIENTS), "share_std": 10.0}
    (bound,) = by_name(auditor.observe(view_of(**facts)), "epsilon", "lower_bound")
    assert bound.value < 0.5


def test_a_mechanism_that_changes_has_a_sampler_for_each_round(gaussian_sampler) -> None:
    asked = []

    def of(view: RoundView):
        asked.append(view.server_round)
        return gaussian_sampler(np.eye(DIM) * view.server_round)

    auditor = LikelihoodRatio(PerRound(of), every=2, effort=Effort(fit=60, candidates=5, trials=20))
    auditor.begin(DIM, 4)
    for server_round in range(1, 5):
        auditor.observe(view_of(server_round))
    assert asked == [1, 3]


def test_others_that_never_change_give_a_finding_and_no_bound(gaussian_sampler) -> None:
    auditor = LikelihoodRatio(gaussian_sampler(np.eye(DIM), frozen=True), effort=QUICK)
    auditor.begin(DIM, 1)
    (finding,) = auditor.observe(view_of())
    assert finding.quantity == "separation by support"
    assert finding.kind == "diagnostic"
    # The page's verdicts are made of what is said of the run: the strongest leak must be there.
    again = LikelihoodRatio(gaussian_sampler(np.eye(DIM), frozen=True), effort=QUICK)
    again.begin(DIM, 1)
    again.restore(auditor.state())
    for reporting in (auditor, again):
        (said,) = reporting.report()
        assert (said.quantity, said.server_round) == ("separation by support", None)
        assert said.rule.startswith("round 1: ")
        assert said.rule.endswith("told apart for sure")


def test_wrong_arguments_are_named(gaussian_sampler) -> None:
    sampler = gaussian_sampler(np.eye(DIM))
    for wrong, words in (
        ({"delta": 0.0}, r"delta must be in \(0, 1\), got 0"),
        ({"confidence": 1.0}, r"confidence must be in \(0, 1\), got 1"),
        ({"every": -1}, r"every must be in \[0, inf\), got -1"),
        ({"target": -1}, "target must be a client, 0 or more, or None, got -1"),
        ({"observer": "wire"}, "observer must be 'server' or 'outsider', got 'wire'"),
    ):
        with pytest.raises(ValueError, match=words):
            LikelihoodRatio(sampler, **wrong)


def test_a_function_in_place_of_a_sampler_is_refused_at_once() -> None:
    words = "sampler must be an UpdateSampler, got function; wrap .* in PerRound"
    with pytest.raises(TypeError, match=words):
        LikelihoodRatio(lambda _: None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("fit", "is_said"), [(600, True), (120, False)])
def test_separation_by_support_is_said_only_after_enough_samples(
    gaussian_sampler, fit: int, is_said: bool
) -> None:
    """Of few updates that leave a coordinate alone nothing follows for a sum of five."""

    class Lopsided(gaussian_sampler):
        def sample(self, model, clients, draws, path, *, project=None):
            for chunk in super().sample(model, clients, draws, path):
                chunk = chunk.copy()
                chunk[:, [c != 0 for c in clients], -1] = 0.0
                yield chunk if project is None else chunk @ project

    effort = Effort(fit=fit, candidates=20, pilot=30, trials=60)
    auditor = LikelihoodRatio(Lopsided(np.eye(DIM)), target=0, effort=effort)
    auditor.begin(DIM, 1)
    found = auditor.observe(view_of())
    assert bool(by_name(found, "separation by support")) == is_said
