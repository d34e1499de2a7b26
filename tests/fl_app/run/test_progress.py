"""What a person sees: plain lines or a bar, and never a number stronger than it is."""

from __future__ import annotations

import io
import logging
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from rich.console import Console

from leakmeter.auditors import Finding, ThreatModel
from leakmeter.auditors.finding import Limitation, RunWarning, Sees
from leakmeter.auditors.run_log import RoundLine
from leakmeter.auditors.verdict.lines import Ending, NextStep, brief, details
from leakmeter.auditors.verdict.verdict import judge
from leakmeter.auditors.wording import Assumption
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.data.partition import Sizes
from leakmeter.fl_app.run.progress import Progress, set_flower_log
from tests.helpers import findings

WHO = "Outsider that sees the initial and the final model and knows who takes part."
finding = partial(
    findings.finding,
    value=1.234,
    rule="some fit",
    delta=1e-5,
    auditor="one-shot",
    threat_model=ThreatModel(observer="outsider", sees="final model", knows_cohort=True),
    adjacency="zero-out",
    null_band=(0.01, 0.5),
)


bound = partial(finding, kind="lower_bound", confidence=0.95, null_band=None)


def flat(text: str) -> str:
    """Return text with ordinary spaces."""
    return text.replace("\N{NO-BREAK SPACE}", " ")


def begun(rounds: int, done: int = 0, **looks: Any) -> tuple[Progress, io.StringIO]:
    """Return what shows a run that has begun, and what was printed."""
    file = io.StringIO()
    progress = Progress(Console(file=file, highlight=False, **{"width": 150, **looks}))
    progress.begin(Config(rounds=rounds), 17_610, Sizes(23, 24.0, 24), done)
    return progress, file


def shown(*, terminal: bool, resumed: int = 0) -> str:
    """Return what two rounds and a summary look like."""
    progress, file = begun(2, resumed, force_terminal=terminal)
    for server_round in range(resumed + 1, 3):
        found = (finding(server_round=server_round),)
        progress.round(RoundLine(server_round, 40, {"accuracy": 0.09889}, found))
    progress.summary(judge([finding()]), ["x, report: y"])
    progress.stop()  # again, which does no harm
    return flat(file.getvalue() + "\n".join(details(judge([finding()]), ["x, report: y"])))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "ε ≈ 1.23 at δ = 1e-05"),
        ({"kind": "guarantee"}, "ε ≤ 1.24 at δ = 1e-05"),
        ({"kind": "lower_bound", "confidence": 0.95}, "ε ≥ 1.23 at δ = 1e-05, 95 % confidence"),
        ({"kind": "guarantee", "value": math.inf}, "no finite ε is guaranteed at δ = 1e-05"),
        ({"kind": "approximation", "delta": None}, "ε ≈ 1.23"),
        ({"value": math.inf}, "ε ≈ ∞ at δ = 1e-05"),
        (
            {"quantity": "mutual information", "delta": None},
            "mutual information ≈ 1.23 bits (log₂)",
        ),
        ({"kind": "diagnostic", "quantity": "canaries"}, "canaries: some fit"),
        (  # no sign: more of them is better
            {"kind": "guarantee", "quantity": "clients in a sum", "value": 40.0, "delta": None},
            "clients in a sum: 40, guaranteed",
        ),
    ],
)
def test_the_sign_before_a_number_says_how_strong_it_is(
    changed: dict[str, Any], words: str
) -> None:
    assert flat(brief(finding(**changed))) == words


def test_a_terminal_shows_a_bar_and_everything_else_plain_lines_only() -> None:
    text, terminal = shown(terminal=False), shown(terminal=True)
    assert not {"\x1b", "\r"} & set(text)
    last = "round 2/2  accuracy 0.099  one-shot ε≈1.23"
    assert text.splitlines()[:6] == [
        "model     digits, mlp with 17,610 parameters",
        "clients   60 (23 to 24 records each, median 24); 30 + 10 canary seats per round",
        "training  fedavg clients, fedavg server, secure aggregation, no noise",
        "audit     one-shot, LRT, MI, MINE",
        "round 1/2  accuracy 0.099  one-shot ε≈1.23",
        last,
    ]
    assert all(part in terminal for part in ("\x1b", "2/2", "━", last))
    assert "resuming" not in text
    assert "resuming after round 1 of 2" in shown(terminal=False, resumed=1)
    assert "not audited as planned: x, report: y" in text


