"""Launches for real: Flower's own, and the script with Flower's simulation."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
# Masking, canaries and all auditors are on by default; noise is not.
SETTINGS: dict[str, str | int | float] = {
    "dataset": "synthetic",
    "synthetic-examples": 200,
    "model": "linear",
    "clients": 10,
    "sample": 4,
    "canary-seats": 4,  # enough that no auditor warns of too few
    "rounds": 3,
    "seed": 11,
    "noise": "distributed",
    "clip-norm": 0.5,
    "noise-multiplier": 2.0,
}
ARGUMENTS = [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))]

pytestmark = pytest.mark.launch


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def call(
    *command: str, env: dict[str, str] | None = None, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    # Flower starts its own programs by name: they must be found where no environment is active.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**os.environ, "PATH": path, **(env or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def report(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((path / "report.json").read_text())
    return loaded


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of the in-process engine."""
    out = tmp_path_factory.mktemp("inline") / "run"
    done = call("run_sim.py", *ARGUMENTS, "--out", str(out))
    assert done.returncode == 0, done.stderr
    return report(out)


def superlinks(home: Path) -> list[int]:
    """Return the processes that serve this Flower home and no other."""
    # -ww: the whole line, however narrow the terminal is thought to be.
    listed = subprocess.run(
        ["ps", "-axwwo", "pid=,command="], capture_output=True, text=True, check=True
    )
    rows = [line.split(maxsplit=1) for line in listed.stdout.splitlines()]
    return [
        int(row[0])
        for row in rows
        if len(row) == 2 and "flower-superlink" in row[1] and str(home) in row[1]
    ]


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An environment with a Flower home and ports of its own; its SuperLink is ended after."""
    home = tmp_path_factory.mktemp("flower")
    yield {
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_ADDRESS": "local",  # else a cluster that somebody left behind is looked for
    }
    [pid] = superlinks(home)
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 30
    while superlinks(home):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)


def flwr_run(flower: dict[str, str], **settings: str | int | float) -> tuple[str, str]:
    """Launch the app with Flower and return what it printed and the status of the run."""
    flwr = str(Path(sys.executable).parent / "flwr")
    pairs = {name.replace("_", "-"): value for name, value in settings.items()}
    run_config = " ".join(f"{name}={json.dumps(value)}" for name, value in pairs.items())
    federation = "num-supernodes=10 client-resources-num-cpus=1"
    words = ["--stream", "--federation-config", federation, "--run-config", run_config]
    done = call(flwr, "run", ".", *words, env=flower)
    # Flower ends with code 0 whatever becomes of the run, so ask for its status.
    listed = call(flwr, "ls", "--format", "json", env=flower)
    runs = json.loads(listed.stdout[listed.stdout.index("{") :])["runs"]
    newest = max(runs, key=lambda run: run["pending-at"])
    return done.stdout + done.stderr, newest["status"]


def test_flowers_launch_leaves_the_same_findings(
    flower: dict[str, str], inline: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    settings = {name.replace("-", "_"): value for name, value in SETTINGS.items()}
    printed, status = flwr_run(flower, out=str(out), **settings)
    assert status == "finished:completed", printed
    assert f"run folder: {out}" in printed
    launched = report(out)
    assert launched["failures"] == []
    assert launched["findings"] == inline["findings"]
    assert {"one-shot", "likelihood-ratio", "mutual-information", "secure-sum"} <= {
        finding["auditor"] for finding in launched["findings"]
    }
    assert launched["rounds"] == inline["rounds"]
    assert launched["config"] == {**inline["config"], "engine": "ray"}


def test_a_mistake_fails_flowers_launch_and_says_why(
    flower: dict[str, str], tmp_path: Path
) -> None:
    printed, status = flwr_run(flower, out=str(tmp_path / "run"), dataset="cifar")
    assert status == "finished:failed", printed
    assert "dataset must be one of digits, adult, mnist, fashion-mnist" in printed
    assert not (tmp_path / "run").exists()


def test_the_script_runs_flowers_simulation(inline: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = call("run_sim.py", *ARGUMENTS, "--engine", "ray", "--out", str(out), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"report: {out / 'report.json'}"
    assert report(out)["findings"] == inline["findings"]
    assert done.stderr == ""


def test_an_interrupted_simulation_can_be_resumed(inline: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = subprocess.Popen(
        [sys.executable, "run_sim.py", *ARGUMENTS, "--engine", "ray", "--out", str(out)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        # Where these tests were started in the background, interrupts would be ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not (out / "checkpoint.npz").exists():
        assert run.poll() is None
        time.sleep(0.02)
    run.send_signal(signal.SIGINT)
    printed, _ = run.communicate(timeout=120)
    assert run.returncode == 130
    assert f"interrupted; resume with: python run_sim.py --resume {out}" in printed
    assert not (out / "report.json").exists()
    done = call("run_sim.py", "--resume", str(out))
    assert done.returncode == 0, done.stderr
    assert report(out)["findings"] == inline["findings"]


def test_the_console_script_does_the_same_from_any_folder(
    inline: dict[str, Any], tmp_path: Path
) -> None:
    leakmeter = str(Path(sys.executable).parent / "leakmeter")
    done = call(leakmeter, *ARGUMENTS, "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert report(tmp_path / "run") == inline
