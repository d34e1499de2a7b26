"""Trade-off curves are drawn as convex as they are."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from leakmeter.auditors.finding import ErrorCurve
from leakmeter.fl_app.report.curves import _closed, epsilons, tradeoffs
from leakmeter.fl_app.report.read import Run
from leakmeter.fl_app.report.template import figure
from tests.helpers.findings import finding


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
