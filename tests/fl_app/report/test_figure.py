"""Scales hold all values in order and name round ones."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leakmeter.auditors.finding import ErrorCurve, Histogram, Losses, Spectrum
from leakmeter.auditors.information.mutual_information import NEURAL
from leakmeter.auditors.run_log import RoundLine
from leakmeter.fl_app.report.curves import _closed, epsilons, figures, information, tradeoffs
from leakmeter.fl_app.report.details import tradeoff
from leakmeter.fl_app.report.figure import (
    TEXT,
    Axis,
    Canvas,
    Figure,
    Form,
    Scale,
    Series,
    Text,
    layout,
)
from leakmeter.fl_app.report.read import Run
from leakmeter.fl_app.report.template import STYLE, chart, figure
from tests.fl_app.report.makers import bound, conditional, finding, guarantee, run
from tests.helpers.drawings import WIDTHS, covered, outside


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


def of(*series: Series) -> Figure:
    return Figure("c", "A <title>", "text", "A caption", Axis("x"), Axis("y"), series)


def marked(*series: Series) -> list[tuple[float, float]]:
    return [(one.x, one.y) for one in layout(of(*series)).marks]


def test_a_chart_is_well_formed_and_named_for_those_who_cannot_see_it() -> None:
    svg = chart(of(Series("a & b", (1.0, 2.0), (3.0, 4.0), marker="square")))
    root = ElementTree.fromstring(svg)
    [drawing] = [e for e in root if e.get("role") == "img"]
    assert drawing.get("aria-labelledby") == "c-title c-desc"
    assert [e.text for e in drawing if e.tag in ("title", "desc")] == ["A <title>", "text"]
    stops = [e.get("tabindex") for e in root.iter() if e.get("tabindex")]
    assert stops == ["0", "-1"]  # one stop of the tab key, arrows lead on
    labels = [e.get("aria-label") for e in root.iter() if e.get("aria-label")]
    group = "Points of: A <title>. Arrow keys go from one to the next."
    assert labels == [group, "a & b: y 3; x 1", "a & b: y 4; x 2"]


def test_larger_values_stand_higher_and_further_right() -> None:
    (x1, y1), (x2, y2) = marked(Series("a", (1.0, 2.0), (3.0, 4.0)))
    assert x1 < x2
    assert y1 > y2


def test_what_is_not_finite_is_left_out_of_the_drawing() -> None:
    one = Series("a", (1.0, 2.0, 3.0), (1.0, math.inf, math.nan))
    assert len(marked(one)) == 1
    svg = chart(of(one))
    assert "nan" not in svg
    assert "inf" not in svg
    assert marked(Series("a", (1.0,), (math.inf,))) == []


def test_a_histogram_has_a_step_for_each_bin() -> None:
    one = Series("a", (0.0, 1.0, 2.0), (0.25, 0.75), is_filled=True)
    assert len(marked(one)) == 2
    assert "0 to 1" in chart(of(one))
    assert list(of(one).values()) == [(one, 0.5, 0.25, None, None), (one, 1.5, 0.75, None, None)]


def test_the_table_beside_a_chart_holds_every_point_exactly() -> None:
    html = figure(of(Series("a", (1.0,), (1 / 3,), low=(0.1,), high=(0.9,))))
    assert f'<data value="{1 / 3!r}">' in html
    assert '<data value="0.1">' in html
    assert "<figcaption>A caption</figcaption>" in html
    assert "legend" not in html
    one, two = Series("one", (1.0,), (1.0,)), Series("two", (1.0,), (2.0,))
    assert figure(of(one, two)).count("<li>") == 2


def test_a_line_does_not_bridge_what_was_not_measured() -> None:
    x, y = (1.0, 2.0, 4.0, 8.0), (1.0, 2.0, 3.0, 4.0)
    band: dict[str, Any] = {"low": (0.0,) * 4, "high": (5.0,) * 4}
    joined, parted = (
        layout(of(Series("a", x, y, gap=gap, **band))).strokes for gap in (math.inf, 1.0)
    )
    for look in ("area c0", "line c0"):
        counts = [[len(s.pieces) for s in made if s.look == look] for made in (joined, parted)]
        assert counts == [[1], [3]]
    # Rounds 1 and 2 are joined; a round by itself is a short stroke.
    [line] = [one for one in parted if one.look == "line c0"]
    first, *alone = line.pieces
    assert len(first) == 2
    for (left, y1), (right, y2) in alone:
        assert right - left == pytest.approx(24.0)
        assert y1 == y2


def rich(name: str, scale: float = 1.0) -> Run:
    """Return a run with every kind of figure."""
    curve = ErrorCurve(
        *((1e-6, 1e-5, 0.1), (0.6 * scale, 1.2, 2.0), (2.0 * scale, 2.5, 3.0)),
        *((0.05, 0.2, 0.6), (0.7, 0.4, 0.1), (0.01, 0.1, 0.5), (0.6, 0.3, 0.05)),
        balanced_error=0.3,
    )
    bins = Histogram(
        (-3.0, -1.0, 0.0, 2.0, 40.0), (1, 2, 3, 9), (4, 5, 2, 0), (0.2, 0.3, 0.3, 0.2), True
    )
    falls = Losses("nats", (-1.0, 0.0, 3.0 * scale), (1, 9), (4, 5), (0.6, 0.4))
    spectrum = Spectrum((1, 2, 3, 9), (3.0, 1.0, 1e-3, 0.0), (0.0, 0.0, 0.1, 0.1), 9, 0.1, 0.4)
    model = finding(kind="approximation", facts={"separation": 2.0})
    rounds = [
        finding(server_round=i, value=scale * i, kind=kind, **more)
        for i in (1, 2, 4)
        for kind, more in (
            ("estimate", {"null_band": (0.1, 0.4)}),
            ("lower_bound", {"confidence": 0.95, "cap": 50.0 * scale}),
        )
    ]
    bits = [
        finding(
            server_round=i,
            quantity="mutual information",
            kind="approximation",
            value=0.3 * i,
            facts={"std_error_bits": 0.1, "gaussian_nats": 0.2},
        )
        for i in (1, 2, 4)
    ]
    whole = [
        bound(4.2 * scale, details=(curve, bins, falls)),
        guarantee(12.0 * scale),
        conditional(70.0 * scale),
        finding(kind="estimate", value=3.0, null_band=(0.0, 1.0), details=(spectrum,)),
        model,
    ]
    made = run(*rounds, *bits, *whole)
    lines = tuple(RoundLine(i, 9, {"accuracy": i / 10}) for i in (1, 2, 4))
    return replace(made, name=name, rounds=lines)


RUNS = [rich("small"), rich("large", 1e4), rich("tiny", 1e-4)]
DRAWN = {
    **{f"{one.name} {f.name}": f for one in RUNS for f in figures([one])},
    **{f"all {f.name}": f for f in (*figures(RUNS), *tradeoff(RUNS))},
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", DRAWN)
def test_no_words_of_a_figure_cover_data_or_other_words(name: str, width: int) -> None:
    drawing = layout(DRAWN[name])
    assert covered(drawing, width) == []
    assert outside(drawing, width) == []


@pytest.mark.parametrize("runs", [RUNS[:1], RUNS])
def test_each_figure_answers_a_question_of_its_own(runs: list[Run]) -> None:
    drawn = [*figures(runs), *tradeoff(runs)]
    questions = [one.question for one in drawn]
    assert len(questions) > 8
    assert all(one.endswith("?") for one in questions)
    assert len(set(questions)) == len(questions)
    kinds = " ".join(one.name for one in drawn)
    for kind in ("tradeoff", "accuracy", "information", "spectrum", "cosines", "losses", "epsilon"):
        assert kind in kinds
    assert kinds.count("estimate") > 0
    assert f'<p class="asked">{questions[0]}</p>' in figure(drawn[0])


def test_model_and_critics_are_drawn_in_one_figure() -> None:
    critics = [
        finding(kind="estimate", quantity=NEURAL, value=0.4, null_band=(0.0, 0.2), server_round=i)
        for i in (1, 2)
    ]
    small = RUNS[0]
    drawn = figures([replace(small, findings=(*small.findings, *critics))])
    [both] = [one for one in drawn if "bits" in one.y.label]
    assert {"Gaussian model", "critics (MINE), estimate"} < {one.label for one in both.series}
    assert len({(one.color, one.dash) for one in both.series}) == len(both.series)
    assert "trained on" in both.caption
    assert "trained on" not in next(f for f in figures([small]) if f.x == both.x).caption


def test_words_on_a_line_would_be_found() -> None:
    drawing = layout(of(Series("a", (1.0, 2.0), (3.0, 4.0))))
    across = Text("in the way", 500.0, drawing.height / 2 - 10, anchor="middle")
    assert covered(drawing, 330) == []
    assert covered(replace(drawing, texts=(*drawing.texts, across)), 330)
    aside = replace(across, x=1000.0, anchor="start")
    assert outside(replace(drawing, texts=(aside,)), 330)
    assert covered(Canvas(100.0, 0.0, 0.0, texts=(across, across)), 330)


@pytest.mark.parametrize("name", DRAWN)
def test_all_text_has_one_size_and_nothing_scales_it(name: str) -> None:
    """A drawing with a view box grows with its card, and its text with it."""
    root = ElementTree.fromstring(chart(DRAWN[name]))
    assert root.get("viewBox") is None
    for inner in root.iter("svg"):
        if inner.get("viewBox") is not None:
            assert not list(inner.iter("text"))
    assert not [one for one in root.iter() if one.get("font-size")]
    assert re.findall(r"text \{[^}]*font-size: ([^;]+);", STYLE) == [f"{TEXT:g}px"]


# Products of such small differences vanish in floats: the lower point seemed to be on the line.
@example([(5e-324, 0.3), (1e-323, 0.2)])
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=30))
def test_the_hull_of_error_rates_is_convex_and_below_all_points(
    pairs: list[tuple[float, float]],
) -> None:
    fpr, fnr = _closed([a for a, _ in pairs], [b for _, b in pairs])
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


def test_values_of_a_chart_are_rounded_by_their_kind() -> None:
    """A lower bound of 0.6146 was printed as 0.615 below its chart."""
    curve = ErrorCurve((1e-5,), (0.6146,), (2.0,), (0.1234,), (0.5671,), (), (), 0.5)
    bound = finding(value=0.6146, kind="lower_bound", confidence=0.95, details=(curve,))
    run = Run("run", Path("/run"), findings=(bound,))
    [proven], [limits] = epsilons([run]), tradeoffs([run])
    assert ">0.614<" in figure(proven)
    assert "ε 0.614;" in figure(proven)
    assert ">0.568<" in figure(limits)  # an upper limit of an error rate


def test_a_gaussian_reference_is_drawn_only_where_the_auditor_offers_it() -> None:
    curve = ErrorCurve((1e-5,), (0.6,), (2.0,), (0.1,), (0.5,), (), (), 0.5)
    bound = finding(kind="lower_bound", confidence=0.95, details=(curve,))
    apart = finding(kind="diagnostic", quantity="separation", facts={"separation": 2.0})
    model = finding(kind="approximation", facts={"separation": 2.0})
    for offered, found in ((False, (bound, apart)), (True, (bound, apart, model))):
        [drawn] = tradeoffs([Run("run", Path("/run"), findings=found)])
        assert ("Gaussians 2 sd apart" in figure(drawn)) is offered


@pytest.mark.parametrize(
    ("values", "words"), [((239.1, 239.2), "239 bits."), ((239.1, 251.0), "239 to 251 bits.")]
)
def test_a_line_that_is_not_drawn_is_one_number_or_a_range(
    values: tuple[float, float], words: str
) -> None:
    found = []
    for i, value in enumerate(values, start=1):
        for quantity, size in (("", 0.2), (" of all coordinates", value)):
            name = f"mutual information{quantity}"
            found.append(finding(quantity=name, kind="approximation", value=size, server_round=i))
    [figure] = information([run(*found)])
    assert figure.caption.endswith(f" Not drawn, all coordinates, alike: {words}")
