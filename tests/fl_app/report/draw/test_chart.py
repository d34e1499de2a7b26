"""Scales and charts: values stand where they belong, and nothing is left out unsaid."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakmeter.fl_app.report.draw.chart import Axis, Chart, Figure, Series
from leakmeter.fl_app.report.draw.curves import _closed
from leakmeter.fl_app.report.draw.scale import Form, Scale, label
from leakmeter.fl_app.report.markup import Markup, joined, tag


@given(
    st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=20),
    st.sampled_from(["linear", "log", "shifted"]),
)
def test_a_scale_holds_all_values_in_order(values: list[float], form: Form) -> None:
    scale = Scale.over(values, form)
    places = [scale.at(v) for v in sorted(values)]
    assert places == sorted(places)
    assert all(0 <= place <= 1 for place in places)
    ticks = scale.ticks()
    assert 1 <= len(ticks) <= 12
    assert all(scale.low * 0.999 - 1e-9 <= t <= scale.high * 1.001 + 1e-9 for t in ticks)


@pytest.mark.parametrize("form", ["linear", "log", "shifted"])
def test_a_scale_of_nothing_or_of_infinities_still_has_ends(form: Form) -> None:
    for values in ([], [math.inf], [math.nan, -math.inf]):
        scale = Scale.over(values, form)
        assert scale.high > scale.low
        assert scale.ticks()


def test_ticks_are_round_numbers() -> None:
    assert Scale(0.0, 1.0).ticks(5) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert Scale(1e-6, 0.5, "log").ticks(6) == [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1]
    assert Scale(2.0, 6.0, "log").ticks() == [2.0, 5.0]
    assert Scale(0.0, 700.0, "shifted").ticks(5)[0] == 0.0
    assert label(1e-6) == "10⁻⁶"
    assert label(-0.5) == "−0.5"
    assert label(2e6) == "2·10⁶"


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


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=30))
def test_the_hull_of_error_rates_is_convex_and_below_all_points(
    pairs: list[tuple[float, float]],
) -> None:
    fpr, fnr = _closed({"fpr": [a for a, _ in pairs], "fnr": [b for _, b in pairs]})
    assert (fpr[0], fpr[-1]) == (0.0, 1.0)
    assert fpr == sorted(set(fpr))
    slopes = [
        (fnr[i + 1] - fnr[i]) / (fpr[i + 1] - fpr[i])
        for i in range(len(fpr) - 1)
        if fpr[i + 1] - fpr[i] > 1e-6
    ]
    assert all(b >= a - 1e-6 * max(abs(a), 1) for a, b in pairwise(slopes))
    for x, y in [*pairs, (0.5, 0.5)]:
        at = next(i for i in range(len(fpr) - 1) if fpr[i] <= x <= fpr[i + 1])
        share = (x - fpr[at]) / (fpr[at + 1] - fpr[at])
        assert fnr[at] + share * (fnr[at + 1] - fnr[at]) <= y + 1e-9


def test_text_is_escaped_and_markup_is_not() -> None:
    assert tag("p", "<b>", Markup("<i></i>"), title='"x"') == (
        '<p title="&quot;x&quot;">&lt;b&gt;<i></i></p>'
    )
    assert joined("a&b", None, tag("br")) == "a&amp;b<br>"
    assert tag("td", hidden=True, class_=None, data_x=1.25) == '<td hidden data-x="1.25"></td>'
