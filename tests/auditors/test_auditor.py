"""Findings say how strong they are, and refuse to be what they are not."""

from __future__ import annotations

import json
import math
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg, FedProx

from leakmeter.auditors import Audited, LikelihoodRatio, OneShotCanaries, passive
from leakmeter.auditors.auditor import Auditor, Due, RoundFacts, RoundView
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Bound, ErrorCurve, Finding
from leakmeter.auditors.values import require
from leakmeter.fl_app.config.field import BadSettingError
from leakmeter.strategies import Masked
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


# What a prompt or a notebook shows of auditors, findings and audited strategies: one line e


class Movement(Auditor):
    """Has an array, a number that is the default, and one that is not."""

    def __init__(self, directions: np.ndarray, order: float = 2.0, *, every: int = 1) -> None:
        self.directions, self._order, self.every = directions, order, every


def test_an_auditor_shows_how_it_was_made_and_no_array() -> None:
    assert repr(Movement(np.zeros(9), every=3)) == "Movement(every=3)"
    assert repr(Movement(np.zeros(9), 1.0)) == "Movement(order=1.0)"
    assert repr(OneShotCanaries(seats=2)) == "OneShotCanaries(seats=2)"


def test_every_public_auditor_has_one_short_line() -> None:
    for auditor in passive(seats=2, simulated=True):
        assert repr(auditor).startswith(f"{type(auditor).__name__}(")
        assert len(repr(auditor)) < 120
        assert " at 0x" not in repr(auditor)
    assert any(isinstance(one, LikelihoodRatio) for one in passive(seats=2, simulated=True))


def test_an_audited_strategy_shows_what_is_inside_and_where_its_log_is(tmp_path: Path) -> None:
    inner = Masked(FedProx(proximal_mu=0.1))
    shown = repr(Audited(inner, [OneShotCanaries(seats=2)], out=tmp_path / "mine"))
    out = str(tmp_path / "mine")
    assert shown == f"Audited(Masked around FedProx, auditors: one-shot, out={out!r})"
    assert repr(Audited(FedAvg(), [])) == "Audited(FedAvg, auditors: none)"


def test_a_finding_is_one_line_that_is_never_stronger_than_its_number() -> None:
    many = tuple(np.linspace(0.0, 1.0, 500))
    curve = ErrorCurve((1e-5,), (3.7,), (9.0,), many, many[::-1], many, many[::-1], 0.1)
    proven = {"kind": "lower_bound", "delta": 1e-5, "confidence": 0.95, "details": (curve,)}
    assert repr(finding(value=3.69987, **proven)) == (
        "Finding(mine: epsilon ≥ 3.69 at δ = 1e-05 (lower_bound, confidence 0.95), "
        "outsider, final model, the run)"
    )
    most = repr(finding(value=1.241, kind="guarantee", server_round=3))
    assert most.startswith("Finding(mine: epsilon ≤ 1.25 (guarantee), ")
    assert most.endswith(", round 3)")


# Ranges: what is at their ends, what is no number, and what an error says.


@pytest.mark.parametrize(
    ("allowed", "inside", "outside"),
    [
        ("(0, 1]", (0.5, 1), (0, 1.5, math.nan, None)),
        ("[0, 1)", (0, 0.5), (-0.5, 1, math.nan)),
        ("(0, inf)", (1e-300, 1e300), (0.0, math.inf, -1.0)),
        ("[0, inf)", (0.0, 5), (math.inf, -math.inf)),
        ("at least 1", (1, 7, math.inf), (0, -3, math.nan)),
        (f"[0, {2}]", (0, 2), (3, -1)),
    ],
)
def test_a_range_says_what_is_in_it(
    allowed: str, inside: tuple[float, ...], outside: tuple[float | None, ...]
) -> None:
    for value in inside:
        require(allowed, size=value)
    words = allowed if allowed.startswith("at") else f"in {allowed}"
    for value in outside:
        said = re.escape(f"size must be {words}, got {value}")
        with pytest.raises(ValueError, match=f"^{said}$"):
            require(allowed, other=inside[0], size=value)


def test_none_is_no_value_only_where_it_may_be() -> None:
    require("at least 1", is_optional=True, chunk=None)
    with pytest.raises(ValueError, match="chunk must be at least 1, got None"):
        require("at least 1", chunk=None)
    with pytest.raises(ValueError, match="chunk must be at least 1, got 0"):
        require("at least 1", is_optional=True, chunk=0)


@pytest.mark.parametrize("kind", [BadValueError, BadSettingError])
def test_a_refusal_has_four_parts_and_survives_another_process(kind: type[BadValueError]) -> None:
    error = kind("--rounds", "at least 1", 0, fix="Try --rounds 1")
    assert str(error) == "--rounds must be at least 1, got 0. Try --rounds 1."
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), back.name) == (kind, str(error), "--rounds")


def test_a_refusal_shows_no_more_than_a_line_holds() -> None:
    said = str(BadValueError("names", "short", ["x" * 1000] * 9, hint="; did you mean y?"))
    assert len(said) < 120
    assert said.endswith("; did you mean y?")
