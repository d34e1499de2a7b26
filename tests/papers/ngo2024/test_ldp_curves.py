"""The LDP curves of Fig. 1 run again: reference values, bounds, figure."""

from __future__ import annotations

import subprocess
import sys

import pytest

from leakmeter.papers.plot import Line, Panel, line_figure
from tests.helpers.numbers import first_fast
from tests.papers.small import RESULTS, Reproduced, read_cells, read_rows

KEPT = RESULTS / "ldp-curves"

# Delta at epsilon 1, 2 and 4, computed independently.
REFERENCE = {
    ("exponential", "50", "5"): (0.2530453, 0.1022894, 7.945876e-3),
    ("exponential", "100", "10"): (0.2401025, 0.0867145, 3.928764e-3),
    ("uniform", "10", "5"): (0.6534538, 0.5076233, 0.2334253),
    ("uniform", "50", "10"): (0.3398597, 0.1593651, 0.01403756),
}


@pytest.mark.parametrize("scale", first_fast(1, ["paper", "small"]))
def test_the_table_shows_the_reference_values(reproduced: Reproduced, scale: str) -> None:
    rows = reproduced("ldp-curves").rows if scale == "small" else read_rows(KEPT)
    shown = {(r["case"], r["n"], r["d"], float(r["ε"])): float(r["δ"]) for r in rows}
    for key, deltas in REFERENCE.items():
        for epsilon, delta in zip((1.0, 2.0, 4.0), deltas, strict=True):
            assert shown[(*key, epsilon)] == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("scale", first_fast(1, ["paper", "small"]))
def test_every_delta_stands_between_its_bounds(reproduced: Reproduced, scale: str) -> None:
    for row in reproduced("ldp-curves").rows if scale == "small" else read_rows(KEPT):
        lower, delta, upper = (float(row[name]) for name in ("lower", "δ", "upper"))
        assert lower * (1 - 1e-6) < delta < upper * (1 + 1e-6)
        assert upper < lower * (1 + 1e-5)


def test_the_kept_curves_have_no_kink() -> None:
    for name, cell in read_cells(KEPT).items():
        pairs = zip(cell["lower"], cell["upper"], strict=True)
        assert all(0 < upper / lower - 1 < 1e-5 for lower, upper in pairs), name
        assert cell["delta"] == sorted(cell["delta"], reverse=True)


@pytest.mark.slow
def test_the_figure_names_its_curves(reproduced: Reproduced) -> None:
    drawn = line_figure(reproduced("ldp-curves").table.figures["curves.svg"])
    for words in ("n = 50, d = 5", "n = 10, d = 5", "exponential", "uniform", "dashed"):
        assert words in drawn
    assert "_model" not in drawn


@pytest.mark.slow
def test_the_same_figure_has_the_same_bytes_in_another_process() -> None:
    panel = Panel("t", "x", "y", (Line("a", [1.0, 2.0], [0.1, 0.2]),), log_y=True)
    code = (
        "from leakmeter.papers.plot import Line, Panel, line_figure\n"
        "lines = (Line('a', [1.0, 2.0], [0.1, 0.2]),)\n"
        "print(line_figure([Panel('t', 'x', 'y', lines, log_y=True)]), end='')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == line_figure([panel])
    assert "dc:date" not in done.stdout
