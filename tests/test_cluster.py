"""Two Ray nodes on this machine: both work, the code travels, and one of them may die.

The nodes run a Python that has the libraries and not this project, as the machines of a cluster
would.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import venv
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
CLIENT, SAMPLER = "ClientAppActor.run", r"_Worker\.(rows|moments)"
# Enough draws that the sampling has a piece for each of the three processors.
SETTINGS: dict[str, str | int | float] = {
    "dataset": "synthetic",
    "synthetic-examples": 200,
    "model": "linear",
    "clients": 10,
    "sample": 4,
    "canary-seats": 2,
    "rounds": 8,
    "seed": 11,
    "lrt-fit": 20_000,
    "noise": "distributed",
    "clip-norm": 0.5,
    "noise-multiplier": 0.3,
}
ARGUMENTS = [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))]

pytestmark = pytest.mark.launch


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment() -> dict[str, str]:
    strange = ("PYTHONPATH", "LEAKMETER_DATA", "RAY_ADDRESS")
    return {k: v for k, v in os.environ.items() if k not in strange}


def bare_python(folder: Path, *hidden: str) -> Path:
    """Return a Python with the libraries of this one but without this project.

    Modules named in `hidden` cannot be imported either.
    """
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    inside = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = Path(subprocess.check_output([python, "-c", inside], text=True).strip())
    # A folder named in a .pth file is not searched for .pth files of its own, which is where an
    # editable installation of this project is.
    (own / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for name in hidden:
        (own / f"{name}.py").write_text(f"raise ImportError('No module named {name} here')\n")
    return python


@dataclass
class Node:
    """One Ray node: all of its processes are in one group."""

    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """End the node at once, as when its machine loses power."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@dataclass
class Cluster:
    """A head with one processor, and nodes that joined it."""

    folder: Path
    port: int = field(default_factory=free_port)
    nodes: list[Node] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, python: Path, *words: str) -> Node:
        """Start a node and wait until it says that it runs."""
        log = self.folder / f"node-{len(self.nodes)}.log"
        command = [str(python), "-m", "ray.scripts.scripts", "start", "--block", *words]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdout=out, stderr=out, env=environment(), start_new_session=True
            )
        node = Node(process)
        self.nodes.append(node)
        deadline = time.monotonic() + 120
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        return node

    def head(self, python: Path) -> Node:
        own = f"--temp-dir={self.folder}"
        ports = (f"--port={self.port}", f"--ray-client-server-port={free_port()}")
        quiet = "--include-dashboard=false"
        return self.start(python, "--head", "--num-cpus=1", own, quiet, *ports)

    def join(self, python: Path) -> Node:
        return self.start(python, "--num-cpus=2", f"--address={self.address}")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster in a folder with a short name: Ray keeps sockets there, whose paths are limited."""
    with tempfile.TemporaryDirectory(prefix="lm", ignore_cleanup_errors=True) as folder:
        made = Cluster(Path(folder))
        try:
            yield made
        finally:
            for node in reversed(made.nodes):
                node.kill()


def leakmeter(cwd: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    """Start the console script where no file of this project lies beside it."""
    return subprocess.Popen(
        [str(BIN / "leakmeter"), *words],
        cwd=cwd,
        env=environment() | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def findings(folder: Path) -> Any:
    report = json.loads((folder / "report.json").read_text())
    assert report["failures"] == []
    return report["findings"], report["rounds"]


def titles(pids: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Yield what the processes call themselves; Ray names them after what they do."""
    for pid in pids:
        with suppress(OSError):  # it has ended meanwhile
            yield pid, Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")


class Watch(threading.Thread):
    """Notes which work is seen in whose processes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: set[tuple[int, str]] = set()  # process group, kind of work
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.is_set():
            everybody = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
            workers = [pid for pid, title in titles(everybody) if title.startswith("ray::")]
            # Few, and looked at often: a piece of work may take milliseconds only.
            until = time.monotonic() + 2
            while time.monotonic() < until and not self.done.wait(0.002):
                for pid, title in titles(workers):
                    self._note(pid, title)

    def _note(self, pid: int, title: str) -> None:
        for kind in (CLIENT, SAMPLER):
            if re.match(f"ray::{kind}", title):
                with suppress(ProcessLookupError):
                    self.seen.add((os.getpgid(pid), kind))


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs Linux to see what processes do")
def test_both_nodes_work_and_one_may_die(cluster: Cluster, tmp_path: Path) -> None:
    alone = leakmeter(tmp_path, *ARGUMENTS, "--out", "alone")
    python = bare_python(tmp_path / "bare")
    assert subprocess.run(
        [python, "-c", "import leakmeter"], capture_output=True, cwd="/"
    ).returncode
    head, other = cluster.head(python), cluster.join(python)
    assert alone.wait(300) == 0
    watch = Watch()
    watch.start()
    where = ("--engine", "ray", "--ray-address", cluster.address)
    run = leakmeter(tmp_path, *ARGUMENTS, *where, "--out", "spread")
    lines = tmp_path / "spread/rounds.jsonl"
    while not lines.exists() or len(lines.read_text().splitlines()) < 3:
        assert run.poll() is None, run.communicate()
        time.sleep(0.02)
    watch.done.set()
    watch.join()
    groups = {node.process.pid for node in (head, other)}
    for kind in (CLIENT, SAMPLER):
        assert groups <= {group for group, seen in watch.seen if seen == kind}, kind
    other.kill()
    said, complained = run.communicate(timeout=600)
    assert run.returncode == 0, said + complained
    assert findings(tmp_path / "spread") == findings(tmp_path / "alone")


def test_a_node_that_cannot_import_the_app_fails_the_run_with_the_reason(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.head(bare_python(tmp_path / "bare"))
    cluster.join(bare_python(tmp_path / "broken", "threadpoolctl"))
    where = ("--engine", "ray", "--ray-address", cluster.address)
    run = leakmeter(tmp_path, *ARGUMENTS, *where, "--out", "run")
    _, complained = run.communicate(timeout=300)
    assert run.returncode == 2
    assert complained.startswith(f"error: node {socket.gethostname()} ")
    assert "ray-address must be a cluster that can import the client app" in complained
    assert "No module named threadpoolctl here" in complained
    assert "Traceback" not in complained


def write_pictures(folder: Path) -> None:
    """Write a data set as small as can be in MNIST's own format."""
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        for kind, shape in (("images-idx3", (40, 28, 28)), ("labels-idx1", (40,))):
            values = bytes(i % 10 for i in range(math.prod(shape)))
            head = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
            (folder / f"{part}-{kind}-ubyte").write_bytes(head + values)


def test_a_node_without_the_data_is_named_with_the_setting(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.head(bare_python(tmp_path / "bare"))
    write_pictures(tmp_path / "data/mnist")
    settings = ("--dataset", "mnist", "--model", "linear", "--auditors", "none")
    few = ("--clients", "4", "--sample", "3")
    where = ("--engine", "ray", "--ray-address", cluster.address, "--out", "run")
    # The node does not know this variable, as on a machine of its own.
    run = leakmeter(tmp_path, *settings, *few, *where, LEAKMETER_DATA=str(tmp_path / "data"))
    _, complained = run.communicate(timeout=300)
    assert run.returncode == 2, complained
    [error] = [line for line in complained.splitlines() if line.startswith("error: ")]
    assert error.startswith(f"error: node {socket.gethostname()} ")
    assert "data-dir must hold the data set on every node, got '' (mnist: looked for" in error
