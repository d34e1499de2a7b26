"""Findings say how strong they are, and refuse to be what they are not."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from leakmeter.auditors.auditor import Auditor, Due, RoundFacts, RoundView
from leakmeter.auditors.finding import Bound, Finding
from tests.helpers.findings import CONTEXT, finding
from tests.helpers.refusals import refuses


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("value", math.nan),
        ("kind", "proof"),
        ("delta", 1.0),
        ("delta", -1e-9),
        ("confidence", 1.0),
        ("observer", "everyone"),
        ("adjacency", "add"),
        ("unit", "house"),
    ],
)
def test_what_a_finding_may_not_say_is_refused(name: str, value: Any) -> None:
    with refuses(name):
        finding(**{name: value})


def test_a_lower_bound_states_its_confidence() -> None:
    with pytest.raises(ValueError, match="must state its confidence"):
        finding(kind="lower_bound")
    finding(kind="lower_bound", confidence=0.95, delta=0.0, adjacency="zero-out", unit="record")


def test_a_bound_turns_into_a_finding_without_losing_a_field() -> None:
    bound = Bound(
        value=2.0,
        kind="lower_bound",
        rule="Clopper-Pearson",
        delta=1e-5,
        confidence=0.95,
        sample_sizes={"in": 10},
        cap=3.0,
        saturated=True,
        assumptions=("independent scores",),
    )
    made = Finding.of(bound, server_round=4, seed=7, **CONTEXT)
    for name, value in vars(bound).items():
        assert getattr(made, name) == value
    assert (made.server_round, made.seed, made.auditor) == (4, 7, "mine")


def test_findings_survive_json_with_infinities_and_numpy() -> None:
    made = finding(
        value=math.inf,
        null_band=(0.0, 0.5),
        details={"curve": np.array([1.0, -math.inf]), "count": np.int64(3), "nested": {"x": (1,)}},
    )
    read = json.loads(json.dumps(made.to_json(), allow_nan=False))
    assert read["value"] == "inf"
    assert read["details"] == {"curve": [1.0, "-inf"], "count": 3, "nested": {"x": [1]}}
    assert read["null_band"] == [0.0, 0.5]
    assert set(read) >= {"kind", "delta", "confidence", "rule", "cap", "saturated", "adjacency"}


def test_an_auditor_that_writes_nothing_does_nothing() -> None:
    auditor = Auditor()
    auditor.begin(10, 3)
    view = RoundView(1, np.zeros(10), {}, np.zeros(10), RoundFacts())
    assert not auditor.instruct(1, [0, 1])
    assert not auditor.observe(view)
    assert not auditor.report()
    auditor.restore(auditor.state())


@pytest.mark.parametrize(
    ("every", "num_rounds", "audited"),
    [
        (-1, 30, [1, 2, 4, 8, 16, 30]),
        (-1, 32, [1, 2, 4, 8, 16, 32]),
        (0, 5, [1]),
        (1, 3, [1, 2, 3]),
        (3, 8, [1, 4, 7]),
        (-1, 0, []),
        (0, 0, []),
    ],
)
def test_the_rounds_of_a_schedule_are_counted(
    every: int, num_rounds: int, audited: list[int]
) -> None:
    due = Due(every, num_rounds)
    assert ([*due.rounds()], len(due)) == (audited, len(audited))
    with refuses("every"):
        Due(-2, 5)
