"""The transcript audit: closed forms for Gaussian data, one test over rounds, cohorts, claims."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from leakmeter.auditors import RoundView, TranscriptBudget, TranscriptLikelihoodRatio, check_auditor
from leakmeter.auditors.audited_round import Trials
from leakmeter.auditors.auditor import DamagedError, Project, RoundFacts, UnableError
from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.finding import Finding, Game, ThreatModel
from leakmeter.auditors.likelihood_ratio.transcript_runs import (
    HiddenCohorts,
    TranscriptCohort,
    Transcripts,
)
from leakmeter.auditors.rng import stream
from leakmeter.auditors.rng import stream as numbers
from leakmeter.auditors.sampling.moments import Scatter
from leakmeter.auditors.sampling.sampler import Moments, Stream, UpdateSampler
from leakmeter.auditors.values import Vector
from leakmeter.auditors.wording import Assumption
from tests.helpers.numbers import few_or_many, most_allowed
from tests.helpers.refusals import refuses

DIM, CLIENTS, ROUNDS = 3, 5, 4
QUICK = TranscriptBudget(fit=400, candidates=6, own=40, pilot=300, trials=700)
# Whole runs are played one by one: fewer of them, and wider tolerances.
EFFORTS = {
    "frozen-models": QUICK,
    "whole-runs": replace(QUICK, pilot=80, trials=200, mode="whole-runs"),
}
ERRORS = {"frozen-models": 0.2, "whole-runs": 0.4}


@dataclass(frozen=True)
class DataSampler(UpdateSampler):
    """An update is a client's data point plus batch noise, whatever the model.

    The target's data vary by `own_std`, those of the others by `data_std`: with Gaussians for all
    three the two worlds' separation is known.
    """

    data_std: float = 0.0
    own_std: float = 3.0
    batch_std: float = 1.0
    target: int = 0
    game: Game = "independent"
    kept: tuple[str | int, ...] | None = None
    held: tuple[tuple[str | int, ...], int] | None = None

    def _points(self, client: int, draws: int, stream: Stream) -> NDArray[np.float64]:
        path = tuple(stream if self.kept is None else self.kept)
        std = self.own_std if client == self.target else self.data_std
        if self.held is not None:
            path, draw = self.held
            points = numbers(1, *path, "data", client).standard_normal((draw + 1, DIM))
            return std * np.repeat(points[draw:], draws, axis=0)
        return std * numbers(1, *path, "data", client).standard_normal((draws, DIM))

    def sample(
        self,
        model: Vector,
        clients: Sequence[int],
        draws: int,
        stream: Stream,
        *,
        project: NDArray[np.float64] | None = None,
    ) -> Iterator[NDArray[np.floating]]:
        rows = np.stack(
            [
                self._points(client, draws, stream)
                + self.batch_std
                * numbers(2, *stream, "batch", client).standard_normal((draws, DIM))
                for client in clients
            ],
            axis=1,
        )
        yield rows if project is None else rows @ project

    def one(self, model: Vector, clients: Sequence[int], draw: int, stream: Stream) -> Vector:
        return _all(self, tuple(clients), tuple(stream))[draw]

    def moments(self, model: Vector, clients: Sequence[int], draws: int, stream: Stream) -> Moments:
        scatter = Scatter(DIM)
        for chunk in self.sums(model, clients, draws, stream):
            scatter.add(chunk)
        return scatter.moments()

    def keeping(self, stream: Stream) -> DataSampler:
        return replace(self, kept=tuple(stream))

    def holding(self, client: int, stream: Stream, draw: int) -> DataSampler:
        return replace(self, held=(tuple(stream), draw))


@cache
def _all(sampler: DataSampler, clients: tuple[int, ...], stream: tuple[str | int, ...]) -> Vector:
    """Return all draws that a test asks for one by one."""
    (rows,) = sampler.sample(np.zeros(DIM), clients, QUICK.draws, stream)
    return rows


def view_of(server_round: int, clients: Sequence[int] = range(CLIENTS), **facts) -> RoundView:
    """Return a round in which these clients took part."""
    sent = np.zeros(DIM)
    known = {"num_clients": len(clients), "total_weight": float(len(clients))} | facts
    replies = {c: np.zeros(DIM) for c in clients}
    return RoundView(server_round, sent, replies, sent, RoundFacts(**known))


def audited(
    sampler: UpdateSampler,
    rounds: int = ROUNDS,
    clients=None,
    facts=None,
    mode="frozen-models",
    **settings,
) -> Finding:
    """Return the finding about a run."""
    budget = EFFORTS[mode]
    auditor = TranscriptLikelihoodRatio(sampler, **({"target": 0, "budget": budget} | settings))
    auditor.begin(DIM, rounds)
    for r in range(1, rounds + 1):
        who = range(CLIENTS) if clients is None else clients(r)
        auditor.observe(view_of(r, who, **(facts or {})))
    (found,) = auditor.report()
    return found


def gap_of(sampler: DataSampler) -> float:
    """Return the distance of the pair of data sets that the audit takes: the farthest."""
    points = sampler.keeping(("transcript", 0, "candidates"))._points(0, QUICK.candidates, ())
    return max(float(np.linalg.norm(a - b)) for a in points for b in points)


def truth(gap: float, rounds: int, data_std: float, batch_std: float = 1.0) -> float:
    """Return the separation: batches are new in each round, data are kept."""
    variance = CLIENTS * batch_std**2 + rounds * (CLIENTS - 1) * data_std**2
    return gap * math.sqrt(rounds / variance)


BOTH_MODES = pytest.mark.parametrize("mode", ["frozen-models", "whole-runs"])


@BOTH_MODES
@pytest.mark.parametrize("data_std", [0.0, 1.0])
def test_rounds_add_up_as_the_closed_form_says(mode, data_std: float) -> None:
    """Independent rounds give √ΣΔ², kept data of the others less; within 4 standard errors."""
    sampler = DataSampler(data_std=data_std, own_std=1.0)
    found = audited(sampler, mode=mode)
    assert found.facts["separation"] == pytest.approx(
        truth(gap_of(sampler), ROUNDS, data_std), abs=ERRORS[mode]
    )
    assert found.facts["largest separation of one round"] == pytest.approx(
        truth(gap_of(sampler), 1, data_std), abs=1.5 * ERRORS[mode]
    )


def test_all_rounds_together_show_more_than_the_best_one_where_they_add_up() -> None:
    found = audited(DataSampler(own_std=0.6), rounds=6)
    assert found.value > found.facts["largest single round"] + 0.5
    assert found.confidence == 0.95
    assert found.threat_model.participations == found.facts["rounds"] == 6


def test_nothing_is_found_where_both_data_sets_are_alike() -> None:
    assert audited(DataSampler(own_std=0.0, data_std=1.0)).value == 0.0


@BOTH_MODES
def test_noise_of_the_mechanism_is_part_of_every_trial(mode) -> None:
    sampler = DataSampler(own_std=1.0)
    found = audited(sampler, facts={"noise_std": 1.0, "share_std": 1.0}, mode=mode)
    # Each of five clients adds noise of 1 to its batch noise of 1.
    expected = truth(gap_of(sampler), ROUNDS, 0.0, math.sqrt(2))
    assert found.facts["separation"] == pytest.approx(expected, abs=ERRORS[mode])


def test_only_rounds_with_the_target_count_for_an_attacker_who_knows_them() -> None:
    sampler = DataSampler(own_std=1.0)
    found = audited(sampler, clients=lambda r: range(CLIENTS) if r % 2 else range(1, CLIENTS + 1))
    assert found.facts["rounds"] == found.threat_model.participations == 2
    assert found.facts["separation"] == pytest.approx(truth(gap_of(sampler), 2, 0.0), abs=0.2)
    assert found.threat_model.knows_cohort


@BOTH_MODES
def test_an_attacker_who_does_not_know_the_cohorts_tells_less(mode) -> None:
    """The mean gap shrinks to its rate, and whether the target is there adds variance."""
    sampler, rate = DataSampler(own_std=1.0), 0.5
    hidden = HiddenCohorts(rate, clients=8)
    found = audited(sampler, hidden=hidden, mode=mode)
    known = audited(sampler, mode=mode)
    assert found.facts["separation"] < 0.75 * known.facts["separation"]
    assert found.facts["separation"] > 0.3 * known.facts["separation"]
    assert not found.threat_model.knows_cohort
    assert found.threat_model.participations == ROUNDS


@given(st.integers(2, 12), st.data())
def test_whoever_stands_in_is_one_of_the_absent_as_if_they_were_listed(clients, data) -> None:
    honest = data.draw(st.lists(st.integers(0, clients - 1), min_size=1, unique=True))
    seed = data.draw(st.integers(0, 2**20))
    absent = sorted(set(range(clients)) - set(honest))
    found = TranscriptCohort.of(
        honest, honest[0], HiddenCohorts(0.5, clients), np.random.default_rng(seed)
    )
    assert found.others == tuple(honest[1:])
    listed = int(np.random.default_rng(seed).choice(absent)) if absent else None
    assert found.stand_in == listed
    assert found.rate == (0.5 if absent else 1.0)


def test_the_claims_are_fields() -> None:
    frozen, whole = audited(DataSampler()), audited(DataSampler(), mode="whole-runs")
    expected = ThreatModel(
        observer="server",
        sees="frozen sums",
        holds="two data sets",
        knows_cohort=True,
        participations=ROUNDS,
        game="independent",
    )
    assert frozen.threat_model == expected
    assert whole.threat_model == replace(expected, sees="round sum")
    assert Assumption.MODELS_AS_SENT in frozen.assumptions
    assert Assumption.MODELS_AS_SENT not in whole.assumptions
    for found in (frozen, whole):
        assert (found.kind, found.adjacency, found.unit) == ("lower_bound", "replace", "client")
        assert not found.is_conditional


def test_trials_only_resemble_noise_of_integers() -> None:
    facts = {"noise_std": 1.0, "share_std": 1.0, "noise_distribution": "skellam"}
    found = audited(DataSampler(), rounds=1, facts=facts)
    assert Assumption.GAUSSIAN_TRIALS in found.assumptions
    assert found.is_conditional


def begun(sampler=DataSampler(), mode="frozen-models", rounds=ROUNDS) -> TranscriptLikelihoodRatio:
    """Return the auditor of few transcripts at the start of a run."""
    budget = replace(QUICK, pilot=20, trials=40, mode=mode)
    made = TranscriptLikelihoodRatio(sampler, target=0, budget=budget)
    made.begin(DIM, rounds)
    return made


def test_each_round_reports_what_the_rounds_so_far_show() -> None:
    auditor = begun(DataSampler(own_std=1.0))
    values = [auditor.observe(view_of(r))[0] for r in range(1, ROUNDS + 1)]
    assert [f.server_round for f in values] == [1, 2, 3, 4]
    assert values[-1].value > values[0].value
    (total,) = auditor.report()
    assert total.value == values[-1].value


ABANDONED = view_of(4, (), abandoned="too few replies")
FEW_ROUNDS = [view_of(r, clip_norm=2.0) for r in (1, 2)]


@pytest.mark.parametrize(
    ("mode", "cut", "rest"),
    [
        ("frozen-models", FEW_ROUNDS, [view_of(3), view_of(4)]),
        ("whole-runs", FEW_ROUNDS, [view_of(3), view_of(4)]),
        ("whole-runs", [*FEW_ROUNDS, ABANDONED], []),
        ("whole-runs", FEW_ROUNDS, []),
    ],
    ids=["frozen models", "whole runs", "killed after an abandoned last round", "stopped early"],
)
def test_it_resumes_bit_for_bit(mode, cut, rest) -> None:
    def of(view: RoundView) -> DataSampler:
        assert view.facts.clip_norm == 2.0 or view.server_round > 2
        return DataSampler()

    ran, resumed = begun(of, mode), begun(of, mode)
    for view in cut:
        ran.observe(view)
    resumed.restore(ran.state())
    for view in rest:
        ran.observe(view)
        resumed.observe(view)
    (found,) = ran.report()
    assert found.facts["rounds"] == 2 + len(rest)
    assert [f.to_json() for f in resumed.report()] == [found.to_json()]


@pytest.mark.parametrize("name", ["case", "game"])
def test_a_checkpoint_without_its_target_is_damaged_and_says_so(name) -> None:
    ran, resumed = begun(), begun()
    ran.observe(view_of(1))
    resumed.restore({**ran.state(), name: None})
    with pytest.raises(DamagedError, match="restore it, or start again"):
        resumed.report()


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("target", lambda: TranscriptLikelihoodRatio(DataSampler(), target=-1)),
        ("delta", lambda: TranscriptLikelihoodRatio(DataSampler(), delta=0.0)),
        ("rate", lambda: HiddenCohorts(0.0, 5)),
        ("trials", lambda: TranscriptBudget(trials=3)),
        ("mode", lambda: TranscriptBudget(mode="half")),
    ],
)
def test_bad_settings_are_refused(name: str, make) -> None:
    with refuses(name):
        make()


def test_it_keeps_the_contract_of_auditors() -> None:
    budget = TranscriptBudget(fit=60, candidates=4, own=2, pilot=20, trials=40)

    class Any(DataSampler):
        def sample(self, model, clients, draws, stream, *, project=None):
            size = 3 if project is None else project.shape[1]
            for chunk in super().sample(model, clients, draws, stream):
                wide = np.zeros((*chunk.shape[:2], model.size))
                wide[..., :3] = chunk
                yield wide if project is None else (wide @ project)[..., :size]

        def moments(self, model, clients, draws, stream):
            scatter = Scatter(model.size)
            for chunk in self.sums(model, clients, draws, stream):
                scatter.add(chunk)
            return scatter.moments()

    check_auditor(lambda: TranscriptLikelihoodRatio(Any(), budget=budget))


def test_clients_that_train_on_their_own_data_cannot_be_given_others() -> None:
    class Foreign(DataSampler):
        asks_clients = True

    auditor = TranscriptLikelihoodRatio(Foreign())
    with pytest.raises(UnableError, match="needs a simulation"):
        auditor.limits(Project(dim=DIM, num_rounds=2))
    kept = TranscriptLikelihoodRatio(DataSampler(game="rerun"), budget=QUICK)
    kept.begin(DIM, 1)
    with pytest.raises(UnableError, match="cannot draw data sets"):
        kept.observe(view_of(1))


GAPS = np.array([0.5, 1.0, 1.5, 0.0])


def gaussian_scores(
    draws: int, name: int, gaps: np.ndarray = GAPS, root: np.ndarray | None = None
) -> Transcripts:
    """Return Gaussian scores whose means differ by `gaps`, with the covariance root rootᵀ."""
    rng = stream(11, "gaussian_scores", name)
    own = np.eye(len(gaps)) if root is None else root
    first, second = rng.standard_normal((2, draws, len(gaps))) @ own.T
    return Transcripts(first + gaps, second)


def test_independent_rounds_are_as_far_apart_as_the_root_of_the_sum_of_squares() -> None:
    found = gaussian_scores(4000, 0).judged(2000).separation
    # The standard error of a separation of 1.87 from 2,000 gaussian_scores is 0.04.
    assert found == pytest.approx(math.sqrt(np.square(GAPS).sum()), abs=0.16)


def test_dependent_rounds_are_combined_with_their_covariance() -> None:
    root = np.tril(np.full((4, 4), 0.8)) + 0.2 * np.eye(4)
    drawn = gaussian_scores(8000, 1, root=root)
    truth = math.sqrt(GAPS @ np.linalg.solve(root @ root.T, GAPS))
    assert drawn.judged(4000).separation == pytest.approx(truth, rel=0.08)
    equal = Trials(drawn.first[4000:].sum(axis=1), drawn.second[4000:].sum(axis=1)).separation
    assert equal < 0.6 * truth  # adding up scores would lose this


def test_scores_that_never_vary_separate_the_worlds() -> None:
    ones, zeros = np.ones((20, 2)), np.zeros((20, 2))
    assert Transcripts(ones, zeros).judged(10).separation > 1e9
    assert Transcripts(zeros, zeros).judged(10).separation == 0.0


def test_few_pilot_transcripts_for_many_rounds_still_give_a_sensible_test() -> None:
    found = gaussian_scores(2030, 2, np.full(40, 0.3)).judged(30).separation
    assert 0.6 * math.sqrt(40) * 0.3 < found < math.sqrt(40) * 0.3 + 0.16


@pytest.mark.parametrize("audits", few_or_many(60, 10_000))
@pytest.mark.parametrize("gaps", [np.zeros(3), np.array([0.4, 0.8, 0.6])])
def test_the_bound_keeps_its_confidence(gaps: np.ndarray, audits: int) -> None:
    """A bound of 80 % exceeds the truth in at most 20 % of audits, by 3 standard errors."""
    truth = epsilon_gaussian(0.01, float(np.linalg.norm(gaps)))
    values = []
    for audit in range(audits):
        trials = gaussian_scores(80, 10 + audit, gaps).judged(40)
        values.append(trials.bound(0.01, 0.8).value)
    assert sum(np.array(values) > truth + 1e-12) <= most_allowed(audits, 0.2)
    if truth:
        assert np.median(values) > 0.1 * truth


def test_worlds_of_different_size_are_refused() -> None:
    with pytest.raises(ValueError, match="both worlds must have scores"):
        Transcripts(np.zeros((3, 1)), np.zeros((4, 1)))
    with refuses("pilot"):
        Transcripts(np.zeros((9, 1)), np.zeros((9, 1))).judged(3)
