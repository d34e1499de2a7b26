"""What the page says about one row in words is never stronger than its findings allow."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from leakmeter.auditors.verdict.sentences import draws_of, leading_findings, numbers_of
from leakmeter.auditors.verdict.verdict import Block, Row, judge
from leakmeter.auditors.wording import Assumption
from tests.fl_app.report.judge.makers import CANARY, bound, conditional, finding, guarantee, one

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


def test_a_guarantee_is_the_other_end_of_a_row_whose_bound_has_a_condition() -> None:
    _, said = one(conditional(5.5), guarantee(3.0))
    assert said.startswith("nothing shown … ε ≤ 3 guaranteed")


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


def test_nothing_shown_is_not_private() -> None:
    _, said = one(bound(0.0, cap=2.0))
    assert said.startswith(f"nothing {SHOWN}")
    assert "This audit does not prove more than chance." in said
    assert "not a proof of privacy" in said
    assert "the audit can show at most 2" in said
    assert "at least" not in said
    assert "trials" not in said.split("To let")[0]  # canaries have none


def test_nothing_shown_is_not_read_as_a_number() -> None:
    _, said = one(bound(0.0, cap=2.0), guarantee(3.0))
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


def test_a_bound_is_not_set_against_an_estimate_that_reads_the_same() -> None:
    assert "the two methods differ" not in one(finding(value=1.0), bound(1.001))[1]


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
