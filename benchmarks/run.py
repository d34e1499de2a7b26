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
from dataclasses import asdict, replace
from importlib.metadata import distributions
from multiprocessing import get_context
from pathlib import Path

from benchmarks.measure import Row, Scale
from benchmarks.page import Entry, line

FOLDER = Path(__file__).parent
LIMITS: dict[Scale, float | None] = {"quick": 600, "full": 1_800, "long": None}  # seconds
_PACKAGES = ("Python", "numpy", "scipy", "torch", "flwr", "ray", "cryptography", "opacus")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def questions() -> dict[str, str]:
    """Return the question of each benchmark by its name, without importing any."""
    trees = {path.stem: ast.parse(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.py"))}
    first = {name: (ast.get_docstring(tree) or "").split("\n")[0] for name, tree in trees.items()}
    return {name: text for name, text in first.items() if text.endswith("?")}


def run(name: str, question: str, scale: Scale) -> Entry:
    """Measure one benchmark in a process of its own; return its rows, and why it failed if so."""
    begin, load, today = time.monotonic(), os.getloadavg()[0], time.strftime("%Y-%m-%d")
    os.environ.update(dict.fromkeys(_THREADS, "1"))  # libraries read it when they are loaded
    with tempfile.NamedTemporaryFile() as file:
        task = f"{FOLDER.name}.{name}", scale, Path(file.name)
        child = get_context("spawn").Process(target=_child, args=task)
        child.start()
        try:
            child.join(LIMITS[scale])
        finally:  # after a Ctrl-C as well
            late = f"stopped after {LIMITS[scale]} s" if child.is_alive() else ""
            if late and child.pid:
                os.killpg(child.pid, signal.SIGKILL)
            child.join()
        found = [json.loads(text) for text in file.read().splitlines()]
    failure = late or "".join(found.pop() for each in found[-1:] if isinstance(each, str))
    failure = failure or (f"exit code {child.exitcode}" if child.exitcode else "")
    rows, took = [Row(**each) for each in found], round(time.monotonic() - begin, 1)
    return Entry(name, question, scale, today, took, round(load, 2), _machine(), rows, failure)


def _child(module: str, scale: Scale, path: Path) -> None:
    """Write each row when it is measured, so that a failure costs none; small sizes have no aim."""
    os.setpgrp()  # so that what it starts can be ended with it
    with path.open("w", encoding="utf-8") as file:
        try:
            for row in importlib.import_module(module).measure(scale):
                row = replace(row, target=None) if scale == "quick" else row
                print(f"  {line(row)}", flush=True)
                print(json.dumps(asdict(row)), file=file, flush=True)
        except Exception as error:
            print(json.dumps(f"{type(error).__name__}: {error}"), file=file)
            raise


def _machine() -> str:
    """Return processor, cores, memory, and the versions of what is measured."""
    cpu = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", cpu.read_text() if cpu.exists() else "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    installed = {name: each.version for name in _PACKAGES for each in distributions(name=name)}
    known = {"Python": platform.python_version()} | installed
    versions = ", ".join(f"{name} {known[name]}" for name in _PACKAGES if name in known)
    name = found[1] if found else platform.machine()
    return f"{name}, {os.cpu_count()} cores, {memory:.0f} GiB; {versions}"
