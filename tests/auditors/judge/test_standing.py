"""The worst attacker comes first, and the verdict is never stronger than its evidence."""

from __future__ import annotations

import math

import pytest

from leakmeter.auditors import Finding, ThreatModel
from leakmeter.auditors.judge.standing import (
    Severity,
    headline,
    standings,
    sure_words,
    upper_bound,
)
from leakmeter.auditors.judge.steps import steps
from leakmeter.auditors.judge.summary import summary
from leakmeter.auditors.judge.verdict import judged
from tests.fl_app.report.judge.makers import bound, conditional, finding, guarantee


def said(*found: Finding) -> str:
    """Return the verdict on these findings, in ordinary spaces."""
    return headline(standings(judged(found))).replace("\N{NO-BREAK SPACE}", " ")


def severity(*found: Finding) -> Severity:
    return standings(judged(found))[0].severity


@pytest.mark.parametrize(
    ("epsilon", "implied"),
    [
        (0.01, "slight"),
        (math.log(1.5), "clear"),
        (math.log(9), "severe"),
        (20.0, "severe"),
        (20.1, "certain"),
    ],
)
def test_severity_is_what_the_bound_implies(epsilon: float, implied: str) -> None:
    assert severity(bound(epsilon)) == implied


def test_the_worst_attacker_comes_first() -> None:
    mild, grave = bound(0.6, sees="final model"), bound(585.0, sees="all models")
    lines = standings(judged([mild, grave]))
    assert [one.severity for one in lines] == ["certain", "clear"]
    assert "can be practically certain whether a client sent a given update (ε ≥ 580)" in said(
        mild, grave
    )


def test_what_is_only_suspected_is_not_said_as_proven() -> None:
    assert said(finding(value=3.0, null_band=(0.1, 0.5))).startswith(
        "A leak is suspected, not proven: "
    )
    words = said(conditional(9.0))
    assert words.startswith("A leak is shown under a condition only: if ")
    assert standings(judged([conditional(9.0)]))[0].shown == "see details"
    assert sure_words(conditional(9.0)) == ""


def test_nothing_shown_is_not_private() -> None:
    assert said(bound(0.0)) == (
        "No leak shown (1 attacker). This is not evidence of privacy: nothing is guaranteed."
    )


def test_a_bound_stands_between_what_is_shown_and_what_is_guaranteed() -> None:
    assert "ε ≥ 2 shown, ε ≤ 8 guaranteed" in said(bound(2.0), guarantee(8.0))
    assert "ε ≥ 2, no upper bound" in said(bound(2.0))
    [line] = standings(judged([bound(2.0), guarantee(8.0)]))
    assert (line.shown, line.at_most, line.evidence) == ("ε ≥ 2", "ε ≤ 8", "proven 95 %")
    # In a column "at most", "none" would read as "leaks nothing".
    for found in ([bound(2.0)], [bound(2.0), guarantee(math.inf)]):
        [line] = standings(judged(found))
        assert line.at_most == "no bound"


def test_a_guarantee_that_nobody_audited_says_so() -> None:
    for value, evidence in ((8.0, "theorem"), (40.0, "theorem"), (math.inf, "–")):
        [line] = standings(judged([guarantee(value)]))
        assert (line.shown, line.evidence) == ("not audited", evidence)


def test_a_missing_guarantee_names_its_attacker_and_whom_another_is_against() -> None:
    server = ThreatModel(observer="server", sees="round sum", participations=3, knows_cohort=True)
    open_ = guarantee(math.inf, threat_model=server)
    words = "Nothing useful is guaranteed against a server that sees the sums of all rounds"
    assert said(open_) == f"{words}."
    assert said(guarantee(53.0, threat_model=server)) == f"{words} (ε ≤ 53)."
    assert said(open_, bound(0.0), guarantee(8.0)) == (
        f"{words}; ε ≤ 8 is guaranteed against: outsider, noised sums."
    )


def test_the_upper_bound_names_whom_it_is_against_or_why_there_is_none() -> None:
    assert upper_bound([guarantee(8.0)]).startswith("Upper bound: ε ≤ 8 at δ = ")
    assert upper_bound([bound(1.0)], adds_noise=False) == (
        "No upper bound: this run adds no noise."
    )
    assert upper_bound([bound(1.0)]) == "No upper bound: no noise is accounted for."
    assert upper_bound([guarantee(math.inf)]).startswith("No upper bound: ")


def test_statements_about_the_protocol_are_no_attackers() -> None:
    count = finding(
        value=3.0,
        kind="guarantee",
        quantity="honest clients in the smallest sum",
        adjacency=None,
        null_band=None,
    )
    [line] = standings(judged([count]))
    assert line.severity == "protocol"
    assert line.is_statement
    assert said(count) == "The audit has no result. This is not evidence of privacy."


def test_any_project_gets_steps_in_words() -> None:
    every, final = bound(87.0, sees="all models"), bound(7.3, sees="final model")
    words = [step.text for step in steps(standings(judged([every, final])))]
    assert words[0] == "Clip updates and add noise before a model is released (Noised)."
    assert words[1] == "Release only the final model (ε ≥ 7.3 shown in it, ε ≥ 87 in all)."
    assert len(words) <= 3


def test_a_table_that_is_too_wide_loses_spaces_from_the_right_on() -> None:
    lines = summary([bound(0.00545), guarantee(0.00655)])
    [row] = [line for line in lines if line.startswith("outsider, every model")]
    assert row == "outsider, every model  if an update was sent ε ≥ 0.00545 ε ≤ 0.00655 proven 95 %"
