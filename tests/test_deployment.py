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
SIGNERS = 3
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


def key_ring(folder: Path) -> tuple[list[Path], Path]:
    """Make a key for each client with the command line, and the list of all of them."""
    folders = [folder / f"key-{i}" for i in range(SIGNERS)]
    made = [run(BIN / "leakmeter", "keys", "new", str(f), env=environment()) for f in folders]
    trusted = folder / "trusted.txt"
    trusted.write_text("".join(done.stdout for done in made))
    return folders, trusted


@contextmanager
def deployment(
    folder: Path, keys: tuple[list[Path], Path] | None = None
) -> Iterator[tuple[dict[str, str], int]]:
    """Start a SuperLink and its SuperNodes as processes of their own.

    Args:
        folder: For their homes and logs.
        keys: Where clients sign, a folder with a key for each, and the list of all.
    """
    port = free_port()
    link = (BIN / "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port))
    env = machine(folder / "link-home") | {"LEAKMETER_RUNS": str(folder)}
    if keys is not None:
        env["LEAKMETER_TRUSTED"] = str(keys[1])
    with ExitStack() as stack:
        log = folder / "link.log"
        process = stack.enter_context(started(*link, env=env, log=log))
        wait_until(lambda: listens(port), process, seconds=60, said=log.read_text)
        count = CLIENTS if keys is None else len(keys[0])
        for i in range(count):
            own = f"partition-id={i} num-partitions={count}"
            if keys is not None:
                own += f' identity="{keys[0][i]}" trusted="{keys[1]}"'
            node = (
                *(BIN / "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}"),
                *("--host", "127.0.0.1", "--port", str(free_port())),
                *("--node-config", own),
            )
            home = machine(folder / f"node-home-{i}")
            stack.enter_context(started(*node, env=home, log=folder / f"node-{i}.log"))
        yield env, port


def use(env: Mapping[str, str], port: int) -> None:
    """Make the deployment the one that `flwr run` takes."""
    (Path(env["FLWR_HOME"]) / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
        "insecure = true\n"
    )


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
        "model": "linear",
        "noise": "distributed",
        "noise-multiplier": 0.1,
        "clip-norm": 2.0,
    }
    with deployment(tmp_path) as (env, port):
        use(env, port)
        refused = flwr_run(env, tmp_path, {**settings, "auditors": "likelihood-ratio"})
        assert not out.exists()
        said = flwr_run(env, tmp_path, settings)
        # Flower's exit code says nothing of the run: the report does.
        wait_until((out / "report.json").exists, seconds=120, said=lambda: said[-4000:])
    # What a simulation can do and a deployment cannot is said before anything is trained.
    able = "one-shot or single-update or recorder or none"
    assert f"auditors must be {able} in a deployment" in refused
    assert "this is a deployment: auditors = 'one-shot'" in said  # by default
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


def test_signed_sums_run_on_separate_processes_with_keys_of_their_own(tmp_path: Path) -> None:
    out, keys = tmp_path / "run", key_ring(tmp_path)
    settings: dict[str, Setting] = {
        "out": str(out),
        "clients": SIGNERS,
        "sample": SIGNERS,
        "rounds": 1,
        "auditors": "none",
        "model": "linear",
        "secagg": "active",
    }
    with deployment(tmp_path, keys) as (env, port):
        use(env, port)
        said = flwr_run(env, tmp_path, settings)
        wait_until((out / "report.json").exists, seconds=20, said=lambda: said[-4000:])
    (finding,) = [f for f in report(out)["findings"] if f["auditor"] == "secure-sum"]
    assert finding["threat_model"]["conduct"] == "active"
    assert finding["facts"] == {"rounds": 1, "abandoned": 0, "clients in the smallest sum": SIGNERS}
    # The last step was noted beside the key, in the run's only file.
    for folder in keys[0]:
        assert [path.name for path in (folder / "steps").rglob("*-*")] == ["1-unmask"]
