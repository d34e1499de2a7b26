"""What the page says in words is never stronger than the findings allow."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.finding import RunWarning
from leakmeter.auditors.judge.standing import headline, standings
from leakmeter.auditors.judge.verdict import judged
from leakmeter.fl_app.report.judge.of_run import verdicts
from leakmeter.fl_app.report.read import Run
from tests.fl_app.report.judge.makers import CANARY, bound, conditional, finding, guarantee, one


def test_a_lower_bound_is_at_least() -> None:
    verdict, said = one(bound(0.6257, assumptions=(Assumption.FAIR_COINS, Assumption.KNOWN_NULL)))
    assert verdict.level == "leak"
    assert "Gives away whether a client sent its update or nothing: ε ≥ 0.625" in said
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
    verdict, said = one(conditional(5.5))
    assert verdict.level == "conditional"
    assert verdict.headline.startswith(f"If {condition}, it gives away whether")
    assert f"If {condition}: ε ≥ 5.5 at δ" in said
    assert "Then, starting from 50:50," in said
    # Beside one that needs no condition it is not the headline, however large.
    verdict, said = one(conditional(5.5), bound(0.5), guarantee(3.0))
    assert verdict.level == "leak"
    assert "ε ≥ 0.5 shown … ε ≤ 3 guaranteed" in verdict.headline.replace("\xa0", " ")
    assert "5.5" not in said
    verdict, _ = one(conditional(5.5), bound(0.0))
    assert verdict.level == "none"
    # A sentence of another project in place of a name has not been checked either.
    verdict, said = one(bound(5.5, assumptions=("my clients are honest.",)))
    assert verdict.level == "conditional"
    assert "If my clients are honest: ε ≥ 5.5" in said


def test_a_conditional_bound_is_not_set_against_a_guarantee() -> None:
    found = judged([conditional(5.5), guarantee(3.0)])
    assert [v.level for v in found] == ["conditional", "bounded"]
    assert "guaranteed" not in found[0].headline


def test_above_20_an_attacker_is_practically_certain() -> None:
    _, said = one(bound(586.03))
    assert "ε ≥ 580 (practically certain)" in said
    assert "586" not in said
    assert "some outcomes make the attacker practically certain" in said
    _, said = one(finding(value=362.4, null_band=(0.1, 0.5)))
    assert "ε ≈ 360 (practically certain if right)" in said
    verdict, said = one(guarantee(344.5))
    assert "ε ≤ 350 (promises practically nothing)" in said
    assert verdict.level == "open"  # no green badge


def test_a_saturated_bound_could_not_have_shown_more() -> None:
    _, said = one(bound(1.0, cap=1.0, saturated=True, auditor="likelihood-ratio"), lrt_trials=60)
    assert "these samples cannot show more than 1, so the truth may be far above" in said
    assert "give it more trials (--lrt-trials, now 60)" in said


def test_nothing_shown_is_not_private() -> None:
    verdict, said = one(bound(0.0, cap=2.0))
    assert verdict.level == "none"
    assert "No leak shown" in said
    assert "not a proof of privacy" in said
    assert "the audit can show at most 2" in said
    assert "at least" not in said


def test_nothing_shown_is_not_read_as_a_number() -> None:
    verdict, said = one(bound(0.0, cap=2.0), guarantee(3.0))
    assert verdict.headline.replace("\xa0", " ") == "No leak shown; ε ≤ 3 guaranteed"
    assert "ε ≥ 0 shown" not in said
    assert "This audit does not prove more than chance." in said
    assert "trials" not in said.split("To let")[0]  # canaries have none


def test_a_method_that_could_show_nothing_says_so() -> None:
    """With a large δ, canaries with p-values of e^−88 prove ε ≥ 0."""
    facts = {"median_score": 88.7}
    blind = bound(0.0, cap=0.0, saturated=True, delta=0.01, facts=facts)
    verdict, said = one(blind, delta=0.01, canary_seats=40)
    assert verdict.level == "unable"
    assert verdict.headline == "This audit cannot show anything"
    assert "With this δ and these samples it cannot show anything, whatever leaks." in said
    assert "smaller δ (--delta, now 0.01) or fewer canaries (--canary-seats, now 40)" in said
    assert "more canaries" not in said
    assert "No leak shown" not in said
    assert one(blind, finding(value=9.0, null_band=(0.0, 1.0), delta=0.01))[0].level == "hint"
    assert one(blind, bound(0.0, cap=1.0, auditor="other"))[0].level == "none"


@pytest.mark.parametrize(
    ("value", "level", "where"),
    [(0.4, "none", "in"), (0.6, "hint", "above"), (0.05, "none", "below")],
)
def test_an_estimate_is_read_beside_its_null_band(value: float, level: str, where: str) -> None:
    verdict, said = one(finding(value=value, null_band=(0.1, 0.5)))
    assert verdict.level == level
    assert f"Without a leak, 90 % of audits say 0.1 to 0.5; this is {where} that range." in said
    assert "Estimates carry no confidence" in said
    assert "Gives away" not in said
    assert "≥" not in said


def test_an_estimate_without_a_null_band_suggests_nothing() -> None:
    verdict, said = one(finding(value=50.0))
    assert verdict.level == "none"
    assert "what the method says without a leak is not known" in said


def test_a_bound_above_its_own_estimate_is_explained() -> None:
    estimate = finding(value=1.0, assumptions=(Assumption.GAUSSIAN_COSINES,))
    _, said = one(estimate, bound(2.0))
    assert "ε ≥ 2 is above the estimate ε ≈ 1: the two methods differ." in said
    assert f"The estimate alone assumes that {Assumption.GAUSSIAN_COSINES.sentence}." in said
    for other in (finding(value=3.0), finding(delta=1e-3), finding(auditor="other")):
        assert "the two methods differ" not in one(other, bound(2.0))[1]


def test_a_bound_is_not_set_against_an_estimate_that_reads_the_same() -> None:
    assert "the two methods differ" not in one(finding(value=1.0), bound(1.001))[1]
    prose = [replace(f, threat_model=replace(CANARY, sees=None)) for f in (finding(), bound(2.0))]
    assert "the two methods differ" not in one(*prose)[1]


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
    assert "ε ≤ 1 at δ = 1e-05, at most 10 rounds per client." in said
    assert "chance q in one world has a chance of at most 2.72·q + 1e-05 in the other" in said
    assert f"proven and assumes that {Assumption.EQUAL_WEIGHTS.sentence}" in said
    assert "promises little" in one(guarantee(15.0))[1]


def test_no_finite_guarantee_is_said_as_such() -> None:
    verdict, said = one(guarantee(math.inf, observer="server"), noise="central")
    assert verdict.level == "open"
    assert "No finite ε is guaranteed" in said
    assert "does not protect against the server" in said
    assert "proven" not in said
    server = replace(CANARY, observer="server")
    verdict, said = one(bound(1.0, threat_model=server), guarantee(math.inf, observer="server"))
    assert "ε ≥ 1 shown … no finite ε is guaranteed" in said
    assert "is guaranteed guaranteed" not in said


def test_a_count_that_is_guaranteed_bounds_no_leakage() -> None:
    counts: dict[str, Any] = {"delta": None, "adjacency": None, "value": 1234.0}
    quantity = "honest clients in the smallest sum"
    verdict, said = one(finding(kind="guarantee", quantity=quantity, **counts))
    assert verdict.level == "count"
    assert verdict.headline == "Honest clients in the smallest sum: 1,234, guaranteed"
    assert "does not bound what the sum itself reveals" in said
    assert "≤" not in said
    bits, _ = one(finding(kind="guarantee", quantity="mutual information", **counts))
    assert bits.level == "bounded"  # of leakage indeed


def test_of_several_bounds_the_first_is_the_headline() -> None:
    verdict, said = one(bound(1.0), bound(9.0), bound(5.0))
    assert verdict.headline.endswith("1")
    assert "9" not in said.replace("95 %", "")
    assert "2 more lower bounds by other methods" in said


def test_diagnostics_alone_give_their_reason_and_no_number() -> None:
    verdict, said = one(finding(kind="diagnostic", rule="too few canaries took part", value=7.0))
    assert verdict.level == "silent"
    assert "Observations only; this is not evidence of privacy" in said
    assert "Too few canaries took part." in said
    assert "7" not in said


def test_a_certain_separation_is_a_leak_that_was_seen() -> None:
    facts = {"draws": 300, "confidence": 0.95, "largest chance": 0.01}
    certain = finding(
        kind="diagnostic",
        quantity="certain separation",
        adjacency="replace",
        value=1.0,
        facts=facts,
        rule="the others sent the same",
        delta=None,
    )
    verdict, said = one(certain)
    assert verdict.level == "seen"
    assert verdict.headline == (
        "Gave away which of two updates a client sent in all 300 draws: with 95 % confidence, the "
        "chance of an exception is at most 1 %"
    )
    assert "The others sent the same." in said
    assert "not evidence of privacy" not in said
    found = judged([bound(1.0), certain, conditional(1.0, observer="server")])
    assert [v.level for v in found] == ["leak", "seen", "conditional"]
    assert one(certain, bound(0.0, adjacency="replace"))[0].level == "seen"
    assert one(replace(certain, value=0.0))[0].level == "silent"


def test_what_needs_something_done_comes_first() -> None:
    found = judged(
        [
            guarantee(3.0, observer="wire"),
            finding(kind="approximation", holds="record"),
            bound(0.0, sees="final model"),
            bound(2.0),
            conditional(2.0, observer="server"),
        ]
    )
    assert [v.level for v in found] == ["leak", "conditional", "none", "model", "bounded"]


def test_an_unfinished_run_speaks_of_its_last_round() -> None:
    rounds = [bound(1.0, server_round=1), bound(0.0, server_round=2)]
    [verdict] = verdicts(Run("run", Path("/run"), findings=tuple(rounds), is_finished=False))
    assert verdict.level == "none"


@pytest.mark.parametrize(
    ("kind", "count", "distorted"),
    [
        ("clipped-coordinates", 2, True),
        ("clipped-coordinates", 1, False),
        ("non-finite-updates", 2, True),
        ("non-finite-updates", 1, False),  # one client must not be able to discredit an audit
        ("abandoned-rounds", 51, True),
        ("abandoned-rounds", 50, False),
        ("clipped-updates", 100, False),
        ("dropouts", 90, False),
        ("few-canaries", 1, False),
    ],
)
def test_a_damaged_run_is_called_distorted(kind: Any, count: int, distorted: bool) -> None:
    said = headline(standings(judged([bound(1.0)])), [RunWarning.of(kind, count, 100)])
    assert ("distorted" in said) is distorted
    assert "at least 73.1 % sure" in said


def test_no_findings_are_no_evidence() -> None:
    assert headline([]) == "The audit has no result. This is not evidence of privacy."
