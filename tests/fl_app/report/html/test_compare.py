"""Runs side by side: a dash only where nothing is known."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from leakmeter.auditors import Finding, wording
from leakmeter.auditors.run_log import RoundLine
from leakmeter.auditors.verdict.order import attacker
from leakmeter.fl_app.report.html.compare import aliases, comparison, tradeoff
from tests.fl_app.report.judge.makers import ANYONE, bound, finding, guarantee, run

FINAL = replace(ANYONE, sees="final model")


def cell(other: Finding, *promised: Finding) -> str:
    """Return what a run with these guarantees has beside the only finding of another."""
    first, second = replace(run(other), name="first"), replace(run(*promised), name="second")
    who = wording.attacker(attacker(other), is_sized=False)
    [row] = [row for row in comparison([first, second]).split("<tr>") if f">{who}" in row]
    words = re.findall(r"<td>(.*?)</td>", row)[1]
    return re.sub("<[^>]*>", " ", words).replace("\N{NO-BREAK SPACE}", " ").strip()


def test_a_guarantee_without_a_lower_bound_is_no_single_point() -> None:
    estimate = finding(kind="estimate", value=3.0, null_band=(0.0, 1.0))
    runs = [
        replace(run(*found), rounds=(RoundLine(1, 9, {"accuracy": 0.5}),))
        for found in ((bound(9.0),), (bound(0.0), estimate, guarantee(8.0)))
    ]
    [figure] = tradeoff(runs, aliases(runs))
    assert {one.label: one.x for one in figure.series} == {"A": (9.0,), "B": (0.0, 8.0)}


def test_each_run_has_both_ends_of_its_worst_attacker() -> None:
    suspected = bound(9.0, unit="record", adjacency="replace")
    page = comparison([run(bound(2.0), guarantee(8.0)), run(suspected)])
    rows = [re.sub("<[^>]*>", " ", row) for row in page.split("<tr>")[2:4]]
    rows = [row.replace("\N{NO-BREAK SPACE}", " ") for row in rows]
    assert re.search(r"outsider, every model\s+ε ≥ 2\s+ε ≤ 8", rows[0])
    assert re.search(r"outsider, every model\s+ε ≥ 9\s+no bound", rows[1])


@pytest.mark.parametrize("other", [guarantee(1.0, threat_model=FINAL), bound(1.0)])
def test_a_guarantee_for_a_stronger_attacker_covers_the_weaker_one(other: Finding) -> None:
    said = cell(other, guarantee(3.0), guarantee(2.0, delta=1e-6))
    assert said.startswith("ε ≤ 2")
    assert "for a stronger attacker" in said


@pytest.mark.parametrize(
    "changed",
    [
        {"adjacency": "add-remove"},
        {"unit": "record"},
        {"observer": "wire"},
        {"knows_cohort": False},
    ],
)
def test_a_guarantee_for_somebody_else_covers_nobody(changed: dict[str, str]) -> None:
    weaker = guarantee(1.0, threat_model=FINAL)
    said = cell(weaker, guarantee(3.0, **changed))
    assert said.startswith("–")
