"""Runs an experiment at the small scale and reads what it leaves."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from leakmeter.fl_app.experiments.andrew2024 import best_threshold
from leakmeter.fl_app.experiments.base import Cells, Table, read_cells, write_table
from leakmeter.fl_app.experiments.registry import EXPERIMENTS
from tests.helpers.project import ROOT

RESULTS = ROOT / "docs" / "results"


@dataclass(frozen=True)
class Small:
    """A reproduction in a folder."""

    folder: Path
    table: Table

    @property
    def cells(self) -> dict[str, Any]:
        """Every kept cell by its name."""
        return read_cells(self.folder)

    @property
    def rows(self) -> list[dict[str, str]]:
        """The table for programs, by column."""
        return read_rows(self.folder)

    @property
    def page(self) -> str:
        """The table for people."""
        return (self.folder / "table.md").read_text(encoding="utf-8")


Reproduced = Callable[[str], Small]


# Fewer repetitions than at the small scale of the command line, which takes seconds.
_FEWER: dict[str, Any] = {
    "best-threshold": best_threshold._Scale((200,), 50),
    "one-shot-coverage": (10, 30),
    "anytime-coverage": (500, 2),
}


def reproduce(name: str, folder: Path, kept: Mapping[str, Any] | None = None) -> Small:
    """Run an experiment with some of its cells computed beforehand."""
    cells = Cells(folder, lambda _: None)
    for key, value in (kept or {}).items():
        cells.get(key, lambda value=value: value)
    table = table_of(name, cells)
    write_table(table, folder)
    return Small(folder, table)


def table_of(name: str, cells: Cells) -> Table:
    """Run an experiment, or what is missing of it."""
    entry = EXPERIMENTS[name]
    scales = import_module(f"leakmeter.fl_app.experiments.{entry.module}")._SCALES
    with patch.dict(scales, {"small": _FEWER[name]} if name in _FEWER else {}):
        return entry.load()("small", cells)


def read_rows(folder: Path) -> list[dict[str, str]]:
    """Return the table in a folder of results, by column."""
    with (folder / "table.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))
