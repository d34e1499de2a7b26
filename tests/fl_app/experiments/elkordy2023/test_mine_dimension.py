"""The neural estimator where the truth is known."""

from __future__ import annotations

import math

import pytest

from leakmeter.fl_app.experiments.elkordy2023 import mine_dimension
from tests.fl_app.experiments.small import Reproduced


def test_critics_find_little_in_many_dimensions_and_as_much_where_there_is_nothing(
    reproduced: Reproduced,
) -> None:
    small, asked = reproduced("mine-dimension"), reproduced.scale("mine-dimension")
    one, many = (small.cells[mine_dimension._key(asked, d)] for d in asked.dims)
    assert (one["truth"], many["truth"]) == pytest.approx((0.5, asked.dims[1] / 2))
    # One coordinate: it finds something, and more than where pairs are shuffled.
    assert one["held_out"] > 0.1
    assert one["trained"] > one["shuffled"]
    # Many: next to nothing of all bits, as much on shuffled pairs, and nothing held out.
    assert many["trained"] < 1.5 * many["shuffled"]
    assert many["trained"] < 0.2 * many["truth"]
    assert many["held_out"] < 1.0 < math.log2(asked.pairs)
    for found in (one, many):  # the log-determinant is right along its coordinates
        assert abs(found["bits"] - found["truth_there"]) < 4 * found["error"]
    assert [row[0] for row in small.table.rows] == list(asked.dims)
