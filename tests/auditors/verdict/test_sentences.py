"""What the page says about one row in words is never stronger than its findings allow."""

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
from leakmeter.auditors.verdict.sentences import draws_of, leading_findings, numbers_of
from leakmeter.auditors.verdict.verdict import Block, Row, judge
from leakmeter.auditors.wording import Assumption
from tests.auditors.verdict.test_laws import RUNS
from tests.fl_app.report.makers import ANYONE, CANARY, bound, conditional, finding, guarantee, one

SHOWN = "shown, nothing guaranteed"


def test_a_lower_bound_is_at_least() -> None:
    part, said = one(bound(0.6257, assumptions=(Assumption.FAIR_COINS, Assumption.KNOWN_NULL)))
    assert isinstance(part, Row)
    assert said.startswith(f"ε ≥ 0.625 {SHOWN}")
    assert "Starting from 50:50, some outcomes make the attacker at least 65.1 % sure." in said
    assert "In one of the two worlds their chance is above δ." in said
    assert "too large in at most 5 % of such audits" in said
    assert f"assuming that {Assumption.FAIR_COINS.sentence} (1 more in the table)" in said


def test_a_bound_says_how_many_canaries_it_rests_on() -> None:
    facts = {"share_at_threshold": 1 / 34, "threshold": 88.72, "median_score": 31.68}
    _, said = one(bound(77.8, facts=facts))
    rests = (
        "2.94 % of the included canaries have a p-value of at most e^−88.7; their median is "
        "e^−31.7."
    )
    assert rests in said


def test_a_conditional_bound_is_never_without_its_condition() -> None:
    condition = Assumption.INDEPENDENT_SCORES.sentence
    _, said = one(conditional(5.5))
    assert said.startswith(f"nothing {SHOWN}")
    assert f"If {condition}: ε ≥ 5.5 at δ" in said
    assert "Then, starting from 50:50," in said
    # Beside one that needs no condition it is not said, however large.
    _, said = one(conditional(5.5), bound(0.5), guarantee(3.0))
    assert said.startswith("ε ≥ 0.5 shown … ε ≤ 3 guaranteed")
    assert "5.5" not in said
    assert "1 more lower bound under conditions: see the table." in said
    # A sentence of another project in place of a name has not been checked either.
    _, said = one(bound(5.5, assumptions=("my clients are honest.",)))
    assert "If my clients are honest: ε ≥ 5.5" in said


def test_above_20_an_attacker_is_practically_certain() -> None:
    _, said = one(bound(586.03))
    assert "ε ≥ 580 (practically certain)" in said
    assert "586" not in said
    assert "some outcomes make the attacker practically certain" in said
    _, said = one(finding(value=362.4, null_band=(0.1, 0.5)))
    assert "ε ≈ 360 (practically certain if right)" in said
    _, said = one(guarantee(344.5))
    assert "ε ≤ 350 (promises practically nothing)" in said


def test_a_saturated_bound_could_not_have_shown_more() -> None:
    _, said = one(bound(1.0, cap=1.0, saturated=True, auditor="likelihood-ratio"), lrt_trials=60)
    assert "these samples cannot show more than 1, so the truth may be far above" in said
    assert "give it more trials (--lrt-trials, now 60)" in said


def test_a_row_in_which_nothing_is_shown_is_not_private() -> None:
    _, said = one(bound(0.0, cap=2.0))
    assert said.startswith(f"nothing {SHOWN}")
    assert "This audit does not prove more than chance." in said
    assert "not a proof of privacy" in said
    assert "the audit can show at most 2" in said
    assert "at least" not in said
    assert "trials" not in said.split("To let")[0]  # canaries have none
    for nothing in (bound(0.0, cap=2.0), conditional(5.5)):
        _, said = one(nothing, guarantee(3.0))
        assert said.startswith("nothing shown … ε ≤ 3 guaranteed")
        assert "ε ≥ 0 shown" not in said


def test_a_method_that_could_show_nothing_says_so() -> None:
    """With a large δ, canaries with p-values of e^−88 prove ε ≥ 0."""
    blind = bound(0.0, cap=0.0, saturated=True, delta=0.01, facts={"median_score": 88.7})
    _, said = one(blind, delta=0.01, canary_seats=40)
    assert "With this δ and these samples it cannot show anything, whatever leaks." in said
    assert "smaller δ (--delta, now 0.01) or fewer canaries (--canary-seats, now 40)" in said
    assert "more canaries" not in said


@pytest.mark.parametrize(("value", "where"), [(0.4, "in"), (0.6, "above"), (0.05, "below")])
def test_an_estimate_is_read_beside_its_null_band(value: float, where: str) -> None:
    _, said = one(finding(value=value, null_band=(0.1, 0.5)))
    assert f"Without a leak, 90 % of audits say 0.1 to 0.5; this is {where} that range." in said
    assert "Estimates carry no confidence" in said
    assert said.startswith(f"nothing {SHOWN}")
    assert "≥" not in said


def test_an_estimate_without_a_null_band_suggests_nothing() -> None:
    assert "what the method says without a leak is not known" in one(finding(value=50.0))[1]


