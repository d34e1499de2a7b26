"""Figures over rounds: what would flatten the others becomes a sentence."""

from __future__ import annotations

import pytest

from leakmeter.fl_app.report.curves import information
from tests.fl_app.report.judge.makers import finding, run


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
