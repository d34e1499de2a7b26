"""Claims: how they are stated, which bounds refute them, and how that is said."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakmeter.auditors import Assumption, Claim, Finding
from leakmeter.auditors.bounds.one_run import detectable_epsilon
from leakmeter.auditors.codec import codec, plain
from leakmeter.auditors.finding import Adjacency, Observer, RunWarning
from leakmeter.auditors.verdict import labels, lines, sentences
from leakmeter.auditors.verdict.claim import (
    ClaimResult,
    Per,
    Question,
    attacker,
    claims_of,
    is_weaker,
)
from leakmeter.auditors.verdict.gate import GateLimits, assert_private, check, outcome
from leakmeter.auditors.verdict.lines import steps
from leakmeter.auditors.verdict.result import AuditResult
from leakmeter.auditors.verdict.verdict import Verdict, judge
from tests.auditors.verdict.test_laws import RUNS, findings
from tests.helpers.findings import finding


@st.composite
def any_claim(draw: st.DrawFn) -> Claim:
    against = draw(st.sampled_from(get_args(Observer)))
    return Claim(
        draw(st.sampled_from([0.0, 0.2, 1.0, 4.38, 25.0])),
        draw(st.sampled_from([0.0, 1e-6, 1e-5, 3e-5])),
        against,
        draw(st.sampled_from(get_args(Per))),
        draw(st.sampled_from(["client", "record"])),
        draw(st.sampled_from(get_args(Adjacency))),
        draw(st.booleans()) or against != "outsider",
    )


CLAIMS = st.lists(any_claim(), min_size=1, max_size=4, unique=True)
SEEN = {"observer": "server", "sees": "updates", "knows_cohort": True, "holds": "canary"}
MODELS = {"observer": "outsider", "sees": "all models", "knows_cohort": True, "holds": "canary"}


def bound(value: float, rounds: int = 1, **stated: Any) -> Finding:
    """Return a lower bound about the server that sees single updates."""
    own = {"kind": "lower_bound", "confidence": 0.95, "adjacency": "zero-out", "cap": 80.0}
    own |= {"delta": 1e-5, "participations": rounds, **SEEN}
    return finding(**{**own, "value": value, **stated})


def refuted(claim: Claim, *found: Finding) -> bool:
    [result] = judge(found, claims=[claim]).claims
    return result.is_refuted


# Stating a claim.


@given(any_claim())
def test_a_claim_is_the_same_after_its_text_and_after_a_file(claim: Claim) -> None:
    assert Claim.parse(claim.text) == claim
    said = replace(claim, source="LocalDpMod", delivered=math.inf, clip_norm=0.3, rule="a rule")
    text = json.dumps(plain(said), allow_nan=False)
    assert codec(Claim).read(json.loads(text)) == said


@given(CLAIMS)
def test_several_claims_fit_into_one_text(claims: list[Claim]) -> None:
    text = "; ".join(map(str, claims))
    assert claims_of(text) == claims_of(claims) == claims_of([text, claims[0]]) == tuple(claims)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "'' is no number"),
        ("ten", "'ten' is no number"),
        ("10@", "'' is no number"),
        ("-1 server", r"epsilon must be in \[0, inf\), got -1.0"),
        ("inf", r"epsilon must be in \[0, inf\), got inf"),
        ("nan@1e-5", "epsilon must be in"),
        ("10@1", r"delta must be in \[0, 1\), got 1.0"),
        ("10 sever", "a word is unknown"),
        ("10 server outsider", "says what another one has said"),
        ("10 round round", "says what another one has said"),
        ("10 server cohort-hidden", "whoever gets the replies sees who sends them"),
    ],
)
def test_a_text_that_is_no_claim_is_refused_in_four_parts(text: str, why: str) -> None:
    allowed = r"--claim must be ε@δ with one of server, outsider, wire and round or run"
    with pytest.raises(ValueError, match=rf'{allowed}, got .*{why}.*Try "10@1e-5 server round"'):
        Claim.parse(text, "--claim")


def test_what_is_neither_a_claim_nor_a_text_is_refused_with_an_example() -> None:
    with pytest.raises(TypeError, match=r"claims must be a list .*, got 10; for example claims="):
        claims_of([10])  # type: ignore[list-item]
    assert claims_of("") == claims_of([]) == ()
    with pytest.raises(ValueError, match="got ''"):
        claims_of([""])


# What refutes a claim.


ROUND, RUN = Claim(10.0, per="round"), Claim(10.0, per="run")
ASSUMED = {"assumptions": (Assumption.INDEPENDENT_SCORES,)}


@pytest.mark.parametrize(
    ("claim", "found", "is_refuted"),
    [
        (ROUND, bound(10.1), True),
        (ROUND, bound(10.0), False),
        (RUN, bound(10.1), True),
        (RUN, bound(10.0), False),
        (RUN, bound(10.1, rounds=3), True),
        # Three rounds of 10 and δ each are 30 and 3δ together: below that δ nothing is said.
        (ROUND, bound(29.9, rounds=3, delta=1e-4), False),
        (ROUND, bound(30.1, rounds=3, delta=3.1e-5), True),
        (ROUND, bound(80.0, rounds=3, delta=2.9e-5), False),
        (Claim(1.0, delta=1e-6), bound(2.0, delta=1e-5), True),
        (Claim(1.0, delta=1e-4), bound(2.0, delta=1e-5), False),
        # Whatever an outsider learns, the server learns.
        (Claim(1.0), bound(2.0, sees="round sum"), True),
        (Claim(1.0), bound(2.0, **MODELS), True),
        (Claim(1.0, against="outsider"), bound(2.0), False),
        (Claim(1.0, against="wire"), bound(2.0), False),
        # Amplification by sampling: a canary that surely takes part is another attack.
        (Claim(1.0, against="outsider"), bound(2.0, **MODELS), True),
        (Claim(1.0, against="outsider", knows_cohort=False), bound(2.0, **MODELS), False),
        # Zero is an update, and a record changes one.
        (Claim(1.0, adjacency="replace"), bound(2.0), True),
        (Claim(1.0, adjacency="replace"), bound(2.0, unit="record", adjacency="add-remove"), True),
        (Claim(1.0), bound(2.0, adjacency="replace"), False),
        (Claim(1.0, adjacency="add-remove"), bound(2.0), False),
        (Claim(1.0), bound(2.0, conduct="active"), False),
        (Claim(1.0), bound(2.0, colluders=1), False),
        (Claim(1.0), bound(85.3, **ASSUMED), False),
    ],
)
def test_a_claim_is_refuted_by_a_bound_that_it_answers_and_by_no_other(
    claim: Claim, found: Finding, is_refuted: bool
) -> None:
    assert refuted(claim, found) == is_refuted


def test_bounds_at_a_smaller_delta_than_the_claims_say_so() -> None:
    [result] = judge([bound(2.0, delta=1e-5)], claims=[Claim(1.0, delta=1e-4)]).claims
    assert result.smaller_delta == 1e-5
    assert "are at δ = 1e-05; only one at the claim's δ = 0.0001" in sentences.reach(result)


def test_the_bound_that_goes_furthest_beyond_the_claim_decides_not_the_largest() -> None:
    """25 in three rounds is less than thrice 10, and 11 in one is more than 10."""
    three, one = bound(25.0, rounds=3, delta=1e-4), bound(11.0)
    [result] = judge([three, one], claims=[Claim(10.0, per="round")]).claims
    assert result.is_refuted
    assert result.bound is one


@given(RUNS, CLAIMS)
def test_only_unconditional_bounds_of_no_stronger_attacker_and_question_refute(
    run: list[Finding], claims: list[Claim]
) -> None:
    for one in judge(run, claims=claims).claims:
        if one.bound is None:
            continue
        claim, found = one.claim, one.bound
        assert found.kind == "lower_bound"
        assert not found.is_conditional
        meant = claim.attacker(rounds=one.rounds)
        assert is_weaker(attacker(found), meant)
        assert Question(found.unit, found.adjacency or "replace").is_implied_by(
            Question(claim.unit, claim.adjacency)
        )
        times = one.rounds if claim.per == "round" else 1
        assert (found.delta or 0) >= times * claim.delta
        assert one.is_refuted == (found.value > times * claim.epsilon)


@given(RUNS, findings(), CLAIMS)
def test_a_refuted_claim_stays_refuted_when_a_finding_is_added(
    run: list[Finding], more: Finding, claims: list[Claim]
) -> None:
    before = {one.claim for one in judge(run, claims=claims).false_claims}
    assert before <= {one.claim for one in judge([*run, more], claims=claims).false_claims}


@given(RUNS, any_claim(), st.sampled_from([0.5, 3.0]))
def test_a_weaker_claim_is_never_refuted_where_a_stronger_one_is_not(
    run: list[Finding], claim: Claim, more: float
) -> None:
    weaker = replace(claim, epsilon=claim.epsilon + more, delta=2 * claim.delta)
    strong, weak = (ClaimResult.of(one, run) for one in (claim, weaker))
    assert strong.is_refuted or not weak.is_refuted


@given(RUNS, CLAIMS)
def test_a_claim_is_no_guarantee_and_changes_no_row(
    run: list[Finding], claims: list[Claim]
) -> None:
    def ends(verdict: Verdict) -> list[Any]:
        return [(row.attacker, row.question, row.low, row.high) for row in verdict.rows]

    plain_, judged = judge(run), judge(run, claims=claims)
    assert ends(plain_) == ends(judged)
    case, _ = judged.headline
    assert (case == "claim") == bool(judged.false_claims)
    if case != "claim":
        assert judged.headline[0] == plain_.headline[0]


@given(RUNS, st.lists(any_claim(), max_size=4, unique=True))
def test_every_bound_that_is_used_or_may_refute_shares_the_confidence(
    run: list[Finding], claims: list[Claim]
) -> None:
    verdict = judge(run, claims=claims)
    at = verdict.delta or 0
    used = [
        f
        for f in run
        if f.kind == "lower_bound"
        and not f.is_conditional
        and ((f.delta or 0) >= at or any(claim.is_tested_by(f) for claim in claims))
    ]
    assert verdict.confidence == (pytest.approx(1 - 0.01 * len(used)) if used else None)
    assert all(one.confidence == verdict.confidence for one in verdict.claims)


# How far an audit could have seen.


def test_an_audit_of_a_weaker_attacker_is_no_audit_of_the_claims_own() -> None:
    """A server that sees single updates is stronger than one that sees their sum."""
    models, sums = bound(0.5, **MODELS), bound(0.5, sees="round sum")
    open_ = finding(kind="guarantee", value=math.inf, adjacency="replace", **SEEN)
    for found, is_testable in (
        ([sums], True),
        ([sums, open_], False),
        ([models, bound(0.3)], True),
        ([models, open_], False),
    ):
        [result] = judge(found, claims=[Claim(1.0)]).claims
        assert (result.low, result.is_testable) == (0.5, is_testable)
    assert "ε ≥ 0.5 is shown. Only weaker attackers were audited" in sentences.refutation(result)


def test_an_audit_that_could_not_have_refuted_a_claim_says_so() -> None:
    [result] = judge([bound(0.5, cap=9.0)], claims=[Claim(10.0)]).claims
    assert not result.is_testable
    said = "NOT REFUTED, which does not confirm it: ε ≥ 0.5 is shown. The audit could not have"
    assert sentences.refutation(result) == f"{said} refuted it: it can show at most ε = 9."


CANARIES = {"canaries": 60, "dim": 1000, "directions": 3}


def test_how_far_canaries_could_have_seen_is_the_power_of_their_own_audit() -> None:
    found = bound(0.5, facts=CANARIES, confidence=0.99)
    [result] = judge([found], claims=[Claim(4.0, delta=1e-6)]).claims
    about: Any = {**CANARIES, "delta": 1e-5, "confidence": 0.99}
    assert result.detectable == detectable_epsilon(4.0, **about)
    assert result.to_json()["detectable"] == result.detectable
    words = f"must deliver {labels.exactly(result.detectable)} to be refuted in 80 % of such runs."
    assert words in sentences.refutation(result)
    assert sentences.claim_worth(result).startswith("Not refuted is not confirmed. A Gaussian")
    all_in = replace(found, assumptions=(Assumption.ALL_CANARIES_PLAY,))
    [other] = judge([all_in], claims=[Claim(4.0, delta=1e-6)]).claims
    assert (
        other.detectable == detectable_epsilon(4.0, **about, has_coins=False) != result.detectable
    )
    [thrice] = judge(
        [bound(0.5, rounds=3, facts=CANARIES, confidence=0.99)],
        claims=[Claim(4.0, delta=1e-6, per="round")],
    ).claims
    assert thrice.detectable == detectable_epsilon(12.0, **about)


def test_what_no_mechanism_would_be_refuted_at_is_not_tested() -> None:
    few = bound(0.0, facts={"canaries": 2, "dim": 200, "directions": 1})
    [result] = judge([few], claims=[Claim(70.0)]).claims
    assert result.detectable == math.inf
    assert not result.is_testable
    assert "The audit could not have refuted it" in sentences.refutation(result)


def test_a_refuted_claim_and_an_audit_without_canaries_have_no_such_number() -> None:
    for found in (bound(9.0, facts=CANARIES), bound(0.5), bound(0.5, facts={"dim": "x"})):
        [result] = judge([found], claims=[Claim(4.0)]).claims
        assert result.detectable is None
        assert result.is_testable


# What is said.

LOCAL = Claim(
    10.0, per="round", source="LocalDpMod", clip_norm=1.0, delivered=2.1e8, rule="σ = 4.8e-05"
)


def test_a_refuted_claim_leads_with_claimed_delivered_and_shown() -> None:
    verdict = judge([bound(85.3, confidence=0.975), bound(0.7, **MODELS)], claims=[LOCAL])
    assert verdict.severity == "refuted"
    assert sentences.headline(verdict) == (
        "A claim of LocalDpMod is refuted: ε ≤ 10 per round is claimed against the server, and the "
        "audit shows ε ≥ 85 (92.5 % confidence). Its own parameters deliver ε = 2.1e+08."
    )
    assert "a stated limit does not hold" in sentences.protection(verdict)
    assert "more noise: it delivers ε = 2.1e+08, not ε ≤ 10 per round" in steps(verdict)[0].text


def test_composed_rounds_are_named_with_their_composition() -> None:
    found = bound(31.0, rounds=3, delta=1e-4)
    verdict = judge([found], claims=[replace(LOCAL, source="user", delivered=None), Claim(2.0)])
    assert "ε ≤ 30 in 3 rounds is claimed against the server" in sentences.headline(verdict)
    assert sentences.headline(verdict).endswith("1 more claim is refuted as well.")
    assert "3 rounds of it allow ε ≤ 30 (basic composition)" in sentences.refutation(
        verdict.claims[0]
    )


@given(RUNS, CLAIMS)
def test_nothing_that_is_said_confirms_a_claim(run: list[Finding], claims: list[Claim]) -> None:
    verdict = judge(run, claims=claims)
    for one in verdict.claims:
        words = sentences.refutation(one)
        assert words.startswith("REFUTED: ") == one.is_refuted
        if one.bound is None:
            said, cell = "NOT TESTED: no bound of this run is about it.", "NOT TESTED"
        elif not one.is_refuted:
            said, cell = "NOT REFUTED, which does not confirm it: ", "NOT REFUTED"
        else:
            said, cell = "REFUTED: ", "REFUTED"
        assert words.startswith(said)
        assert labels.cells_of_claim(one)[3] == cell


def test_claims_come_before_attackers_in_the_terminal_and_on_a_card() -> None:
    verdict = judge([bound(85.3), bound(0.7, **MODELS)], claims=[LOCAL, Claim(8, against="wire")])
    said = lines.summary(verdict)
    heads = [i for i, line in enumerate(said) if line.startswith(("CLAIM ", "ATTACKER "))]
    assert said[heads[0]].startswith("CLAIM ")
    assert len(heads) == 2
    assert all(len(line) <= 80 for line in said)
    assert any(line.split()[-2:] == ["REFUTED", "LocalDpMod"] for line in said)
    assert "ε ≤ 8 per run, wiretap: No audit here asks this question about this attacker." in said
    assert any("exact formula its parameters deliver" in line for line in lines.details(verdict))
    result = AuditResult(verdict)
    assert len(repr(result).splitlines()) <= 5
    assert repr(result).splitlines()[1].startswith("  claim ε ≤ 10 per round, server (LocalDpMod)")
    card = result._repr_html_()
    assert card.index("<th>Claim</th>") < card.index("<th>Attacker</th>")
    json.dumps(result.to_dict(), allow_nan=False)


def test_a_distorted_run_says_so_before_it_refutes() -> None:
    broken = [RunWarning.of("abandoned-rounds", 3, 3)]
    said = sentences.headline(judge([bound(85.3)], broken, claims=[LOCAL]))
    assert said.startswith("The run is distorted, so its numbers say little about a sound one. A ")


# The gate.


PROMISE = finding(kind="guarantee", value=4.0, adjacency="zero-out", delta=1e-5, **SEEN)
WIRE = Claim(8.0, against="wire")


@pytest.mark.parametrize(
    ("made", "found", "limits", "came"),
    [
        ([LOCAL], [bound(85.3)], {"claims": True}, "exceeded"),
        ([LOCAL], [bound(85.3)], {"max_epsilon": 90.0}, "exceeded"),  # asked or not
        ([], [bound(70.0)], {"max_epsilon": 79.0}, "passed"),
        ([LOCAL], [bound(3.0)], {"claims": True}, "passed"),
        ([LOCAL], [bound(3.0, cap=9.0)], {"claims": True}, "unable"),
        ([LOCAL], [bound(85.3, **ASSUMED)], {"claims": True}, "unable"),
        ([LOCAL, WIRE], [bound(3.0)], {"claims": True}, "unable"),
        ([LOCAL, WIRE], [bound(3.0)], {"claims": True, "against": "server"}, "passed"),
        ([LOCAL], [bound(3.0, cap=9.0)], {"max_epsilon": 4.0}, "passed"),
        ([], [bound(3.0)], {"claims": True}, "unable"),
        ([], [PROMISE, bound(3.0)], {"claims": True}, "passed"),  # a claim of our own
        ([], [PROMISE, bound(4.1)], {"claims": True}, "exceeded"),
    ],
)
def test_claims_pass_a_gate_only_where_each_could_have_been_refuted(
    made: list[Claim], found: list[Finding], limits: dict[str, Any], came: str
) -> None:
    assert outcome(check(judge(found, claims=made), GateLimits(**limits))) == came


def test_a_refuted_claim_fails_a_test_with_its_words() -> None:
    with pytest.raises(AssertionError, match=r"claims: exceeded\. LocalDpMod claims .* REFUTED"):
        assert_private(judge([bound(85.3)], claims=[LOCAL]), claims=True)
