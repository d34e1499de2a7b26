"""What a run says, so far or at its end, and what in it cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leakmeter.auditors import Finding
from leakmeter.auditors.verdict import sentences
from leakmeter.auditors.wording import Assumption
from leakmeter.fl_app.report.judge import this_round, verdict_of
from leakmeter.fl_app.report.page import first_screen
from tests.fl_app.report.judge.makers import CANARY, bound, conditional, finding, guarantee, run

SERVER = replace(CANARY, observer="server", sees="round sum", holds="two updates")


def said(*found: Finding) -> list[str]:
    wrong = ": an assumption of one of them does not hold"
    ends = [sentences.ends(row) for row in verdict_of(run(*found)).rows]
    return [words for words in ends if words.endswith(wrong)]


def test_a_bound_above_its_guarantee_is_a_contradiction() -> None:
    # Whoever sees noised sums sees the models too, so two attackers are named.
    words = said(guarantee(1.0), bound(2.0))
    assert len(words) == 2
    assert said(guarantee(2.5), bound(2.0)) == []
    assert said(guarantee(1.0), conditional(2.0)) == []
    assert said(guarantee(1.0, delta=1e-3), bound(2.0)) == []  # another promise


def test_what_is_called_proven_never_shrinks_while_a_run_goes_on() -> None:
    """Bounds of single rounds go up and down; those of all rounds together are kept."""
    together = (Assumption.FAIR_COINS, Assumption.ALL_ROUNDS_TOGETHER)
    anytime, single = (0.0, 0.4, 0.9, 0.7, 0.0), (2.0, 2.4, 0.8, 2.3, 1.1)
    found: list[Finding] = []
    proven = []
    for i, (held, alone) in enumerate(zip(anytime, single, strict=True), start=1):
        found.append(bound(held, server_round=i, assumptions=together))
        found.append(bound(alone, server_round=i, threat_model=SERVER, adjacency="replace"))
        unfinished = replace(run(*found), is_finished=False)
        verdict = verdict_of(unfinished)
        assert verdict.confidence == pytest.approx(0.95)  # one bound, however many rounds
        proven.append(max(row.low for row in verdict.rows))
        assert [f.value for f in this_round(unfinished).values()] == [alone]
        words = first_screen(unfinished).striptags()
        # Once something is proven the server, who sees these models too, has that instead.
        assert (f"this round ε ≥ {alone:g}" in words) == (proven[-1] == 0)
    assert proven == [0.0, 0.4, 0.9, 0.9, 0.9]
    assert this_round(run(*found)) == {}  # a finished run has its report


def test_a_number_of_one_round_is_called_so() -> None:
    unfinished = replace(run(finding(kind="estimate", server_round=7)), is_finished=False)
    [part] = verdict_of(unfinished).rows
    assert "this round (7)" in " ".join(sentences.findings_in_words(part))
