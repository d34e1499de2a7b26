"""Cells of a table: at most as strong as the sentences about the same row."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import pytest

from leakmeter.auditors import Finding, ThreatModel
from leakmeter.auditors.finding import Adjacency, Observer, Sees, Unit
from leakmeter.auditors.verdict import labels, sentences
from leakmeter.auditors.verdict.claim import Question
from leakmeter.auditors.verdict.verdict import Row, Severity, judge
from tests.fl_app.report.makers import CANARY, bound, conditional, finding, guarantee


def row(*found: Finding) -> Row:
    """Return the row of the first finding."""
    return next(one for one in judge(found).rows if found[0] in one.findings)


def cells(*found: Finding) -> tuple[str, str, str]:
    one = row(*found)
    words = (labels.shown_cell(one), labels.at_most_cell(one), labels.evidence(one))
    return tuple(cell.replace("\N{NO-BREAK SPACE}", " ") for cell in words)  # type: ignore[return-value]


def test_a_row_has_both_ends_and_how_strong_the_evidence_is() -> None:
    assert cells(bound(2.0), guarantee(8.0)) == ("ε ≥ 2", "ε ≤ 8", "proven 95 %")
    # In a column "at most", "none" would read as "leaks nothing".
    assert cells(bound(2.0), guarantee(math.inf)) == ("ε ≥ 2", "no bound", "proven 95 %")


def test_what_nobody_audited_says_so() -> None:
    for value, evidence in ((8.0, "theorem"), (40.0, "theorem"), (math.inf, "–")):
        shown, _, strength = cells(guarantee(value))
        assert (shown, strength) == ("not audited", evidence)


def test_a_bound_under_a_condition_is_no_number_in_a_cell() -> None:
    assert cells(conditional(9.0)) == ("see details", "no bound", "conditional")
    assert cells(conditional(9.0), guarantee(3.0)) == ("see details", "ε ≤ 3", "conditional")
    assert labels.sureness_cell(row(conditional(9.0))) == "see details"
    # Where an audit without a condition looked too, it says what it showed.
    assert cells(bound(0.0), conditional(9.0))[0] == "nothing"


def test_nothing_shown_and_nothing_that_could_be_shown_differ() -> None:
    assert cells(bound(0.0, cap=2.0)) == ("nothing", "no bound", "not shown")
    assert cells(bound(0.0, cap=0.0, saturated=True)) == ("nothing", "no bound", "cannot show")


def test_an_estimate_and_a_model_are_named_as_such() -> None:
    assert cells(finding(value=3.0)) == ("ε ≈ 3", "no bound", "estimate")
    assert cells(finding(kind="approximation", value=9.0)) == ("ε ≈ 9", "no bound", "model only")


def test_no_word_for_a_severity_is_read_off_a_lower_bound() -> None:
    """ "slight leak" and "clear leak" were once names of lower bounds, one of them saturated."""
    words = " ".join(words for words, _ in labels.SEVERITIES.values())
    assert set(labels.SEVERITIES) == set(get_args(Severity))
    for adjective in ("slight", "clear", "severe", "small", "large", "weak", "strong"):
        assert adjective not in words


def test_every_attacker_and_every_question_has_words() -> None:
    said = set()
    for observer in get_args(Observer):
        for sees in (*get_args(Sees), None):
            for rounds in (None, 3):
                model = ThreatModel(observer=observer, sees=sees, participations=rounds)
                assert labels.subject(model)
                said.add(labels.who(model))
    # Models are seen over rounds; all else is one sum or many.
    assert len(said) == 3 * (1 + 3 + 1 + 2 * 3)
    for unit in get_args(Unit):
        for adjacency in get_args(Adjacency):
            asked = Row(CANARY, Question(unit, adjacency), ())
            word = {"group": "copies"}.get(unit, unit)
            assert word in labels.question(asked) or "canary" in labels.question(asked)
            assert len(labels.tells(asked)) <= 24


def test_attackers_that_differ_in_what_they_know_or_do_are_named_differently() -> None:
    known = replace(CANARY, holds=None)
    named = {
        labels.who(model)
        for model in (
            known,
            replace(known, knows_cohort=False),
            replace(known, conduct="active"),
            replace(known, game="worst-data"),
        )
    }
    assert len(named) == 4


def test_a_round_has_two_decimals_and_no_mere_remark() -> None:
    assert labels.glimpse(bound(2.158, auditor="likelihood-ratio")) == "LRT ε≥2.15"
    assert labels.glimpse(conditional(2.158)) == "one-shot ε≥2.15 if assumed"
    assert labels.glimpse(finding(kind="diagnostic", quantity="canaries")) == ""


def test_bits_have_their_sign_their_unit_and_no_bound_unless_one_is_known() -> None:
    bits = finding(quantity="mutual information", value=0.428, kind="approximation", adjacency=None)
    assert labels.in_bits(judge([bits]))[0][3] == "no bound"
    most = replace(bits, kind="guarantee", value=1.2341)
    [row] = labels.in_bits(judge([bits, most]))
    assert row[2:4] == ("≈ 0.428", "≤ 1.24")


def test_an_audit_under_a_condition_that_shows_nothing_was_an_audit() -> None:
    assert cells(conditional(0.0)) == ("nothing", "no bound", "not shown")
    assert "1 attacker tried" in sentences.headline(judge([conditional(0.0)]))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"facts": {"originals": 3}}, ("what records are", "≥ 2 of 3 records", "proven 99 %")),
        ({"value": 0.0}, ("what records are", "nothing", "not shown")),
        ({"value": 0.0, "cap": 0.0}, ("what records are", "nothing", "cannot show")),
        ({"assumptions": ("a guess",)}, ("what records are", "see details", "conditional")),
        (
            {"quantity": "membership advantage", "value": 0.1239},
            ("if a record was used", "≥ 12.3 points", "proven 99 %"),
        ),
        (
            {"quantity": "clients that stand out", "value": 1.0},
            ("who a client is", "≥ 1 client", "proven 99 %"),
        ),
    ],
)
def test_a_claim_that_is_no_epsilon_has_its_own_cells(
    changes: dict[str, Any], said: tuple[str, ...]
) -> None:
    test = {"quantity": "originals recovered", "adjacency": None, "delta": None, "confidence": 0.99}
    _, about, found, most, how = labels.cells_of_test(bound(**{"value": 2.0, **test, **changes}))
    assert (about, found, how) == said
    assert most == "no bound"
