"""A real deployment on this machine: one SuperLink, SuperNodes, masking, noise and canaries."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
CLIENTS, SEATS, ROUNDS = 5, 1, 2
# Since this release all interfaces of a SuperLink share one port.
FIRST_RELEASE = (1, 38)

pytestmark = [
    pytest.mark.launch,
    pytest.mark.skipif(
        tuple(map(int, importlib.metadata.version("flwr").split(".")[:2])) < FIRST_RELEASE,
        reason="earlier releases of Flower take other options",
    ),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(home: Path) -> dict[str, str]:
    """Return an environment with a Flower home of its own, as on a machine of its own."""
    home.mkdir()
    return {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }


@contextmanager
def running(log: Path, env: Mapping[str, str], *command: str) -> Iterator[None]:
    """Run a command in the background and end it and its children, by their own group."""
    with log.open("w") as out:
        process = subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=dict(env),
            start_new_session=True,  # a group of its own, so that its children end with it
        )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            with suppress(ProcessLookupError):  # if nobody is left
                os.killpg(process.pid, signal.SIGKILL)


def wait_for(port: int, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise TimeoutError(f"nothing listens at port {port} after {seconds:.0f} s")


@contextmanager
def deployment(folder: Path) -> Iterator[tuple[dict[str, str], int]]:
    """Start a SuperLink and its SuperNodes as processes of their own."""
    port = free_port()
    link = ("flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port))
    env = environment(folder / "link-home")
    with ExitStack() as stack:
        stack.enter_context(running(folder / "link.log", env, *link))
        wait_for(port)
        for i in range(CLIENTS):
            node = (
                *("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}"),
                *("--host", "127.0.0.1", "--port", str(free_port())),
                *("--node-config", f"partition-id={i} num-partitions={CLIENTS}"),
            )
            home = environment(folder / f"node-home-{i}")
            stack.enter_context(running(folder / f"node-{i}.log", home, *node))
        yield env, port


def flwr_run(env: Mapping[str, str], cwd: Path, settings: Mapping[str, object]) -> str:
    """Launch the app on the deployment and return what is said until the run has ended."""
    words = " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
    run = subprocess.run(
        [str(BIN / "flwr"), "run", str(ROOT), "here", "--stream", "--run-config", words],
        capture_output=True,
        text=True,
        timeout=900,  # each message starts a process that imports torch
        env=dict(env),
        cwd=cwd,
        check=False,
    )
    return run.stdout + run.stderr


def test_masked_noised_rounds_with_canaries_run_on_separate_processes(tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings: dict[str, object] = {
        "out": str(out),
        "clients": CLIENTS,
        "sample": CLIENTS - SEATS,
        "canary-seats": SEATS,
        "rounds": ROUNDS,
        "auditors": "one-shot",
        "model": "linear",
        "noise": "distributed",
        "noise-multiplier": 0.1,
        "clip-norm": 2.0,
    }
    with deployment(tmp_path) as (env, port):
        (Path(env["FLWR_HOME"]) / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
            "insecure = true\n"
        )
        refused = flwr_run(env, tmp_path, {**settings, "auditors": "likelihood-ratio"})
        assert not out.exists()
        said = flwr_run(env, tmp_path, settings)
        # Flower's exit code says nothing of the run: the report does.
        deadline = time.monotonic() + 20
        while not (out / "report.json").exists() and time.monotonic() < deadline:
            time.sleep(0.5)
    # What a simulation can do and a deployment cannot is said before anything is trained.
    assert "auditors must be one-shot or none in a deployment" in refused
    assert (out / "report.json").exists(), said[-4000:]
    report = json.loads((out / "report.json").read_text())
    (finding,) = [f for f in report["findings"] if f["auditor"] == "secure-sum"]
    assert finding["value"] == CLIENTS
    assert finding["details"] == {"rounds": ROUNDS, "abandoned": 0}
    rounds = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert [line["num_clients"] for line in rounds] == [CLIENTS] * ROUNDS
    assert "abandoned" not in said
    assert report["failures"] == []
    assert None in {f["server_round"] for f in report["findings"] if f["auditor"] == "one-shot"}
    assert {f["kind"] for f in report["findings"] if f["auditor"] == "accountant"} == {"guarantee"}
    # Trained at all: chance is 0.1. Noise is nobody's to repeat here, so no more is certain.
    assert rounds[-1]["metrics"]["accuracy"] > 0.3