def test_a_terminal_shows_the_time_left() -> None:
    now = [0.0]
    looks = {"force_terminal": True, "color_system": None, "get_time": lambda: now[0]}
    progress, file = begun(40, 10, **looks)
    assert "-:--:-- left" in file.getvalue()  # nothing is known yet
    for server_round in (11, 12, 13):
        now[0] += 100.0  # longer than rich remembers unless it is told to
        progress.round(RoundLine(server_round, 40, {}, ()))
        progress.audit("fit", 0.5)
    progress.stop()
    assert "13/40" in file.getvalue()
    assert "0:45:00 left" in file.getvalue()
    assert "audit: fit 50%" in file.getvalue()


def summary(
    *findings: Finding,
    failures: Sequence[str] = (),
    limitations: Sequence[Limitation] = (),
    warnings: Sequence[RunWarning] = (),
    width: int = 100,
) -> str:
    """Return the end of a run, and below it all details."""
    file = io.StringIO()
    progress = Progress(Console(file=file, width=width, highlight=False))
    verdict = judge(findings, warnings)
    progress.summary(verdict, failures)
    return flat(file.getvalue() + "\n".join(details(verdict, failures, limitations)))


CERTAIN = {"kind": "diagnostic", "quantity": "certain separation", "null_band": None}
DIAGNOSTIC = finding(kind="diagnostic", quantity="interference", rule="crowd")
SILENT = finding(kind="diagnostic", value=0.0, rule="too few canaries", null_band=None)
WEAK = bound(value=9.0, assumptions=(Assumption.INDEPENDENT_SCORES,))
MORE = "and 1 more lower bound"


@pytest.mark.parametrize(
    ("found", "words", "never"),
    [
        ([bound()], "VERDICT Anyone who sees the final model can be at least", "not of the run"),
        ([], "VERDICT No attacker was audited, and nothing is guaranteed. This is not", "ε ≈"),
        (
            [finding()],
            "ε ≈ 1.23 at δ = 1e-05 (one-shot: some fit; without a leak, 90 % of audits say "
            "0.01 to 0.5)",
            "not of the run",
        ),
        (
            [bound(facts={"share_at_threshold": 0.03, "threshold": 88.72})],
            "; 3 % of the included canaries have a p-value of at most e^−88.7)",
            "ε ≈",
        ),
        (
            [bound(value=1.0, rule="first (in few words)"), bound(value=9.0), bound()],
            "ε ≥ 1 at δ = 1e-05, 95 % confidence (one-shot: first (in few words))",
            "lower bounds",
        ),
        (
            [bound(value=1.0), bound(value=9.0), bound()],
            f"{MORE} by other methods: see report.json",
            "",
        ),
        ([bound(value=1.0), bound(value=9.0)], "ε ≥ 9 shown, nothing guaranteed", ""),
        ([bound(value=1.0), WEAK], f"{MORE} under conditions: see", "≥ 9"),
        ([bound(value=1.0), bound(value=9.0, auditor="other")], "≥ 9", MORE),  # has its own
        ([finding(), bound(value=2.0)], "the two methods differ", ""),
        ([bound(value=0.0), finding(rule="they sent", **CERTAIN)], "one-shot: they sent", ""),
        (
            [finding()],
            "(≈ estimate or approximation, ≥ lower bound with confidence, ≤ guarantee)",
            "",
        ),
        (
            [finding(kind="approximation")],
            "ε ≈ 1.23 at δ = 1e-05 (one-shot: approximation: some fit",
            "",
        ),
        ([finding(), DIAGNOSTIC], "ε ≈ 1.23", "crowd"),
        ([DIAGNOSTIC], "crowd", "ε ≈"),
        ([SILENT], "one-shot: too few canaries", "ε ≈"),
        ([finding(rule="sees [bold] and [/x]")], "sees [bold] and [/x]", ""),
    ],
)
def test_the_end_of_a_run_has_its_words(found: list[Finding], words: str, never: str) -> None:
    text = " ".join(summary(*found).split())
    assert words in text
    assert not never or never not in text


