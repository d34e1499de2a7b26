"""Limits for pipelines: kept, exceeded, or not able to tell."""

from __future__ import annotations

import html
import json
import math
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakmeter.auditors import Assumption, Finding, ThreatModel
from leakmeter.auditors.finding import Observer, RunWarning, Sees
from leakmeter.auditors.verdict import labels, sentences
from leakmeter.auditors.verdict.claim import is_weaker
from leakmeter.auditors.verdict.gate import (
    ATTACKERS,
    GateLimits,
    Outcome,
    assert_private,
    attacker_name,
    check,
    outcome,
)
from leakmeter.auditors.verdict.result import AuditResult
from leakmeter.auditors.verdict.verdict import judge
from tests.auditors.verdict.test_laws import RUNS
from tests.helpers.findings import finding


def bound(value: float, **stated: Any) -> Finding:
    own = {"kind": "lower_bound", "confidence": 0.95, "adjacency": "zero-out", "cap": 50.0}
    return finding(**{**own, "value": value, **stated})


def guarantee(value: float, **stated: Any) -> Finding:
    return finding(**{"kind": "guarantee", "adjacency": "zero-out", "value": value, **stated})


def ends(limits: GateLimits, *findings: Finding, **more: Any) -> Outcome:
    return outcome(check(judge(findings, **more), limits))


SERVER = {"observer": "server", "sees": "round sum"}
ASSUMED = {"assumptions": (Assumption.INDEPENDENT_SCORES,)}
MOST = {"max_epsilon": 2.0}
REBUILT = {"quantity": "originals recovered", "adjacency": None, "confidence": 0.99}
# The best audit of a run says nothing about an attacker that it is not about.
WEAK = [bound(0.0), bound(0.0, **SERVER, adjacency="replace", cap=1.9)]
PROMISED = guarantee(2.0, **SERVER, adjacency="replace")
INSIDE = [guarantee(4.0), bound(0.0, **SERVER)]


@pytest.mark.parametrize(
    ("limits", "found", "came"),
    [
        (MOST, [bound(2.1)], "exceeded"),
        (MOST, [bound(2.0)], "passed"),
        (MOST, [bound(0.0, cap=1.9)], "unable"),  # could not have shown the limit
        (MOST, [], "unable"),
        (MOST, [guarantee(1.0)], "unable"),
        (MOST, [bound(0.0, cap=None)], "unable"),  # does not say what it could show
        (MOST, [bound(2.5, cap=None)], "exceeded"),
        (MOST, [bound(9.0, **ASSUMED)], "unable"),
        # An audit of a stronger attacker tests the weaker one too.
        (MOST, [bound(0.0, knows_cohort=True), guarantee(9.0)], "passed"),
        (MOST, [bound(0.0), guarantee(9.0, knows_cohort=True)], "unable"),
        (MOST, WEAK, "unable"),
        ({**MOST, "against": "outsider"}, WEAK, "passed"),
        ({**MOST, "against": "server"}, WEAK, "unable"),
        (MOST, [*WEAK, PROMISED], "passed"),
        ({**MOST, "against": "server"}, [*WEAK, PROMISED], "unable"),
        ({"require_guarantee": 4.0}, INSIDE, "exceeded"),
        ({"require_guarantee": 4.0, "against": "outsider"}, INSIDE, "passed"),
        ({"require_guarantee": 3.9, "against": "outsider"}, INSIDE, "exceeded"),
        ({"require_guarantee": 9, "against": "server/round-sum"}, INSIDE, "exceeded"),
        ({"no_reconstruction": True}, [], "unable"),
        ({"no_reconstruction": True}, [bound(0.0, **REBUILT)], "passed"),
        ({"no_reconstruction": True}, [bound(2.0, **REBUILT)], "exceeded"),
        ({"no_reconstruction": True}, [bound(0.0, **REBUILT), bound(2.0, **REBUILT)], "exceeded"),
        ({"no_reconstruction": True}, [bound(2.0, **REBUILT, **ASSUMED)], "unable"),
        ({"no_reconstruction": True}, [bound(0.0, **REBUILT, cap=0.0)], "unable"),
    ],
)
def test_a_limit_is_kept_exceeded_or_cannot_be_told(
    limits: dict[str, Any], found: list[Finding], came: Outcome
) -> None:
    assert ends(GateLimits(**limits), *found) == came


