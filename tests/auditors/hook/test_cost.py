"""What an audit makes the clients train is counted beforehand, and said if it is much."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from leakmeter.auditors import (
    Audited,
    Auditor,
    DrawPlan,
    LikelihoodRatio,
    MutualInformation,
    OneShotCanaries,
    ReplaySampler,
    SampleBudget,
    canary_mod,
    passive,
)
from leakmeter.auditors.auditor import Project
from leakmeter.auditors.hook.panel import Panel
from tests.helpers.numbers import first_fast

DIM = 132  # of the federation


@pytest.fixture
def foreign(federation: Any) -> Any:
    """Return the maker of federations whose clients draw batches of their own."""

    class Foreign(federation):  # type: ignore[misc]
        draws = np.random.default_rng(0)

        def trained(self, client: int, arrays: Any) -> dict[str, np.ndarray]:
            models = super().trained(client, arrays)
            models["w"] = (models["w"] + self.draws.standard_normal((10, 12))).astype(np.float32)
            models["b"] = models["b"] + self.draws.standard_normal(12)
            return models

    return Foreign


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
def test_trainings_are_counted_as_they_happen(foreign: Any, make: Any, rounds: int) -> None:
    of = foreign(5, identity=False)
    auditor = make()
    run(of, [auditor], rounds)
    project = Project(dim=DIM, num_rounds=rounds, clients=5)
    assert len(of.seen) == 5 * rounds + auditor.trainings(project)


def test_a_run_that_trains_less_than_its_audit_says_so_before_it_trains(
    foreign: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = foreign(8, mods=[canary_mod], identity=False)
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


def test_an_auditor_that_cannot_count_stops_nothing(federation: Any) -> None:
    class Broken(Auditor):
        name = "broken"

        def trainings(self, project: Project) -> int:
            raise RuntimeError("no idea")

    of = federation(5)
    inner = FedAvg(min_train_nodes=5, min_available_nodes=5, fraction_evaluate=0.0)
    audited = Audited(inner, [Broken()])
    result = audited.start(of.grid, of.arrays(), num_rounds=1)
    assert len(result.arrays) == 3
    assert audited.failures == ["the cost of the audit is not known: RuntimeError: no idea"]
