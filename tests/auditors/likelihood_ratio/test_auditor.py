"""The likelihood-ratio auditor: the contract, the rounds it audits, and what it may claim."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leakmeter.auditors import Anytime, LikelihoodRatio, StopAbove, check_auditor
from leakmeter.auditors.auditor import Canary, DivergedError, RoundFacts, RoundView
from leakmeter.auditors.bounds.lower_bound import BandAndFixed, epsilon_lower_bound
from leakmeter.auditors.finding import Finding, ThreatModel
from leakmeter.auditors.hook.panel import StopRule
from leakmeter.auditors.likelihood_ratio.game import SampleBudget
from leakmeter.auditors.rng import stream
from leakmeter.auditors.wording import Assumption
from tests.helpers.numbers import few_or_many
from tests.helpers.refusals import refuses

DIM, CLIENTS = 40, 6
EYE = np.eye(DIM)
QUICK = SampleBudget(fit=300, candidates=20, pilot=30, trials=300)


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


def begun(sampler, rounds: int = 1, **settings) -> LikelihoodRatio:
    """Return the auditor at the start of a run."""
    auditor = LikelihoodRatio(sampler, **({"budget": QUICK} | settings))
    auditor.begin(DIM, rounds)
    return auditor


def bound_of(sampler, view: RoundView, **settings) -> Finding:
    """Return the lower bound about a round in which client 0 is attacked."""
    found = begun(sampler, **({"target": 0} | settings)).observe(view)
    (bound,) = by_name(found, "epsilon", "lower_bound")
    return bound


def by_name(findings, quantity: str, kind: str | None = None) -> list[Finding]:
    """Return the findings of one quantity."""
    return [f for f in findings if f.quantity == quantity and kind in (None, f.kind)]


@pytest.mark.parametrize("confidence", [0.95, Anytime(0.95)])
def test_it_keeps_the_contract_of_auditors(gaussian_sampler, confidence) -> None:
    budget = SampleBudget(fit=60, candidates=10, pilot=20, trials=40)
    sampler = gaussian_sampler(np.eye(128))
    check_auditor(lambda: LikelihoodRatio(sampler, every=3, budget=budget, confidence=confidence))


def test_bets_on_the_trials_of_all_rounds_prove_more_than_any_round(gaussian_sampler) -> None:
    """With 3 clients no trial errs, so ε grows like ln of all trials."""
    rounds, found = 3, {}
    for name, confidence in (("split", 0.95), ("anytime", Anytime(0.95))):
        auditor = begun(gaussian_sampler(EYE), rounds, target=0, every=1, confidence=confidence)
        seen = [f for r in range(1, rounds + 1) for f in auditor.observe(view_of(r, clients=3))]
        (of_run,) = by_name(auditor.report(), "epsilon", "lower_bound")
        found[name] = (seen, of_run)
    seen, of_run = found["anytime"]
    values = [f.value for f in seen if f.is_anytime]
    assert values == sorted(values)
    assert len(values) == rounds
    assert values[-1] == of_run.value > values[0] + 1
    assert of_run.is_anytime
    assert not of_run.is_conditional
    assert of_run.sample_sizes == {"trials": rounds * QUICK.trials}
    assert of_run.facts == {"audited rounds": rounds}
    assert of_run.value > found["split"][1].value + 1
    # All else is as without bets.
    assert [f for f in seen if not f.is_anytime] == found["split"][0]


def test_bets_on_trials_that_only_resemble_noise_of_integers_are_conditional(
    gaussian_sampler,
) -> None:
    auditor = begun(gaussian_sampler(EYE), target=0, confidence=Anytime(0.95))
    seen = auditor.observe(view_of(share_std=0.1, noise_std=0.1, noise_distribution="skellam"))
    together = [f for f in (*seen, *auditor.report()) if f.is_anytime]
    assert [f.server_round for f in together] == [1, None]
    assert all(f.is_conditional for f in together)
    limit = StopRule([StopAbove(0.0)], [auditor])
    limit.note(together)
    assert limit.proven == 0.0 < together[0].value


def test_few_others_hide_nothing_and_many_do(gaussian_sampler) -> None:
    bounds = []
    for clients in (3, 200):
        auditor = begun(gaussian_sampler(EYE), target=0)
        found = auditor.observe(view_of(clients=clients))
        (bound,) = by_name(found, "epsilon", "lower_bound")
        (model,) = by_name(found, "epsilon", "approximation")
        assert bound.value <= model.value + 0.5
        assert bound.adjacency == "replace"
        assert bound.threat_model == ThreatModel(
            observer="server",
            sees="round sum",
            holds="two updates",
            knows_cohort=True,
            game="independent",
        )
        assert not bound.is_conditional
        bounds.append(bound)
    assert bounds[0].value > 2 * bounds[1].value
    assert bounds[0].value == bounds[0].cap
    assert bounds[0].saturated


def test_the_threshold_is_fixed_by_the_pilot_and_shows_more_than_the_band(
    gaussian_sampler,
) -> None:
    """Three clients, 300 trials, no error: 4.33 in place of the 3.72 that the band shows."""
    auditor = begun(gaussian_sampler(EYE), target=0)
    (bound,) = by_name(auditor.observe(view_of(clients=3)), "epsilon", "lower_bound")
    [[_, played]] = auditor.state()["played"]
    band = epsilon_lower_bound(played["first"], played["second"], delta=1e-5)
    assert band.value == pytest.approx(3.717, abs=1e-3)
    assert bound.value == bound.cap == pytest.approx(4.333, abs=1e-3)
    assert Assumption.FIXED_THRESHOLD in bound.assumptions
    (total,) = auditor.report()
    assert total.value == bound.value


def test_the_trials_do_not_move_the_threshold(gaussian_sampler) -> None:
    """Other trials, same pilot: the threshold stays, to the last digit."""

    class Shifted(gaussian_sampler):
        def sample(self, model, clients, draws, path, *, project=None):
            for chunk in super().sample(model, clients, draws, path, project=project):
                yield chunk + 5.0 if path[-1] == "test" else chunk

    middles = []
    for kind in (gaussian_sampler, Shifted):
        auditor = begun(kind(EYE), target=0)
        auditor.observe(view_of())
        [[_, played]] = auditor.state()["played"]
        middles.append(played["threshold"])
    assert middles[0] == middles[1]


@pytest.mark.parametrize(
    ("every", "audited"), [(0, [1]), (2, [1, 3, 5]), (-1, [1, 2, 4, 5]), (1, [1, 2, 3, 4, 5])]
)
def test_it_audits_the_rounds_that_are_due(gaussian_sampler, every, audited) -> None:
    budget = SampleBudget(fit=60, candidates=5, pilot=10, trials=20)
    auditor = begun(gaussian_sampler(EYE), 5, every=every, budget=budget)
    rounds = [r for r in range(1, 6) if auditor.observe(view_of(r))]
    assert rounds == audited
    (total,) = auditor.report()
    assert total.facts["audited rounds"] == len(audited)
    assert total.details[0].server_round == total.facts["audited round"]
    assert total.facts["audited round"] in audited
    assert (total.confidence, total.server_round) == (0.95, None)
    assert total.threat_model.participations is None  # each round is attacked by itself


@pytest.mark.parametrize(("planned", "played", "shares"), [(4, 1, 4), (1, 3, 3)])
def test_planned_and_played_audits_share_the_confidence(
    gaussian_sampler, planned: int, played: int, shares: int
) -> None:
    """A run that stops early, or goes on for longer, counts the larger number of audits."""
    auditor = begun(gaussian_sampler(EYE), planned, every=1, target=0)
    for server_round in range(1, played + 1):
        auditor.observe(view_of(server_round, clients=3))
    (total,) = auditor.report()
    _, trials = auditor.state()["played"][0]
    bound = epsilon_lower_bound(
        trials["first"],
        trials["second"],
        delta=1e-5,
        confidence=1 - 0.05 / shares,
        rule=BandAndFixed(trials["threshold"]),
    )
    assert total.cap == pytest.approx(bound.cap)
    assert total.confidence == 0.95


def test_a_round_without_the_target_or_without_others_is_not_audited(
    gaussian_sampler, caplog
) -> None:
    sampler, seats = gaussian_sampler(EYE), {c: Canary(id=c, seed=1) for c in range(CLIENTS)}
    absent = begun(sampler, target=17)
    assert absent.observe(view_of()) == ()
    assert not absent.report()
    assert begun(sampler).observe(view_of(clients=1)) == ()
    assert begun(sampler).observe(replace(view_of(), instructed=seats)) == ()
    assert "no client to audit among []" in caplog.text


def test_canary_seats_do_not_count_as_clients(gaussian_sampler) -> None:
    view = replace(view_of(), instructed={1: Canary(0, 0), 4: Canary(1, 0)})
    facts = bound_of(gaussian_sampler(EYE), view).facts
    assert (facts["others"], facts["honest clients"]) == (CLIENTS - 3, CLIENTS - 2)


@pytest.mark.parametrize("runs", few_or_many(8, 30))
def test_the_guess_about_the_released_sum_is_mostly_right(gaussian_sampler, runs) -> None:
    # Separations are above 3 standard deviations: errors are rarer than 7 %.
    right = []
    for key in range(runs):
        auditor = begun(gaussian_sampler(EYE), target=0, seed=key)
        update = stream(key, "sent").standard_normal(DIM)
        view = view_of(1, update_of=update)
        (guess,) = by_name(auditor.observe(view), "guess")
        assert guess.kind == "diagnostic"
        right.append(guess.facts["right"])
    assert sum(right) >= 0.8 * runs


def test_the_guess_sees_the_sum_and_not_who_sent_what(gaussian_sampler) -> None:
    """Exchange what two others have sent: the sum is the same, and so must be the guess."""
    auditor = begun(gaussian_sampler(EYE), target=0)
    view = view_of()
    swapped = dict(view.truth) | {1: view.truth[2] + 1.0, 2: view.truth[1] - 1.0}
    first = [f.to_json() for f in auditor.observe(view)]
    auditor.begin(DIM, 1)
    second = [f.to_json() for f in auditor.observe(replace(view, truth=swapped))]
    assert first == second


SERVER_NOISE = {"noise_std": 4.0, "divisor": float(CLIENTS), "noised": np.zeros(DIM)}


@pytest.mark.parametrize(
    ("observer", "share_std", "is_hidden"),
    [("server", 0.0, False), ("outsider", 0.0, True), ("server", 10.0, True)],
    ids=["the server sees the sum before its noise", "an outsider after it", "clients add noise"],
)
def test_noise_hides_from_those_who_see_it(
    gaussian_sampler, observer: str, share_std: float, is_hidden: bool
) -> None:
    view = view_of(**SERVER_NOISE, share_std=share_std)
    bound = bound_of(gaussian_sampler(EYE), view, observer=observer)
    assert bound.value < 0.5 if is_hidden else bound.value > 3
    seen = (bound.observer, bound.threat_model.sees, bound.threat_model.knows_cohort)
    assert seen == (observer, "round sum" if observer == "server" else "noised sum", True)


def test_a_mechanism_that_changes_has_a_sampler_for_each_round(gaussian_sampler) -> None:
    asked = []

    def of(view: RoundView):
        asked.append(view.server_round)
        return gaussian_sampler(EYE * view.server_round)

    auditor = begun(of, 4, every=2, budget=SampleBudget(fit=60, candidates=5, trials=20))
    for server_round in range(1, 5):
        auditor.observe(view_of(server_round))
    assert asked == [1, 3]


def test_others_that_never_change_give_a_finding_and_no_bound(gaussian_sampler) -> None:
    auditor = begun(gaussian_sampler(EYE, frozen=True))
    (finding,) = auditor.observe(view_of())
    assert (finding.quantity, finding.kind) == ("certain separation", "diagnostic")
    # Verdicts are made of what is said about the run: the strongest leak must be there.
    again = begun(gaussian_sampler(EYE, frozen=True))
    again.restore(auditor.state())
    for said in (finding, *auditor.report(), *again.report()):
        assert (said.quantity, said.value) == ("certain separation", 1.0)
        shown = {name: said.facts[name] for name in ("draws", "confidence", "largest chance")}
        assert shown == {"draws": 300, "confidence": 0.95, "largest chance": 0.01}
    for (said,) in (auditor.report(), again.report()):
        assert (said.server_round, said.facts["audited round"]) == (None, 1)


FEW = SampleBudget(fit=10, candidates=5, pilot=10, trials=20)  # three draws of each to fit


def test_certainty_takes_at_least_sixty_draws(gaussian_sampler) -> None:
    (finding,) = begun(gaussian_sampler(EYE, frozen=True), budget=FEW).observe(view_of())
    assert (finding.facts["draws"], finding.facts["largest chance"]) == (60, 0.05)


def test_others_that_change_rarely_are_not_taken_for_constant(gaussian_sampler) -> None:
    """The fit sees three equal draws of each client; one of twenty draws is another one."""

    class Rare(gaussian_sampler):
        def _draw(self, clients, t, path):
            usual = super()._draw(clients, t, path)
            return usual + 1.0 if t % 20 == 7 else usual

    auditor = begun(Rare(EYE, frozen=True), budget=FEW)
    assert auditor.observe(view_of()) == ()
    assert not auditor.report()


def test_wrong_arguments_are_named(gaussian_sampler) -> None:
    sampler = gaussian_sampler(EYE)
    for name, wrong in (("delta", 0.0), ("confidence", 1.0), ("every", -2), ("target", -1)):
        with refuses(name):
            LikelihoodRatio(sampler, **{name: wrong})


def test_what_is_neither_a_sampler_nor_a_function_is_refused_at_once() -> None:
    words = "sampler must be an UpdateSampler, or a function .* to one, got int"
    with pytest.raises(TypeError, match=words):
        LikelihoodRatio(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("trials", "exception", "is_said"), [(60, None, True), (59, None, False), (60, 41, False)]
)
def test_certain_separation_is_said_only_after_enough_trials_without_exception(
    gaussian_sampler, trials: int, exception: int | None, is_said: bool
) -> None:
    """The fit sees that the others leave one coordinate alone; the trials decide."""

    class Lopsided(gaussian_sampler):
        def sample(self, model, clients, draws, path, *, project=None):
            done = 0
            for chunk in super().sample(model, clients, draws, path):
                chunk = chunk.copy()
                others = [c != 0 for c in clients]
                moved = np.arange(done, done + len(chunk)) == exception
                moved &= path[-1] == "test"
                chunk[:, others, -1] *= moved[:, None]
                done += len(chunk)
                yield chunk if project is None else chunk @ project

    budget = SampleBudget(fit=120, candidates=20, pilot=30, trials=trials)
    auditor = begun(Lopsided(EYE), target=0, budget=budget)
    said = by_name(auditor.observe(view_of()), "certain separation")
    assert bool(said) == is_said
    for finding in said:
        assert finding.facts["draws"] == 60
        assert finding.facts["confidence"] == 0.95
        assert finding.facts["largest chance"] == 0.05


@pytest.mark.parametrize(("quantum", "is_said"), [(1e-6, True), (1.0, False)])
def test_coarse_rounding_may_hide_what_the_others_never_reach(
    gaussian_sampler, quantum: float, is_said: bool
) -> None:
    lopsided = gaussian_sampler(EYE, others=np.diag([1.0] * (DIM - 1) + [0.0]))
    found = begun(lopsided, target=0).observe(view_of(quantum=quantum))
    assert bool(by_name(found, "certain separation")) == is_said


@pytest.mark.parametrize("is_gaussian", [True, False])
def test_the_gaussian_approximation_is_left_out_where_the_scores_are_not_gaussian(
    gaussian_sampler, is_gaussian: bool
) -> None:
    class Heavy(gaussian_sampler):
        """One draw in ten is ten times as loud: a mixture, far from Gaussian."""

        def _draw(self, clients, t, path):
            return super()._draw(clients, t, path) * (10.0 if t % 10 == 0 else 1.0)

    kind = gaussian_sampler if is_gaussian else Heavy
    auditor = begun(kind(EYE), target=0)
    found = auditor.observe(view_of())
    (normality,) = by_name(found, "normality")
    assert (normality.facts["p_value"] >= 0.001) == is_gaussian
    assert normality.facts["level"] == 0.001
    assert normality.facts["approximation left out"] == (not is_gaussian)
    assert len(by_name(found, "epsilon", "approximation")) == is_gaussian
    (guess,) = by_name(found, "guess")
    assert (guess.facts["expected_error"] is not None) == is_gaussian
    assert len(by_name(found, "epsilon", "lower_bound")) == 1  # which does not depend on it


@pytest.mark.parametrize("fit", [10, 500])
def test_updates_that_are_not_finite_are_not_called_equal(gaussian_sampler, fit: int) -> None:
    # Once: "the other clients sent the same in all 60 draws". Comparisons with NaN are false.
    sampler = gaussian_sampler(np.full((DIM, DIM), np.inf))
    auditor = begun(sampler, budget=replace(QUICK, fit=fit))
    with np.errstate(invalid="ignore"), pytest.raises(DivergedError):
        auditor.observe(view_of())
