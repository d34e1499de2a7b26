"""One audit of an app as it is: who is added, the run, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from leakmeter.auditors import Auditor, Callback, OneShotCanaries, canary_mod, passive
from leakmeter.auditors.finding import RunWarning
from leakmeter.auditors.run_log import REPORT, RoundLine
from leakmeter.auditors.verdict.gate import EXIT_CODES
from leakmeter.auditors.verdict.labels import short_name
from leakmeter.auditors.wording import counted
from leakmeter.fl_app.audit_app.load import AppError, LoadedApp, Mod, check_api, loaded, reason_of
from leakmeter.fl_app.audit_app.project import AppProject
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.engines.inline import run_inline
from leakmeter.fl_app.report.gate import gated
from leakmeter.fl_app.report.read import read_run
from leakmeter.fl_app.run.progress import Progress

MODS: Final[tuple[Mod, ...]] = (canary_mod,)
_USUAL_ROUNDS: Final = 3  # Flower's default of `num_rounds`


@dataclass(frozen=True)
class AppAudit:
    """What to audit, and how.

    Attributes:
        project: The app.
        out: Absolute folder for the results.
        clients: How many there are.
        auditors: Names, of `AUDITORS`.
        seats: Clients per round that play a canary; 0 leaves it to the number of clients.
    """

    project: AppProject
    out: Path
    clients: int = 10
    auditors: tuple[str, ...] = ("one-shot",)
    seats: int = 0

    @property
    def rounds(self) -> int:
        """How many rounds are planned for."""
        return self.project.rounds or _USUAL_ROUNDS

    def made(self) -> list[Auditor]:
        """Return the auditors, those that play and those that resample."""
        # One in five: always an honest majority, and the model still learns.
        seats = self.seats or max(self.clients // 5, 1)
        found = {one.name: one for one in passive(seats=seats, simulated=True)}
        found["one-shot"] = OneShotCanaries(seats=seats)
        return [found[name] for name in self.auditors]

    def noted(self) -> dict[str, Any]:
        """Return what the report says about how the run was made."""
        settings = {f"run-config.{name}": value for name, value in self.project.config.items()}
        return {"app": self.project.name, "clients": self.clients, **settings}


@contextmanager
def audited_grid(grid: Grid, audit: AppAudit, callbacks: Sequence[Callback] = ()) -> Iterator[Grid]:
    """Audit every round that crosses the grid, and write the report in the end."""
    from unittest.mock import patch  # stands in for AuditedGrid until it is there

    from flwr.serverapp.strategy import Strategy

    from leakmeter.auditors import Audited

    start = Strategy.start
    busy: list[bool] = []

    def audited_start(self: Strategy, *args: Any, **more: Any) -> Any:
        if busy:
            return start(self, *args, **more)
        busy.append(True)
        one = Audited(
            self, audit.made(), out=audit.out, config=audit.noted(), callbacks=list(callbacks)
        )
        one.logs_verdict = False
        return one.start(*args, **more)

    with patch.object(Strategy, "start", audited_start):
        yield grid


class _Rounds(Callback):
    """Shows rounds as they end."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def on_round(self, line: RoundLine, warnings: Sequence[RunWarning]) -> None:
        """Show one round."""
        self._progress.round(line)


def announced(audit: AppAudit, digest: str) -> list[str]:
    """Return what is about to run, and what the audit adds to the app."""
    project = audit.project
    mods = ", ".join(mod.__name__ for mod in MODS)
    return [
        f"app       {project.path}",
        f"files     {counted(len(project.files(audit.out)), 'file')}, SHA-256 {digest[:16]}…",
        f"added     client: {mods}, innermost of the mods in training",
        "          server: a grid that watches train messages and gives seats their canaries",
        f"audit     {', '.join(map(short_name, audit.auditors))}",
    ]


class ToldClient:
    """A client app whose first exception is kept: the server gets only its last line.

    Attributes:
        failed: How it failed, once or not at all.
    """

    def __init__(self, project: AppProject, app: ClientApp) -> None:
        self._project, self._app = project, app
        self.failed: list[AppError] = []

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message as the app does."""
        try:
            return self._app(message, context)
        except Exception as error:
            if not self.failed:
                self.failed.append(self._told(error, context))
            raise

    def _told(self, error: Exception, context: Context) -> AppError:
        client = context.node_config.get("partition-id")
        text = (
            f"clients of {self._project.path} must train without exceptions, got "
            f"{reason_of(error)} (client {client}, the first to fail). Correct that; an app that "
            "reads more than partition-id and num-partitions from node_config cannot be simulated."
        )
        return AppError(text, error, self._project.path)


def run_audit(audit: AppAudit, progress: Progress) -> list[AppError]:
    """Run the app in this process with its audit; return how it failed, if it did.

    The server's failure, which ends the run, is the first; that of a client is the last. What was
    audited until then is on disk.
    """
    failed: list[AppError] = []
    with loaded(audit.project, MODS) as app:
        check_api(audit.project, app)
        client = ToldClient(audit.project, app.client)

        def server(grid: Grid, context: Context) -> None:
            with audited_grid(grid, audit, [_Rounds(progress)]) as audited:
                failed.extend(attempt(audit.project, app, audited, context))

        run_inline(server, client, audit.clients, audit.project.config)
    return failed + client.failed


def attempt(
    project: AppProject, app: LoadedApp, grid: Grid, context: Context
) -> Iterator[AppError]:
    """Run the app's own main; yield its failure, so that the audit can be finished."""
    try:
        app.server(grid, context)
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and not error.code:
            return
        text = (
            f"the serverapp of {project.path} must run to its end, got {reason_of(error)}. What "
            "was audited before is kept. Try the app alone: flwr run ."
        )
        yield AppError(text, error, project.path, is_fatal=True)


def end_audit(audit: AppAudit, progress: Progress, before: str) -> int:
    """Write the page, print the verdict and whether the app is unchanged, return the exit code."""
    from leakmeter.fl_app.run.run import end  # which needs torch

    progress.stop()
    if not (audit.out / REPORT).exists():
        progress.say(f"{_same_files(audit, before)}")
        progress.say("Nothing was audited: no train message with an ArrayRecord left the server.")
        return EXIT_CODES["unable"]
    run = read_run(audit.out)
    has_page = end(run, progress)
    progress.say(_same_files(audit, before))
    said, code = gated(audit.out, Config())
    for line in said:
        progress.say(line)
    return code if has_page and not run.failures else 1


def _same_files(audit: AppAudit, before: str) -> str:
    """Return whether the app's files are as they were."""
    after = audit.project.digest(audit.out)
    if after == before:
        return f"app: unchanged, SHA-256 {before} before and after"
    return f"app: its files have CHANGED during the run, SHA-256 {before} before, {after} after"
