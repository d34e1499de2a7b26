"""Advice helps against the attacker that it is about, in settings that the run has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leakmeter.auditors import ThreatModel
from leakmeter.fl_app.report.judge import advice, verdict_of
from leakmeter.fl_app.report.read import Run
from tests.fl_app.report.judge.makers import CANARY, bound, finding, guarantee, one, run

SUM = ThreatModel(observer="server", sees="round sum", holds="two updates", knows_cohort=True)
MORE = "More clients per round"


def test_advice_names_what_helps_against_this_observer() -> None:
    busy = {"client_rounds": 1}
    final = bound(0.5, threat_model=replace(CANARY, sees="final model"), facts=busy)
    whole = run(bound(5.0), final, noise="none", sample=30)
    made = verdict_of(whole)
    todo = " ".join(advice(made.rows[0], whole, made)).replace("\N{NO-BREAK SPACE}", " ")
    assert "Release only the final model; less is shown in it (no proof of less)." in todo
    assert "--noise central" in todo
    assert "(--sample, now 30)" in todo
    _, server = one(bound(1.0, threat_model=SUM, adjacency="replace"), noise="none", secagg="off")
    assert "--noise distributed" in server
    assert "Turn secure aggregation on" in server
    updates = ThreatModel(observer="server", sees="updates", holds="canary", participations=1)
    for noise, words in (("none", ": --noise local --clip-norm auto"), (None, ".")):
        _, seen = one(bound(1.0, threat_model=updates, auditor="single-update"), noise=noise)
        assert f"or let each client clip and add enough noise itself{words}" in seen
        assert MORE not in seen  # a single update has nobody to hide among
    _, nothing = one(bound(0.0, threat_model=updates, auditor="single-update", cap=9.0))
    assert "give it more canaries" in nothing
    _, certain = one(bound(86.0, threat_model=updates, auditor="single-update", saturated=True))
    assert "give it more" not in certain  # there is nothing left to show
    _, noised = one(bound(1.0), noise="central", noise_multiplier=0.5)
    assert "More noise (--noise-multiplier, now 0.5) or fewer rounds" in noised
    _, single = one(bound(1.0, threat_model=SUM), noise="distributed", noise_multiplier=0.5)
    assert "More noise (--noise-multiplier, now 0.5)." in single
    _, record = one(bound(1.0, unit="record", observer="server"), noise="wfna", wfna_floor=0.1)
    assert "Raise the floor of the clients' noise (--wfna-floor, now 0.1)" in record


@pytest.mark.parametrize(("every", "final"), [(87.0, 27.0), (5.0, 4.8), (3.0, 3.0)])
def test_numbers_that_say_the_same_are_no_reason_to_release_less(
    every: float, final: float
) -> None:
    last = bound(final, threat_model=replace(CANARY, sees="final model"))
    whole = run(bound(every), last, noise="none")
    made = verdict_of(whole)
    assert "final model" not in " ".join(advice(made.rows[0], whole, made))


def test_a_floor_is_raised_only_where_noise_is_filled_up() -> None:
    _, said = one(bound(1.0, unit="record", auditor="membership"), noise="none", wfna_floor=0.0)
    assert "floor" not in said
    assert "--noise central" in said


@pytest.mark.parametrize(
    ("kind", "quantity"), [("lower_bound", "epsilon"), ("approximation", "mutual information")]
)
def test_more_clients_are_no_advice_where_one_data_set_is_partitioned(
    kind: Any, quantity: str
) -> None:
    about = {"kind": kind, "confidence": 0.95, "quantity": quantity}
    _, dealt = one(finding(threat_model=replace(SUM, game="partition"), **about))
    _, drawn = one(finding(threat_model=replace(SUM, game="independent"), **about))
    _, prose = one(finding(threat_model=replace(SUM, sees=None), **about))
    assert MORE not in dealt + prose
    assert f"{MORE} leave less of each in the sum." in drawn


@pytest.mark.parametrize(
    ("noise", "model", "helps"),
    [
        ("central", CANARY, False),  # a fixed multiplier gives the same ε for any cohort
        ("central", SUM, True),  # the server sees the sum before that noise
        ("distributed", CANARY, False),
        ("distributed", SUM, False),
        ("local", SUM, True),
        ("none", CANARY, True),
    ],
)
def test_more_clients_are_no_advice_under_noise_that_they_do_not_change(
    noise: str, model: ThreatModel, helps: bool
) -> None:
    _, said = one(bound(1.0, threat_model=model), noise=noise)
    assert (MORE in said) is helps


def test_noise_of_another_project_is_known_from_its_guarantee() -> None:
    _, said = one(bound(1.0), guarantee(3.0, facts={"noise": "central"}))
    assert MORE not in said
    _, other = one(bound(1.0))
    assert MORE in other


def test_settings_of_another_project_are_not_named() -> None:
    _, said = one(bound(1.0))
    assert "--" not in said
    own = Run("run", Path("/run"), config={"noise": 3, "sample": 9}, findings=(bound(1.0),))
    verdict = verdict_of(own)
    [row] = verdict.rows
    assert "--" not in " ".join(advice(row, own, verdict))
