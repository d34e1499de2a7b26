"""What holds of every experiment: what it leaves, and that nothing is computed twice."""

from __future__ import annotations

import csv
import xml.etree.ElementTree as ET
from importlib import import_module
from pathlib import Path

import pytest

from leakmeter.papers.base import Cells
from leakmeter.papers.published import PAPERS
from leakmeter.papers.registry import EXPERIMENTS
from tests.papers.small import Reproduced, Small, table_of

# Those that take longer, or read real data, have tests of their own.
QUICK = [name for name, entry in EXPERIMENTS.items() if entry.small <= 8 and not entry.small_data]
LONG = {  # those that take longest at the tiny scale
    *("claims-zoo", "dp-fedavg-writers", "textbook-examples", "transcript-adult", "ring-noise"),
    *("ldp-curves", "coverage", "one-shot-records", "anytime-refutes", "dlg-users"),
    *("one-shot-all-models", "mine-rounds", "mi-models"),
}
PACKAGES = [
    *("andrew2024", "claims_zoo", "coverage", "elkordy2023", "ngo2024", "ring_noise", "zhang2024")
]


@pytest.mark.parametrize("paper", PACKAGES)
def test_every_module_is_listed_where_its_paper_is_named(paper: str) -> None:
    package = import_module(f"leakmeter.papers.{paper}")
    modules = {path.stem for path in Path(package.__path__[0]).glob("[!_]*.py")}
    assert len(modules) <= 15
    assert not [name for name in modules if f"`{name}`" not in package.__doc__]
    assert "arXiv:" in package.__doc__


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in QUICK],
)
def test_every_experiment_leaves_a_table_a_page_and_its_figures(
    reproduced: Reproduced, name: str
) -> None:
    small = reproduced(name)
    with (small.folder / "table.csv").open(encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    assert len(rows) == len(small.table.rows) > 0
    assert all(len(row) == len(head) for row in rows)
    for figure in small.table.figures:
        assert f"]({figure})" in small.page
        drawn = (small.folder / figure).read_bytes()
        if figure.endswith(".png"):
            assert drawn.startswith(b"\x89PNG\r\n")
        else:
            assert ET.fromstring(drawn.decode()).tag.endswith("svg")
    for row in small.table.comparisons:
        assert any(row.source.startswith(paper.key) for paper in PAPERS)
        assert row.what
        assert row.paper
        assert row.ours
    check_kept_cells_give_the_same_and_no_work(name, small, is_tiny=reproduced.is_tiny)


def check_kept_cells_give_the_same_and_no_work(name: str, small: Small, *, is_tiny: bool) -> None:
    def refuse(text: str) -> None:
        raise AssertionError(f"computed again: {text}")

    again = table_of(name, Cells(small.folder, refuse), is_tiny=is_tiny)
    assert again.to_csv() == small.table.to_csv()
    assert again.to_markdown() == small.table.to_markdown()
    assert again.comparisons == small.table.comparisons
    # By their texts: pictures have no equality of their own. What is drawn from equals is equal.
    assert repr(again.figures) == repr(small.table.figures)