@pytest.mark.parametrize(
    ("limits", "value", "about", "came"),
    [
        (
            {"max_epsilon": 9},
            0.0,
            {"warnings": [RunWarning.of("abandoned-rounds", 3, 3)]},
            "unable",
        ),
        (
            {"max_epsilon": 1},
            2.0,
            {"warnings": [RunWarning.of("abandoned-rounds", 3, 3)]},
            "exceeded",
        ),
        ({"max_epsilon": 2}, 0.0, {"warnings": [RunWarning.of("ended-early", 3, 5)]}, "unable"),
        ({"min_accuracy": 0.8}, 0.0, {"accuracy": 0.9}, "passed"),
        ({"min_accuracy": 0.8}, 0.0, {"accuracy": 0.7}, "exceeded"),
        ({"min_accuracy": 0.8}, 0.0, {}, "unable"),
    ],
)
def test_damage_and_accuracy_count_too(
    limits: dict[str, Any], value: float, about: dict[str, Any], came: Outcome
) -> None:
    assert ends(GateLimits(**limits), bound(value), **about) == came


def said(limits: GateLimits, *findings: Finding, **more: Any) -> str:
    return "\n".join(one.text for one in check(judge(findings, **more), limits))


def test_a_name_of_no_attacker_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"against must be one of server, .*, got 'sever'"):
        GateLimits(max_epsilon=1, against="sever")


def test_a_run_without_the_named_attacker_cannot_tell_and_names_those_it_has() -> None:
    for limits in (
        GateLimits(max_epsilon=1, against="server"),
        GateLimits(require_guarantee=1, against="server"),
    ):
        assert ends(limits, bound(0.0), guarantee(0.5)) == "unable"
        assert "says nothing about server. It has outsider/final-model." in said(limits, bound(0.0))
        assert ends(limits) == "unable"


def test_a_refuted_guarantee_is_none_for_anybody_that_it_is_about() -> None:
    """Bound 4.5 above the guarantee 4: a limit of 5 must not be kept by what was refuted."""
    found = [guarantee(4.0, **SERVER), bound(4.5, **SERVER), bound(0.0)]
    assert ends(GateLimits(require_guarantee=5.0), *found) == "exceeded"
    assert "refutes the guarantee" in said(GateLimits(require_guarantee=5.0), *found)
    # The same guarantee covers an outsider, whom no bound contradicts.
    assert ends(GateLimits(require_guarantee=5.0, against="outsider"), *found) == "exceeded"


def test_what_is_printed_shows_that_a_limit_is_exceeded() -> None:
    assert "ε ≥ 2.0004 is proven" in said(GateLimits(max_epsilon=2.0), bound(2.0004))
    assert "only ε ≤ 8.01 is guaranteed" in said(
        GateLimits(require_guarantee=8.0), guarantee(8.0004)
    )
    words = said(GateLimits(min_accuracy=0.8), accuracy=0.79996)
    assert "accuracy is 0.79996; at least 0.8 is asked for" in words
    # Above 20 two digits, as everywhere else.
    assert "ε ≥ 85 is proven" in said(GateLimits(max_epsilon=8.0), bound(85.31))
    words = said(GateLimits(require_guarantee=8.0), guarantee(7.5))
    assert words == "ε ≤ 7.5 is guaranteed; 8 is asked for (against outsider/final-model)."
    assert "cohort hidden (which of two updates): no audit could" in said(GateLimits(**MOST), *WEAK)
    words = "At least 2 originals recovered beyond chance (99 % confidence) by: outsider"
    assert words in said(GateLimits(no_reconstruction=True), bound(2.0, **REBUILT))


def test_a_run_whose_auditor_failed_or_that_has_not_ended_passes_nothing() -> None:
    verdict, limits = judge([bound(0.0)]), GateLimits(max_epsilon=2.0)
    assert outcome(check(AuditResult(verdict), limits)) == "passed"
    failed = AuditResult(verdict, failures=("likelihood-ratio left out in round 2: ValueError",))
    assert outcome(check(failed, limits)) == "unable"
    assert "likelihood-ratio left out" in check(failed, limits)[0].text
    unfinished = AuditResult(judge([bound(9.0)]), is_finished=False)
    [one] = check(unfinished, limits)
    assert (one.name, one.outcome) == ("complete", "unable")


