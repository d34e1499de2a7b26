"""All ε on one axis: the axis is named, and no line leaves it."""

from __future__ import annotations

import re

from leakmeter.fl_app.report.details import forest
from tests.fl_app.report.judge.makers import bound, finding, guarantee, run


def test_the_axis_says_that_it_is_logarithmic() -> None:
    table = forest(run(bound(2.0)))
    assert table is not None
    assert re.search(r'<th[^>]* class="wide">ε \(log scale\)<svg', table)


def test_no_line_ends_beyond_the_axis() -> None:
    table = forest(run(bound(2.0), guarantee(8.0)))
    assert table is not None
    assert 'd="M0 25L1000 25' in table
    ends = re.findall(r'd="M[\d.]+ 13L([\d.]+) 13" class="line', table)
    # Whoever sees sums gets the models too: each of two rows has both ends.
    assert sorted(map(float, ends)) == [0.0, 0.0, 1000.0, 1000.0]


def test_a_number_without_a_place_on_the_axis_is_said_in_words() -> None:
    table = forest(run(bound(2.0), guarantee(float("inf"))))
    assert table is not None
    assert "<small>no upper bound</small>" in table


def test_each_kind_of_mark_on_the_axis_is_in_its_legend() -> None:
    banded = finding(kind="estimate", value=3.0, null_band=(0.0, 1.0))
    table = forest(run(bound(2.0, cap=9.0), guarantee(8.0), banded))
    assert table is not None
    legend = table.partition("<table")[0]
    words = ["lower bound", "guarantee", "estimate"]
    words += ["most that could be shown", "without a leak, 90 % of audits"]
    assert re.findall(r"<span>([^<]*)</span>", legend) == words
    alone = forest(run(bound(2.0)))
    assert alone is not None
    assert re.findall(r"<span>([^<]*)</span>", alone.partition("<table")[0]) == ["lower bound"]
