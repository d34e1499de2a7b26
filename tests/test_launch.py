"""Launches for real: Flower's own, and the script with Flower's simulation."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.launches import SMALL, Setting, arguments, auditors, report, run_config
from tests.helpers.processes import (
    end_superlinks,
    environment,
    flower_home,
    own_ports,
    run,
    started,
    wait_until,
)
from tests.helpers.project import BIN, ROOT

# Seats enough that no auditor warns of too few canaries.
SETTINGS: dict[str, Setting] = {**SMALL, "canary-seats": 4, "noise-multiplier": 2.0}
ARGUMENTS = arguments(SETTINGS)

pytestmark = pytest.mark.launch


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of the in-process engine."""
    out = tmp_path_factory.mktemp("inline") / "run"
    done = run(sys.executable, "run_sim.py", *ARGUMENTS, "--out", out)
    assert done.returncode == 0, done.stderr
    return report(out)


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An environment with a Flower home and ports of its own; its SuperLink is ended after."""
    home = tmp_path_factory.mktemp("flower")
    yield environment(**flower_home(home), **own_ports())
    assert end_superlinks(home) == 1


def flwr_run(flower: dict[str, str], settings: dict[str, Setting]) -> tuple[str, str]:
    """Launch the app with Flower and return what it printed and the status of the run."""
    federation = "num-supernodes=10 client-resources-num-cpus=1"
    words = ["--stream", "--federation-config", federation, "--run-config", run_config(settings)]
    done = run(BIN / "flwr", "run", ".", *words, env=flower)
    # Flower ends with code 0 whatever becomes of the run, so ask for its status.
    listed = run(BIN / "flwr", "ls", "--format", "json", env=flower)
    runs = json.loads(listed.stdout[listed.stdout.index("{") :])["runs"]
    newest = max(runs, key=lambda run: run["pending-at"])
    return done.stdout + done.stderr, newest["status"]


def test_flowers_launch_leaves_the_same_findings(
    flower: dict[str, str], inline: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    printed, status = flwr_run(flower, {**SETTINGS, "out": str(out)})
    assert status == "finished:completed", printed
    assert f"run folder: {out}" in printed
    launched = report(out)
    assert launched["failures"] == []
    assert launched["findings"] == inline["findings"]
    asked = {"one-shot", "likelihood-ratio", "mutual-information", "mine", "secure-sum"}
    assert asked <= auditors(launched)
    assert launched["rounds"] == inline["rounds"]
    assert launched["config"] == {**inline["config"], "engine": "ray", "launch": "flwr run"}


def test_flowers_launch_generates_the_same_clients(flower: dict[str, str], tmp_path: Path) -> None:
    settings: dict[str, Setting] = {
        **SETTINGS,
        "synthetic-per-client": 12,
        "partition": "dirichlet",
    }
    done = run(sys.executable, "run_sim.py", *arguments(settings), "--out", tmp_path / "inline")
    assert done.returncode == 0, done.stderr
    printed, status = flwr_run(flower, {**settings, "out": str(tmp_path / "run")})
    assert status == "finished:completed", printed
    inline, launched = report(tmp_path / "inline"), report(tmp_path / "run")
    assert launched["failures"] == []
    assert launched["findings"] == inline["findings"]
    assert launched["rounds"] == inline["rounds"]


def test_flowers_launch_takes_auditors_by_name(flower: dict[str, str], tmp_path: Path) -> None:
    names = "membership,inversion,span"
    settings: dict[str, Setting] = {
        "dataset": "digits",
        "model": "linear",
        "clients": 10,
        "sample": 4,
        "rounds": 2,
        "algorithm": "fedsgd",
        "batch-size": 2,
        "auditors": names,
        "inversion-steps": 5,
        "membership-shadows": 2,
    }
    inline, out = tmp_path / "inline", tmp_path / "run"
    done = run(sys.executable, "run_sim.py", *arguments(settings), "--out", inline)
    assert done.returncode == 0, done.stderr
    printed, status = flwr_run(flower, {**settings, "out": str(out)})
    assert status == "finished:completed", printed
    launched = report(out)
    assert launched["failures"] == []
    assert set(names.split(",")) <= auditors(launched)
    assert launched["findings"] == report(inline)["findings"]
    assert (out / "inversion/round-000001.png").exists()


def test_flowers_launch_loses_the_same_clients_and_finds_the_same_noise(
    flower: dict[str, str], tmp_path: Path
) -> None:
    protected: dict[str, Setting] = {
        **SMALL, "auditors": "none", "noise": "central", "target-epsilon": 5.0,
        "sample": 8, "dropout": 0.04, "colluders": 1, "secagg-bits": 40, "seed": 1,
    }  # fmt: skip
    del protected["noise-multiplier"]
    done = run(
        sys.executable, "run_sim.py", *arguments(protected), "--out", tmp_path / "inline"
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed, status = flwr_run(flower, {**protected, "out": str(tmp_path / "run")})
    assert status == "finished:completed", printed
    inline, launched = report(tmp_path / "inline"), report(tmp_path / "run")
    assert "calibrated: the planned run guarantees" in printed
    assert launched["config"] == {**inline["config"], "engine": "ray", "launch": "flwr run"}
    assert launched["config"]["noise-multiplier"] != 1.0
    assert launched["findings"] == inline["findings"]
    assert launched["rounds"] == inline["rounds"]
    [hidden] = [f for f in launched["findings"] if f["auditor"] == "secure-sum"]
    assert any(name.startswith("dropouts in stage") for name in hidden["facts"])


FEDSGD: dict[str, Setting] = {
    "dataset": "synthetic",
    "synthetic-examples": 200,
    "model": "linear",
    "clients": 10,
    "sample": 8,
    "rounds": 2,
    "algorithm": "fedsgd",
}


@pytest.mark.parametrize(
    "settings",
    [
        {
            "auditors": "likelihood-ratio,mutual-information,mine,recorder",
            "server": "fedyogi",
            "partition": "dirichlet",
            "clip-aggregate": 1.0,
            "confidence": 0.9,
            "lrt-every": -1,
            "lrt-models": 2,
            "mi-case": "independent",
            "mi-c0": 0.1,
            "mi-over-rounds": 40,
            "mine-every": 0,
        },
        {
            "auditors": "record-likelihood-ratio,one-shot",
            "canary-seats": 2,
            "server": "fedadam",
            "noise": "record-isotropic",
            "wfna-floor": 0.01,
            "clip-norm": 1.0,
        },
    ],
    ids=["sums", "records"],
)
def test_flowers_launch_takes_every_other_setting(
    flower: dict[str, str], tmp_path: Path, settings: dict[str, Setting]
) -> None:
    settings, inline, out = {**FEDSGD, **settings}, tmp_path / "inline", tmp_path / "run"
    done = run(sys.executable, "run_sim.py", *arguments(settings), "--out", inline)
    assert done.returncode == 0, done.stderr
    printed, status = flwr_run(flower, {**settings, "out": str(out)})
    assert status == "finished:completed", printed
    launched = report(out)
    assert launched["failures"] == []
    assert set(str(settings["auditors"]).split(",")) <= auditors(launched)
    assert launched["findings"] == report(inline)["findings"]


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ({"dataset": "cifar"}, "dataset must be one of digits, adult, mnist, fashion-mnist"),
        # Macs have no CUDA, and others no mps.
        ({"device": "cuda" if sys.platform == "darwin" else "mps"}, "that torch finds on this"),
    ],
    ids=["data", "device"],
)
def test_a_mistake_fails_flowers_launch_and_says_why(
    flower: dict[str, str], tmp_path: Path, mistake: dict[str, Setting], words: str
) -> None:
    printed, status = flwr_run(flower, {"out": str(tmp_path / "run"), **mistake})
    assert status == "finished:failed", printed
    assert words in printed
    assert not (tmp_path / "run").exists()


def test_the_script_runs_flowers_simulation(inline: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = run(sys.executable, "run_sim.py", *ARGUMENTS, "--engine", "ray", "--out", out)
    assert done.returncode == 0, done.stderr
    assert f"page: {out / 'report.html'}" in done.stdout.splitlines()
    assert report(out)["findings"] == inline["findings"]
    lines = done.stderr.splitlines()
    assert len(lines) == 1, lines  # all there is to say
    assert "12 canaries in 3 rounds" in lines[0]


def test_an_interrupted_simulation_can_be_resumed(inline: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = (sys.executable, "run_sim.py", *ARGUMENTS, "--engine", "ray", "--out", out)
    with started(*command, cwd=ROOT, interruptible=True) as process:
        wait_until((out / "checkpoint.npz").exists, process)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=600)
    assert process.returncode == 130
    assert f"interrupted; resume with: python run_sim.py --resume {out}" in printed
    assert not (out / "report.json").exists()
    done = run(sys.executable, "run_sim.py", "--resume", out)
    assert done.returncode == 0, done.stderr
    assert report(out)["findings"] == inline["findings"]


def test_the_console_script_does_the_same_from_any_folder(
    inline: dict[str, Any], tmp_path: Path
) -> None:
    done = run(BIN / "leakmeter", *ARGUMENTS, "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert report(tmp_path / "run") == inline
