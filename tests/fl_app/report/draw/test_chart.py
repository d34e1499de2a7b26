"""Charts: values are where they belong, and every point is in the table beside them."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from leakmeter.fl_app.report.draw.chart import Axis, Chart, Figure, Series


def chart(*series: Series) -> Chart:
    return Chart("c", "A <title>", "text", Axis("x"), Axis("y"), series)


def points(svg: str) -> list[tuple[float, float]]:
    found = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="9"', svg)
    return [(float(x), float(y)) for x, y in found]


def test_a_chart_is_well_formed_and_named_for_those_who_cannot_see_it() -> None:
    svg = chart(Series("a & b", (1.0, 2.0), (3.0, 4.0), marker="square")).svg()
    root = ElementTree.fromstring(svg)
    [drawing] = [e for e in root if e.get("role") == "img"]
    assert drawing.get("aria-labelledby") == "c-title c-desc"
    assert [e.text for e in drawing if e.tag in ("title", "desc")] == ["A <title>", "text"]
    stops = [e.get("tabindex") for e in root.iter() if e.get("tabindex")]
    assert stops == ["0", "-1"]  # one stop of the tab key, arrows lead on
    labels = [e.get("aria-label") for e in root.iter() if e.get("aria-label")]
    assert labels == ["a & b: y 3; x 1", "a & b: y 4; x 2"]


def test_larger_values_stand_higher_and_further_right() -> None:
    (x1, y1), (x2, y2) = points(chart(Series("a", (1.0, 2.0), (3.0, 4.0))).svg())
    assert x1 < x2
    assert y1 > y2


def test_what_is_not_finite_is_left_out_of_the_drawing() -> None:
    one = Series("a", (1.0, 2.0, 3.0), (1.0, math.inf, math.nan))
    svg = chart(one).svg()
    assert len(points(svg)) == 1
    assert "nan" not in svg
    assert "inf" not in svg
    nothing = Series("a", (1.0,), (math.inf,))
    assert points(chart(nothing).svg()) == []


def test_a_histogram_has_a_step_for_each_bin() -> None:
    one = Series("a", (0.0, 1.0, 2.0), (0.25, 0.75), is_filled=True)
    svg = chart(one).svg()
    assert len(points(svg)) == 2
    assert "0 to 1" in svg
    assert Figure(chart(one), "").rows() == [
        ("a", 0.5, 0.25, None, None),
        ("a", 1.5, 0.75, None, None),
    ]


def test_the_table_beside_a_chart_holds_every_point_exactly() -> None:
    one = Series("a", (1.0,), (1 / 3,), low=(0.1,), high=(0.9,))
    html = Figure(chart(one), "A caption").html()
    assert f'<data value="{1 / 3!r}">' in html
    assert '<data value="0.1">' in html
    assert "<figcaption>A caption</figcaption>" in html


def test_a_line_does_not_bridge_what_was_not_measured() -> None:
    x, y = (1.0, 2.0, 4.0, 8.0), (1.0, 2.0, 3.0, 4.0)
    band = {"low": (0.0,) * 4, "high": (5.0,) * 4}
    joined = str(chart(Series("a", x, y, **band)).svg())
    parted = str(chart(Series("a", x, y, gap=1.0, **band)).svg())
    lines = [re.findall(r'<path d="([^"]+)" class="line', svg)[0] for svg in (joined, parted)]
    areas = [re.findall(r'<path d="([^"]+)" class="area', svg)[0] for svg in (joined, parted)]
    assert [one.count("M") for one in lines] == [one.count("M") for one in areas] == [1, 3]
    # Rounds 1 and 2 are joined; a round by itself is a short stroke.
    first, *alone = (piece.split("L") for piece in lines[1].strip("M").split("M"))
    assert len(first) == 2
    for start, end in alone:
        assert float(end.split()[0]) - float(start.split()[0]) == pytest.approx(8.0)
        assert start.split()[1] == end.split()[1]