def test_every_name_of_an_attacker_can_be_given() -> None:
    for observer, sees in product(get_args(Observer), get_args(Sees)):
        model = ThreatModel(observer=observer, sees=sees)
        assert attacker_name(model) in ATTACKERS
        assert (
            ends(GateLimits(max_epsilon=1, against=observer), bound(0.0, **vars(model))) == "passed"
        )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_epsilon", -1),
        ("max_epsilon", math.inf),
        ("max_epsilon", math.nan),
        ("max_epsilon", True),
        ("max_epsilon", "2"),
        ("require_guarantee", -0.1),
        ("min_accuracy", 2),
    ],
)
def test_limits_are_checked(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be .*, got .*; for example {name}="):
        GateLimits(**{name: value})


def test_a_gate_without_a_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="a gate needs a limit"):
        check(judge([]), GateLimits(against="server"))


@given(RUNS, st.sampled_from([0.0, 0.5, 2.0, 8.0, 40.0]), st.sampled_from([0.0, 1.0, 4.0]))
def test_a_looser_limit_is_never_exceeded_where_a_stricter_one_is_not(
    run: list[Finding], limit: float, more: float
) -> None:
    verdict = judge(run)
    for name in ("max_epsilon", "require_guarantee"):
        strict = outcome(check(verdict, GateLimits(**{name: limit})))  # type: ignore[arg-type]
        loose = outcome(check(verdict, GateLimits(**{name: limit + more})))  # type: ignore[arg-type]
        assert loose != "exceeded" or strict == "exceeded"


@given(RUNS, st.sampled_from([0.0, 0.5, 2.0, 8.0]))
def test_nobody_in_particular_is_everybody(run: list[Finding], limit: float) -> None:
    """What is exceeded against one attacker is exceeded, and what is not tested is not passed."""
    verdict = judge(run)
    names = {attacker_name(row.attacker) for row in verdict.rows}
    for name in ("max_epsilon", "require_guarantee"):
        every = outcome(check(verdict, GateLimits(**{name: limit})))  # type: ignore[arg-type]
        alone = {
            outcome(check(verdict, GateLimits(**{name: limit}, against=one)))  # type: ignore[arg-type]
            for one in names
        }
        assert (every == "exceeded") == ("exceeded" in alone)
        if alone == {"passed"}:
            assert every == "passed"


@given(RUNS, st.sampled_from([0.5, 2.0, 8.0]))
def test_what_passes_is_settled_for_every_row(run: list[Finding], limit: float) -> None:
    verdict = judge([replace(f, cap=50.0) if f.kind == "lower_bound" else f for f in run])
    if outcome(check(verdict, GateLimits(max_epsilon=limit))) == "passed":
        for row in verdict.rows:
            assert row.low <= limit
            stronger = [r for r in verdict.rows if is_weaker(row.attacker, r.attacker)]
            assert row.high <= limit or any(r.is_audited for r in stronger)


def test_assert_private_raises_with_the_reason() -> None:
    assert_private(judge([bound(1.0)]), max_epsilon=2.0)
    with pytest.raises(
        AssertionError, match=r"max-epsilon: exceeded\. .* is proven \(95 % .*\), above 0\.5"
    ):
        assert_private(AuditResult(judge([bound(1.0)])), max_epsilon=0.5)
    with pytest.raises(AssertionError, match=r"max-epsilon: unable"):
        assert_private(judge([]), max_epsilon=0.5)
    with pytest.raises(AssertionError, match=r"Every ε is at δ = 1e-06\."):
        assert_private(judge([bound(1.0, delta=1e-6)]), max_epsilon=0.5)
    with pytest.raises(ValueError, match="a gate needs a limit"):
        assert_private(judge([bound(1.0)]))


@given(RUNS)
def test_a_result_says_the_same_in_five_lines_as_a_card_and_as_data(run: list[Finding]) -> None:
    result = AuditResult(judge(run), tuple(run))
    text, card = repr(result), html.unescape(result._repr_html_())
    assert len(text.splitlines()) <= 5
    assert sentences.headline(result.verdict) in card
    for row in result.verdict.rows[:3]:
        words = f"shown {labels.shown_cell(row)}, at most {labels.at_most_cell(row)}"
        assert words.replace("\N{NO-BREAK SPACE}", " ") in text
    json.dumps(result.to_dict(), allow_nan=False)
