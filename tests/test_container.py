"""The Dockerfile's own steps in a clean environment, since a Docker engine need not be here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.helpers.project import ROOT


@dataclass
class Stage:
    """One stage of the file: what it builds on, its commands, and what it runs."""

    base: str
    runs: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    copies: bool = False


def stages() -> dict[str, Stage]:
    """Return the stages of the Dockerfile by name."""
    found: dict[str, Stage] = {}
    last = ""
    for line in (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, last = rest.partition(" AS ")
            found[last] = Stage(base)
        elif word == "RUN":
            found[last].runs.append(rest)
        elif word == "COPY":
            found[last].copies |= rest == ". ."
        elif word == "CMD":
            found[last].command = json.loads(rest)
        else:
            assert word in ("", "#", "ENV", "WORKDIR", "ARG"), line
    return found


def test_the_last_stage_runs_the_default_job_and_another_the_tests() -> None:
    made = stages()
    assert list(made) == ["base", "tests", "run"]
    assert made["run"].command == ["python", "run_sim.py"]
    assert made["tests"].command == ["pytest"]
    assert {made[name].base for name in ("tests", "run")} == {"base"}
    assert made["base"].copies


@pytest.mark.launch
def test_the_steps_build_an_environment_that_runs_the_default_job(tmp_path: Path) -> None:
    app, made = tmp_path / "app", stages()
    # Docker's patterns are about the top level alone: `build` is not `fl_app/build`.
    top = shutil.ignore_patterns(*(ROOT / ".dockerignore").read_text().split())
    shutil.copytree(
        ROOT,
        app,
        symlinks=True,
        ignore=lambda folder, names: (
            {*(top(folder, names) if Path(folder) == ROOT else ()), *{"__pycache__"} & set(names)}
        ),
    )
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    path = os.pathsep.join([str(tmp_path / "venv" / "bin"), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "TORCH_INDEX": "", "FLWR_TELEMETRY_ENABLED": "0"}
    env.pop("PYTHONPATH", None)
    for step in [*made["base"].runs, *made["tests"].runs]:
        subprocess.run(["sh", "-c", step], cwd=app, env=env, check=True, timeout=1800)
    done = subprocess.run(
        [*made["run"].command, "--rounds", "2", "--auditors", "one-shot"],
        cwd=app,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "VERDICT" in done.stdout
    words = [*made["tests"].command, "tests/auditors/bounds", "-n", "0"]
    subprocess.run(words, cwd=app, env=env, check=True, timeout=1800)
