"""Published tables in processes of their own: the same bits again, and nothing without data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.data.dataset import FOLDER_VARIABLE
from leakmeter.papers.registry import EXPERIMENTS
from tests.helpers.project import ROOT


@pytest.mark.parametrize("name", [n for n, entry in EXPERIMENTS.items() if entry.data])
def test_without_its_data_an_experiment_ends_before_any_work(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    assert main(["reproduce", name, "--scale", "paper", "--out", "here"]) == 2
    assert f"error: {EXPERIMENTS[name].data[0]}: " in capsys.readouterr().err
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
