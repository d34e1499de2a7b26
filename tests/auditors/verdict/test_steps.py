"""Any project gets at most three steps in words, the most useful first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leakmeter.auditors import Finding
from leakmeter.auditors.verdict.steps import MAX_STEPS, steps
from leakmeter.auditors.verdict.verdict import judge
from tests.fl_app.report.judge.makers import CANARY, bound, guarantee


def said(*found: Finding) -> list[str]:
    return [step.text.replace("\N{NO-BREAK SPACE}", " ") for step in steps(judge(found))]


def test_a_leak_is_cured_before_fewer_models_are_released() -> None:
    words = said(bound(87.0, sees="all models"), bound(7.3, sees="final model"))
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
        "Give the audit more to see: more rounds, canary seats or trials.",
        "Bound every such attacker: add noise and account for it (Noised).",
    ]
    assert said(bound(0.0), guarantee(3.0)) == said(bound(0.0))[:1]
