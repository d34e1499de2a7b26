"""Published tables run again: what is listed, kept, refused, and found."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.settings import DATASETS
from leakmeter.fl_app.data.dataset import FOLDER_VARIABLE
from leakmeter.papers.andrew2024 import table1 as one_shot_table1
from leakmeter.papers.base import CELLS, Cells, read_cells
from leakmeter.papers.registry import EXPERIMENTS, duration
from tests.helpers.fixtures import Patch, Printed
from tests.helpers.project import PAPERS, ROOMS, ROOT, sources
from tests.papers.small import sketched

REAL = os.environ.get(FOLDER_VARIABLE)


@pytest.fixture(scope="module")
def table1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole reproduction."""
    path = tmp_path_factory.mktemp("reproduced") / "table1"
    assert main(["reproduce", "one-shot-table1", "--scale", "small", "--out", str(path)]) == 0
    return path


def test_the_list_names_every_experiment(capsys: Printed) -> None:
    assert main(["reproduce", "--list"]) == 0
    head, *lines, _ = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "small", "paper", "data", "what"]
    assert [line.split()[0] for line in lines] == list(EXPERIMENTS)
    for line, entry in zip(lines, EXPERIMENTS.values(), strict=True):
        assert line.endswith(entry.what)
        assert f"{duration(entry.small)}  " in line
        assert f"{duration(entry.paper)}  " in line
        assert all(name in line for name in entry.data)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_listed_experiment_runs_at_both_scales_and_says_for_how_long(name: str) -> None:
    entry = EXPERIMENTS[name]
    module = import_module(f"leakmeter.papers.{entry.module}")
    scales = module._SCALES[entry.variant] if entry.variant else module._SCALES
    assert set(scales) == {"paper", "small"}
    assert 0 < entry.seconds("small") <= entry.seconds("paper")
    assert set(entry.data) | set(entry.small_data) <= {*DATASETS, "writers"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "NAME is missing; try one-shot-table1, or --list for all names"),
        (["nonsense"], "unknown experiment nonsense; --list shows all of them"),
        (["mi-writer"], "unknown experiment mi-writer; did you mean mi-writers?"),
        (["one-shot-table1", "--scale", "huge"], "--scale must be one of paper, small, got 'huge'"),
        (["one-shot-table1", "--scle", "small"], "unknown option --scle; did you mean --scale?"),
        (["one-shot-table1", "--engine", "gpu"], "--engine must be one of inline, ray, got 'gpu'"),
        (
            ["one-shot-table1", "--ray-address", "here:1"],
            "--ray-address needs --engine ray, got --engine inline",
        ),
        (["--results", "nowhere"], "results must be a folder of results, got 'nowhere'"),
    ],
)
def test_a_mistake_is_one_line_with_code_2_and_leaves_nothing(
    arguments: list[str], message: str, tmp_path: Path, capsys: Printed
) -> None:
    assert main(["reproduce", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"error: {message}")
    assert printed.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_nothing_is_computed_and_the_way_out_is_said(
    tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    assert main(["reproduce", "one-shot-table1", "--out", "here"]) == 2
    assert capsys.readouterr().err == (
        "error: reproduce needs matplotlib for its figures, and it is not installed; "
        'run pip install "leakmeter[reproduce]"\n'
    )
    assert not list(tmp_path.iterdir())
    assert main(["reproduce", "--list"]) == 0  # which draws nothing


def test_matplotlib_is_asked_for_where_figures_are_drawn_and_nowhere_else() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["optional-dependencies"]["reproduce"] == ["matplotlib"]
    assert "matplotlib" in project["optional-dependencies"]["dev"]
    assert "matplotlib" not in project["dependencies"]
    users = {name for name in sources(*ROOMS, PAPERS) if "matplotlib" in (ROOT / name).read_text()}
    assert users == {
        "examples/papers/command.py",  # which asks whether it is there
        "examples/papers/plot.py",
    }


def test_the_table_is_left_for_programs_and_for_people(table1: Path) -> None:
    with (table1 / "table.csv").open(encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    data = json.loads((table1 / "table.json").read_text(encoding="utf-8"))
    assert data["columns"] == head
    assert [[str(value) for value in row] for row in data["rows"]] == rows
    page = (table1 / "table.md").read_text(encoding="utf-8")
    assert page.startswith(f"## {data['title']}\n")
    assert page.count("\n| ") == len(rows) + 2
    assert "Estimates, not bounds." in page


def test_a_second_run_computes_nothing_and_writes_the_same(
    table1: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a kept cell was computed again")

    before = left_in(table1)
    monkeypatch.setattr(one_shot_table1, "_cell", refuse)
    again = ["reproduce", "one-shot-table1", "--out", str(table1)]
    assert main(again) == 0
    assert "done" not in capsys.readouterr().out
    assert left_in(table1) == before
    monkeypatch.setattr("leakmeter.papers.base.drawn", sketched)
    assert main([*again, "--engine", "ray"]) == 0  # in this process
    assert "one-shot-table1 has no work that Ray could distribute" in capsys.readouterr().out
    assert "ray" not in sys.modules or not sys.modules["ray"].is_initialized()


# Experiments whose published size has not been run for good yet.
WITHOUT_RESULTS: set[str] = set()


def test_results_are_committed_of_all_other_experiments() -> None:
    kept = {path.name for path in (ROOT / "docs" / "results").iterdir() if path.is_dir()}
    assert kept == set(EXPERIMENTS) - WITHOUT_RESULTS


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name not in WITHOUT_RESULTS])
def test_the_committed_tables_follow_from_the_committed_cells(
    name: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("leakmeter.papers.base.drawn", lambda _: "")  # takes longest
    kept = ROOT / "docs" / "results" / name
    shutil.copy(kept / CELLS, tmp_path)
    asked, get = set[str](), Cells.get

    def remembered(self: Cells, key: str, *work: Any, **how: Any) -> Any:
        asked.add(key)
        return get(self, key, *work, **how)

    monkeypatch.setattr(Cells, "get", remembered)
    assert main(["reproduce", name, "--scale", "paper", "--out", str(tmp_path)]) == 0
    assert asked == set(read_cells(kept))
    assert len(asked) == EXPERIMENTS[name].cells
    for table in ("table.csv", "table.json", "table.md"):
        assert (tmp_path / table).read_bytes() == (kept / table).read_bytes()
    assert (tmp_path / CELLS).read_bytes() == (kept / CELLS).read_bytes()


# Mean and std of the known-std estimate at d = 10,000 and k = 100 over many simulations.
REFERENCE = {10: (9.80, 0.64), 3: (2.99, 0.51), 1: (1.01, 0.45)}


@pytest.mark.parametrize("epsilon", REFERENCE)
def test_table_1_agrees_with_the_known_std_and_not_with_the_printed_algorithm(
    table1: Path, epsilon: int
) -> None:
    # Three standard errors of 50 simulations: a chance of 0.3 % a case, and the seed is fixed.
    mean, std = REFERENCE[epsilon]
    cell = read_cells(table1)[f"eps{epsilon}-d10000"]
    assert abs(cell["known_mean"] - mean) < 3 * std / 50**0.5
    assert cell["fitted_mean"] > cell["known_mean"] + 10 * std / 50**0.5
    larger = read_cells(table1)[f"eps{epsilon}-d100000"]
    assert larger["known_std"] < cell["known_std"]
    assert larger["fitted_mean"] < cell["fitted_mean"]


# Published tables in processes of their own: the same bits again, and nothing without data.


@pytest.mark.parametrize(
    ("name", "scale", "missing"),
    [
        (name, scale, data[0])
        for name, entry in EXPERIMENTS.items()
        for scale, data in (("small", entry.small_data), ("paper", entry.data))
        if data
    ],
)
def test_without_its_data_an_experiment_ends_before_any_work(
    name: str, scale: str, missing: str, tmp_path: Path, capsys: Printed
) -> None:
    assert main(["reproduce", name, "--scale", scale, "--out", "here"]) == 2
    assert f"error: {missing}: " in capsys.readouterr().err
    assert not (tmp_path / "here").exists()


def small_run(name: str, folder: Path, *more: str) -> dict[str, bytes]:
    """Return what a run of its own process leaves at the small scale, on one thread."""
    script = [sys.executable, str(ROOT / "run_sim.py"), "reproduce", name, "--out", str(folder)]
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
    done = subprocess.run(
        [*script, *more], capture_output=True, text=True, env={**os.environ, **threads}
    )
    assert done.returncode == 0, done.stderr
    return left_in(folder)


def left_in(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one-shot-table1", "mi-writers"])
def test_the_small_scale_gives_the_same_bits_in_another_process(name: str, tmp_path: Path) -> None:
    assert main(["reproduce", name, "--out", str(tmp_path / "here")]) == 0
    here = left_in(tmp_path / "here")
    assert len(here) == 1 + 4  # cells; tables and a figure
    assert small_run(name, tmp_path / "there") == here


@pytest.mark.launch
def test_ray_gives_the_same_bits(tmp_path: Path) -> None:
    inline = small_run("mi-writers", tmp_path / "inline")
    assert small_run("mi-writers", tmp_path / "ray", "--engine", "ray") == inline
