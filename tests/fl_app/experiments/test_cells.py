"""Cells of experiments: computed once, after the data were asked for, and readable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from leakmeter.fl_app.experiments.base import Cells, Table, median_range, write_table


def test_an_interrupted_experiment_goes_on_where_it_stopped(tmp_path: Path) -> None:
    asked: list[str] = []
    said: list[str] = []

    def get(key: str, *, dies: bool = False) -> Any:
        def compute() -> float:
            asked.append(key)
            if dies:
                raise KeyboardInterrupt
            return float("inf")

        return Cells(tmp_path, said.append).get(key, compute)

    assert get("a") == "inf"
    with pytest.raises(KeyboardInterrupt):
        get("b", dies=True)
    assert get("a") == get("b") == "inf"
    assert asked == ["a", "b", "b"]
    assert [line.partition(" after ")[0] for line in said] == ["  a: done", "  b: done"]


def test_nothing_is_asked_of_the_data_until_a_cell_has_to_be_computed(tmp_path: Path) -> None:
    asked: list[str] = []

    def cells() -> Cells:
        return Cells(tmp_path, lambda _: None, lambda: asked.append("data"))

    first = cells()
    assert (first.get("a", lambda: 1), first.get("b", lambda: 2)) == (1, 2)
    assert asked == ["data"]
    again = cells()
    assert (again.get("a", dict), again.get("b", dict)) == (1, 2)
    assert asked == ["data"]


def test_an_infinite_number_leaves_readable_json(tmp_path: Path) -> None:
    write_table(Table("t", ("ε",), ((float("inf"),),)), tmp_path)
    assert json.loads((tmp_path / "table.json").read_text())["rows"] == [["inf"]]


def test_a_range_shows_the_median_between_its_ends() -> None:
    assert median_range([3.0, 1.0, 2.0]) == "2.00 (1.00 to 3.00)"
    assert median_range([0.5], ".1f") == "0.5"
