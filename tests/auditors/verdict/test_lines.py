"""Any project gets at most three steps in words, the most useful first."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from leakmeter.auditors import Finding, ThreatModel
from leakmeter.auditors.finding import RunWarning, WarningKind
from leakmeter.auditors.verdict import labels
from leakmeter.auditors.verdict.lines import MAX_STEPS, Ending, NextStep, details, steps, summary
from leakmeter.auditors.verdict.verdict import judge
from tests.fl_app.report.makers import CANARY, bound, finding, guarantee


def said(*found: Finding) -> list[str]:
    return [step.text.replace("\N{NO-BREAK SPACE}", " ") for step in steps(judge(found))]


def test_a_leak_is_cured_before_fewer_models_are_released() -> None:
    busy = {"client_rounds": 1}
    words = said(bound(87.0, sees="all models"), bound(7.3, sees="final model", facts=busy))
    assert words[0].startswith("Clip updates and add noise before a release: Noised")
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
        "Bound every such attacker: add noise and account for it, "
        "Noised (docs/noise-and-accounting.md).",
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
    audited = steps(few, [20, 20, 20], "audit")[0]
    assert "ε may come out smaller; that is not more privacy." in audited.text
    assert audited.command == "--seats 8"
    assert steps(few)[0] == NextStep("Play more canaries, in more seats.")
    assert few.warnings[0].text.count("OneShotCanaries(seats=…)") == 1


def test_more_canaries_leave_a_majority_of_honest_clients() -> None:
    few = judge([bound(0.0)], [RunWarning.of("few-canaries", 2, 6)])
    small = NextStep("Play more canaries over num_rounds=7:", "OneShotCanaries(seats=3)")
    assert steps(few, [7, 8, 6])[0] == small
    most = NextStep("Play more canaries over num_rounds=10:", "OneShotCanaries(seats=2)")
    assert steps(few, [3, 3, 3])[0] == most  # as many seats as now


HEADS = "ATTACKER"


def table(*found: Finding) -> list[str]:
    """Return the lines of the table, below its heads."""
    lines = summary(judge(found))
    start = next(i for i, line in enumerate(lines) if line.startswith(HEADS))
    return lines[start + 1 : lines.index("", start)]


def test_a_table_that_is_too_wide_loses_spaces_from_the_right_on() -> None:
    own = guarantee(0.00655, threat_model=replace(CANARY, holds=None))
    [row] = table(bound(0.00545), own)[:1]
    assert row == "outsider, every model  if an update was sent ε ≥ 0.00545 ε ≤ 0.00655 proven 95 %"


def test_whose_bound_a_row_has_is_marked() -> None:
    rows = table(bound(5.0, threat_model=replace(CANARY, sees="final model")), bound(0.6))
    assert rows[0].endswith("proven 90 %")
    assert rows[1].endswith("proven 90 %*")
    assert "* shown by an attacker who learns no more than this one" in rows
    assert not any("no more than this" in line for line in table(bound(5.0)))


def bits(value: float, **changed: Any) -> Finding:
    own = {"quantity": "mutual information", "kind": "approximation", "adjacency": None}
    return finding(**(own | {"value": value, "auditor": "mutual-information"} | changed))


def test_bits_have_a_table_of_their_own_below_that_of_epsilon() -> None:
    """Units are never ordered against each other."""
    found = bits(900.0), bound(0.1), guarantee(math.inf, observer="server")
    starts = ("outsider, every model", "server, noised sums")
    rows = table(*found)
    assert all(line.startswith(who) for line, who in zip(rows, starts, strict=False))
    assert not any("900" in line for line in rows)
    lines = summary(judge(found))
    start = next(i for i, line in enumerate(lines) if line.startswith("IN BITS"))
    assert lines[start - 1] == "" == lines[start + 2]
    assert re.split("  +", lines[start + 1]) == [
        *("outsider, every model", "part of an update", "≈ 900", "no bound"),
        "model, sum of 1 round",
    ]


@pytest.mark.parametrize(
    ("changed", "rounds"),
    [
        ({"threat_model": replace(CANARY, participations=19)}, "sum of 19 rounds"),
        ({"threat_model": replace(CANARY, participations=None)}, "per round"),
        ({"quantity": "information about the data over all rounds"}, "1 round together"),
    ],
)
def test_a_figure_in_bits_says_whether_it_is_a_sum_over_rounds(
    changed: dict[str, Any], rounds: str
) -> None:
    found = bits(3.71, **changed)
    assert [line for line in summary(judge([found])) if line.endswith(f"model, {rounds}")]
    assert any(f"; {rounds}" in line for line in details(judge([found])))


def test_a_bound_on_bits_is_in_their_table_where_nothing_was_measured() -> None:
    theirs = bits(12.31, kind="guarantee", threat_model=replace(CANARY, participations=20))
    [row] = labels.in_bits(judge([theirs]))
    assert row[1:] == ("all of an update", "not measured", "≤ 12.4", "theorem, sum of 20 rounds")
    [row] = labels.in_bits(judge([theirs, bits(0.5)]))
    assert row[1:4] == ("part of an update", "≈ 0.5", "≤ 12.4")


def test_a_run_without_attackers_has_no_table_and_what_is_wrong_comes_last() -> None:
    lines = summary(judge([], [RunWarning.of("dropouts", 9, 10)]), ["x: y"], Ending())
    assert not any(line.startswith(HEADS) for line in lines)
    assert "Not audited as planned: x: y" in lines
    assert lines[-1] == "NEXT  Fix what the warnings name, then run again."
    ends: dict[str, list[Finding]] = {
        "No further step is known.": [],
        "Nothing to do.": [guarantee(8.0)],
    }
    for words, found in ends.items():
        assert summary(judge(found), (), Ending())[-1] == f"NEXT  {words}"
    [first, *_] = steps(judge([]))
    assert first.command == "OneShotCanaries(seats=4)"


def test_noise_that_is_longer_than_a_mean_update_is_said_to_hurt() -> None:
    for parameters, is_bad in ((100, False), (100_000, True)):
        [first, *_] = steps(judge([bound(9.0)]), [30] * 3, parameters=parameters)
        assert "times the mean update" in first.text
        assert ("the model is likely to suffer" in first.text) == is_bad


def test_lines_keep_to_the_width_of_the_terminal() -> None:
    found = [bound(5.0), guarantee(9.0)]
    noised = ThreatModel(observer="outsider", sees="noised sum", knows_cohort=True)
    wide = [bound(0.0569, threat_model=noised), guarantee(20.93, adjacency="replace")]
    for width in range(60, 121, 10):
        for one in (found, [*wide, bits(0.0594, threat_model=replace(CANARY, participations=19))]):
            for is_ascii in (False, True):
                lines = summary(judge(one), (), Ending(width=width, is_ascii=is_ascii))
                assert max(map(len, lines)) <= width
                assert "which of two updates" in " ".join(lines) or one is found
    assert len(summary(judge(found), (), Ending(width=120))) < len(summary(judge(found)))


def test_a_remark_is_in_the_details_only_where_nothing_else_is_said_of_its_attacker() -> None:
    remark = finding(kind="diagnostic", quantity="interference", rule="a crowd", adjacency=None)
    assert "  one-shot: a crowd" in details(judge([remark]))
    assert "  one-shot: a crowd" not in details(judge([remark, bound(1.0)]))
