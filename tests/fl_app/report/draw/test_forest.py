"""All ε on one axis: the axis is named, and no line leaves it."""

from __future__ import annotations

import re

from leakmeter.fl_app.report.draw.forest import forest
from tests.fl_app.report.judge.makers import bound, guarantee, run


def test_the_axis_says_that_it_is_logarithmic() -> None:
    table = forest(run(bound(2.0)))
    assert table is not None
    assert re.search(r'<th[^>]* class="wide">ε \(log scale\)<svg', table)


def test_no_line_ends_beyond_the_axis() -> None:
    table = forest(run(bound(2.0), guarantee(8.0)))
    assert table is not None
    [axis] = re.findall(r'd="M(\d+) 25H(\d+)" class="axis"', table)
    first, last = map(float, axis)
    ends = [float(x) for x in re.findall(r'd="M[\d.]+ 13H([\d.]+)" class="line', table)]
    assert sorted(ends) == [first, last]
