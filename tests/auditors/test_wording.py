"""Numbers in words are never stronger than they are."""

from __future__ import annotations

import pytest

from leakmeter.auditors.wording import number


@pytest.mark.parametrize("value", [0.62579, 586.03, 1.6749, 12345.6, 3e-5, 7.0])
def test_rounding_never_makes_a_bound_stronger(value: float) -> None:
    low, high = (number(value, 3, kind) for kind in ("lower_bound", "guarantee"))
    assert float(low.replace(",", "")) <= value <= float(high.replace(",", ""))
    assert float(low.replace(",", "")) == pytest.approx(value, rel=0.01)
    assert float(high.replace(",", "")) == pytest.approx(value, rel=0.01)
