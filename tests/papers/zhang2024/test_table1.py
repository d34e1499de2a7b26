"""The published table with the rows that hold, and the sum that hides nothing."""

from __future__ import annotations

import math

import pytest

from leakmeter.papers.zhang2024.table1 import _printed, stated_limit
from tests.papers.small import Reproduced

# σ² = 1e-4, 1e-3, 1e-2: computed with 40 digits by another route.
REFERENCE = {
    "WF-NA, ours": ("12.658122", "1.221943", "0.175118"),
    "5 Gaussian sampling, isotropic, sharpened": ("9.952976", "0.989187", "0.154290"),
}


def test_table_1_has_the_corrected_values_and_no_row_6(reproduced: Reproduced) -> None:
    small = reproduced("wfna-table1")
    values = {r["row"]: tuple(v for k, v in r.items() if k != "row") for r in small.rows}
    for name, expected in REFERENCE.items():
        assert values[name] == expected
    assert values["3 full gradient, isotropic"][1] == "0.322680"
    assert values["3 full gradient, isotropic, exact"][1] == "0.198105"
    assert values["WF-NA, ours, tight conversion"][1] == "0.863769"
    assert not any(name.startswith("6") for name in values)
    [six] = [c for c in small.table.comparisons if c.what.startswith("row 6")]
    assert "not a theorem" in six.why
    assert "eigenvalue of -290.8" in small.page
    assert "-1.089 and +0.325" in small.page


def test_printed_bounds_are_above_ours_and_want_an_admissible_order() -> None:
    assert _printed(1.0, 1.0, 1e-3) > 0.989187
    assert _printed(2.0, 2.0, 1e-3) > 1.221943
    assert _printed(2.0, 2.0, 1e-4) == math.inf  # Nσ² is below 2C²/(BD)


def test_the_orders_that_theorem_4_states_are_none_up_to_a_large_floor(
    reproduced: Reproduced,
) -> None:
    # N = 50, D = 1,200, C = 10: Nσ²D/(2C²) is 1 at σ² = 1/300.
    assert [stated_limit(f) for f in (1e-4, 1e-3, 1e-2)] == [0.03, 0.3, 3.0]
    assert stated_limit(1 / 300) == pytest.approx(1)
    small = reproduced("wfna-table1")
    [row] = [r for r in small.rows if r["row"].endswith("α as stated")]
    *empty, last = (v for k, v in row.items() if k != "row")
    assert empty == ["none", "none"]
    [whole] = [r for r in small.rows if r["row"] == "WF-NA, (35) as printed"]
    assert float(last) > float(whole["σ² = 0.01"])  # fewer orders to choose from
    assert any(c.ours.startswith("empty for σ² up to 0.003333") for c in small.table.comparisons)


def test_without_noise_nothing_is_hidden_and_noise_in_all_directions_hides(
    reproduced: Reproduced,
) -> None:
    small = reproduced("span-counterexample")
    bare, *filled = small.rows
    assert bare["errors"] == "0 of 600"
    assert bare["ε at least"] == bare["cap"]
    for row in filled:
        assert 0 <= float(row["ε at least"]) <= float(row["ε at most"])
    most = [float(row["ε at most"]) for row in filled]
    assert most == sorted(most, reverse=True)
    first = small.table.comparisons[0]
    assert "perfectly distinguish" in first.paper
    assert first.why == ""
