"""One row for each attacker and question, and the worst of them leads."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leakmeter.auditors import ThreatModel
from leakmeter.auditors.finding import RunWarning
from leakmeter.auditors.verdict import labels, sentences
from leakmeter.auditors.verdict.claim import Question
from leakmeter.auditors.verdict.verdict import Verdict, is_beyond, judge
from leakmeter.auditors.wording import Assumption
from leakmeter.fl_app.report.judge import verdict_of
from leakmeter.fl_app.report.read import Run
from tests.fl_app.report.makers import ANYONE, CANARY, bound, conditional, finding, guarantee

SERVER = ThreatModel(observer="server", sees="round sum", knows_cohort=True, participations=3)
FINAL = replace(CANARY, sees="final model")


def ends(verdict: Verdict) -> list[tuple[float, float]]:
    return [(row.low, row.high) for row in verdict.rows]


def test_a_suspicion_does_not_lead_where_something_is_guaranteed() -> None:
    """≈ 0.00308 bit outranked ε ≤ 8 in a run whose accuracy noise had ruined."""
    bits = finding(
        quantity="mutual information", value=0.00308, adjacency=None, null_band=(0, 1e-4)
    )
    assert judge([bits, guarantee(8.0)], accuracy=0.26).headline[0] == "interval"
    assert judge([finding(value=3.0, null_band=(0.0, 1.0))]).headline[0] == "suspected"


def test_bits_are_a_block_of_their_own() -> None:
    bits = [
        finding(quantity=name, value=900.0, kind="approximation", adjacency=None)
        for name in ("mutual information", "mutual information by critics")
    ]
    count = finding(quantity="canaries", kind="diagnostic", threat_model=SERVER, adjacency=None)
    verdict = judge([count, *bits, bound(0.1)])
    assert ends(verdict) == [(0.1, math.inf)]
    first, second = verdict.others
    assert first.bits == first.findings == tuple(bits)
    assert (second.bits, second.findings) == ((), (count,))
    assert judge(bits).headline == ("nothing", None)


def test_an_epsilon_without_two_worlds_is_in_no_row() -> None:
    count = {"kind": "guarantee", "quantity": "honest clients in the smallest sum"}
    for lost in (bound(5.0, adjacency=None), finding(value=3.0, adjacency=None, **count)):
        verdict = judge([lost])
        assert (verdict.rows, verdict.headline, verdict.severity) == ((), ("nothing", None), "open")
        assert [block.findings for block in verdict.others] == [(lost,)]


@pytest.mark.parametrize(
    ("epsilon", "severity"), [(0.01, "shown"), (math.log(9), "shown"), (20.0, "shown")]
)
def test_a_lower_bound_is_no_measure_of_how_bad_a_leak_is(epsilon: float, severity: str) -> None:
    """Once 0.01 was a slight leak, although the truth may be far above."""
    assert judge([bound(epsilon)]).severity == severity
    assert judge([bound(20.1)]).severity == "certain"


def test_the_largest_bound_of_an_attacker_is_shown_whichever_came_first() -> None:
    for listed in ((1.0, 9.0, 5.0), (9.0, 1.0)):
        assert judge([bound(value) for value in listed]).rows[0].low == 9.0


def test_a_weaker_attackers_bound_is_one_about_the_stronger() -> None:
    every = bound(0.6)
    rows = judge([bound(5.0, threat_model=FINAL), every]).rows
    assert [(row.attacker.sees, row.low) for row in rows] == [
        ("final model", 5.0),
        ("all models", 5.0),
    ]
    assert rows[1].findings == (every,)
    assert rows[1].shown not in rows[1].findings


def test_who_was_not_audited_has_a_row_that_says_so() -> None:
    server = (replace(SERVER, sees="updates"), Question("client", "zero-out"))
    verdict = judge([bound(1.0)], also=[server])
    [shown, other] = verdict.rows
    assert shown.is_audited
    assert not other.is_audited
    assert other.attacker.sees == "updates"
    # An outsider's bound is one about whoever sees more, audited or not.
    assert other.low == 1.0
    [row] = judge([conditional(0.0)]).rows
    assert not row.is_audited  # by no audit without a condition
    assert row.is_tried


def test_a_row_knows_how_far_its_audits_could_have_gone() -> None:
    assert judge([bound(0.0, cap=2.0), bound(0.0, cap=3.0)]).rows[0].cap == 3.0
    assert judge([bound(0.0)]).rows[0].cap == math.inf
    assert judge([guarantee(1.0)]).rows[0].cap is None
    assert judge([bound(1.0, cap=1.0, saturated=True)]).rows[0].is_saturated
    assert not judge([bound(0.0, cap=0.0, saturated=True)]).rows[0].is_saturated


@pytest.mark.parametrize(("value", "level"), [(0.4, "open"), (0.6, "suspected"), (0.05, "open")])
def test_an_estimate_is_read_beside_its_null_band(value: float, level: str) -> None:
    assert judge([finding(value=value, null_band=(0.1, 0.5))]).severity == level


def test_an_estimate_without_a_null_band_suggests_nothing() -> None:
    assert judge([finding(value=50.0)]).severity == "open"


def test_the_band_is_wider_where_more_estimates_were_looked_at() -> None:
    """Of twenty estimates without a leak one is beyond its own band."""
    one = finding(value=0.55, null_band=(0.1, 0.5))
    assert is_beyond(one, 1)
    assert not is_beyond(one, 20)
    assert is_beyond(replace(one, value=0.9), 20)
    others = [finding(value=0.3, null_band=(0.1, 0.5), sees="round sum") for _ in range(19)]
    assert judge([one, *others]).severity == "open"


def test_a_reconstruction_beyond_its_control_leads() -> None:
    tried: dict[str, Any] = {"quantity": "originals recovered", "adjacency": None, "delta": None}
    recovered = bound(3.0, **tried)
    verdict = judge([bound(9.0), guarantee(50.0), bound(0.0, **tried), recovered])
    assert verdict.headline == ("rebuilt", None)
    assert verdict.severity == "rebuilt"
    assert verdict.tests[0] is recovered
    assert judge([bound(0.0, **tried)]).headline == ("nothing", None)
    assert judge([bound(3.0, **tried, assumptions=("a guess",))]).headline == ("nothing", None)
    assert judge([recovered, bound(2.0), guarantee(1.0)]).headline[0] == "refuted"


def test_a_membership_advantage_leads_where_nothing_is_guaranteed_against_its_attacker() -> None:
    told = bound(0.2, quantity="membership advantage", unit="record", adjacency=None, delta=None)
    verdict = judge([told])
    assert verdict.headline == ("told", None)
    assert (verdict.severity, verdict.tests) == ("shown", (told,))
    assert judge([told, bound(1.0)]).headline[0] == "leak"  # a proven ε before it
    assert judge([told, guarantee(8.0)]).headline[0] == "interval"
    inside = guarantee(8.0, sees="final model")  # against less than this attacker sees
    assert judge([told, inside]).headline[0] == "told"
    assert judge([replace(told, value=0.0)]).headline[0] == "nothing"
    assert judge([replace(told, assumptions=("a guess",))]).headline[0] == "nothing"


def test_an_unfinished_run_speaks_of_its_last_round() -> None:
    rounds = (bound(1.0, server_round=1), bound(0.0, server_round=2))
    verdict = verdict_of(Run("run", Path("/run"), findings=rounds, is_finished=False))
    assert ends(verdict) == [(0.0, math.inf)]


@pytest.mark.parametrize(
    ("kind", "count", "distorted"),
    [
        ("clipped-coordinates", 2, True),
        ("clipped-coordinates", 1, False),
        ("non-finite-updates", 2, True),
        ("non-finite-updates", 1, False),  # one client must not be able to discredit an audit
        ("abandoned-rounds", 51, True),
        ("abandoned-rounds", 50, False),
        ("rejected-sums", 51, True),
        ("clipped-updates", 100, False),
        ("dropouts", 90, False),
        ("few-canaries", 1, False),
    ],
)
def test_a_damaged_run_is_called_distorted(kind: Any, count: int, distorted: bool) -> None:
    verdict = judge([bound(1.0)], [RunWarning.of(kind, count, 100)])
    assert verdict.is_distorted is distorted
    assert verdict.headline[0] == "leak"  # whose numbers are still there


def test_the_verdict_as_data_has_its_headline_and_whose_bounds_its_rows_are() -> None:
    final = bound(5.0, threat_model=FINAL, facts={"share_at_threshold": 0.25}, cap=9.0)
    verdict = judge([final, bound(0.6), guarantee(math.inf)], accuracy=0.5)
    data = verdict.to_json()
    assert (data["headline"], data["severity"], data["row"]) == ("leak", "shown", 0)
    assert (data["delta"], data["accuracy"], data["distorted"]) == (1e-5, 0.5, False)
    assert data["confidence"] == pytest.approx(0.9)
    assert data["rows"][1]["attacker"]["sees"] == "all models"
    assert data["rows"][1]["shown"] == {
        "epsilon": 5.0,
        "delta": 1e-5,
        "confidence": 0.95,
        "auditor": "one-shot",
        "attacker": data["rows"][0]["shown"]["attacker"],
        "adjacency": "zero-out",
        "unit": "client",
        "cap": 9.0,
        "share": 0.25,
    }
    assert data["rows"][1]["shown"]["attacker"]["sees"] == "final model"
    assert data["rows"][1]["at_most"]["epsilon"] == "inf"
    assert data["rows"][1]["at_most"]["assumptions"] == [Assumption.EQUAL_WEIGHTS]


def test_the_price_of_clients_is_not_hidden_behind_that_of_canaries_that_play_more_often() -> None:
    """Clients in one round, canaries in five: the row once had the price of five alone."""
    own, often = (
        guarantee(price, threat_model=replace(ANYONE, participations=rounds))
        for price, rounds in ((91.8, 1), (344.5, 5))
    )
    shown = bound(206.8, threat_model=replace(CANARY, participations=5))
    rows = {
        (row.attacker.sees, row.attacker.participations): (row.low, row.high, labels.tells(row))
        for row in judge([own, often, shown]).rows
    }
    assert rows == {
        ("noised sum", 1): (0.0, 91.8, "if an update was sent, 1 round"),
        ("noised sum", 5): (206.8, 344.5, "if an update was sent, 5 rounds"),
        ("all models", 5): (206.8, 344.5, "if an update was sent"),
    }
    [row] = judge([often]).rows
    assert labels.tells(row) == "if an update was sent"
    assert "at most 92, which promises practically nothing, for whether a client sent a given " in (
        sentences.headline(judge([own, often]))
    )
    assert sentences.upper_end(judge([own, often])).endswith(
        "(zero-out, 1 round and zero-out, 5 rounds)."
    )
