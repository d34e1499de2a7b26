"""What an auditor cannot do is said before anybody trains, in these words, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
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
    tap_mod,
)
from leakmeter.auditors.auditor import Project, RoundFacts, RoundView, UnableError
from leakmeter.auditors.finding import Limitation
from leakmeter.auditors.hook.panel import Panel
from leakmeter.clients import MaskMod
from leakmeter.strategies import Chosen, Masked
from leakmeter.strategies.chosen import FixedSize
from tests.helpers.federation import Drawing
from tests.helpers.findings import finding

CAPABLE = Project(dim=10_000, num_rounds=30, clients=12, seats=2)
QUICK = SampleBudget(fit=30, candidates=6, pilot=10, trials=20)


def said(auditor: Auditor, **changes: Any) -> list[str]:
    """Return what an auditor says of a project that is capable but for these changes."""
    project = replace(CAPABLE, **changes)
    auditor.begin(project.dim, project.num_rounds)
    return list(auditor.limits(project))


def test_a_capable_project_gets_no_such_line() -> None:
    for auditor in passive():
        assert said(auditor) == []
        assert said(auditor, clients=None, seats=0) == []  # as it is asked first


FEW_CANARIES = (
    "59 canaries in 59 rounds, of which about 29 take part: results vary widely, and estimates "
    "that fit a standard deviation are left out below 30; use more seats or rounds"
)
FEW_PARAMETERS = (
    "107 parameters for 12 clients per round: a canary stands out by only about 3.0 standard "
    "deviations, so the audit may find little even if much leaks; fewer clients per round or "
    "a larger model show more"
)
FEW_HONEST = (
    "7 of the 12 clients of round 1 play canaries: the model learns only from 5; use fewer "
    "seats or more clients per round"
)
NOBODY_HIDES = (
    "round 1 has 1 honest client and 2 canary seats: a sum hides a client only among others; "
    "not audited"
)
ROUGH = (
    "round 1 has 3 honest clients and 2 canary seats: its Gaussian approximation is poor for so "
    "few; the lower bound holds"
)
FEW_DRAWS = "6 draws of 3 honest clients allow 2 of 8 directions: the others need more draws"


def drawing() -> MutualInformation:
    return MutualInformation(ReplaySampler(), plan=DrawPlan(draws=6, rank=8))


@pytest.mark.parametrize(
    ("make", "changes", "lines"),
    [
        (lambda: OneShotCanaries(seats=1), {"num_rounds": 59}, [FEW_CANARIES]),
        (lambda: OneShotCanaries(seats=1), {"num_rounds": 60}, []),
        (lambda: OneShotCanaries(seats=1, include="all"), {"num_rounds": 30}, []),
        (lambda: OneShotCanaries(seats=2), {"dim": 107}, [FEW_PARAMETERS]),
        (lambda: OneShotCanaries(seats=2), {"dim": 108}, []),  # √(108/12) = 3
        (lambda: OneShotCanaries(seats=2), {"dim": 107, "clients": None}, []),  # not known yet
        (lambda: OneShotCanaries(seats=7), {}, [FEW_HONEST]),
        (lambda: OneShotCanaries(seats=6), {}, []),
        (lambda: LikelihoodRatio(ReplaySampler()), {"clients": 3}, [NOBODY_HIDES]),
        (lambda: LikelihoodRatio(ReplaySampler()), {"clients": 5}, [ROUGH]),
        (lambda: LikelihoodRatio(ReplaySampler()), {"clients": 6}, []),
        (drawing, {"clients": 5}, [FEW_DRAWS]),
        (drawing, {"clients": 14}, []),
    ],
)
def test_too_few_of_anything_is_said(make: Any, changes: dict[str, Any], lines: list[str]) -> None:
    assert said(make(), **changes) == lines


def test_too_few_draws_for_all_coordinates_leave_the_auditor_out() -> None:
    whole = MutualInformation(ReplaySampler(), plan=DrawPlan(draws=16, rank=None))
    with pytest.raises(
        UnableError, match="draws must be above 10000 to look at all 10000 coordinates"
    ):
        said(whole)


@pytest.mark.parametrize("make", [LikelihoodRatio, MutualInformation])
def test_masks_and_client_noise_prevent_replays(make: Any) -> None:
    auditor = make(ReplaySampler())
    with pytest.raises(UnableError, match="replays need plain updates, but the clients are told"):
        said(auditor, is_masked=True)
    with pytest.raises(UnableError, match="replays keep a client's own noise"):
        said(auditor, has_client_noise=True)
    assert said(make(ReplaySampler(simulated=True)), is_masked=True) == []


@pytest.mark.parametrize("make", [LikelihoodRatio, MutualInformation])
def test_unknown_noise_is_no_matter_for_a_server_that_sees_the_sum_before_it(make: Any) -> None:
    wrapped = {"noised_by": ("DifferentialPrivacyServerSideFixedClipping",)}
    assert said(make(ReplaySampler()), **wrapped) == []
    with pytest.raises(UnableError, match="how much noise DifferentialPrivacyServerSide"):
        said(make(ReplaySampler(), observer="outsider"), **wrapped)


def masked(of: Any, auditors: list[Auditor], out: Path | None = None) -> Audited:
    """Return an audited run under secure aggregation."""
    inner = FedAvg(min_train_nodes=1, min_available_nodes=1, fraction_evaluate=0.0)
    chosen = Chosen(inner, FixedSize(5), num_clients=5, seed=0)
    secure = Masked(chosen, max_weight=50.0, clip_range=8.0, metrics={"train-loss": (0.0, 9.0)})
    audited = Audited(secure, auditors, out=out, sends="models")
    audited.start(of.grid, of.arrays(), num_rounds=2)
    return audited


def test_it_is_said_before_anybody_trains(federation: Any, caplog: Any) -> None:
    caplog.set_level("INFO", logger="flwr")
    trained_when_said: list[int] = []
    of = federation(5, mods=[MaskMod(allow_tap=True, seed=0), tap_mod, canary_mod])

    class Slow(LikelihoodRatio):
        def limits(self, project: Project) -> Any:
            trained_when_said.append(len(of.seen))
            return super().limits(project)

    audited = masked(of, [Slow(ReplaySampler(), budget=QUICK)])
    assert trained_when_said == [0]
    [failure] = audited.failures
    assert failure.startswith("likelihood-ratio, before round 1: ReplayError: replays need plain")
    assert "auditor likelihood-ratio is left out, before round 1: replays need" in caplog.text
    assert "Traceback" not in caplog.text
    assert caplog.text.index("is left out, before round 1") < caplog.text.index("[ROUND 1/2]")


def test_an_auditor_that_never_finds_anything_is_named_in_the_report() -> None:
    class Waiting(Auditor):
        name = "waiting"
        says: Any = ()

        def observe(self, view: Any) -> Any:
            return self.says

    def limitations() -> Any:
        panel = Panel([Waiting()])
        panel.observe(RoundView(1, np.zeros(2), {}, np.zeros(2), RoundFacts()))
        panel.report()
        return panel.limitations

    text = "produced no findings; this is not evidence of privacy"
    assert limitations() == (Limitation("waiting", text),)
    Waiting.says = (finding(auditor="waiting"),)
    assert limitations() == ()  # it has spoken


@pytest.mark.usefixtures("flower_task")
def test_a_missing_tap_is_said_once_after_the_first_round(tmp_path: Path) -> None:
    of = Drawing(5, mods=[MaskMod(required=True, allow_tap=True, seed=0), canary_mod])
    auditor = LikelihoodRatio(ReplaySampler(simulated=True), budget=QUICK, every=1)
    audited = masked(of, [auditor], out=tmp_path)
    assert audited.failures == []
    report = json.loads((tmp_path / "report.json").read_text())
    cost, limitation = report["limitations"]
    assert cost["text"].startswith("the audit trains clients 268 times, the run itself 10 times")
    assert limitation["auditor"] == "likelihood-ratio"
    assert limitation["text"] == (
        "no client kept its plain update, so the sum that was really released gets no verdict: in "
        "a simulation list tap_mod in the client app, after the mods that mask or noise"
    )
