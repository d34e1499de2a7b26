"""Any project gets at most three steps in words, the most useful first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leakmeter.auditors import Finding
from leakmeter.auditors.finding import RunWarning, WarningKind
from leakmeter.auditors.verdict.lines import MAX_STEPS, NextStep, steps
from leakmeter.auditors.verdict.verdict import judge
from tests.fl_app.report.judge.makers import CANARY, bound, guarantee


def said(*found: Finding) -> list[str]:
    return [step.text.replace("\N{NO-BREAK SPACE}", " ") for step in steps(judge(found))]


def test_a_leak_is_cured_before_fewer_models_are_released() -> None:
    busy = {"client_rounds": 1}
    words = said(bound(87.0, sees="all models"), bound(7.3, sees="final model", facts=busy))
    assert words[0] == "Clip updates and add noise before a model is released (Noised)."
    assert words[1] == "Release only the final model; less is shown in it (no proof of less)."
    assert len(words) <= MAX_STEPS


@pytest.mark.parametrize(("every", "final"), [(87.0, 27.0), (5.0, 4.8), (3.0, 3.0), (2.0, 9.0)])
def test_numbers_that_say_the_same_are_no_reason_to_release_less(
    every: float, final: float
) -> None:
    words = said(bound(every, sees="all models"), bound(final, sees="final model"))
    assert not any("final model" in one for one in words)


@pytest.mark.parametrize(
    ("sees", "words"),
    [("updates", "wrap the strategy in Masked"), ("round sum", "Let clients clip and add noise")],
)
def test_what_helps_depends_on_what_the_server_sees(sees: str, words: str) -> None:
    server = replace(CANARY, observer="server", sees=sees)  # type: ignore[arg-type]
    assert words in said(bound(2.0, threat_model=server))[0]


def test_where_nothing_is_shown_the_audit_gets_more_to_see() -> None:
    assert said(bound(0.0)) == [
        "Give the audit more to see: more rounds (num_rounds), canaries "
        "(OneShotCanaries(seats=…)) or trials (SampleBudget(trials=…)).",
        "Bound every such attacker: add noise and account for it (Noised).",
    ]
    assert said(bound(0.0), guarantee(3.0)) == said(bound(0.0))[:1]


def warned(*kinds: WarningKind, count: int = 1, total: int = 100) -> list[NextStep]:
    """Return what to do about a run with a leak and with warnings."""
    warnings = [RunWarning.of(kind, count, total) for kind in kinds]
    return steps(judge([bound(9.0, sees="all models")], warnings))


@pytest.mark.parametrize("kind", ["abandoned-rounds", "dropouts", "blank-updates"])
def test_where_clients_failed_they_come_first(kind: WarningKind) -> None:
    first, *others = warned(kind)
    assert first.text.startswith("Find ")
    assert "log" in first.text
    assert any("noise" in one.text for one in others)


def test_a_run_that_is_no_longer_sound_is_mended_and_nothing_else() -> None:
    words = [one.text for one in warned("abandoned-rounds", "blank-updates", count=90)]
    assert words == [
        "Find out why rounds were abandoned: the log has the reason of each.",
        "Find the clients whose training failed: their own logs say why.",
        "Lower the clients' learning rate.",
    ]


def test_few_canaries_become_more_by_a_line_of_python() -> None:
    few = judge([bound(0.0)], [RunWarning.of("few-canaries", 2, 6)])
    first, *others = steps(few, [20, 20, 20])  # so there were two seats
    assert first == NextStep("Play more canaries:", "OneShotCanaries(seats=8)")
    assert not any("canaries" in one.text for one in others)
    audited = NextStep("Play more canaries; add to the command:", "--seats 8")
    assert steps(few, [20, 20, 20], "audit")[0] == audited
    assert steps(few)[0] == NextStep("Play more canaries, in more seats or rounds.")
    assert few.warnings[0].text.count("OneShotCanaries(seats=…)") == 1


def test_more_canaries_leave_a_majority_of_honest_clients() -> None:
    few = judge([bound(0.0)], [RunWarning.of("few-canaries", 2, 6)])
    small = NextStep("Play more canaries over num_rounds=7:", "OneShotCanaries(seats=3)")
    assert steps(few, [7, 8, 6])[0] == small
    most = NextStep("Play more canaries over num_rounds=10:", "OneShotCanaries(seats=2)")
    assert steps(few, [3, 3, 3])[0] == most  # as many seats as now
