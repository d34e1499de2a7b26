"""What a person sees: plain lines or a bar, and never a number stronger than it is."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from rich.console import Console

from leakmeter.auditors import Finding
from leakmeter.auditors.run_log import RoundLine
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.data.partition import Sizes
from leakmeter.fl_app.run.progress import Progress, brief, pace
from tests.helpers import findings

finding = partial(
    findings.finding,
    value=1.234,
    rule="some fit",
    delta=1e-5,
    auditor="one-shot",
    threat_model="someone with the final model",
    null_band=(0.01, 0.5),
)


def shown(*, terminal: bool, resumed: int = 0, width: int = 150) -> str:
    """Return what two rounds and a summary look like."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=width, highlight=False)
    progress = Progress(console)
    progress.begin(Config(rounds=2), 17_610, Sizes(23, 24.0, 24), resumed)
    for server_round in range(resumed + 1, 3):
        line = RoundLine(server_round, 40, {"accuracy": 0.5}, (finding(server_round=server_round),))
        progress.round(line)
    progress.summary([finding(server_round=1, rule="not of the run"), finding()], ["x, report: y"])
    return file.getvalue()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "ε ≈ 1.23 at δ = 1e-05"),
        ({"kind": "guarantee"}, "ε ≤ 1.24 at δ = 1e-05"),
        ({"kind": "lower_bound", "confidence": 0.95}, "ε ≥ 1.23 at δ = 1e-05, 95% confidence"),
        ({"kind": "guarantee", "value": math.inf}, "ε ≤ ∞, no guarantee at δ = 1e-05"),
        ({"kind": "approximation", "delta": None}, "ε ≈ 1.23"),
        ({"value": math.inf}, "ε ≈ inf at δ = 1e-05"),
        ({"quantity": "mutual information", "delta": None}, "mutual information ≈ 1.23"),
        ({"kind": "diagnostic", "quantity": "canaries"}, "canaries: some fit"),
        (
            {"kind": "guarantee", "quantity": "clients in a sum", "value": 40.0, "delta": None},
            "clients in a sum: 40, guaranteed",  # no sign: more of them is better
        ),
    ],
)
def test_the_sign_before_a_number_says_how_strong_it_is(
    changed: dict[str, Any], words: str
) -> None:
    assert brief(finding(**changed)) == words


def test_rounding_makes_no_bound_and_no_confidence_stronger() -> None:
    lower = brief(finding(kind="lower_bound", value=0.629, confidence=0.9983))
    assert "≥ 0.62 " in lower
    assert "99.83% confidence" in lower  # and not 100%
    assert "≤ 1.25 " in brief(finding(kind="guarantee", value=1.241))
    assert "≥ 0.29 " in brief(finding(kind="lower_bound", value=0.29, confidence=0.95))
    assert "≥ inf " in brief(finding(kind="lower_bound", value=math.inf, confidence=0.95))


def test_elsewhere_than_in_a_terminal_there_are_plain_lines_only() -> None:
    text = shown(terminal=False)
    assert "\x1b" not in text
    assert "\r" not in text
    assert text.splitlines()[:5] == [
        "digits, mlp with 17,610 parameters",
        "60 clients (23 to 24 records a client, median 24); each round 30 honest ones and 10 "
        "canary seats; fedavg clients, fedavg server",
        "auditors: one-shot, likelihood-ratio, mutual-information; engine inline, seed 0",
        "round   1/2  accuracy 0.500  one-shot ε ≈ 1.23 at δ = 1e-05",
        "round   2/2  accuracy 0.500  one-shot ε ≈ 1.23 at δ = 1e-05",
    ]


def test_a_terminal_shows_a_bar_and_the_same_lines() -> None:
    text = shown(terminal=True)
    assert "\x1b" in text
    assert "2/2" in text
    assert "━" in text
    assert "round   2/2  accuracy 0.500  one-shot ε ≈ 1.23 at δ = 1e-05" in text


def test_a_terminal_shows_the_pace_and_the_time_left() -> None:
    file, now = io.StringIO(), [0.0]
    console = Console(file=file, force_terminal=True, width=150, get_time=lambda: now[0])
    progress = Progress(console)
    progress.begin(Config(rounds=40), 17_610, Sizes(23, 24.0, 24), 10)
    assert " left" not in file.getvalue()  # nothing is known yet
    for server_round in (11, 12):
        now[0] += 100.0  # longer than rich remembers by itself
        progress.round(RoundLine(server_round, 40, {}, ()))
        progress.audit("fit", 0.5)
    progress.stop()
    assert "12/40" in file.getvalue()
    assert "100 s a round, 0:46:40 left" in file.getvalue()
    assert "audit: fit 50%" in file.getvalue()


@pytest.mark.parametrize(
    ("done", "took", "since", "left", "words"),
    [
        (0, 0.0, 9.0, 30, ""),
        (1, 0.0, 0.0, 30, ""),
        (10, 2.5, 0.0, 20, "4 rounds/s, 0:00:05 left"),
        (2, 60.0, 10.0, 3, "30 s a round, 0:01:20 left"),
        (2, 60.0, 500.0, 3, "30 s a round, 0:00:00 left"),
    ],
)
def test_the_pace_is_that_of_whole_rounds(
    done: int, took: float, since: float, left: int, words: str
) -> None:
    assert pace(done, took, since, left) == words


