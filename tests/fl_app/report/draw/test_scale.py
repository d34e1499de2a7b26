"""Scales hold all values in order and name round ones."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakmeter.fl_app.report.figure import Form, Scale


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


@pytest.mark.parametrize("form", ["linear", "log", "shifted"])
@pytest.mark.parametrize("edge", [1.7e308, 1e251, 1e249, 5e-324, 1e-251])
def test_values_at_the_edge_of_floats_end_no_page(form: Form, edge: float) -> None:
    for values in ([edge], [edge, 1.0], [-edge, edge], [0.0, edge], [1e249, 1e-249, edge]):
        scale = Scale.over(values, form)
        assert math.isfinite(scale.low)
        assert scale.low < scale.high < math.inf
        assert scale.ticks()
        assert all(0 <= scale.at(v) <= 1 for v in values)


def test_ticks_are_round_numbers() -> None:
    assert Scale(0.0, 1.0).ticks(5) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert Scale(1e-6, 0.5, "log").ticks(6) == [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1]
    assert Scale(2.0, 6.0, "log").ticks() == [2.0, 5.0]
    assert Scale(0.0, 700.0, "shifted").ticks(5)[0] == 0.0
    assert Scale.label(1e-6) == "10⁻⁶"
    assert Scale.label(-0.5) == "−0.5"
    assert Scale.label(2e6) == "2·10⁶"
