"""Runs one benchmark in its own process: one that fails, dies or hangs stops none of the others."""

from __future__ import annotations

import ast
import importlib
import json
import os
import platform
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path

from benchmarks.measure import Row, Scale
from benchmarks.page import Entry, line, row_of

FOLDER = Path(__file__).parent
_PACKAGES = ("numpy", "scipy", "torch", "flwr", "ray", "cryptography", "opacus")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
LIMITS: dict[Scale, float | None] = {"quick": 600, "full": 1_800, "long": None}  # seconds


def questions() -> dict[str, str]:
    """Return the question of each benchmark by its name, without importing any."""
    trees = {path.stem: ast.parse(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.py"))}
    first = {name: (ast.get_docstring(tree) or "").split("\n")[0] for name, tree in trees.items()}
    return {name: text for name, text in first.items() if text.endswith("?")}


def run(name: str, question: str, scale: Scale) -> Entry:
    """Measure one benchmark in a process of its own; return its rows, and why it failed if so."""
    begin, load, today = time.monotonic(), os.getloadavg()[0], f"{datetime.now(UTC):%Y-%m-%d}"
    os.environ.update(dict.fromkeys(_THREADS, "1"))  # libraries read it when they are loaded
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows"
        path.touch()
        child = get_context("spawn").Process(
            target=_child, args=(f"{FOLDER.name}.{name}", scale, path)
        )
        child.start()
        try:
            child.join(LIMITS[scale])
        finally:  # after a Ctrl-C as well
            late = f"stopped after {LIMITS[scale]} s" if child.is_alive() else ""
            if late and child.pid:
                os.killpg(child.pid, signal.SIGKILL)
            child.join()
        found = [json.loads(text) for text in path.read_text("utf-8").splitlines()]
    failure = late or "".join(each["failure"] for each in found if "failure" in each)
    failure = failure or (f"exit code {child.exitcode}" if child.exitcode else "")
    rows = tuple(row_of(each) for each in found if "failure" not in each)
    took = round(time.monotonic() - begin, 1)
    return Entry(name, question, scale, today, took, round(load, 2), _machine(), rows, failure)


def _child(module: str, scale: Scale, path: Path) -> None:
    """Write each row as soon as it is measured, so that a failure costs none of them."""
    os.setpgrp()  # so that what it starts can be ended with it
    with path.open("w", encoding="utf-8") as file:
        try:
            for row in rows_at(module, scale):
                print(f"  {line(row)}", flush=True)
                print(json.dumps(asdict(row)), file=file, flush=True)
        except Exception as error:
            print(json.dumps({"failure": f"{type(error).__name__}: {error}"}), file=file)
            raise


def rows_at(module: str, scale: Scale) -> Iterator[Row]:
    """Yield a benchmark's rows; the quick scale has no targets."""
    for row in importlib.import_module(module).measure(scale):
        yield replace(row, target=None) if scale == "quick" else row


def _machine() -> str:
    """Return processor, cores, memory, and the versions of what is measured."""
    known, versions = Path("/proc/cpuinfo"), [f"Python {platform.python_version()}"]
    found = re.search(r"^model name\s*:\s*(.+)$", known.read_text() if known.exists() else "", re.M)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    for name in _PACKAGES:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    name = found[1] if found else platform.machine()
    return f"{name}, {os.cpu_count()} cores, {memory:.0f} GiB; {', '.join(versions)}"
