"""Two Ray nodes on this machine: both work, the code travels, and one of them may die.

The nodes run a Python that has the libraries and not this project, as the machines of a cluster
would.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.launches import SMALL, Setting, arguments, report
from tests.helpers.numbers import idx
from tests.helpers.processes import (
    bare_python,
    environment,
    free_port,
    kill,
    run,
    started,
    wait_until,
)
from tests.helpers.project import BIN

CLIENT, SAMPLER = "ClientAppActor.run", r"_Worker\.(rows|moments)"
# Enough draws that the sampling has a piece for each of the three processors.
SETTINGS: dict[str, Setting] = {**SMALL, "rounds": 8, "lrt-fit": 20_000}
ARGUMENTS = arguments(SETTINGS)

pytestmark = pytest.mark.launch


@dataclass
class Cluster:
    """A head with one processor, and nodes that joined it."""

    folder: Path
    stack: ExitStack
    port: int = field(default_factory=free_port)
    num_nodes: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, python: Path, *words: str) -> subprocess.Popen[str]:
        """Start a node, a process group of its own, and wait until it says that it runs."""
        log = self.folder / f"node-{self.num_nodes}.log"
        self.num_nodes += 1
        command = (python, "-m", "ray.scripts.scripts", "start", "--block", *words)
        process = self.stack.enter_context(started(*command, log=log))
        wait_until(lambda: "Ray runtime started" in log.read_text(), process, said=log.read_text)
        return process

    def head(self, python: Path) -> subprocess.Popen[str]:
        own = f"--temp-dir={self.folder}"
        ports = (f"--port={self.port}", f"--ray-client-server-port={free_port()}")
        quiet = "--include-dashboard=false"
        return self.start(python, "--head", "--num-cpus=1", own, quiet, *ports)

    def join(self, python: Path) -> subprocess.Popen[str]:
        process = self.start(python, "--num-cpus=2", f"--address={self.address}")
        # It says that it runs before the head knows of it.
        known = f"import ray, time; ray.init({self.address!r})\n"
        known += f"while len(ray.nodes()) < {self.num_nodes}: time.sleep(0.1)"
        assert run(python, "-c", known, cwd=self.folder).returncode == 0
        return process


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster in a folder with a short name: Ray keeps sockets there, whose paths are limited."""
    short = tempfile.TemporaryDirectory(prefix="lm", ignore_cleanup_errors=True)
    with short as folder, ExitStack() as stack:
        yield Cluster(Path(folder), stack)


def findings(folder: Path) -> Any:
    made = report(folder)
    assert made["failures"] == []
    return made["findings"], made["rounds"]


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
    own = (BIN / "leakmeter", *ARGUMENTS)  # where no file of this project lies beside it
    with started(*own, "--out", "alone", cwd=tmp_path) as alone:
        python = bare_python(tmp_path / "bare")
        assert run(python, "-c", "import leakmeter", cwd=tmp_path).returncode
        head, other = cluster.head(python), cluster.join(python)
        said = alone.communicate(timeout=600)
    assert alone.returncode == 0, said
    watch = Watch()
    watch.start()
    where = ("--engine", "ray", "--ray-address", cluster.address)
    lines = tmp_path / "distributed/rounds.jsonl"  # there after the first round
    everywhere = {(node.pid, kind) for node in (head, other) for kind in (CLIENT, SAMPLER)}
    with started(*own, *where, "--out", "distributed", cwd=tmp_path) as distributed:
        # As long as it takes: what is seen of so short work depends on how busy the machine is.
        wait_until(
            lambda: lines.exists() and everywhere <= watch.seen,
            distributed,
            said=lambda: f"never seen: {everywhere - watch.seen}; the head is {head.pid}",
        )
        watch.done.set()
        watch.join()
        kill(other)
        said = distributed.communicate(timeout=600)
    assert distributed.returncode == 0, "".join(said)
    assert findings(tmp_path / "distributed") == findings(tmp_path / "alone")


def test_a_node_that_cannot_import_the_app_fails_the_run_with_the_reason(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.head(bare_python(tmp_path / "bare"))
    cluster.join(bare_python(tmp_path / "broken", "threadpoolctl"))
    where = ("--engine", "ray", "--ray-address", cluster.address)
    done = run(BIN / "leakmeter", *ARGUMENTS, *where, "--out", "run", cwd=tmp_path)
    complained = done.stderr
    assert done.returncode == 2, done.stdout + complained
    assert complained.startswith(f"error: node {socket.gethostname()} ")
    assert "ray-address must be a cluster that can import the client app" in complained
    assert "No module named threadpoolctl here" in complained
    assert "Traceback" not in complained


def test_the_papers_travel_with_the_code(cluster: Cluster, tmp_path: Path) -> None:
    cluster.head(bare_python(tmp_path / "bare"))
    own = (BIN / "leakmeter", "reproduce", "mi-writers")
    where = ("--engine", "ray", "--ray-address", cluster.address)
    for words in (("--out", "alone"), (*where, "--out", "distributed")):
        done = run(*own, *words, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    alone, distributed = (tmp_path / name / "cells.jsonl" for name in ("alone", "distributed"))
    assert distributed.read_bytes() == alone.read_bytes()


def write_pictures(folder: Path) -> None:
    """Write a data set as small as can be in MNIST's own format."""
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        for kind, shape in (("images-idx3", (40, 28, 28)), ("labels-idx1", (40,))):
            values = np.resize(np.arange(10, dtype=np.uint8), shape)
            (folder / f"{part}-{kind}-ubyte").write_bytes(idx(values))


def test_a_node_without_the_data_is_named_with_the_setting(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.head(bare_python(tmp_path / "bare"))
    write_pictures(tmp_path / "data/mnist")
    settings = ("--dataset", "mnist", "--model", "linear", "--auditors", "none")
    few = ("--clients", "4", "--sample", "3")
    where = ("--engine", "ray", "--ray-address", cluster.address, "--out", "run")
    # The node does not know this variable, as on a machine of its own.
    env = environment(LEAKMETER_DATA=str(tmp_path / "data"))
    done = run(BIN / "leakmeter", *settings, *few, *where, cwd=tmp_path, env=env)
    assert done.returncode == 2, done.stderr
    [error] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert error.startswith(f"error: node {socket.gethostname()} ")
    assert "data-dir must contain the data set on every node, got '' (mnist: looked for" in error
