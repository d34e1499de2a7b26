"""What the page says in words is never stronger than the findings allow."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from leakmeter.fl_app.report.judge.verdict import verdicts
from leakmeter.fl_app.report.read.run import Run
from tests.fl_app.report.judge.makers import bound, finding, guarantee, one, run


def test_a_lower_bound_is_at_least() -> None:
    verdict, said = one(bound(1.0, assumptions=("scores are independent", "b")))
    assert verdict.level == "leak"
    assert "Gives away whether a client sent its update or nothing: ε ≥ 1" in said
    assert "at least 2.71 times as likely" in said  # e, rounded down
    assert "too large in at most 5 % of such audits" in said
    assert "assuming that scores are independent (1 more in the table)" in said


def test_a_saturated_bound_could_not_have_shown_more() -> None:
    _, said = one(bound(1.0, cap=1.0, saturated=True, auditor="likelihood-ratio"), lrt_trials=60)
    assert "no more than 1 could have been shown, so the truth may be far above" in said
    assert "give it more trials (--lrt-trials, now 60)" in said


def test_nothing_shown_is_not_private() -> None:
    verdict, said = one(bound(0.0, cap=2.0))
    assert verdict.level == "none"
    assert "No leak shown" in said
    assert "not a proof of privacy" in said
    assert "2 could have been shown at most" in said
    assert "private:" not in said
    assert "at least" not in said


@pytest.mark.parametrize(("value", "level"), [(0.4, "none"), (0.6, "hint")])
def test_an_estimate_is_read_beside_its_null_band(value: float, level: str) -> None:
    verdict, said = one(finding(value=value, null_band=(0.1, 0.5)))
    assert verdict.level == level
    assert "says 0.1 to 0.5: this is " + ("within" if level == "none" else "beyond") in said
    assert "Estimates carry no confidence" in said
    assert "Gives away" not in said
    assert "≥" not in said


def test_an_estimate_without_a_null_band_suggests_nothing() -> None:
    verdict, said = one(finding(value=50.0))
    assert verdict.level == "none"
    assert "what the method says without a leak is not known" in said


def test_an_approximation_is_no_bound() -> None:
    verdict, said = one(finding(kind="approximation", value=9.0))
    assert verdict.level == "model"
    assert "neither an upper nor a lower bound" in said
    assert "≥" not in said
    assert "≤" not in said


def test_a_guarantee_is_at_most_with_its_assumptions() -> None:
    verdict, said = one(guarantee(1.0))
    assert verdict.level == "bounded"
    assert "ε ≤ 1, guaranteed" in said
    assert "No outcome is more than 2.72 times as likely" in said  # e, rounded up
    assert "proven and assumes that noise" in said
    verdict, said = one(guarantee(20.0))
    assert "more than e^20 times" in said
    assert "promises little" in said


def test_no_finite_guarantee_is_said_as_such() -> None:
    verdict, said = one(guarantee(math.inf, observer="server"), noise="central")
    assert verdict.level == "open"
    assert "No finite ε is guaranteed" in said
    assert "does not protect against the server" in said
    assert "proven" not in said


def test_a_count_that_is_guaranteed_is_no_epsilon() -> None:
    counts = {"quantity": "clients in a sum", "delta": None, "adjacency": None, "value": 40.0}
    verdict, said = one(finding(kind="guarantee", **counts))
    assert verdict.headline == "Clients in a sum: 40, guaranteed"
    assert "does not bound what the sum itself gives away" in said
    assert "≤" not in said


def test_of_several_bounds_the_first_is_the_headline() -> None:
    verdict, said = one(bound(1.0), bound(9.0), bound(5.0))
    assert verdict.headline.endswith("1")
    assert "9" not in said.replace("95 %", "")
    assert "2 more lower bounds by other methods" in said


def test_diagnostics_alone_give_their_reason_and_no_number() -> None:
    verdict, said = one(finding(kind="diagnostic", rule="too few canaries took part", value=7.0))
    assert verdict.level == "silent"
    assert "Too few canaries took part." in said
    assert "7" not in said


def test_what_needs_something_done_comes_first() -> None:
    found = verdicts(
        run(
            guarantee(3.0, threat_model="a"),
            finding(kind="approximation", threat_model="b"),
            bound(0.0, threat_model="c"),
            bound(2.0, threat_model="d"),
        )
    )
    assert [v.findings[0].threat_model for v in found] == ["d", "c", "b", "a"]


def test_an_unfinished_run_speaks_of_its_last_round() -> None:
    rounds = [bound(1.0, server_round=1), bound(0.0, server_round=2)]
    [verdict] = verdicts(Run("run", Path("/run"), findings=tuple(rounds), is_finished=False))
    assert verdict.level == "none"
