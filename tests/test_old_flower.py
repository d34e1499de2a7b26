"""Flower's earlier launch: `flower-simulation` of release 1.26.1, in an environment of its own.

LEAKMETER_OLD_FLOWER names the Python of that environment; docs/launches.md says how to make one.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
VARIABLE = "LEAKMETER_OLD_FLOWER"
OLD = os.environ.get(VARIABLE, "")
SETTINGS: dict[str, str | int | float] = {
    "dataset": "synthetic",
    "synthetic-examples": 200,
    "model": "linear",
    "clients": 10,
    "sample": 4,
    "canary-seats": 2,
    "rounds": 3,
    "seed": 11,
    "noise": "distributed",
    "clip-norm": 0.5,
    "noise-multiplier": 0.3,
}
BACKEND = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}

pytestmark = [
    pytest.mark.launch,
    pytest.mark.skipif(not OLD, reason=f"{VARIABLE} names no Python with flwr 1.26.1"),
]


def call(home: Path, *command: str) -> str:
    """Run a command of the old environment and return what it prints."""
    strange = ("RAY_ADDRESS", "PYTHONPATH")
    clean = {name: value for name, value in os.environ.items() if name not in strange}
    own = {
        "FLWR_HOME": str(home),
        "PATH": os.pathsep.join([str(Path(OLD).parent), os.environ["PATH"]]),
        "RAY_ADDRESS": "local",  # else a cluster that somebody left behind is looked for
    }
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=clean | own,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def report(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((path / "report.json").read_text())
    return loaded


def test_the_environment_holds_the_release_it_should(tmp_path: Path) -> None:
    ask = "import importlib.metadata as m; print(m.version('flwr'))"
    assert call(tmp_path, OLD, "-c", ask).strip() == "1.26.1"


def test_flower_simulation_leaves_the_findings_of_the_script(tmp_path: Path) -> None:
    words = [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))]
    call(tmp_path, OLD, "run_sim.py", *words, "--out", str(tmp_path / "inline"))
    settings = {**SETTINGS, "out": str(tmp_path / "run")}
    printed = call(
        tmp_path,
        *(str(Path(OLD).parent / "flower-simulation"), "--app", ".", "--num-supernodes", "10"),
        *("--backend-config", json.dumps(BACKEND)),
        *("--run-config", " ".join(f"{k}={json.dumps(v)}" for k, v in settings.items())),
    )
    assert f"run folder: {tmp_path / 'run'}" in printed
    one, other = report(tmp_path / "inline"), report(tmp_path / "run")
    assert other["failures"] == []
    assert other["findings"] == one["findings"]
    assert {"one-shot", "likelihood-ratio", "mutual-information", "secure-sum"} <= {
        finding["auditor"] for finding in other["findings"]
    }
