"""What the page says in words is never stronger than the findings allow."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leakmeter.auditors import Finding
from leakmeter.fl_app.report.draw.forest import contradictions
from leakmeter.fl_app.report.judge.advice import advice
from leakmeter.fl_app.report.judge.verdict import Verdict, verdicts
from leakmeter.fl_app.report.read.reading import Run
from leakmeter.fl_app.report.wording import covers, number
from tests.helpers import findings

finding = partial(
    findings.finding,
    delta=1e-5,
    auditor="one-shot",
    threat_model="outsider who gets the model before and after every round",
    adjacency="zero-out",
)


def bound(value: float, **changed: Any) -> Finding:
    return finding(**({"kind": "lower_bound", "confidence": 0.95, "value": value} | changed))


def guarantee(value: float, **changed: Any) -> Finding:
    own = {"kind": "guarantee", "value": value, "auditor": "accountant", "assumptions": ("noise",)}
    return finding(**(own | changed))


OURS = ("dataset", "model", "algorithm", "secagg", "auditors", "engine")


def run(*findings: Finding, **config: Any) -> Run:
    """Return a run with some of our settings; without any it is a foreign project's."""
    named = {name.replace("_", "-"): value for name, value in config.items()}
    named = dict.fromkeys(OURS if config else (), "some") | named
    return Run("run", Path("/run"), config=named, findings=findings)


def one(*findings: Finding, **config: Any) -> tuple[Verdict, str]:
    """Return the only verdict, and all that the page says of it in one text."""
    whole = run(*findings, **config)
    [verdict] = verdicts(whole)
    todo = advice(verdict, whole, [verdict])
    said = " ".join([verdict.headline, *verdict.found, *verdict.sure, *todo])
    return verdict, said.replace("\N{NO-BREAK SPACE}", " ")


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


def test_advice_names_what_helps_against_this_observer() -> None:
    final = bound(0.5, threat_model="outsider who gets the initial and the final model")
    whole = run(bound(500.0), final, noise="none", sample=30)
    made = verdicts(whole)
    todo = " ".join(advice(made[0], whole, made))
    assert "the final model alone shows 0.5 instead of 500" in todo
    assert "--noise central" in todo
    assert "(--sample, now 30)" in todo
    _, server = one(bound(1.0, observer="server", adjacency="replace"), noise="none", secagg="off")
    assert "--noise distributed" in server
    assert "Turn secure aggregation on" in server
    _, noised = one(bound(1.0), noise="central", noise_multiplier=0.5)
    assert "More noise (--noise-multiplier, now 0.5)" in noised
    _, record = one(bound(1.0, unit="record", observer="server"), noise="wfna", wfna_floor=0.1)
    assert "Raise the floor of the noise that clients fill up (--wfna-floor, now 0.1)" in record


def test_a_floor_is_raised_only_where_noise_is_filled_up() -> None:
    _, said = one(bound(1.0, unit="record", auditor="membership"), noise="none", wfna_floor=0.0)
    assert "floor" not in said
    assert "--noise central" in said


@pytest.mark.parametrize("kind", ["lower_bound", "approximation"])
def test_more_clients_are_no_advice_where_one_data_set_is_dealt_to_all(kind: Any) -> None:
    alone = "server who sees the sum (game {}: what is new)"
    about = {"kind": kind, "observer": "server", "confidence": 0.95}
    _, dealt = one(finding(threat_model=alone.format("partition"), **about))
    _, drawn = one(finding(threat_model=alone.format("independent"), **about))
    assert "More clients" not in dealt
    assert "More clients in a round leave less of each in the sum." in drawn


def test_settings_of_another_project_are_not_named() -> None:
    _, said = one(bound(1.0))
    assert "--" not in said
    own = Run("run", Path("/run"), config={"noise": 3, "sample": 9}, findings=(bound(1.0),))
    [verdict] = verdicts(own)
    assert "--" not in " ".join(advice(verdict, own, [verdict]))


def test_an_unfinished_run_speaks_of_its_last_round() -> None:
    rounds = [bound(1.0, server_round=1), bound(0.0, server_round=2)]
    [verdict] = verdicts(Run("run", Path("/run"), findings=tuple(rounds), is_finished=False))
    assert verdict.level == "none"


def test_bounds_are_compared_with_guarantees_for_the_same_adversary_only() -> None:
    upper, lower = guarantee(1.0), bound(2.0)
    assert covers(upper, lower)
    [words] = contradictions(run(upper, lower))
    assert "an assumption of one of them does not hold" in words
    for other in (
        guarantee(1.0, observer="server"),
        guarantee(1.0, unit="record"),
        guarantee(1.0, adjacency="replace"),
    ):
        assert not covers(other, lower)
        assert contradictions(run(other, lower)) == []
    hidden = guarantee(1.0, assumptions=("the observer does not learn who took part",))
    assert covers(hidden, lower)
    assert not covers(hidden, bound(2.0, threat_model="outsider who knows who takes part"))
    # A canary has its seat for certain: no sampling hides whether it takes part.
    seated = bound(2.0, assumptions=("a canary stands for a client that takes part in 1 round",))
    assert covers(upper, seated)
    assert contradictions(run(hidden, seated)) == []
    assert contradictions(run(guarantee(2.5), lower)) == []
    assert contradictions(run(guarantee(1.0, delta=1e-3), lower)) == []  # another promise


@pytest.mark.parametrize("value", [0.62579, 586.03, 1.6749, 12345.6, 3e-5, 7.0])
def test_rounding_never_makes_a_bound_stronger(value: float) -> None:
    low, high = (number(value, 3, kind) for kind in ("lower_bound", "guarantee"))
    assert float(low.replace(",", "")) <= value <= float(high.replace(",", ""))
    assert float(low.replace(",", "")) == pytest.approx(value, rel=0.01)
    assert float(high.replace(",", "")) == pytest.approx(value, rel=0.01)
