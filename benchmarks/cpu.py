"""CPU seconds of a command and of all processes that it starts, also of those that outlive it.

    python -m benchmarks.cpu COMMAND ...

Linux only: daemons that outlive who started them, such as Ray's, become this process's children.
It is a process of its own because it waits until it has no child left.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)


def cpu_seconds(command: Sequence[str]) -> float:
    """Run a command in the project's folder and return its CPU seconds.

    Raises:
        RuntimeError: The command has failed.
    """
    # As users have it: compiled modules are kept from one run to the next.
    usual = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    waiting = [sys.executable, "-m", "benchmarks.cpu", *command]
    done = subprocess.run(waiting, cwd=ROOT, env=usual, capture_output=True, text=True, check=False)
    if done.returncode:
        end = done.stderr[-2000:]
        raise RuntimeError(f"{' '.join(command)} ended with code {done.returncode}: {end}")
    return float(done.stdout)


def main(command: Sequence[str]) -> int:
    """Run a command, print the seconds once nothing of it is left, and return its exit code."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    total, code = 0.0, 0
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
        with suppress(ChildProcessError):  # none is left
            while True:
                pid, status, usage = os.wait4(-1, 0)
                total += usage.ru_utime + usage.ru_stime
                if pid == process.pid:
                    process.returncode = code = os.waitstatus_to_exitcode(status)
        said.seek(0)
        print(said.read(), file=sys.stderr)
    print(total)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
