"""The same audit through `flwr run`, whose clients and server are other processes.

A temporary copy of the app gets a package of two modules, and its two component lines name them.
The app itself stays as it is. Everything runs with a Flower home and ports of its own, and the
SuperLink that `flwr run` leaves behind is stopped.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from leakmeter.auditors.hook.legacy import legacy_apps_audited
from leakmeter.fl_app.audit_app.project import AppProject
from leakmeter.fl_app.audit_app.session import (
    MODS,
    AppAudit,
    AppError,
    Legacy,
    Noted,
    appending,
    loaded,
)
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.run.progress import Progress

_log = logging.getLogger("flwr")

PACKAGE: Final = "leakmeter_audit"  # in the copy; no app has a package of this name
_SECONDS_TO_REGISTER: Final = 60.0
_LAST_LINES: Final = 25
# Flower reads these files without running them, and searches for a plain assignment.
_MODULE: Final = '''"""Made by `leakmeter audit` in a copy of the app."""

from leakmeter.fl_app.audit_app.through_flower import {kind}_app

app = {kind}_app({given!r})
'''


def run_through_flower(audit: AppAudit, progress: Progress) -> list[AppError]:
    """Run a copy of the app with its audit through `flwr run`; return how it failed, if it did."""
    with loaded(audit.project, MODS) as app:  # what cannot be imported is an error already now
        progress.claims(audit.knowing(app.noted).claims)
    progress.say("engine    flwr run, on a copy of the app; its first round takes a while")
    with tempfile.TemporaryDirectory(prefix="leakmeter-") as scratch:
        copy = copied(audit, Path(scratch) / "app")
        with _flower(Path(scratch)) as env:
            said = _flwr_run(audit, copy, env)
            status = _status(copy, env)
    return [] if status == "finished:completed" else [_failure(audit, status, said)]


def copied(audit: AppAudit, folder: Path) -> Path:
    """Copy what Flower bundles of the app into a folder, with our package and its two lines."""
    project = audit.project
    for file in project.files(audit.out):
        target = folder / file.relative_to(project.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    (folder / PACKAGE).mkdir()
    (folder / PACKAGE / "__init__.py").write_text("")
    for kind, given in (("client", project.client), ("server", pickle.dumps(audit))):
        text = _MODULE.format(kind=kind, given=given)
        (folder / PACKAGE / f"{kind}_app.py").write_text(text, encoding="utf-8")
    toml = folder / "pyproject.toml"
    toml.write_text(_pointed(toml.read_text(encoding="utf-8")), encoding="utf-8")
    AppProject.read(folder)  # still an app, or an error in words
    return folder


def _pointed(text: str) -> str:
    """Return a pyproject.toml whose components are ours, and in the bundle."""
    for kind in ("server", "client"):
        ours = rf'\g<1>"{PACKAGE}.{kind}_app:app"'
        text = re.sub(rf"""(\b{kind}app\s*=\s*)(["'])[\w.]+:\w+\2""", ours, text, count=1)
    return re.sub(r"(fab-include\s*=\s*\[)", rf'\g<1>"{PACKAGE}/*.py", ', text, count=1)


def client_app(place: str) -> ClientApp:
    """Return the app's own ClientApp, with our mods innermost; called in Flower's processes."""
    with appending(MODS, Noted([])), legacy_apps_audited(_not_here):
        found: ClientApp = _imported(place)
    return found


def _not_here(*_: Any) -> NoReturn:
    raise RuntimeError("a client's process runs no server")


def server_app(packed: bytes) -> ServerApp:
    """Return a ServerApp that runs the app's own one with the audit, which `copied` has pickled."""
    audit: AppAudit = pickle.loads(packed)
    legacy, noted = Legacy(audit), Noted([])
    # With our mods: clients of this process find the module imported already.
    with appending(MODS, noted), legacy_apps_audited(legacy):
        own: ServerApp = _imported(audit.project.server)
        _imported(audit.project.client)  # which shows whether it is of the legacy API
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        _wait_for_clients(grid, audit.clients)
        with legacy.watch(noted)(grid) as audited:
            own(audited, context)

    return app


def _imported(place: str) -> Any:
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _wait_for_clients(grid: Grid, clients: int) -> None:
    """Wait until all nodes are there: the simulation starts the server before them."""
    until = time.monotonic() + _SECONDS_TO_REGISTER
    while len(list(grid.get_node_ids())) < clients and time.monotonic() < until:
        time.sleep(0.2)


@contextmanager
def _flower(scratch: Path) -> Iterator[dict[str, str]]:
    """Yield the variables of a Flower of its own; stop its SuperLink in the end."""
    home = scratch / "flower"
    home.mkdir()
    bin_ = str(Path(sys.executable).parent)
    env = {
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": _free_port(),
        "FLWR_LOCAL_CONTROL_API_PORT": _free_port(),
        # Otherwise each run installs all that the app depends on once more.
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": f"{bin_}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    try:
        yield {**os.environ, "RAY_ADDRESS": os.environ.get("RAY_ADDRESS", "local"), **env}
    finally:
        for pid in _superlinks(home):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + 30
        while _superlinks(home) and time.monotonic() < until:
            time.sleep(0.2)


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _superlinks(home: Path) -> list[int]:
    """Return the SuperLinks that serve this Flower home and no other."""
    listed = subprocess.run(["ps", "-axwwo", "pid=,command="], capture_output=True, text=True)
    rows = [line.split(maxsplit=1) for line in listed.stdout.splitlines()]
    found = [row for row in rows if len(row) == 2 and "flower-superlink" in row[1]]
    return [int(pid) for pid, command in found if str(home) in command]


def _flwr_run(audit: AppAudit, copy: Path, env: Mapping[str, str]) -> str:
    """Run the copy and return its log, which is also shown if Flower's log is."""
    words = ["flwr", "run", str(copy), "--stream"]
    words += ["--federation-config", f"num-supernodes={audit.clients} client-resources-num-cpus=1"]
    if audit.project.config:
        words += ["--run-config", _pairs(audit.project.config)]
    # In the scratch folder, since files that the app writes end up in the working directory.
    with subprocess.Popen(
        words,
        cwd=copy.parent,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if _log.isEnabledFor(logging.INFO):
                print(line, end="", flush=True)
    return "".join(lines)


def _pairs(config: Mapping[str, Any]) -> str:
    """Return settings as Flower takes them; JSON writes numbers, texts and truth as TOML does."""
    return " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())


def _status(copy: Path, env: Mapping[str, str]) -> str:
    """Return what became of the run: `flwr run` exits with 0 even if it failed."""
    words = ["flwr", "ls", "--format", "json"]
    done = subprocess.run(words, cwd=copy, env=env, text=True, capture_output=True)
    try:
        runs = json.loads(done.stdout[done.stdout.index("{") :])["runs"]
        return str(runs[0]["status"])
    except (ValueError, KeyError, IndexError):
        return "unknown"


def _failure(audit: AppAudit, status: str, said: str) -> AppError:
    text = (
        f"the app in {audit.project.path} must run to its end under flwr run, got the status "
        f"{status}. What was audited before is kept. Try --verbose for the whole log, or "
        "--engine inline."
    )
    error = AppError(text, ConfigError(status), audit.project.path, is_fatal=True)
    error.shown = "Last lines of flwr run:\n" + "\n".join(said.splitlines()[-_LAST_LINES:])
    return error
