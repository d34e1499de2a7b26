"""Trade-off curves are drawn as convex as they are."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from leakmeter.fl_app.report.draw.curves import _closed


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
