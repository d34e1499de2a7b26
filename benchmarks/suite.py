"""Runs the scripts one after the other, each in a process of its own; one that fails stops none."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.measure import Row, Scale, Skipped
from benchmarks.report import Entry, Setup
from benchmarks.script import from_json, question

ROOT = Path(__file__).parents[1]
LIMIT = 900  # seconds of one script, unless its shapes are known to be long
SCRIPTS = {  # seconds that the full scale takes, about, on a core of its own
    "secure_sum_round": 250,
    "secure_sum_traffic": 35,
    "secure_sum_dropouts": 90,
    "mask_and_add": 3,
    "shamir": 10,
    "round_of_a_hundred_clients": 45,
    "local_updates": 55,
    "water_filling": 150,
    "likelihood_ratio_round": 170,
    "covariance": 90,
    "worst_pair": 60,
    "error_curves": 5,
    "bounds_of_a_thousand_scores": 4,
    "epsilon_of_two_gaussians": 3,
    "canary_report": 40,
    "audited_memory": 25,
    "audited_resnet": 40,
    "one_shot_exact_simulation": 15,
    "logdet_information": 110,
    "information_estimators": 100,
    "mine_training": 120,
    "gradient_inversion": 35,
    "growth": 200,
    "passive_memory": 50,
}
HAVE_LONG = (
    *("secure_sum_round", "covariance", "mine_training", "passive_memory"),
    *("canary_report", "audited_memory", "audited_resnet"),
)


def asked(name: str) -> str:
    """Return a script's question without importing it."""
    source = (ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
    return question(ast.get_docstring(ast.parse(source)))


def run(name: str, scale: Scale) -> Entry:
    """Run one script and return what it measured, or why it did not."""
    begin, load = time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        rows, errors = Path(folder) / "rows.jsonl", Path(folder) / "errors"
        code = _call(name, scale, rows, errors)
        failure = "" if code == 0 else _reason(code, errors.read_text(errors="replace"))
        return Entry(
            name=name,
            question=asked(name),
            scale=scale,
            date=f"{datetime.now(UTC):%Y-%m-%d}",
            seconds=round(time.monotonic() - begin, 1),
            load=round(load, 2),
            setup=Setup.here(),
            rows=_rows(rows),
            failure=failure,
        )


def _call(name: str, scale: Scale, rows: Path, errors: Path) -> int | None:
    """Return the exit code of a script; None if it was stopped."""
    flag = [] if scale == "full" else [f"--{scale}"]
    command = [sys.executable, "-m", f"benchmarks.{name}", *flag, "--rows", str(rows)]
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(threads, "1")}
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stderr=stderr, start_new_session=True
        )
        try:
            return process.wait(None if scale == "long" else LIMIT)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:  # too long, or interrupted; its children go with it
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _reason(code: int | None, errors: str) -> str:
    """Return the last thing that a script said."""
    if code is None:
        return f"it took more than {LIMIT} s"
    lines = [line for line in errors.splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"exit code {code}"


def _rows(path: Path) -> tuple[Row | Skipped, ...]:
    if not path.exists():
        return ()
    return tuple(from_json(json.loads(line)) for line in path.read_text("utf-8").splitlines())
