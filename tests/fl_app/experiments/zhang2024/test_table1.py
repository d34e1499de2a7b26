"""The published table with the rows that hold, and the sum that hides nothing."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.experiments.zhang2024.table1 import _printed


def reproduced(name: str, folder: Path) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Return rows and comparisons of a small reproduction."""
    assert main(["reproduce", name, "--scale", "small", "--out", str(folder)]) == 0
    with (folder / "table.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return rows, json.loads((folder / "table.json").read_text())["comparisons"]


# σ² = 1e-4, 1e-3, 1e-2: computed with 40 digits by another route.
REFERENCE = {
    "WF-NA, ours": ("12.658122", "1.221943", "0.175118"),
    "5 Gaussian sampling, isotropic, sharpened": ("9.952976", "0.989187", "0.154290"),
}


def test_table_1_has_the_corrected_values_and_no_row_6(tmp_path: Path) -> None:
    rows, compared = reproduced("wfna-table1", tmp_path)
    values = {r["row"]: tuple(v for k, v in r.items() if k != "row") for r in rows}
    for name, expected in REFERENCE.items():
        assert values[name] == expected
    assert values["3 full gradient, isotropic"][1] == "0.322680"
    assert values["3 full gradient, isotropic, exact"][1] == "0.198105"
    assert values["WF-NA, ours, tight conversion"][1] == "0.863769"
    assert not any(name.startswith("6") for name in values)
    [six] = [c for c in compared if c["what"].startswith("row 6")]
    assert "not a theorem" in six["why"]
    text = (tmp_path / "table.md").read_text()
    assert "eigenvalue of -290.8" in text
    assert "-1.089 and +0.325" in text
    assert (tmp_path / "epsilon.svg").exists()


def test_printed_bounds_are_above_ours_and_want_an_admissible_order() -> None:
    assert _printed(1.0, 1.0, 1e-3) > 0.989187
    assert _printed(2.0, 2.0, 1e-3) > 1.221943
    assert _printed(2.0, 2.0, 1e-4) == math.inf  # Nσ² is below 2C²/(BD)


def test_without_noise_nothing_is_hidden_and_noise_in_all_directions_hides(tmp_path: Path) -> None:
    rows, compared = reproduced("span-counterexample", tmp_path)
    bare, *filled = rows
    assert bare["errors"] == "0 of 600"
    assert bare["ε at least"] == bare["cap"]
    for row in filled:
        assert 0 <= float(row["ε at least"]) <= float(row["ε at most"])
    most = [float(row["ε at most"]) for row in filled]
    assert most == sorted(most, reverse=True)
    assert "perfectly distinguish" in compared[0]["paper"]
    assert compared[0]["why"] == ""
    assert (tmp_path / "counterexample.svg").exists()


@pytest.mark.parametrize("name", ["wfna-table1", "span-counterexample"])
def test_a_second_run_computes_nothing(name: str, tmp_path: Path) -> None:
    reproduced(name, tmp_path)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "cells").iterdir()}
    reproduced(name, tmp_path)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "cells").iterdir()} == before
