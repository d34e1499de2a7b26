"""The LDP curves of Fig. 1 run again: reference values, bounds, figure."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.experiments.plot import Line, Panel, line_figure
from tests.helpers.project import ROOT

# Delta at epsilon 1, 2 and 4, computed independently.
REFERENCE = {
    ("exponential", "50", "5"): (0.2530453, 0.1022894, 7.945876e-3),
    ("exponential", "100", "10"): (0.2401025, 0.0867145, 3.928764e-3),
    ("uniform", "10", "5"): (0.6534538, 0.5076233, 0.2334253),
    ("uniform", "50", "10"): (0.3398597, 0.1593651, 0.01403756),
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole reproduction."""
    path = tmp_path_factory.mktemp("reproduced") / "curves"
    assert main(["reproduce", "ldp-curves", "--scale", "small", "--out", str(path)]) == 0
    return path


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "table.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_the_table_shows_the_reference_values(small: Path, scale: str) -> None:
    folder = small if scale == "small" else ROOT / "docs" / "results" / "ldp-curves"
    shown = {(r["case"], r["n"], r["d"], float(r["ε"])): float(r["δ"]) for r in rows(folder)}
    for key, deltas in REFERENCE.items():
        for epsilon, delta in zip((1.0, 2.0, 4.0), deltas, strict=True):
            assert shown[(*key, epsilon)] == pytest.approx(delta, rel=1e-6)


def test_every_delta_stands_between_its_bounds(small: Path) -> None:
    for folder in (small, ROOT / "docs" / "results" / "ldp-curves"):
        for row in rows(folder):
            lower, delta, upper = (float(row[name]) for name in ("lower", "δ", "upper"))
            assert lower * (1 - 1e-6) < delta < upper * (1 + 1e-6)
            assert upper < lower * (1 + 1e-5)


def test_the_kept_curves_have_no_kink() -> None:
    for path in (ROOT / "docs" / "results" / "ldp-curves" / "cells").iterdir():
        cell = json.loads(path.read_text(encoding="utf-8"))
        pairs = zip(cell["lower"], cell["upper"], strict=True)
        assert all(0 < upper / lower - 1 < 1e-5 for lower, upper in pairs), path.name
        assert cell["delta"] == sorted(cell["delta"], reverse=True)


def test_the_page_shows_the_figure_and_the_figure_is_drawn(small: Path) -> None:
    assert "](curves.svg)" in (small / "table.md").read_text(encoding="utf-8")
    drawn = (small / "curves.svg").read_text(encoding="utf-8")
    assert ET.fromstring(drawn).tag.endswith("svg")
    for words in ("n = 50, d = 5", "n = 10, d = 5", "exponential", "uniform", "dashed"):
        assert words in drawn
    assert "_model" not in drawn


def test_the_same_figure_has_the_same_bytes_in_another_process() -> None:
    panel = Panel("t", "x", "y", (Line("a", [1.0, 2.0], [0.1, 0.2]),), log_y=True)
    code = (
        "from leakmeter.fl_app.experiments.plot import Line, Panel, line_figure\n"
        "lines = (Line('a', [1.0, 2.0], [0.1, 0.2]),)\n"
        "print(line_figure([Panel('t', 'x', 'y', lines, log_y=True)]), end='')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == line_figure([panel])
    assert "dc:date" not in done.stdout