def test_each_attacker_has_one_block_with_both_ends() -> None:
    guarantee = finding(
        kind="guarantee", value=8.0, auditor="accountant", rule="composed", null_band=None
    )
    text = summary(
        finding(),
        bound(observer="server", value=0.5),
        bound(value=0.7),
        guarantee,
        replace(guarantee, adjacency=None),
    )
    blocks = [part.splitlines() for part in text[text.index("What the run leaks") :].split("\n\n")]
    assert blocks[1][0].startswith("Server that sees")
    # The server sees the final model too, and nothing is guaranteed against it.
    assert blocks[1][2] == "  ε ≥ 0.7 shown, nothing guaranteed"
    assert blocks[2] == [
        WHO,
        "[zero-out, client]",
        "  ε ≥ 0.7 shown … ε ≤ 8 guaranteed",
        "  ε ≥ 0.7 at δ = 1e-05, 95 % confidence (one-shot: some fit)",
        "  ε ≈ 1.23 at δ = 1e-05 (one-shot: some fit; without a leak, 90 % of audits say",
        "      0.01 to 0.5)",
        "  ε ≤ 8 at δ = 1e-05 (accountant: composed)",
    ]
    # Without an adjacency nothing is comparable, even for the same attacker.
    assert blocks[3] == [WHO, "  ε ≤ 8 at δ = 1e-05 (accountant: composed)"]


def test_a_conditional_bound_is_printed_with_its_condition() -> None:
    text = " ".join(summary(bound(assumptions=(Assumption.INDEPENDENT_SCORES,))).split())
    assert f"if {Assumption.INDEPENDENT_SCORES.sentence}: ε ≥ 1.23" in text
    assert text.startswith("VERDICT No leak is proven, and nothing is guaranteed. There is one ")
    assert " see details no bound conditional " in text  # no number without its condition
    told = a_round(bound(server_round=19, assumptions=("all is well",)))
    assert told.endswith("one-shot ε≥1.23 if assumed")


def test_the_summary_fits_an_ordinary_terminal() -> None:
    for width in (80, 200):
        text = summary(
            finding(rule="a rule of many words " * 8),
            bound(rule="a rule of many words " * 8),
            limitations=[Limitation("one-shot", "too few of them " * 9)],
            warnings=[RunWarning.of("clipped-coordinates", 1, 2)],
            width=width,
        )
        assert max(map(len, text.splitlines())) <= 80
        assert "ε ≈ 1.23" in text


def test_a_damaged_run_says_so_first_and_limitations_are_limitations() -> None:
    warning = RunWarning.of("clipped-coordinates", 72, 100)
    text = summary(
        bound(), limitations=[Limitation("one-shot", "only 3 clients")], warnings=[warning]
    )
    assert text.startswith("\nVERDICT  The run is distorted")
    words = " ".join(text.split())
    assert words.index("Warning: 72 % of all coordinates (72 of 100)") < words.index("Outsider")
    assert "\nLimits of this audit\n  one-shot: only 3 clients" in text


def a_round(*found: Finding, accuracy: float = 0.88215) -> str:
    progress, file = begun(30)
    progress.round(RoundLine(19, 40, {"accuracy": accuracy}, found))
    return flat(file.getvalue()).splitlines()[-1]


of_round = partial(finding, server_round=19)
lrt = partial(bound, auditor="likelihood-ratio", server_round=19)
bits = partial(of_round, quantity="mutual information", delta=None)
BITS = (
    bits(value=0.2012, auditor="mutual-information", kind="approximation"),
    bits(value=0.184, auditor="mine"),
)


@pytest.mark.parametrize(
    ("one_shot", "ratio", "words"),
    [
        (102.0, 2.158, "  accuracy 0.882  one-shot ε≈100  LRT ε≥2.15  MI≈0.20, MINE≈0.18 bit"),
        # A bound is rounded down.
        (0.954, 0.0438, "  accuracy 0.882  one-shot ε≈0.95  LRT ε≥0.04  MI≈0.20, MINE≈0.18 bit"),
        # Two columns too long: narrower, and nothing is lost.
        (7000.0, 2.158, " accuracy 0.882 one-shot ε≈7,000 LRT ε≥2.15 MI≈0.20, MINE≈0.18 bit"),
    ],
)
def test_a_round_fits_in_80_columns(one_shot: float, ratio: float, words: str) -> None:
    found = (of_round(value=one_shot), lrt(value=ratio), *BITS)
    assert a_round(*found) == f"round 19/30{words}"
    more = [lrt(value=3.0, auditor=f"an auditor called {i}") for i in range(4)]
    line = a_round(*found, *more)
    assert len(line) <= 80
    assert line.endswith(" …")


def test_numbers_below_each_other_have_as_many_digits() -> None:
    even = [a_round(lrt(value=value)).split("≥")[1] for value in (2.6, 3.0, 0.29)]
    assert even == ["2.60", "3.00", "0.29"]
    assert a_round(accuracy=0.92).endswith("accuracy 0.920")


