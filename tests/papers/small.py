"""Runs an experiment at the small scale and reads what it leaves."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch
from xml.sax.saxutils import escape

from leakmeter.papers import base
from leakmeter.papers.base import Cells, Table, read_cells, write_table
from leakmeter.papers.coverage.table import Scale
from leakmeter.papers.plot import Gallery, Panel
from leakmeter.papers.registry import EXPERIMENTS
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


@dataclass(frozen=True)
class Reproduced:
    """Gives an experiment by its name, at the small scale of the command line or at a tiny one."""

    get: Callable[[str, bool], Small]
    is_tiny: bool

    def __call__(self, name: str) -> Small:
        """Return the experiment, run by whoever asks first."""
        return self.get(name, self.is_tiny)

    def scale(self, name: str) -> Any:
        """Return the sizes that it is run at."""
        return TINY[name] if self.is_tiny and name in TINY else scales_of(name)["small"]


def scales_of(name: str) -> dict[str, Any]:
    """Return the sizes of an experiment, by scale."""
    entry = EXPERIMENTS[name]
    scales = import_module(f"leakmeter.papers.{entry.module}")._SCALES
    return cast("dict[str, Any]", scales[entry.variant] if entry.variant else scales)


def _fewer(name: str, **sizes: Any) -> Any:
    return replace(scales_of(name)["small"], **sizes)


def _few_coins() -> Any:
    few = {"clients": 60, "sample": 3, "rounds": 6}
    return {
        name: replace(part, federation=replace(part.federation, **few))
        for name, part in scales_of("dp-fedavg-writers")["small"].items()
    }


def _few_writers() -> Any:
    return {
        name: replace(
            part,
            federation=replace(part.federation, clients=30, rounds=part.federation.rounds // 2),
            canaries=80,
        )
        for name, part in scales_of("one-shot-writers")["small"].items()
    }


def _few_repetitions() -> Any:
    return {
        name: replace(part, canaries=40, repetitions=(1, 8))
        for name, part in scales_of("one-shot-repetitions")["small"].items()
    }


def _few_steps() -> Any:
    small = scales_of("one-shot-records")["small"]
    return replace(small, training=replace(small.training, rounds=24), runs=1)


def _swept(name: str, config: Mapping[str, Any] | None = None, **other: Any) -> Any:
    """Return a smaller sweep: with other settings of its federation, and other values."""
    sweep = scales_of(name)["small"]
    return sweep.small(replace(sweep.config, **(config or {})), **other)


_FEW = {"mi_draws": 24, "mi_rank": 4}
# The small scale of the command line takes seconds; the fast tests see the same shapes in less.
TINY: dict[str, Any] = {
    "coverage": Scale(7, (200,), 100),
    "dp-fedavg-writers": _few_coins(),
    "one-shot-writers": _few_writers(),
    "one-shot-all-models": (1, scales_of("one-shot-all-models")["small"][1][:4]),
    "one-shot-accuracy": _fewer("one-shot-accuracy", noises=(0.234,), counts=(2, 120), runs=1),
    "one-shot-repetitions": _few_repetitions(),
    "one-shot-many-runs": _fewer("one-shot-many-runs", experiments={1: 1, 10: 1}),
    "one-shot-records": _few_steps(),
    "mi-users": _swept("mi-users", _FEW, critics=()),
    "mi-models": _swept("mi-models", _FEW),
    "mi-batch": _swept("mi-batch", _FEW, batch_size=(4, 32)),
    "mi-epochs": _swept("mi-epochs", _FEW, epochs=(1, 2)),
    "mi-heterogeneity": _swept("mi-heterogeneity", _FEW, dirichlet=(0.5, math.inf)),
    "mi-writers": _swept("mi-writers", _FEW),
    "mi-dp": _swept("mi-dp", _FEW, users=(2, 20)),
    "mi-rounds": _swept("mi-rounds", pairs=40),
    "mi-accuracy": _swept("mi-accuracy", pairs=40, plays=1),
    "mine-dimension": _swept("mine-dimension", d=(1, 100), pairs=100, steps=60),
    "mine-rounds": _swept("mine-rounds", mine_draws=(8,)),
    "textbook-examples": (20, 2, 20),
    "dlg-users": tuple(
        replace(case, targets=2, attacks=case.attacks[:1], draws=40)
        for case in scales_of("dlg-users")["small"]
    ),
    "ring-noise": _fewer("ring-noise", bits=(8,)),
    "transcript-adult": _fewer("transcript-adult", rounds=2, sample=4),
    "low-bits": 8,
    "anytime-refutes": 2,
    "wfna-mnist-cnn": _fewer(
        "wfna-mnist-cnn",
        config=replace(scales_of("wfna-mnist-cnn")["small"].config, clients=3, sample=3, rounds=1),
    ),
}


def reproduce(
    name: str, folder: Path, kept: Mapping[str, Any] | None = None, *, is_tiny: bool = True
) -> Small:
    """Run an experiment with some of its cells computed beforehand."""
    cells = Cells(folder, lambda _: None)
    for key, value in (kept or {}).items():
        cells.get(key, lambda value=value: value)
    table = table_of(name, cells, is_tiny=is_tiny)
    with patch.object(base, "drawn", sketched) if is_tiny else nullcontext():
        write_table(table, folder)
    return Small(folder, table)


def sketched(figure: Sequence[Panel] | Gallery) -> str | bytes:
    """Return a figure of words: matplotlib takes a second for what tests of its own look at."""
    if isinstance(figure, Gallery):
        assert all(len(strip.pictures) > 0 for strip in figure.strips)
        return b"\x89PNG\r\n"
    for panel in figure:
        assert panel.lines
        assert all(len(line.x) == len(line.y) > 0 for line in panel.lines)
    words = "".join(f"<text>{escape(line.label)}</text>" for p in figure for line in p.lines)
    return f"<svg>{words}</svg>"


def table_of(name: str, cells: Cells, *, is_tiny: bool = True) -> Table:
    """Run an experiment, or what is missing of it."""
    fewer = {"small": TINY[name]} if is_tiny and name in TINY else {}
    with patch.dict(scales_of(name), fewer):
        return EXPERIMENTS[name].load()("small", cells)


def read_rows(folder: Path) -> list[dict[str, str]]:
    """Return the table in a folder of results, by column."""
    with (folder / "table.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))
