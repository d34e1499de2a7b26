"""What a person sees: plain lines or a bar, and never a number stronger than it is."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
from rich.console import Console

from auditors import Finding
from auditors.record import RoundLine
from fl_app.config import Config
from fl_app.partition import Sizes
from fl_app.progress import Progress, brief


def finding(**changed: Any) -> Finding:
    values: dict[str, Any] = {
        "value": 1.234,
        "kind": "estimate",
        "rule": "some fit",
        "delta": 1e-5,
        "auditor": "one-shot",
        "quantity": "epsilon",
        "threat_model": "someone with the final model",
        "observer": "outsider",
        "null_band": (0.01, 0.5),
    }
    return Finding(**(values | changed))


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
        ({"kind": "guarantee"}, "ε ≤ 1.23 at δ = 1e-05"),
        ({"kind": "lower_bound", "confidence": 0.95}, "ε ≥ 1.23 at δ = 1e-05, 95% confidence"),
        ({"kind": "approximation", "delta": None}, "ε ≈ 1.23"),
        ({"value": math.inf}, "ε ≈ inf at δ = 1e-05"),
        ({"quantity": "mutual information", "delta": None}, "mutual information ≈ 1.23"),
        ({"kind": "diagnostic", "quantity": "canaries"}, "canaries: some fit"),
    ],
)
def test_the_sign_before_a_number_says_how_strong_it_is(
    changed: dict[str, Any], words: str
) -> None:
    assert brief(finding(**changed)) == words


def test_elsewhere_than_in_a_terminal_there_are_plain_lines_only() -> None:
    text = shown(terminal=False)
    assert "\x1b" not in text
    assert "\r" not in text
    assert text.splitlines()[:5] == [
        "digits, mlp with 17,610 parameters",
        "60 clients (23 to 24 records a client, median 24); each round 30 honest ones and 10 "
        "canary seats; fedavg clients, fedavg server",
        "auditors: one-shot; engine inline, seed 0",
        "round   1/2  accuracy 0.500  one-shot ε ≈ 1.23 at δ = 1e-05",
        "round   2/2  accuracy 0.500  one-shot ε ≈ 1.23 at δ = 1e-05",
    ]


def test_a_terminal_shows_a_bar_and_the_same_lines() -> None:
    text = shown(terminal=True)
    assert "\x1b" in text
    assert "2/2" in text
    assert "━" in text
    assert "round   2/2  accuracy 0.500  one-shot ε ≈ 1.23 at δ = 1e-05" in text


def test_a_resumed_run_says_where_it_goes_on() -> None:
    assert "going on after round 1 of 2" in shown(terminal=False, resumed=1)
    assert "going on" not in shown(terminal=False)


def test_the_summary_shows_what_the_run_says_with_its_adversary_and_its_null_band() -> None:
    text = shown(terminal=False)
    assert "What the whole run leaks" in text
    for words in ("someone with the final model", "ε ≈ 1.23", "at δ = 1e-05", "0.01 to 0.50"):
        assert words in text
    assert "one-shot, estimate: some fit" in text
    assert "not of the run" not in text
    assert "an auditor failed and was left out: x, report: y" in text


def test_the_summary_fits_an_ordinary_terminal() -> None:
    table = shown(terminal=False, width=80).partition("What the whole run leaks")[2]
    rows = [line for line in table.splitlines() if line.startswith("│")]
    assert rows
    assert all(len(line) <= 80 for line in rows)
    assert any("ε ≈ 1.23" in line for line in rows)


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
    assert "one-shot, diagnostic: too few canaries" in file.getvalue()
    assert "≈" not in file.getvalue()


def test_stopping_twice_does_no_harm() -> None:
    progress = Progress(Console(file=io.StringIO(), force_terminal=True))
    progress.begin(Config(), 1, Sizes(1, 1.0, 1), 0)
    progress.stop()
    progress.stop()