def test_a_warning_is_above_the_bar_in_whole_words_and_the_log_is_as_before() -> None:
    log = logging.getLogger("flwr")
    before = list(log.handlers)
    progress, file = begun(2, force_terminal=True, width=40)
    log.warning("a warning of more words than one line of forty columns has room for")
    progress.stop()
    assert log.handlers == before
    lines = [
        line.rstrip() for line in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue()).split("\n")
    ]
    start = next(
        i for i, line in enumerate(lines) if line.endswith("WARNING: a warning of more words than")
    )
    assert lines[start + 1] == "one line of forty columns has room for"


def ending(attackers: Sequence[Finding], **more: Any) -> list[str]:
    """Return the end of a run in a terminal of 80 columns, with as many steps as there can be."""
    file = io.StringIO()
    progress = Progress(Console(file=file, width=80, highlight=False, soft_wrap=True))
    steps = [NextStep("Do something:", "leakmeter --out " + "x" * 90)] * 4
    last = Ending(steps, adds_noise=False, places=["page: p", "details: d"])
    progress.summary(judge(attackers, more.get("warnings", ())), more.get("failures", ()), last)
    lines = file.getvalue().splitlines()[1:]
    assert all(len(line) <= 80 for line in lines if "leakmeter --out" not in line)
    return lines


def attackers_of(*observers: Any) -> list[Finding]:
    seen: tuple[Sees, ...] = ("all models", "final model", "round sum")
    seen += ("noised sum", "updates", "round model")
    return [
        bound(
            value=0.00545 + i,
            rule="a rule of many words " * 9,
            threat_model=ThreatModel(observer=who, sees=sees, knows_cohort=True, participations=9),
        )
        for i, who in enumerate(observers)
        for sees in seen
    ]


def test_the_end_of_a_run_with_everything_wrong_has_at_most_34_lines() -> None:
    kinds = ("clipped-coordinates", "dropouts", "few-canaries", "abandoned-rounds")
    warnings = [RunWarning.of(kind, 50, 100) for kind in kinds]
    bits = finding(quantity="mutual information", kind="approximation", adjacency=None)
    attackers = [*attackers_of("outsider", "server", "wire"), *[bits] * 3]
    lines = ending(attackers, warnings=warnings, failures=["x: " + "failed " * 30] * 3)
    assert len(lines) <= 34
    assert lines[0].startswith("VERDICT  ")
    assert [line for line in lines if line.startswith("NEXT  1. ")]
    rows = lines[lines.index("") + 2 :][:5]
    assert rows[0].startswith("wiretap")  # the worst first
    assert "No upper bound: this run adds no noise." in lines
    assert len(ending(attackers_of("outsider", "server", "wire"))) <= 25  # of a sound run


@pytest.mark.parametrize(("verbose", "times"), [(False, 1), (True, 3)])
def test_a_warning_is_shown_once_and_in_colours_only_in_a_terminal(
    verbose: bool, times: int
) -> None:
    log, handler = logging.getLogger("flwr"), logging.StreamHandler(file := io.StringIO())
    vars(handler)["colored"] = True
    log.addHandler(handler)
    try:
        set_flower_log(verbose=verbose)
        for _ in range(3):
            log.warning("client stays out: %s", "not finite")
    finally:
        log.removeHandler(handler)
    assert file.getvalue().count("client stays out: not finite") == times
    assert vars(handler)["colored"] is False


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_end_of_a_run_fits_its_terminal_and_is_bold_where_it_should(width: int) -> None:
    file = io.StringIO()
    looks = {"force_terminal": True, "color_system": "standard", "highlight": False}
    console = Console(file=file, width=width, soft_wrap=True, **looks)  # type: ignore[arg-type]
    Progress(console).summary(judge([bound(value=3.0)]))
    lines = file.getvalue().splitlines()
    assert any(line.startswith("\x1b[1mVERDICT") for line in lines)
    plain = [re.sub(r"\x1b\[\d*m", "", line).rstrip() for line in lines]
    assert max(len(line) for line in plain if "python run_sim.py" not in line) <= width


def test_a_terminal_without_greek_letters_gets_words() -> None:
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding="ascii"), highlight=False)
    Progress(console).summary(judge([bound(value=2.04)]))
    console.file.flush()
    text = raw.getvalue().decode("ascii")
    assert "eps >= 2.04" in text
    heads = next(line for line in text.splitlines() if line.startswith("ATTACKER"))
    row = next(line for line in text.splitlines() if line.startswith("outsider"))
    assert row[heads.index("SHOWN") :].startswith("eps >= 2.04")
