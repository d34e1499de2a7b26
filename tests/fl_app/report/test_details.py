"""All ε on one axis: the axis is named, and no line leaves it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from leakmeter.auditors import Finding, wording
from leakmeter.auditors.run_log import RoundLine
from leakmeter.auditors.verdict.claim import attacker
from leakmeter.fl_app.report.details import alias_runs, comparison, forest, tradeoff
from leakmeter.fl_app.report.read import Run
from tests.fl_app.report.makers import ANYONE, bound, conditional, finding, guarantee, run


def drawn(*found: Finding) -> str:
    table = forest(run(*found))
    assert table is not None
    return table


def test_no_line_ends_beyond_the_axis_which_says_that_it_is_logarithmic() -> None:
    table = drawn(bound(2.0), guarantee(8.0))
    assert re.search(r'<th[^>]* class="wide">ε \(log scale\)<svg', table)
    assert 'd="M0 25L1000 25' in table
    ends = re.findall(r'd="M[\d.]+ 13L([\d.]+) 13" class="line', table)
    # Whoever sees sums gets the models too: each of two rows has both ends.
    assert sorted(map(float, ends)) == [0.0, 0.0, 1000.0, 1000.0]
    assert "<small>no upper bound</small>" in drawn(bound(2.0), guarantee(float("inf")))


def test_each_kind_of_mark_on_the_axis_is_in_its_legend() -> None:
    def legend(*found: Finding) -> list[str]:
        return re.findall(r"<span>([^<]*)</span>", drawn(*found).partition("<table")[0])

    banded = finding(kind="estimate", value=3.0, null_band=(0.0, 1.0))
    words = ["lower bound", "guarantee", "estimate"]
    words += ["most that could be shown", "without a leak, 90 % of audits"]
    assert legend(bound(2.0, cap=9.0), guarantee(8.0), banded) == words
    assert legend(bound(2.0)) == ["lower bound"]


FINAL = replace(ANYONE, sees="final model")


def cell(other: Finding, *promised: Finding) -> str:
    """Return what a run with these guarantees has beside the only finding of another."""
    first, second = replace(run(other), name="first"), replace(run(*promised), name="second")
    who = wording.attacker(attacker(other), is_sized=False)
    [row] = [row for row in comparison([first, second]).split("<tr>") if f">{who}" in row]
    words = re.findall(r"<td>(.*?)</td>", row)[1]
    return re.sub("<[^>]*>", " ", words).replace("\N{NO-BREAK SPACE}", " ").strip()


ESTIMATE = finding(kind="estimate", value=3.0, null_band=(0.0, 1.0))
WEAKER = bound(3.0, threat_model=replace(FINAL, holds="canary", participations=1))


@pytest.mark.parametrize(
    ("second", "ends"),
    [
        ([bound(0.0), ESTIMATE, guarantee(8.0)], (0.0, 8.0)),  # no single point
        ([WEAKER], (3.0,)),  # about a weaker attacker, so about the stronger one too
        ([bound(3.0), conditional(9.0)], (3.0,)),  # a condition has no place on the axis
    ],
)
def test_each_run_is_drawn_between_what_is_shown_and_what_is_guaranteed(
    second: list[Finding], ends: tuple[float, ...]
) -> None:
    lines = (RoundLine(1, 9, {"accuracy": 0.5}),)
    [figure] = tradeoff([replace(run(*found), rounds=lines) for found in ([bound(9.0)], second)])
    assert [one.x for one in figure.series] == [(9.0,), ends]


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


def names(*runs: Run) -> list[str]:
    return [one.name for one in alias_runs(runs)]


def test_a_run_is_called_by_the_settings_that_tell_it_apart() -> None:
    one = run(noise="none", clip_norm=0.0, rounds=3)
    central = run(noise="central", clip_norm=1.0, rounds=3)
    longer = run(noise="central", clip_norm=1.0, rounds=9)
    assert names(one, central) == ["noise none", "noise central"]
    assert names(one, central, longer) == [
        "noise none, rounds 3",
        "noise central, rounds 3",
        "noise central, rounds 9",
    ]


def test_runs_with_equal_settings_and_named_ones_keep_their_names() -> None:
    here, there = (replace(run(noise="none"), name=f"{i}: run") for i in (1, 2))
    other = replace(run(noise="central"), name="3: run")
    assert names(here, there) == ["1: run", "2: run"]
    assert names(here, there, other) == [
        "noise none, 1: run",
        "noise none, 2: run",
        "noise central",
    ]
    assert names(replace(here, name="mine"), other) == ["mine", "3: run"]


def test_values_of_another_project_are_words_of_its_own() -> None:
    slow, fast = (
        replace(run(), config={"run-config.lr": lr, "data": "x" * 99}) for lr in (0.1, 0.5)
    )
    assert names(slow, fast) == ["lr 0.1", "lr 0.5"]
    far = replace(slow, config={**slow.config, "data": "y" * 99})
    assert names(slow, far) == [f"data {letter * 24}" for letter in "xy"]


def test_the_folder_is_below_the_name_and_tells_equal_ones_apart() -> None:
    a = replace(run(bound(9.0), noise="none"), folder=Path("/one/run"))
    b = replace(run(bound(9.0), noise="central"), folder=Path("/two/run"))
    page = comparison(alias_runs([a, b]))
    assert '<a href="#verdicts-1">noise none</a><small>one/run</small>' in page
    assert '<th scope="col">noise central</th>' in page
    assert "<small>two</small>" in comparison(
        alias_runs([a, replace(b, folder=Path("/two"), name="two")])
    )
