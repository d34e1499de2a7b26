"""How many CPU seconds does the default job take?

`python run_sim.py` as it is, from its start to its report: user and system time of its process and
of all that it starts. The second row audits rounds 1, 2, 4, 8, 16 and 30 with the three
estimators that resample updates; the one-shot audit looks at every round in both.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from benchmarks.measure import Row, Scale, Timer, interleave

ROOT = Path(__file__).parents[1]
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
CASES = {  # options, and the most seconds that they may take
    "all four estimators after every round": ((), 40),
    "three of them at rounds 1, 2, 4, 8, … and the last": (
        ("--lrt-every", "-1", "--mi-every", "-1", "--mine-every", "-1"),
        20,
    ),
}


def job(options: Sequence[str]) -> float:
    """Run `run_sim.py` with these options and return its CPU seconds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "run_sim.py", *options, "--out", str(Path(folder, "run"))]
        return cpu_seconds(command)


def cpu_seconds(command: Sequence[str]) -> float:
    """Run a command and return the CPU seconds of its process and of all that it started.

    Linux only: daemons that outlive who started them, such as Ray's, become our own children.
    """
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    # As users have it: compiled modules are kept from one run to the next.
    usual = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    total, code = 0.0, 0
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=said, env=usual
        )
        with suppress(ChildProcessError):  # none is left
            while True:
                pid, status, usage = os.wait4(-1, 0)
                total += usage.ru_utime + usage.ru_stime
                if pid == process.pid:
                    process.returncode = code = os.waitstatus_to_exitcode(status)
        if code:
            said.seek(0)
            end = said.read()[-2000:]
            raise RuntimeError(f"{' '.join(command)} ended with code {code}: {end}")
    return total


def measure(scale: Scale) -> Iterator[Row]:
    """Yield a row for each set of options."""
    few = ["--rounds", "2"] if scale == "quick" else []
    timers: dict[str, Timer] = {
        case: partial(job, (*options, *few)) for case, (options, _) in CASES.items()
    }
    times = interleave(timers, 1 if scale == "quick" else 2, warm_up=False)
    for case, (_, most) in CASES.items():
        yield Row(f"default job, {case}", times[case], target=most)
