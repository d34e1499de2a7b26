"""Flower's earlier launch: `flower-simulation` of release 1.26.1, in an environment of its own.

LEAKMETER_OLD_FLOWER names the Python of that environment; docs/launches.md says how to make one.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.helpers.launches import SMALL, arguments, auditors, report, run_config
from tests.helpers.processes import environment, flower_home, run

VARIABLE = "LEAKMETER_OLD_FLOWER"
OLD = os.environ.get(VARIABLE, "")
BACKEND = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}

pytestmark = [
    pytest.mark.launch,
    pytest.mark.skipif(not OLD, reason=f"{VARIABLE} names no Python with flwr 1.26.1"),
]


def call(home: Path, *command: str | Path) -> str:
    """Run a command of the old environment and return what it prints."""
    first = os.pathsep.join([str(Path(OLD).parent), os.environ["PATH"]])
    done = run(*command, env=environment(**flower_home(home), PATH=first), timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_environment_holds_the_release_it_should(tmp_path: Path) -> None:
    ask = "import importlib.metadata as m; print(m.version('flwr'))"
    assert call(tmp_path, OLD, "-c", ask).strip() == "1.26.1"


def test_flower_simulation_leaves_the_findings_of_the_script(tmp_path: Path) -> None:
    call(tmp_path, OLD, "run_sim.py", *arguments(SMALL), "--out", tmp_path / "inline")
    settings = {**SMALL, "out": str(tmp_path / "run")}
    printed = call(
        tmp_path,
        *(Path(OLD).parent / "flower-simulation", "--app", ".", "--num-supernodes", "10"),
        *("--backend-config", json.dumps(BACKEND), "--run-config", run_config(settings)),
    )
    assert f"run folder: {tmp_path / 'run'}" in printed
    one, other = report(tmp_path / "inline"), report(tmp_path / "run")
    assert other["failures"] == []
    assert other["findings"] == one["findings"]
    asked = {"one-shot", "likelihood-ratio", "mutual-information", "mine", "secure-sum"}
    assert asked <= auditors(other)
