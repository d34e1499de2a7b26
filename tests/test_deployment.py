"""A real deployment on this machine: one SuperLink, SuperNodes, masking, noise and canaries."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.helpers.launches import Setting, report, run_config
from tests.helpers.processes import (
    environment,
    flower_home,
    free_port,
    listens,
    run,
    started,
    wait_until,
)
from tests.helpers.project import BIN, ROOT

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


def machine(home: Path) -> dict[str, str]:
    """Return the variables of a machine of its own, where this project can be imported."""
    return environment(**flower_home(home), PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")


@contextmanager
def deployment(folder: Path) -> Iterator[tuple[dict[str, str], int]]:
    """Start a SuperLink and its SuperNodes as processes of their own."""
    port = free_port()
    link = (BIN / "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port))
    env = machine(folder / "link-home") | {"LEAKMETER_RUNS": str(folder)}
    with ExitStack() as stack:
        log = folder / "link.log"
        process = stack.enter_context(started(*link, env=env, log=log))
        wait_until(lambda: listens(port), process, said=log.read_text)
        for i in range(CLIENTS):
            node = (
                *(BIN / "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}"),
                *("--host", "127.0.0.1", "--port", str(free_port())),
                *("--node-config", f"partition-id={i} num-partitions={CLIENTS}"),
            )
            home = machine(folder / f"node-home-{i}")
            stack.enter_context(started(*node, env=home, log=folder / f"node-{i}.log"))
        yield env, port


def flwr_run(env: Mapping[str, str], cwd: Path, settings: Mapping[str, Setting]) -> str:
    """Launch the app on the deployment and return what is said until the run has ended."""
    words = ("run", ROOT, "here", "--stream", "--run-config", run_config(settings))
    # Long, since each message starts a process that imports torch.
    done = run(BIN / "flwr", *words, env=env, cwd=cwd, timeout=900)
    return done.stdout + done.stderr


def test_masked_noised_rounds_with_canaries_run_on_separate_processes(tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings: dict[str, Setting] = {
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
        wait_until((out / "report.json").exists, seconds=120, said=lambda: said[-4000:])
    # What a simulation can do and a deployment cannot is said before anything is trained.
    assert "auditors must be one-shot or recorder or none in a deployment" in refused
    made = report(out)
    (finding,) = [f for f in made["findings"] if f["auditor"] == "secure-sum"]
    assert finding["value"] == CLIENTS - SEATS - finding["threat_model"]["colluders"]
    expected = {"rounds": ROUNDS, "abandoned": 0, "clients in the smallest sum": CLIENTS}
    assert finding["facts"] == expected
    rounds = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert [line["num_clients"] for line in rounds] == [CLIENTS] * ROUNDS
    assert "abandoned" not in said
    assert made["failures"] == []
    assert None in {f["server_round"] for f in made["findings"] if f["auditor"] == "one-shot"}
    assert {f["kind"] for f in made["findings"] if f["auditor"] == "accountant"} == {"guarantee"}
    # Trained at all: chance is 0.1. Noise is nobody's to repeat here, so no more is certain.
    assert rounds[-1]["metrics"]["accuracy"] > 0.3
