"""The verdict in sentences is never stronger than its fields."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from leakmeter.auditors import Finding, ThreatModel
from leakmeter.auditors.finding import RunWarning
from leakmeter.auditors.verdict import sentences
from leakmeter.auditors.verdict.labels import who
from leakmeter.auditors.verdict.verdict import judge
from leakmeter.auditors.wording import Assumption
from tests.auditors.verdict.test_laws import RUNS
from tests.fl_app.report.judge.makers import ANYONE, CANARY, bound, conditional, finding, guarantee

SERVER = ThreatModel(observer="server", sees="round sum", knows_cohort=True, participations=3)
NOT_EVIDENCE = "This is not evidence of privacy."


def flat(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def said(*found: Finding, **more: Any) -> str:
    """Return the verdict on these findings, in ordinary spaces."""
    return flat(sentences.headline(judge(found, **more)))


def test_a_leak_is_at_least_and_names_who_and_what() -> None:
    assert said(bound(2.0)) == (
        "Anyone who sees every model can be at least 88 % sure whether a client sent a given "
        "update (ε ≥ 2). Nothing is guaranteed against this attacker."
    )


def test_above_20_the_share_of_the_canaries_and_their_rounds_are_named() -> None:
    """ "Practically certain" would otherwise follow from 2 canaries of 135."""
    facts = {"share_at_threshold": 2 / 135}
    words = said(bound(30.0, facts=facts))
    assert "can be practically certain whether a client sent a given update" in words
    assert "(ε ≥ 30, for at least 1.4 % of the test updates, each sent in 1 round)" in words
    assert "for all test updates, each" in said(bound(30.0, facts={"share_at_threshold": 1.0}))
    often = replace(CANARY, participations=3)
    assert "each sent in 3 rounds)" in said(bound(30.0, facts=facts, threat_model=often))


def test_a_saturated_bound_says_that_the_audit_is_at_its_limit() -> None:
    words = said(bound(1.0, cap=1.0, saturated=True))
    assert words.endswith("The audit is at its limit, and the truth may be far above.")
    assert "limit" not in said(bound(1.0, cap=9.0))


@given(RUNS)
def test_no_adjective_is_read_off_a_lower_bound(run: list[Finding]) -> None:
    verdict = judge(run)
    words = f"{sentences.headline(verdict)} {sentences.protection(verdict)}"
    assert not re.search(r"\b(slight|clear|severe|little|small|low|high|weak|strong)", words)
    assert ("practically certain" in words) <= any(row.low > 20 for row in verdict.rows)


@given(RUNS)
def test_no_sentence_shows_how_it_was_made(run: list[Finding]) -> None:
    verdict = judge(run)
    for words in (sentences.headline(verdict), sentences.protection(verdict)):
        assert words.endswith(".")
        assert not re.search(r"\bNone\b|\bnan\b|  |\.\.|\. \.", words)


def test_an_interval_has_both_ends_and_the_assumptions_of_the_upper() -> None:
    words = said(bound(2.0), guarantee(8.0))
    assert words == (
        "A guarantee limits what anyone who sees the noised sums of all rounds can tell: ε is at "
        "least 2 (shown) and at most 8 for whether a client sent a given update, under 1 stated "
        "assumption."
    )
    assert "shown" not in said(bound(0.0), guarantee(8.0))
    unchecked = guarantee(8.0, assumptions=(Assumption.INDEPENDENT_SCORES,))
    assert f", if {Assumption.INDEPENDENT_SCORES.sentence}." in said(unchecked)


def test_a_guarantee_names_its_attacker_and_whom_it_does_not_cover() -> None:
    """The headline once took the smallest guarantee and dropped its attacker."""
    updates = replace(SERVER, sees="updates")
    looked = [bound(0.0), bound(0.0, threat_model=updates)]
    words = said(*looked, guarantee(2.15), guarantee(15.5, threat_model=updates))
    start = "A guarantee limits what a server that sees every update can tell: ε is at most 15.5 "
    assert words.startswith(start)
    open_ = guarantee(math.inf, threat_model=SERVER)
    assert said(guarantee(8.0), open_).endswith(f" Nothing is guaranteed against: {who(SERVER)}.")


def test_a_guarantee_above_20_promises_practically_nothing() -> None:
    assert "at most 350, which promises practically nothing, for" in said(guarantee(344.5))


def test_where_zero_out_and_replace_differ_both_are_named() -> None:
    """A target of 8 for zero-out once read "at most 19.2" and nothing else."""
    both = [guarantee(8.0), guarantee(19.15, adjacency="replace")]
    verdict = judge(both)
    assert flat(sentences.headline(verdict)).endswith(
        "ε is at most 8 for whether a client sent a given update and at most 19.2 for which of two "
        "given updates a client sent, under 1 stated assumption."
    )
    assert flat(sentences.upper_end(verdict)) == (
        "Guaranteed at δ = 1e-05 for a client (zero-out and replace)."
    )
    leak = bound(2.0, threat_model=SERVER)
    assert flat(sentences.upper_end(judge([*both, leak]))) == (
        "Guaranteed: ε ≤ 8 (zero-out) and ε ≤ 19.2 (replace) at δ = 1e-05 for a client against: "
        "outsider, noised sums, under 1 stated assumption."
    )


def test_a_guarantee_for_some_attackers_is_not_said_of_all() -> None:
    open_ = guarantee(math.inf, threat_model=SERVER)
    words = flat(sentences.protection(judge([guarantee(8.0), open_])))
    assert "is limited by a guarantee, but not for every attacker; no audit tried it" in words


def test_nothing_conditional_and_no_estimate_leads() -> None:
    for found in (finding(value=3.0, null_band=(0.1, 0.5)), conditional(9.0)):
        assert said(found).startswith("No leak is proven, and nothing is guaranteed. ")
        words = flat(sentences.protection(judge([found])))
        assert words == "In data-protection terms: singling out a client is suspected; not proven."


def test_a_proven_epsilon_near_0_is_not_read_as_success() -> None:
    """ε ≥ 0.057, an attacker that is 51.4 % sure, was once "a client can be singled out"."""
    second = flat(sentences.protection(judge([bound(0.057)])))
    assert "singling out a client beats guessing; shown" in second
    assert "guessing" not in sentences.protection(judge([bound(21.0)]))


def test_what_is_only_suspected_is_not_said_as_proven() -> None:
    words = said(finding(value=3.0, null_band=(0.1, 0.5)))
    assert "One is suspected: anyone who sees every model may tell " in words
    assert words.endswith("(ε ≈ 3).")
    start = "There is one under a condition: "
    assert f"{start}if {Assumption.INDEPENDENT_SCORES.sentence}, " in said(conditional(9.0))


def test_nothing_shown_is_not_private() -> None:
    assert said(bound(0.0)) == (
        f"No leak was shown (1 attacker tried), and nothing is guaranteed. {NOT_EVIDENCE}"
    )
    assert said() == f"No attacker was audited, and nothing is guaranteed. {NOT_EVIDENCE}"
    assert said(guarantee(math.inf)) == said()


def test_a_refuted_guarantee_says_that_an_assumption_does_not_hold() -> None:
    words = said(guarantee(1.0), bound(2.0))
    assert words.startswith("A guarantee is refuted: ε ≤ 1 is claimed against anyone who sees ")
    assert "the audit shows ε ≥ 2 (95 % confidence). An assumption of the guarantee" in words


def test_a_reconstruction_says_how_many_of_how_many() -> None:
    rebuilt = bound(
        3.0,
        quantity="originals recovered",
        adjacency=None,
        delta=None,
        confidence=0.99,
        facts={"originals": 3},
        threat_model=replace(SERVER, participations=None),
    )
    assert said(rebuilt) == (
        "A server that sees the sum of a round can rebuild training records: 3 of 3 fit what "
        "was rebuilt better than any record that was not used (99 % confidence)."
    )
    # Beside another bound, with the confidence at which both hold.
    assert said(rebuilt, bound(9.0)) == said(rebuilt).replace("99 %", "94 %")
    assert flat(sentences.protection(judge([rebuilt]))) == (
        "In data-protection terms: reconstruction of clients' records is possible; shown against "
        "records that were not used (99 % confidence)."
    )


def test_a_distorted_run_is_said_first() -> None:
    damage = [RunWarning.of("clipped-coordinates", 72, 100)]
    words = said(bound(1.0), warnings=damage)
    assert words.startswith("The run is distorted, so its numbers say little about a sound one. ")
    assert "at least 73.1 % sure" in words


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (bound(2.0), "singling out a client beats guessing; shown with test updates"),
        (bound(2.0, unit="record"), "inferring whether a record was used beats guessing"),
        (bound(2.0, holds="two updates"), "shown in trials that simulate a round"),
        (guarantee(3.0), "singling out a client is limited by a guarantee; no audit tried it"),
        (bound(0.0), "nothing follows about singling out, membership or reconstruction"),
    ],
)
def test_the_second_sentence_has_the_words_of_data_protection(found: Finding, words: str) -> None:
    second = flat(sentences.protection(judge([found])))
    assert second.startswith("In data-protection terms: ")
    assert words in second


def test_the_upper_end_names_whom_it_is_against_or_why_there_is_none() -> None:
    assert flat(sentences.upper_end(judge([guarantee(8.0)]))) == (
        "Guaranteed at δ = 1e-05 for a client (zero-out)."
    )
    server = guarantee(15.5, threat_model=replace(ANYONE, observer="server"))
    leak = bound(2.0, threat_model=replace(SERVER, sees="updates"))
    words = flat(sentences.upper_end(judge([guarantee(8.0), server, leak])))
    assert words.startswith("The largest guarantee: ε ≤ 15.5 (zero-out) at δ = 1e-05 for a client ")
    nobody = judge([bound(1.0)])
    assert sentences.upper_end(nobody, adds_noise=False) == (
        "No upper bound: this run adds no noise."
    )
    for verdict in (nobody, judge([guarantee(math.inf)])):
        assert sentences.upper_end(verdict) == (
            "No upper bound: nothing is guaranteed against these attackers."
        )


def test_all_bounds_together_have_one_confidence() -> None:
    """The largest of four independent bounds at 95 % holds in 81 %."""
    four = [bound(1.0, sees=sees) for sees in ("all models", "final model", "updates", "round sum")]
    assert flat(sentences.together(judge(four[:1]))) == (
        "All that is shown holds together with 95 % confidence."
    )
    assert "with 80 % confidence" in flat(sentences.together(judge(four)))
    assert sentences.together(judge([guarantee(1.0)])) == ""
    many = [bound(1.0)] * 30
    assert sentences.together(judge(many)).startswith("Each bound holds at its own confidence")


def test_what_every_draw_separates_is_never_called_nothing() -> None:
    server = ThreatModel(observer="server", sees="round sum", knows_cohort=True)
    facts = {"draws": 60, "confidence": 0.95, "largest chance": 0.05}
    certain = finding(
        quantity="certain separation",
        kind="diagnostic",
        value=1.0,
        threat_model=server,
        facts=facts,
    )
    verdict = judge([certain])
    assert verdict.severity == "shown"
    said = sentences.headline(verdict)
    assert "distinguished two updates of a client in all 60 draws" in said
    assert "at most 5 %" in said.replace("\N{NO-BREAK SPACE}", " ")


def test_a_reconstruction_beyond_its_control_is_never_called_nothing() -> None:
    near = finding(
        quantity="reconstruction PSNR in dB",
        kind="diagnostic",
        value=60.0,
        adjacency=None,
        unit="record",
        null_band=(8.0, 9.3),
    )
    verdict = judge([near])
    assert verdict.severity == "suspected"
    said = sentences.headline(verdict).replace("\N{NO-BREAK SPACE}", " ")
    assert "reconstruction PSNR in dB: 60, observed" in said
    assert "without a leak, 90 % of audits say 8 to 9.3" in said
    assert "reconstruction of records is suspected" in sentences.protection(verdict)
    assert judge([replace(near, value=9.0)]).headline == ("nothing", None)


def test_membership_and_a_client_that_stands_out_are_said_for_everybody() -> None:
    test = {"adjacency": None, "delta": None, "unit": "record"}
    told = bound(0.1239, quantity="membership advantage", **test)
    assert said(told) == (
        "Anyone who sees every model can tell records that were used from others: at some "
        "threshold, hits exceed false alarms by at least 12.3 percentage points (95 % confidence). "
        "Nothing is guaranteed against this attacker."
    )
    assert flat(sentences.protection(judge([told]))) == (
        "In data-protection terms: inferring whether a record was used beats guessing "
        "(95 % confidence)."
    )
    alone = bound(1.0, quantity="clients that stand out", facts={"client": 3}, **test)
    assert said(replace(alone, unit="client", threat_model=SERVER)).startswith(
        "The sum of a round hides client 3 less than any other: more of its update is outside the "
        "span of the others' (95 % confidence)."
    )


def test_the_accuracy_that_a_protection_may_have_cost_is_said() -> None:
    assert sentences.utility(judge([guarantee(8.0)], accuracy=0.2619)) == ("Model accuracy: 0.262.")
    assert sentences.utility(judge([guarantee(8.0)])) == ""


def test_a_confidence_is_said_only_of_what_is_shown() -> None:
    assert sentences.together(judge([bound(0.0)])) == ""
    assert "95 % confidence" in sentences.together(judge([bound(1.0)]))
