"""The auditors of a run: failures, cost, and the stop rule."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import MetricRecord
from flwr.serverapp.strategy import FedAvg, Strategy

from leakmeter.auditors import (
    Anytime,
    Audited,
    Auditor,
    Claim,
    DrawPlan,
    Finding,
    LikelihoodRatio,
    MutualInformation,
    OneShotCanaries,
    ReplaySampler,
    RoundView,
    SampleBudget,
    StopAbove,
    canary_mod,
    passive,
)
from leakmeter.auditors.auditor import Canary, DivergedError, Due, Project, RoundFacts
from leakmeter.auditors.finding import Limitation
from leakmeter.auditors.hook.panel import Panel
from leakmeter.auditors.wording import Assumption
from leakmeter.strategies import Chosen
from leakmeter.strategies.chosen import FixedSize
from tests.helpers.federation import Drawing
from tests.helpers.findings import finding
from tests.helpers.numbers import first_fast
from tests.helpers.refusals import refuses
from tests.helpers.strategies import OwnLoop


class Careful(Auditor):
    """Judges no round whose model is not finite."""

    name = "careful"

    def observe(self, view: RoundView) -> Sequence[Finding]:
        if not np.isfinite(view.released).all():
            raise DivergedError
        return [finding(auditor=self.name, server_round=view.server_round)]


def view(server_round: int, value: float) -> RoundView:
    return RoundView(server_round, np.zeros(2), {}, np.full(2, value), RoundFacts())


def test_a_round_that_diverged_is_a_limitation_and_the_auditor_stays() -> None:
    panel = Panel([Careful()])
    found = [panel.observe(view(i, value)) for i, value in enumerate((np.nan, 1.0, np.inf), 1)]
    assert [[f.server_round for f in some] for some in found] == [[], [2], []]
    assert [auditor.name for auditor in panel.auditors] == ["careful"]
    assert panel.failures == []
    assert panel.limitations == (Limitation("careful", str(DivergedError())),)  # said once


def test_an_auditor_that_instructs_strangers_is_left_out() -> None:
    class Strange(Careful):
        def instruct(self, server_round: int, chosen: Sequence[int]) -> dict[int, Canary]:
            return {99: Canary(id=0, seed=0)}

    panel = Panel([Strange()])
    assert panel.instruct(1, [0, 1]) == {}
    assert panel.auditors == []
    assert panel.failures == [
        "careful, round 1: ValueError: may instruct only clients in [0, 1], got [99]"
    ]


def test_an_error_without_a_text_is_named(caplog: pytest.LogCaptureFixture) -> None:
    panel = Panel([])
    with panel.keep_training_on_error("the round is not known"):
        raise MemoryError
    assert caplog.messages == ["the round is not known: MemoryError"]


def test_the_limits_of_a_run_are_limited() -> None:
    panel = Panel([Auditor()])
    for number in range(500):  # as clients can make them up, by names of mods
        panel.note(f"mod_{number} is in the way")
    assert len(panel.limitations) == 60
    assert panel.limitations[0].text == "mod_0 is in the way"


ALL = "careful: 10 rounds to audit, about 2 minutes; every=-1 audits fewer"
OTHERS = "careful: 9 more rounds to audit, about 2 minutes; every=-1 audits fewer"
ONE = "careful: 1 round to audit, about 4 minutes; fewer trials or draws take less"


@pytest.mark.parametrize(
    ("due", "expected", "took", "before", "after"),
    [
        (Due(2, 20), 10.0, 10.0, [ALL], []),
        (Due(2, 20), 5.0, 5.0, [], []),
        (Due(2, 20), None, 10.0, [], [OTHERS]),  # it is not known beforehand
        (Due(2, 20), 5.0, 10.0, [], [OTHERS]),  # or wrong
        (Due(2, 20), None, 5.0, [], []),
        (Due(0, 20), 240.0, 240.0, [ONE], []),
    ],
)
def test_a_long_audit_is_announced_once_as_soon_as_its_length_is_known(
    due: Due,
    expected: float | None,
    took: float,
    before: list[str],
    after: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, said = [0.0], list[list[str]]()

    class Known(Careful):
        @property
        def due(self) -> Due:
            return due

        def seconds(self, view: RoundView) -> float | None:
            return expected

        def observe(self, view: RoundView) -> Sequence[Finding]:
            said.append(list(caplog.messages))
            clock[0] += took
            return super().observe(view)

    monkeypatch.setattr("leakmeter.auditors.hook.panel.time.monotonic", lambda: clock[0])
    panel = Panel([Known()])
    with caplog.at_level(logging.WARNING, logger="flwr"):
        for server_round in range(1, 4):
            panel.observe(view(server_round, 1.0))
    assert said == [before, [*before, *after], [*before, *after]]
    assert caplog.messages == [*before, *after]


def test_auditors_meet_the_others_and_know_the_claims_before_confidence_is_shared() -> None:
    class Meeting(Careful):
        met: Sequence[Auditor] = ()

        def join(self, others: Sequence[Auditor]) -> None:
            self.met, self.num_bounds = others, len(self.claims)

    class Shy(Careful):
        name = "shy"

        def join(self, others: Sequence[Auditor]) -> None:
            raise RuntimeError("no")

    one, other = Meeting(), Meeting()
    other.name = "other"
    panel = Panel([one, Shy(), other])
    panel.begin(10, 2, claims=(Claim(1.0), Claim(2.0)))
    assert [each.name for each in one.met] == ["shy", "other"]
    assert [each.name for each in other.met] == ["careful"]  # the one in between is left out
    assert panel.failures == ["shy, before round 1: RuntimeError: no"]
    assert one.confidence == other.confidence == pytest.approx(1 - 0.05 / 4)


def test_what_an_auditor_has_noticed_in_the_run_is_a_limitation() -> None:
    class Noticing(Careful):
        noticed = ("a mod is in the way",)

    panel = Panel([Noticing()])
    panel.observe(view(1, 1.0))
    panel.report()
    assert panel.limitations == (Limitation("careful", "a mod is in the way"),)


DIM = 132  # of the federation


def run(of: Any, auditors: list[Auditor], rounds: int, **options: Any) -> Audited:
    """Return an audited run of all clients."""
    clients = len(list(of.grid.get_node_ids()))
    inner = FedAvg(min_train_nodes=clients, min_available_nodes=clients, fraction_evaluate=0.0)
    audited = Audited(inner, auditors, **options)
    audited.start(of.grid, of.arrays(), num_rounds=rounds)
    assert audited.failures == []
    return audited


QUICK = SampleBudget(fit=30, candidates=6, pilot=10, trials=20)
SPANNED = SampleBudget(fit=270, candidates=6, pilot=10, trials=20)


@pytest.mark.parametrize(
    ("make", "rounds"),
    first_fast(
        3,
        [
            (lambda: LikelihoodRatio(ReplaySampler(), budget=QUICK, every=2), 3),
            (lambda: MutualInformation(ReplaySampler(), plan=DrawPlan(draws=6, rank=4)), 2),
            (
                lambda: MutualInformation(
                    ReplaySampler(), every=0, plan=DrawPlan(draws=4, rank=30)
                ),
                2,
            ),
            (lambda: LikelihoodRatio(ReplaySampler(), budget=QUICK), 2),
            (lambda: LikelihoodRatio(ReplaySampler(), budget=SPANNED), 1),  # dense, with its span
        ],
    ),
)
@pytest.mark.usefixtures("flower_task")
def test_trainings_are_counted_as_they_happen(make: Any, rounds: int) -> None:
    of = Drawing(5, identity=False)
    auditor = make()
    run(of, [auditor], rounds)
    project = Project(dim=DIM, num_rounds=rounds, clients=5)
    assert len(of.seen) == 5 * rounds + auditor.trainings(project)


@pytest.mark.usefixtures("flower_task")
def test_a_run_that_trains_less_than_its_audit_says_so_before_it_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = Drawing(8, mods=[canary_mod], identity=False)
    trained: list[int] = []
    note = Panel._note

    def noted(self: Panel, auditor: Auditor, words: str) -> None:
        if words.startswith("the audit trains"):
            trained.append(len(of.seen))
        note(self, auditor, words)

    monkeypatch.setattr(Panel, "_note", noted)
    audited = run(of, passive(seats=2, trials=20), 2, sends="models")
    assert trained == [0]
    asked = len(of.seen) - 2 * 8
    [cost] = [one for one in audited.limitations if one.text.startswith("the audit trains")]
    assert cost.auditor == "likelihood-ratio"
    assert cost.text == (
        f"the audit trains clients {asked} times, the run itself 16 times: it will take about "
        f"{asked / 16:.1f} times as long as the training. Fewer trials (passive(trials=20)) or "
        "more rounds between audits (every=…) cost less"
    )


def test_a_long_run_and_one_without_replays_say_nothing_of_their_cost() -> None:
    auditors = passive(seats=2)
    asked = sum(a.trainings(Project(DIM, 200, clients=12, seats=2)) for a in auditors)
    assert asked == 820  # (14 + 2 + 60) · 9 + 16, and (4 + 8) · 10, and none for canaries

    def said(rounds: int, **known: Any) -> list[str]:
        panel = Panel(auditors)
        panel.consider(Project(DIM, rounds, **known))
        return [one.text for one in panel.limitations if one.text.startswith("the audit trains")]

    assert said(69, clients=12, seats=2) == []  # 828 trainings of its own
    assert len(said(68, clients=12, seats=2)) == 1
    assert said(1) == []  # nobody is chosen yet


def test_samplers_that_train_by_themselves_cost_the_clients_nothing(gaussian_sampler: Any) -> None:
    project = Project(DIM, 1, clients=12)
    for sampler in (gaussian_sampler(np.eye(DIM)), lambda _: ReplaySampler()):
        for make in (LikelihoodRatio, MutualInformation):
            assert make(sampler).trainings(project) == 0
    assert OneShotCanaries(seats=2).trainings(project) == 0
    for clients in (None, 1):  # not known yet, or nobody hides the one
        few = Project(DIM, 1, clients=clients)
        assert LikelihoodRatio(ReplaySampler()).trainings(few) == 0
        assert MutualInformation(ReplaySampler()).trainings(few) == 0


def test_an_auditor_that_cannot_count_stops_nothing() -> None:
    class Broken(Auditor):
        def trainings(self, project: Project) -> int:
            raise RuntimeError("no idea")

    panel = Panel([Broken()])
    panel.consider(Project(DIM, 1, clients=5))
    assert panel.failures == ["the cost of the audit is not known: RuntimeError: no idea"]
    assert panel.auditors


ROUNDS = 6


def chosen(strategy: Strategy | None = None) -> Chosen:
    return Chosen(strategy or FedAvg(), FixedSize(6), num_clients=6, seed=1)


def audited(
    strategy: Strategy | None = None, *, stop_above: float | None = None, **more: Any
) -> Audited:
    """Return an audit that proves some ε in its first rounds: nothing hides the canaries."""
    auditor = OneShotCanaries(seats=4, confidence=Anytime(0.95))
    stop = [] if stop_above is None else [StopAbove(stop_above)]
    return Audited(chosen(strategy), [auditor], sends="models", callbacks=stop, **more)


def proven(run: Audited) -> list[float]:
    """Return the bound after each round."""
    return [f.value for f in run.findings() if f.is_anytime and f.server_round is not None]


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    """What a run without a limit has shown, once it has been needed."""
    return {}


@pytest.fixture
def limit(federation: Any, known: dict[str, Any]) -> tuple[float, int]:
    """Return a limit and the round in which it is passed, neither the first nor the last."""
    if not known:
        fed, run, models = federation(), audited(), dict[int, Any]()
        run.on_round = lambda line, arrays: models.update({line.server_round: arrays})
        run.start(fed.grid, fed.arrays(), ROUNDS)
        assert run.ended is None
        values = proven(run)
        passed = next(i for i in range(1, ROUNDS - 1) if values[i] > values[0])
        known.update(limit=(values[passed] - 0.01, passed + 1), models=models)
    found: tuple[float, int] = known["limit"]
    return found


def test_the_run_ends_before_the_next_round_with_the_model_so_far(
    federation: Any, limit: tuple[float, int], known: dict[str, Any], caplog: Any
) -> None:
    above, last = limit
    fed, run = federation(), audited(stop_above=above)
    result = run.start(
        fed.grid, fed.arrays(), ROUNDS, evaluate_fn=lambda r, _: MetricRecord({"round": r})
    )
    assert {r for kind, r, _ in fed.seen if kind == "train"} == set(range(1, last + 1))
    assert len(proven(run)) == last
    assert run.ended is not None
    assert f"above the limit of {above:g}" in run.ended
    assert run.ended in caplog.text
    # What the loop would have returned had it had this many rounds.
    assert sorted(result.train_metrics_clientapp) == list(range(1, last + 1))
    assert sorted(result.evaluate_metrics_serverapp) == list(range(last + 1))
    assert sorted(result.evaluate_metrics_clientapp) == list(range(1, last + 1))
    for name, array in known["models"][last].items():
        np.testing.assert_array_equal(result.arrays[name].numpy(), array.numpy())


def test_a_loop_of_its_own_is_left_in_order(federation: Any, limit: tuple[float, int]) -> None:
    fed, inner = federation(), OwnLoop()
    run = audited(inner, stop_above=limit[0])
    run.start(fed.grid, fed.arrays(), ROUNDS)
    assert len(proven(run)) < ROUNDS
    assert "configure_train" not in vars(inner)


def test_the_report_says_first_that_the_run_was_stopped(
    federation: Any, limit: tuple[float, int], tmp_path: Path, caplog: Any
) -> None:
    above, last = limit
    fed = federation()
    run = audited(stop_above=above, out=tmp_path / "run")
    caplog.set_level("INFO", logger="flwr")
    run.start(fed.grid, fed.arrays(), ROUNDS)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    warned = [(w["kind"], w["count"], w["total"]) for w in report["warnings"]]
    assert warned[0] == ("stopped-above", ROUNDS - last, ROUNDS)
    assert "few-canaries" not in {kind for kind, *_ in warned}
    said = " ".join(record.message for record in caplog.records)
    assert f"The run stopped {ROUNDS - last} of {ROUNDS} rounds early, as asked" in said


def test_bounds_for_one_look_are_conditional_after_a_stop(
    federation: Any, limit: tuple[float, int]
) -> None:
    fed, run = federation(), audited(stop_above=limit[0])
    run.start(fed.grid, fed.arrays(), ROUNDS)
    bounds = [f for f in run.findings() if f.kind == "lower_bound" and f.server_round is None]
    assert {f.is_conditional for f in bounds if f.is_anytime} == {False}
    others = [f for f in bounds if not f.is_anytime]
    assert others
    assert all(Assumption.FIXED_END in f.assumptions and f.is_conditional for f in others)


def test_a_run_interrupted_at_its_stop_does_not_train_on(
    federation: Any, limit: tuple[float, int]
) -> None:
    above, last = limit
    fed, saved = federation(), {}
    first = audited(stop_above=above)
    first.on_round = lambda line, model: saved.update({line.server_round: (first.state(), model)})
    first.start(fed.grid, fed.arrays(), ROUNDS)
    state, model = saved[last]
    again, second = federation(), audited(stop_above=above, rounds_done=last)
    second.restore(state)
    second.start(again.grid, model, ROUNDS)
    assert not [r for kind, r, _ in again.seen if kind == "train"]
    assert second.ended == first.ended
    of_run = [f for f in first.findings() if f.server_round is None]
    assert second.findings() == of_run
    assert second.warnings == first.warnings


def test_a_second_start_begins_anew(federation: Any, limit: tuple[float, int]) -> None:
    fed, run = federation(), audited(stop_above=limit[0])
    run.start(fed.grid, fed.arrays(), ROUNDS)
    first = run.ended
    run.start(fed.grid, fed.arrays(), ROUNDS)
    assert run.ended == first
    assert len(proven(run)) == limit[1]


def test_it_needs_an_auditor_whose_bounds_hold_at_every_round() -> None:
    with pytest.raises(ValueError, match=r"StopAbove needs an auditor .* got \['one-shot'\]: try"):
        Audited(FedAvg(), [OneShotCanaries(seats=2)], callbacks=[StopAbove(1.0)])
    with refuses("epsilon"):
        StopAbove(-1)


def test_two_auditors_that_may_stop_a_run_share_its_confidence(
    federation: Any, tmp_path: Path
) -> None:
    made = [OneShotCanaries(seats=2, confidence=Anytime(0.95)) for _ in range(2)]
    made[1].name = "two"
    fed, run = federation(), Audited(chosen(), made, callbacks=[StopAbove(1e6)], out=tmp_path)
    run.start(fed.grid, fed.arrays(), 1)
    misses = [auditor.num_bounds * (1 - auditor.confidence) for auditor in made]
    assert sum(misses) == pytest.approx(0.05)
