"""Cells of experiments: computed once, after the data were asked for, and readable."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from leakmeter.papers import base
from leakmeter.papers.base import Cells, Plan, Table, median_range, write_table


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


def test_what_is_left_follows_from_the_cells_of_this_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(base.time, "monotonic", lambda: clock[0])

    def work(seconds: float) -> None:
        clock[0] += seconds

    Cells(tmp_path, lambda _: None).get("kept", work, 7.0)
    said: list[str] = []
    cells = Cells(tmp_path, said.append, plan=Plan(cells=5, seconds=50.0))
    cells.get("a", work, 30.0)
    cells.get("b", work, 50.0)
    cells.get("c", work, 10.0)
    cells.get("kept", work, 1.0)
    cells.get("d", work, 10.0)
    assert said == [
        "  a: done after 30 s; 2 of 5 cells, about 90 s left",
        "  b: done after 80 s; 3 of 5 cells, about 80 s left",
        "  c: done after 90 s; 4 of 5 cells, about 30 s left",
        "  d: done after 100 s",
    ]


def test_a_long_cell_gives_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard, said = threading.Event(), list[str]()

    def say(line: str) -> None:
        said.append(line)
        heard.set()

    monkeypatch.setattr(base, "_PATIENCE", 0.01)
    Cells(tmp_path, say, plan=Plan(cells=2, seconds=7_200.0)).get("long", heard.wait, 30)
    assert said[0] == "  long: still running after 0 s; 0 of 2 cells, about 2.0 h left"
    assert said[-1].startswith("  long: done after")


def test_a_cell_that_takes_longer_than_planned_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = threading.Event()
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        heard.set()

    monkeypatch.setattr(base, "_PATIENCE", 0.01)
    Cells(tmp_path, say, plan=Plan(cells=2, seconds=0.001)).get("long", heard.wait, 30)
    assert said[0].endswith("0 of 2 cells, longer than usual")


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
