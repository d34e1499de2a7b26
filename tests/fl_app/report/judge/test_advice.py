"""Advice helps against the adversary that it is about, in settings that the run has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leakmeter.fl_app.report.judge.advice import advice
from leakmeter.fl_app.report.judge.verdict import verdicts
from leakmeter.fl_app.report.read.run import Run
from tests.fl_app.report.judge.makers import bound, finding, one, run


def test_advice_names_what_helps_against_this_observer() -> None:
    final = bound(0.5, threat_model="outsider who gets the initial and the final model")
    whole = run(bound(500.0), final, noise="none", sample=30)
    made = verdicts(whole)
    todo = " ".join(advice(made[0], whole, made))
    assert "the final model alone shows 0.5 instead of 500" in todo
    assert "--noise central" in todo
    assert "(--sample, now 30)" in todo
    _, server = one(bound(1.0, observer="server", adjacency="replace"), noise="none", secagg="off")
    assert "--noise distributed" in server
    assert "Turn secure aggregation on" in server
    _, noised = one(bound(1.0), noise="central", noise_multiplier=0.5)
    assert "More noise (--noise-multiplier, now 0.5)" in noised
    _, record = one(bound(1.0, unit="record", observer="server"), noise="wfna", wfna_floor=0.1)
    assert "Raise the floor of the noise that clients fill up (--wfna-floor, now 0.1)" in record


def test_a_floor_is_raised_only_where_noise_is_filled_up() -> None:
    _, said = one(bound(1.0, unit="record", auditor="membership"), noise="none", wfna_floor=0.0)
    assert "floor" not in said
    assert "--noise central" in said


@pytest.mark.parametrize("kind", ["lower_bound", "approximation"])
def test_more_clients_are_no_advice_where_one_data_set_is_dealt_to_all(kind: Any) -> None:
    alone = "server who sees the sum (game {}: what is new)"
    about = {"kind": kind, "observer": "server", "confidence": 0.95}
    _, dealt = one(finding(threat_model=alone.format("partition"), **about))
    _, drawn = one(finding(threat_model=alone.format("independent"), **about))
    assert "More clients" not in dealt
    assert "More clients in a round leave less of each in the sum." in drawn


def test_settings_of_another_project_are_not_named() -> None:
    _, said = one(bound(1.0))
    assert "--" not in said
    own = Run("run", Path("/run"), config={"noise": 3, "sample": 9}, findings=(bound(1.0),))
    [verdict] = verdicts(own)
    assert "--" not in " ".join(advice(verdict, own, [verdict]))
