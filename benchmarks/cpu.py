"""CPU seconds of a command and of all processes that it starts, also of those that outlive it.

    python -m benchmarks.cpu COMMAND ...

Linux only: daemons that outlive who started them, such as Ray's, become this process's children.
It is a process of its own because it waits until it has no child left. The kernel adds up only
processes that somebody waits for. Ray does not wait for all of its workers, so a thread also looks
at the clocks of all processes. Either sum misses something and neither counts twice: the larger one
is returned.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_LOOK_EVERY = 0.1  # seconds


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


def clocks(root: int) -> dict[tuple[int, str], float]:
    """Return the CPU seconds of each process below one, by its id and when it was started."""
    parents, spent = {}, {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            # Behind the name, which may contain anything: proc(5), from field 3 on.
            fields = file.read_text().rpartition(")")[2].split()
            pid, ticks = int(file.parent.name), int(fields[11]) + int(fields[12])
            parents[pid] = int(fields[1])
            spent[pid, fields[19]] = ticks / os.sysconf("SC_CLK_TCK")
    below = {root}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return {key: seconds for key, seconds in spent.items() if key[0] in below - {root}}


class Lookout(threading.Thread):
    """Looks at the clocks of all processes below this one, again and again."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._seen: dict[tuple[int, str], float] = {}
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(_LOOK_EVERY):
            self._seen.update(clocks(os.getpid()))

    def total(self) -> float:
        """End, and return the seconds that were seen."""
        self._done.set()
        self.join()
        return sum(self._seen.values())


def main(command: Sequence[str]) -> int:
    """Run a command, print the seconds once nothing of it is left, and return its exit code."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    total, code = 0.0, 0
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
        lookout = Lookout()
        lookout.start()
        with suppress(ChildProcessError):  # none is left
            while True:
                pid, status, usage = os.wait4(-1, 0)
                total += usage.ru_utime + usage.ru_stime
                if pid == process.pid:
                    process.returncode = code = os.waitstatus_to_exitcode(status)
        said.seek(0)
        print(said.read(), file=sys.stderr)
    print(max(total, lookout.total()))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
