"""What CONTRIBUTING shows is all that a new auditor, noise, data set or model needs."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs_blocks import blocks
from tests.helpers.project import ROOMS, ROOT

PAGE = ROOT / "CONTRIBUTING.md"
SMALL = ["--rounds", "2", "--clients", "8", "--sample", "4", "--epochs", "1"]


def add_all(project: Path) -> None:
    """Write the files and insert the rows that the page shows."""
    for block in blocks(PAGE):
        name, _, text = block.text.removeprefix("# ").partition("\n")
        if block.language == "python" and name.endswith(".py"):
            assert not (project / name).exists()
            (project / name).write_text(text, encoding="utf-8")
        elif block.language == "diff":
            insert(project / name, text.splitlines())


def insert(file: Path, rows: list[str]) -> None:
    """Insert each line with a plus after the line that the page shows before it."""
    lines, place = file.read_text(encoding="utf-8").splitlines(), 0
    for row in rows:
        if row.startswith("+"):
            lines.insert(place, row[1:])
            place += 1
        else:
            place = lines.index(row[1:], place) + 1
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of this checkout with everything that the page adds."""
    folder = tmp_path_factory.mktemp("seams") / "checkout"
    for name in (*ROOMS, "leakmeter", "docs"):
        shutil.copytree(
            ROOT / name,
            folder / name,
            symlinks=True,  # compiled modules come as well, and are used where a file is the same
            ignore=shutil.ignore_patterns("results", "gallery"),
        )
    for name in ("run_sim.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    add_all(folder)
    return folder


def run(project: Path, *words: str) -> str:
    """Return what a program of the copy prints."""
    done = started(project, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def started(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Return a program of the copy that has ended."""
    environment = {**os.environ, "PYTHONPATH": str(project)}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)


def test_a_new_auditor_is_known_everywhere_by_its_row(project: Path) -> None:
    helped = " ".join(run(project, "run_sim.py", "--help", "all").split())
    assert "--movement-order X order of the norm of movement (default: 2)" in helped
    assert "recorder, movement, none" in helped
    completion = run(project, "run_sim.py", "completion", "bash")
    assert "--movement-order" in completion
    assert "recorder movement none" in completion
    run(project, "docs/make_settings.py")
    assert "movement-order = 2.0\n" in (project / "pyproject.toml").read_text()
    listed = (project / "docs/settings.md").read_text()
    assert "| `movement` | How far each round moves the model. |" in listed
    assert "| `--movement-order` | `2.0` | order of the norm of movement |" in listed


def test_a_new_auditor_data_set_and_model_run_with_their_settings(project: Path) -> None:
    (project / "mine.toml").write_text("movement-order = 1.0\n")
    names = ["--dataset", "stripes", "--model", "narrow", "--auditors", "movement"]
    said = run(project, "run_sim.py", *SMALL, *names, "--config", "mine.toml", "--out", "runs/new")
    assert "narrow with 626 parameters" in said  # (36 + 1) · 16 + (16 + 1) · 2
    rounds = [line for line in said.splitlines() if line.startswith("round ")]
    assert len(rounds) == 2
    assert all(" movement " in line for line in rounds)
    report = json.loads((project / "runs/new/report.json").read_text())
    found = [f for f in report["findings"] if f["auditor"] == "movement"]
    assert [f["rule"] for f in found] == ["norm of order 1"] * 3
    assert found[-1]["value"] == max(f["value"] for f in found)
    told = run(project, "run_sim.py", "report", "--text", "runs/new")
    assert f"movement of the model ≈ {found[-1]['value']:.3g} (movement: norm of order 1" in told
    page = (project / "runs/new/report.html").read_text()
    assert all(f"{f['value']:.3g}" in page for f in found)


def test_sizes_of_a_new_data_set_are_those_of_its_loader(project: Path) -> None:
    code = (
        "from leakmeter.fl_app.config.config import Config\n"
        "from leakmeter.fl_app.run import early\n"
        "print(early._shape(Config(dataset='stripes')))"
    )
    assert run(project, "-c", code) == "((6, 6), 2)\n"


@pytest.mark.slow
def test_a_new_noise_is_run_priced_and_calibrated_by_its_row(project: Path) -> None:
    assert "local|twofold|wfna" in "".join(run(project, "run_sim.py", "--help", "all").split())
    assert "twofold" in run(project, "run_sim.py", "completion", "bash")
    words = ["--noise", "twofold", "--clip-norm", "1", "--auditors", "none", "--model", "linear"]
    said = run(project, "run_sim.py", *SMALL, *words, "--target-epsilon", "9", "--out", "runs/two")
    assert "twofold noise" in said
    report = json.loads((project / "runs/two/report.json").read_text())
    found = [f for f in report["findings"] if f["facts"].get("noise") == "twofold"]
    proven = {f["threat_model"]["observer"]: f for f in found if f["adjacency"] == "zero-out"}
    assert 0 < proven["outsider"]["value"] < proven["server"]["value"]
    assert proven["server"]["value"] == pytest.approx(9, abs=0.001)  # what was asked for
    assert proven["server"]["kind"] == proven["outsider"]["kind"] == "guarantee"


def test_a_noise_without_a_row_is_refused(project: Path) -> None:
    done = started(project, "run_sim.py", "--noise", "threefold", "--clip-norm", "1")
    assert done.returncode == 2
    assert "--noise must be one of none, central" in done.stderr


def test_the_lists_of_settings_are_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs/make_settings.py"))
    for file, text in (("PYPROJECT", "pyproject"), ("PAGE", "page")):
        now = made[file].read_text(encoding="utf-8")
        assert now == made[text](), "run: python docs/make_settings.py"