def test_a_bound_above_its_own_estimate_is_explained() -> None:
    estimate = finding(value=1.0, assumptions=(Assumption.GAUSSIAN_COSINES,))
    _, said = one(estimate, bound(2.0))
    assert "ε ≥ 2 is above the estimate ε ≈ 1: the two methods differ." in said
    assert f"The estimate alone assumes that {Assumption.GAUSSIAN_COSINES.sentence}." in said
    for other in (finding(value=3.0), finding(delta=1e-3), finding(auditor="other")):
        assert "the two methods differ" not in one(other, bound(2.0))[1]
    assert "the two methods differ" not in one(finding(value=1.0), bound(1.001))[1]  # reads alike


def test_an_estimate_above_a_guarantee_is_explained() -> None:
    """Of a grid of runs, 119 estimates above a proven guarantee were printed without a word."""
    estimate = finding(value=3.0, null_band=(0.0, 1.0))
    words = "The estimate ε ≈ 3 is above the guarantee ε ≤ 2, which is proven: it is too high."
    assert words in one(estimate, guarantee(2.0))[1]
    assert "is too high" not in one(estimate, guarantee(4.0))[1]
    many = [replace(estimate, value=3 + i / 100) for i in range(119)]
    words = one(*many, guarantee(2.0))[1]
    assert "The estimate ε ≈ 4.18, the largest of 119, is above the guarantee ε ≤ 2" in words
    assert words.count("is above the guarantee") == 1


def test_an_approximation_is_no_bound() -> None:
    _, said = one(finding(kind="approximation", value=9.0))
    assert "neither an upper nor a lower bound" in said
    assert "≥" not in said
    assert "≤" not in said


def test_a_guarantee_is_at_most_with_its_assumptions() -> None:
    _, said = one(guarantee(1.0))
    assert said.startswith("nothing shown … ε ≤ 1 guaranteed")
    assert "ε ≤ 1 at δ = 1e-05, at most 10 rounds per client." in said
    assert "chance q in one world has a chance of at most 2.72·q + 1e-05 in the other" in said
    assert f"proven and assumes that {Assumption.EQUAL_WEIGHTS.sentence}" in said
    assert "promises little" in one(guarantee(15.0))[1]


def test_no_finite_guarantee_is_said_as_such() -> None:
    _, said = one(guarantee(math.inf, observer="server"), noise="central")
    assert said.startswith(f"nothing {SHOWN}")
    assert "No finite ε is guaranteed" in said
    assert "does not protect against the server" in said
    assert "proven" not in said
    server = bound(1.0, threat_model=replace(CANARY, observer="server"))
    _, said = one(server, guarantee(math.inf, observer="server"))
    assert said.startswith(f"ε ≥ 1 {SHOWN}")
    assert "is guaranteed guaranteed" not in said


def test_a_count_that_is_guaranteed_bounds_no_leakage() -> None:
    counts: dict[str, Any] = {"delta": None, "adjacency": None, "value": 1234.0}
    quantity = "honest clients in the smallest sum"
    part, said = one(finding(kind="guarantee", quantity=quantity, **counts))
    assert isinstance(part, Block)
    assert said.startswith("Honest clients in the smallest sum: 1,234, guaranteed")
    assert "does not bound what the sum itself reveals" in said
    assert "≤" not in said
    _, bits = one(finding(kind="guarantee", quantity="mutual information", **counts))
    assert "The information is at most that, if the assumptions hold." in bits  # of leakage indeed


def test_of_an_auditors_bounds_the_first_without_a_condition_leads() -> None:
    listed = [conditional(9.0), bound(1.0), bound(5.0), conditional(3.0, auditor="other")]
    assert [f.value for f in leading_findings(listed)] == [1.0, 3.0]
    _, said = one(bound(1.0), bound(0.9), bound(0.5))
    assert "2 more lower bounds by other methods: see the table." in said


def test_both_ends_of_a_row_are_told_with_whom_they_are_about() -> None:
    final = bound(5.0, threat_model=replace(CANARY, sees="final model"))
    every, promised = bound(0.6), guarantee(8.0)
    rows = judge([final, every, promised]).rows
    [row] = [row for row in rows if every in row.findings]
    assert numbers_of(row) == [every, final, promised]
    _, said = one(every, final, promised)
    assert said.startswith("ε ≥ 5 shown … ε ≤ 8 guaranteed")
    assert "(shown for: outsider, final model)" in said


@pytest.mark.parametrize(("quantity", "kind"), [("canaries", Block), ("epsilon", Row)])
def test_diagnostics_alone_give_their_reason_and_no_number(
    quantity: str, kind: type[Row | Block]
) -> None:
    rule = "too few canaries took part"
    part, said = one(finding(kind="diagnostic", quantity=quantity, rule=rule, value=7))
    assert isinstance(part, kind)
    assert "Too few canaries took part." in said
    assert "7" not in said


def test_a_certain_separation_is_said_with_what_follows_from_its_draws() -> None:
    certain = finding(
        kind="diagnostic",
        quantity="certain separation",
        adjacency="replace",
        value=1.0,
        facts={"draws": 300, "confidence": 0.95, "largest chance": 0.01},
        rule="the others sent the same",
        delta=None,
    )
    assert draws_of(certain).replace("\N{NO-BREAK SPACE}", " ") == (
        "all 300 draws: with 95 % confidence, the chance of an exception is at most 1 %"
    )
    _, said = one(certain)
    assert "The others sent the same." in said
    assert "The others" not in one(replace(certain, value=0.0), bound(1.0, adjacency=None))[1]


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