def test_a_resumed_run_says_where_it_goes_on() -> None:
    assert "going on after round 1 of 2" in shown(terminal=False, resumed=1)
    assert "going on" not in shown(terminal=False)


def summary(*findings: Finding, failures: Sequence[str] = (), width: int = 100) -> str:
    """Return the summary alone."""
    file = io.StringIO()
    Progress(Console(file=file, width=width, highlight=False)).summary(findings, failures)
    return file.getvalue()


def bound(**changed: Any) -> Finding:
    values = {"kind": "lower_bound", "confidence": 0.95, "null_band": None}
    return finding(**(values | changed))


def test_the_summary_shows_what_the_run_says_with_its_adversary_and_its_null_band() -> None:
    text = shown(terminal=False)
    assert "What the whole run leaks" in text
    assert "\nsomeone with the final model\n" in text
    assert "  ε ≈ 1.23 at δ = 1e-05 (one-shot: some fit; without a leak 0.01 to 0.50)\n" in text
    assert "not of the run" not in text
    assert "All findings, with their assumptions, are in report.json." in text
    assert "not audited as planned: x, report: y" in text


def test_each_adversary_has_one_block_and_each_kind_its_sign() -> None:
    guarantee = finding(
        kind="guarantee", value=8.0, auditor="accountant", rule="composed", null_band=None
    )
    text = summary(
        finding(adjacency="zero-out"),
        bound(threat_model="someone else", value=0.5),
        bound(adjacency="zero-out", value=0.7, assumptions=("scores are independent", "b")),
        replace(guarantee, adjacency="zero-out"),
        guarantee,
    )
    blocks = [part.splitlines() for part in text.split("\n\n")]
    assert blocks[1] == [
        "someone with the final model [zero-out, client]",
        "  ε ≈ 1.23 at δ = 1e-05 (one-shot: some fit; without a leak 0.01 to 0.50)",
        "  ε ≥ 0.70 at δ = 1e-05, 95% confidence (one-shot: some fit; assuming that",
        "      scores are independent)",
        "  ε ≤ 8.00 at δ = 1e-05 (accountant: composed)",
    ]
    assert blocks[2][0] == "someone else"
    # Another adjacency is another comparison, even for the same adversary.
    assert blocks[3] == [
        "someone with the final model",
        "  ε ≤ 8.00 at δ = 1e-05 (accountant: composed)",
    ]


def test_guarantees_follow_what_was_measured_for_the_same_observer() -> None:
    text = summary(
        finding(),
        finding(observer="server", threat_model="the server itself"),
        finding(kind="guarantee", threat_model="someone with all models", null_band=None),
    )
    order = [text.index(who) for who in ("the final model", "with all models", "server itself")]
    assert order == sorted(order)


def test_of_several_bounds_the_first_is_shown_and_not_the_largest() -> None:
    text = summary(
        bound(value=1.0, rule="first (in long words)"), bound(value=9.0), bound(value=5.0)
    )
    assert "ε ≥ 1.00 at δ = 1e-05, 95% confidence (one-shot: first)" in text
    assert "9.00" not in text
    assert "and 2 more lower bounds, by other methods" in text
    others = summary(bound(value=1.0), bound(value=9.0, auditor="other"))
    assert "9.00" in others  # another auditor has its own
    assert "more lower bound" not in others


def test_weaker_kinds_are_named_where_they_share_a_sign() -> None:
    assert "ε ≈ 1.23 at δ = 1e-05 (one-shot: approximation: some fit" in summary(
        finding(kind="approximation")
    )
    # A credible limit is an estimate, and its rule says so in full.
    text = summary(finding(rule="Jeffreys limits (credible 0.95, not a confidence bound)"))
    assert "ε ≈" in text
    assert "not a confidence bound" in " ".join(text.split())


def test_diagnostics_stay_in_the_report_beside_numbers() -> None:
    text = summary(finding(), finding(kind="diagnostic", quantity="interference", rule="crowd"))
    assert "crowd" not in text


def test_the_summary_fits_an_ordinary_terminal() -> None:
    long = "an adversary who " + "and ".join(["sees all that there is to see "] * 6)
    for width in (80, 200):
        text = summary(
            finding(threat_model=long, rule="a rule of many words " * 8),
            bound(threat_model=long, rule="a rule of many words " * 8),
            width=width,
        )
        assert max(map(len, text.splitlines())) <= 80
        assert "ε ≈ 1.23" in text


def test_square_brackets_are_text_and_no_markup() -> None:
    file = io.StringIO()
    Progress(Console(file=file, width=200)).summary(
        [finding(threat_model="sees [bold] and [/x]")], ["failed with [1, 2]"]
    )
    assert "sees [bold] and [/x]" in file.getvalue()
    assert "failed with [1, 2]" in file.getvalue()


def test_a_finding_that_says_nothing_shows_no_number() -> None:
    file = io.StringIO()
    nothing = finding(kind="diagnostic", value=0.0, rule="too few canaries", null_band=None)
    Progress(Console(file=file, width=100)).summary([nothing], [])
    assert "  one-shot: too few canaries\n" in file.getvalue()
    assert "ε ≈" not in file.getvalue()


def test_stopping_twice_does_no_harm() -> None:
    progress = Progress(Console(file=io.StringIO(), force_terminal=True))
    progress.begin(Config(), 1, Sizes(1, 1.0, 1), 0)
    progress.stop()
    progress.stop()
