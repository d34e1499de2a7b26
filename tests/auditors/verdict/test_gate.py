"""Limits for pipelines: kept, exceeded, or not able to tell."""

from __future__ import annotations

import html
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakmeter.auditors import Finding
from leakmeter.auditors.finding import RunWarning
from leakmeter.auditors.verdict import labels, sentences
from leakmeter.auditors.verdict.gate import Limits, Outcome, assert_private, check, outcome
from leakmeter.auditors.verdict.result import AuditResult
from leakmeter.auditors.verdict.verdict import judge
from tests.auditors.verdict.test_laws import RUNS
from tests.helpers.findings import finding


def bound(value: float, **stated: Any) -> Finding:
    own = {"kind": "lower_bound", "confidence": 0.95, "adjacency": "zero-out", "cap": 50.0}
    return finding(**{**own, "value": value, **stated})


def guarantee(value: float, **stated: Any) -> Finding:
    return finding(**{"kind": "guarantee", "adjacency": "zero-out", "value": value, **stated})


def ends(limits: Limits, *findings: Finding, **more: Any) -> Outcome:
    return outcome(check(judge(findings, **more), limits))


def test_a_proven_epsilon_above_the_limit_fails_and_one_below_passes() -> None:
    assert ends(Limits(max_epsilon=2.0), bound(2.1)) == "exceeded"
    assert ends(Limits(max_epsilon=2.0), bound(2.0)) == "passed"


def test_an_audit_that_could_not_have_shown_the_limit_passes_nothing() -> None:
    assert ends(Limits(max_epsilon=2.0), bound(0.0, cap=1.9)) == "unable"
    assert ends(Limits(max_epsilon=2.0)) == "unable"
    assert ends(Limits(max_epsilon=2.0), guarantee(1.0)) == "unable"


def test_a_guarantee_is_asked_for_against_every_attacker_or_against_one() -> None:
    inside = {"observer": "server", "sees": "round sum"}
    found = [guarantee(4.0), bound(0.0, **inside)]
    assert ends(Limits(require_guarantee=4.0), *found) == "exceeded"
    assert ends(Limits(require_guarantee=4.0, against="outsider"), *found) == "passed"
    assert ends(Limits(require_guarantee=3.9, against="outsider"), *found) == "exceeded"
    assert ends(Limits(require_guarantee=9, against="server/round-sum"), *found) == "exceeded"


def test_an_unknown_attacker_is_named_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="outsider/final-model, got 'sever'"):
        ends(Limits(max_epsilon=1, against="sever"), bound(0.0))


def test_a_distorted_run_passes_nothing() -> None:
    warnings = [RunWarning.of("abandoned-rounds", 3, 3)]
    assert ends(Limits(max_epsilon=9), bound(0.0), warnings=warnings) == "unable"
    assert ends(Limits(max_epsilon=1), bound(2.0), warnings=warnings) == "exceeded"


def test_accuracy_is_checked_where_it_is_known() -> None:
    assert ends(Limits(min_accuracy=0.8), accuracy=0.9) == "passed"
    assert ends(Limits(min_accuracy=0.8), accuracy=0.7) == "exceeded"
    assert ends(Limits(min_accuracy=0.8)) == "unable"


def test_no_reconstruction_needs_a_test_of_it() -> None:
    recovered = bound(2.0, quantity="originals recovered", adjacency=None, confidence=0.99)
    none = bound(0.0, quantity="originals recovered", adjacency=None, confidence=0.99)
    assert ends(Limits(no_reconstruction=True)) == "unable"
    assert ends(Limits(no_reconstruction=True), none) == "passed"
    assert ends(Limits(no_reconstruction=True), recovered) == "exceeded"


@pytest.mark.parametrize(
    "wrong", [{"max_epsilon": -1}, {"min_accuracy": 2}, {"max_epsilon": math.inf}]
)
def test_limits_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Limits(**wrong)  # type: ignore[arg-type]


def test_a_gate_without_a_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="a gate needs a limit"):
        check(judge([]), Limits(against="server"))


@given(RUNS, st.sampled_from([0.0, 0.5, 2.0, 8.0, 40.0]), st.sampled_from([0.0, 1.0, 4.0]))
def test_a_looser_limit_is_never_exceeded_where_a_stricter_one_is_not(
    run: list[Finding], limit: float, more: float
) -> None:
    verdict = judge(run)
    for name in ("max_epsilon", "require_guarantee"):
        strict = outcome(check(verdict, Limits(**{name: limit})))  # type: ignore[arg-type]
        loose = outcome(check(verdict, Limits(**{name: limit + more})))  # type: ignore[arg-type]
        assert loose != "exceeded" or strict == "exceeded"


def test_assert_private_raises_with_the_reason() -> None:
    assert_private(judge([bound(1.0)]), max_epsilon=2.0)
    with pytest.raises(AssertionError, match=r"max-epsilon: exceeded\. .* is proven, above 0\.5"):
        assert_private(AuditResult(judge([bound(1.0)])), max_epsilon=0.5)
    with pytest.raises(AssertionError, match=r"max-epsilon: unable"):
        assert_private(judge([]), max_epsilon=0.5)


@given(RUNS)
def test_a_result_says_the_same_in_five_lines_as_a_card_and_as_data(run: list[Finding]) -> None:
    result = AuditResult(judge(run), tuple(run))
    text, card = repr(result), html.unescape(result._repr_html_())
    assert len(text.splitlines()) <= 5
    assert sentences.headline(result.verdict) in card
    for row in result.verdict.rows[:3]:
        words = f"shown {labels.shown(row)}, at most {labels.at_most(row)}"
        assert words.replace("\N{NO-BREAK SPACE}", " ") in text
    json.dumps(result.to_dict(), allow_nan=False)
