"""Starts programs, waits for them, and ends those it has started, by their own ids."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import distribution
from pathlib import Path

from tests.helpers.project import BIN, ROOT

# What the person who runs the tests may have set, and what would change a launch.
_STRANGE = ("PYTHONPATH", "LEAKMETER_DATA", "LEAKMETER_RUNS", "RAY_ADDRESS")


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(**own: str) -> dict[str, str]:
    """Return the variables of this process without its user's settings, and with these."""
    kept = {name: value for name, value in os.environ.items() if name not in _STRANGE}
    # Flower starts its own programs by name: they must be found where no environment is active.
    return {**kept, "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}", **own}


def flower_home(home: Path) -> dict[str, str]:
    """Return the variables of a Flower with a home of its own, as on a machine of its own."""
    home.mkdir(parents=True, exist_ok=True)
    return {
        "FLWR_HOME": str(home),
        # Else every run installs all that the project depends on again.
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_ADDRESS": "local",  # otherwise Ray searches for a cluster that was left behind
    }


def own_ports() -> dict[str, str]:
    """Return the variables of a local SuperLink that shares its ports with no other."""
    return {
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
    }


def superlinks(home: Path) -> list[int]:
    """Return the processes that serve this Flower home and no other."""
    # -ww: the whole line, however narrow the terminal is thought to be.
    listed = subprocess.run(
        ["ps", "-axwwo", "pid=,command="], capture_output=True, text=True, check=True
    )
    rows = [line.split(maxsplit=1) for line in listed.stdout.splitlines()]
    return [
        int(row[0])
        for row in rows
        if len(row) == 2 and "flower-superlink" in row[1] and str(home) in row[1]
    ]


def end_superlinks(home: Path) -> int:
    """End the SuperLinks of this Flower home and return how many there were."""
    found = superlinks(home)
    for pid in found:
        os.kill(pid, signal.SIGTERM)
    try:
        wait_until(lambda: not superlinks(home), seconds=30)
    except AssertionError:
        for pid in superlinks(home):
            os.kill(pid, signal.SIGKILL)
    return len(found)


def run(
    *command: str | Path,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    given: str = "",
    timeout: float = 900.0,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; if that takes too long, end it and its children."""
    with started(*command, cwd=cwd, env=env) as process:
        said, complained = process.communicate(given, timeout)
    return subprocess.CompletedProcess(process.args, process.returncode, said, complained)


def run_python(
    *words: str | Path,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    given: str = "",
    timeout: float = 900.0,
) -> str:
    """Run this Python with these words, which must end well, and return what it prints."""
    done = run(sys.executable, *words, cwd=cwd, env=env, given=given, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# In copies of one process, since each of its own would import the same again.
_COPIES = """
import importlib, json, os, sys, tempfile, traceback
import leakmeter.fl_app.cli.main
program, cases, modules = json.load(sys.stdin)
for name in modules:
    importlib.import_module(name)
for words in cases:
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complained:
        if (child := os.fork()) == 0:
            os.dup2(said.fileno(), 1)
            os.dup2(complained.fileno(), 2)
            sys.argv[1:], code = words, 0
            try:
                exec(program, {"__name__": "__main__"})
            except BaseException:
                traceback.print_exc()
                code = 1
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        streams = [file.seek(0) or file.read().decode() for file in (said, complained)]
        print(json.dumps([words, code, *streams]))
"""


def run_copies(
    program: str, cases: Sequence[Sequence[str]], *modules: str, cwd: Path = ROOT
) -> list[subprocess.CompletedProcess[str]]:
    """Run a program with each of these arguments, after one import of the command line.

    `modules` are imported once as well.
    """
    given = json.dumps([program, cases, modules])
    done = run(sys.executable, "-c", _COPIES, cwd=cwd, given=given)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == len(cases), done.stdout
    return [subprocess.CompletedProcess(*row) for row in rows]


@contextmanager
def started(
    *command: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    interruptible: bool = False,
) -> Iterator[subprocess.Popen[str]]:
    """Start a program in the background; end it and its children when the block ends.

    Args:
        command: The program and its arguments.
        cwd: The folder that it works in.
        env: All of its variables; `environment()` by default.
        log: File for what it prints; without one it is kept for `communicate`.
        interruptible: Whether it heeds SIGINT even where the tests run in the background, whose
            children would ignore it.
    """
    with ExitStack() as stack:
        out = subprocess.PIPE if log is None else stack.enter_context(log.open("w"))
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=cwd,
            env=dict(environment() if env is None else env),
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.PIPE if log is None else subprocess.STDOUT,
            text=True,
            start_new_session=True,  # a group of its own, so that its children end with it
            preexec_fn=_heed_interrupts if interruptible else None,
        )
        stack.callback(end, process)
        yield process


def _heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def end(process: subprocess.Popen[str]) -> None:
    """End a process politely, and whoever of its group is left at once."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)
    kill(process)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def kill(process: subprocess.Popen[str]) -> None:
    """End a process and its group at once, as when its machine loses power."""
    with suppress(ProcessLookupError):  # if nobody is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_until(
    happens: Callable[[], bool],
    process: subprocess.Popen[str] | None = None,
    *,
    seconds: float = 600.0,
    said: Callable[[], str] = str,
) -> None:
    """Wait until something happens; fail with what was said if the process ends or time is up."""
    deadline = time.monotonic() + seconds
    while not happens():
        assert process is None or process.poll() is None, said() or process.communicate()
        assert time.monotonic() < deadline, f"nothing after {seconds:.0f} s\n{said()}"
        time.sleep(0.02)


def listens(port: int) -> bool:
    """Whether somebody listens at a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def bare_python(folder: Path, *hidden: str, pip: bool = False) -> Path:
    """Return a Python with the libraries of this one but without this project.

    Modules named in `hidden` cannot be imported either.
    """
    venv.create(folder, with_pip=pip)
    python = folder / "bin/python"
    own = site_packages(python)
    # Links to all but this project. The name of the file comes first, before what needs them.
    libraries = folder / "libraries"
    libraries.mkdir()
    places = [Path(place) for place in sys.path if place.endswith("site-packages")]
    for one in (entry for place in places for entry in place.iterdir()):
        link = libraries / one.name
        if "leakmeter" not in one.name and not link.exists():
            link.symlink_to(one)
    (own / "0-libraries.pth").write_text(f"{libraries}\n")
    for name in hidden:
        (own / f"{name}.py").write_text(f"raise ImportError('No module named {name} here')\n")
    return python


def add_programs(python: Path, library: str) -> None:
    """Write the console scripts of a library of ours into the environment of another Python."""
    for entry in distribution(library).entry_points.select(group="console_scripts"):
        call = f"import sys\nfrom {entry.module} import {entry.attr}\nsys.exit({entry.attr}())\n"
        program = python.parent / entry.name
        program.write_text(f"#!{python}\n{call}")
        program.chmod(0o755)


def site_packages(python: Path) -> Path:
    """Return where an environment has its packages."""
    inside = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.check_output([python, "-c", inside], text=True).strip())


def open_files(folder: Path) -> int:
    """Return how many files of a folder this process has open, also those without a name.

    0 where the system has no list of them.
    """
    links = Path("/proc/self/fd")
    there = links.iterdir() if links.exists() else ()
    return sum(str(folder) in str(one.readlink()) for one in there if one.exists())
