"""One audit of an app as it is: the app with our mods inside, the run, and what came of it.

Flower wraps a client's functions when they are registered, so mods that are added later do
nothing. Ours go into the public argument `mods=` before the app's module is imported. They are the
innermost ones: clipping, noise and masks of the app process a canary like an update. Python is as
before once the app is done.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from importlib.metadata import version
from inspect import Parameter, signature
from pathlib import Path
from shutil import rmtree
from types import ModuleType
from typing import Any, Final

from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result, Strategy

from leakmeter.auditors import Audited, Auditor, Callback, LegacyAudited, canary_mod, passive
from leakmeter.auditors.finding import Limitation, RunWarning
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.grid import AuditedGrid, GridWrapper
from leakmeter.auditors.hook.guest_noise import claims_of_mods
from leakmeter.auditors.hook.legacy import Audit as LegacyAudit
from leakmeter.auditors.hook.legacy import legacy_apps_audited
from leakmeter.auditors.hook.run_audit import RunAudit
from leakmeter.auditors.hook.wrapper import Wrapper
from leakmeter.auditors.run_log import REPORT, RoundLine, RunStart
from leakmeter.auditors.verdict.claim import Claim, claims_of
from leakmeter.auditors.verdict.gate import EXIT_CODES
from leakmeter.auditors.verdict.labels import short_name
from leakmeter.auditors.wording import counted
from leakmeter.fl_app.audit_app.project import AppProject
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.engines.inline import run_inline
from leakmeter.fl_app.report.judge import gate_outcome
from leakmeter.fl_app.report.read import AUDIT_COMMAND, LAUNCH, read_run
from leakmeter.fl_app.run.progress import Progress

MODS: Final[tuple[Mod, ...]] = (canary_mod,)
_USUAL_ROUNDS: Final = 3  # Flower's default of `num_rounds`
_NOTHING: Final = (
    "Nothing was audited: the server sent no train message with an ArrayRecord. Trees, statistics "
    "and the SecAgg+ workflow of the legacy API travel otherwise."
)


@dataclass(frozen=True)
class AppAudit:
    """What to audit, and how.

    Attributes:
        project: The app.
        out: Absolute folder for the results.
        clients: How many there are.
        auditors: Names, of `AUDITORS`.
        seats: Clients per round that play a canary; 0 takes one in five of the first cohort.
        claims: What is claimed about the app, by its user or by its own mods.
    """

    project: AppProject
    out: Path
    clients: int = 10
    auditors: tuple[str, ...] = ("one-shot", "single-update")
    seats: int = 0
    claims: tuple[Claim, ...] = ()

    @property
    def rounds(self) -> int:
        """How many rounds are planned for."""
        return self.project.rounds or _USUAL_ROUNDS

    def made(self) -> list[Auditor]:
        """Return the auditors, those that play and those that resample."""
        # One in five of the first cohort: most clients stay honest.
        found = {one.name: one for one in passive(seats=self.seats or "auto", simulated=True)}
        return [found[name] for name in self.auditors]

    def about(self, callbacks: Sequence[Callback]) -> dict[str, Any]:
        """Return where the results go, and what the report says about how the run was made."""
        settings = {f"run-config.{name}": value for name, value in self.project.config.items()}
        settings |= {f"node-config.{name}": value for name, value in self.project.node.items()}
        about = {"app": self.project.name, "clients": self.clients}
        noted = {LAUNCH: AUDIT_COMMAND, **about, **settings}
        told = {"callbacks": list(callbacks), "claims": self.claims}
        return {"out": self.out, "config": noted, **told}

    def knowing(self, noted: Noted) -> AppAudit:
        """Return the same, with what the app's own mods claim: known before anybody trains."""
        return replace(self, claims=claims_of([*self.claims, *claims_of_mods(noted.mods)]))


class WatchingGrid(GridWrapper):
    """The grid that the app gets: its rounds are audited, whoever plays them.

    A strategy is audited as one: it may add noise or weigh replies in its own way, its metrics
    belong into the report, and what it returns is the model after the last round. A loop in `main`
    is audited as it crosses the grid.

    Args:
        grid: Flower's.
        plan: What to audit, and how.
        callbacks: Told of the rounds.
    """

    def __init__(self, grid: Grid, plan: AppAudit, callbacks: Sequence[Callback]) -> None:
        super().__init__(grid)
        self._plan, self._callbacks = plan, callbacks
        self._own: AuditedGrid | None = None  # made with the first round: it begins a run log
        self._audit: RunAudit | None = None
        self._num_rounds = plan.rounds

    def start(self, strategy: Strategy, told: Mapping[str, Any]) -> Any:
        """Run a strategy's `start` with these arguments, and with its audit."""
        audited = Audited(strategy, self._plan.made(), **self._plan.about(self._callbacks))
        self._audit, self._num_rounds = audited.audit, told.get("num_rounds", self._num_rounds)
        audited.logs_verdict = False
        if "num_rounds" not in told:
            audited.num_rounds = self._num_rounds
        own = list(told.items())[1:]  # without the strategy itself
        return audited.start(**{name: self.grid if v is self else v for name, v in own})

    def knows(self, model: ArrayRecord) -> None:
        """Take the result of a loop for the model after its last round."""
        if self._own is not None:
            self._own.complete(model)

    @property
    def is_fresh(self) -> bool:
        """Whether no round has been played yet."""
        return self._audit is None

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send, and audit what is a round."""
        sent = list(messages)
        return self._grid_for(sent).send_and_receive(sent, timeout=timeout)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send, and audit what is a round."""
        sent = list(messages)
        return self._grid_for(sent).push_messages(sent)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have come."""
        return (self._own or self.grid).pull_messages(message_ids)

    def finish(self, failure: BaseException | None) -> None:
        """Write the report, also of a run that the app has broken off."""
        audit = self._audit
        if audit is None or not audit.has_begun:
            return
        if isinstance(failure, ConfigError) and not audit.seen:
            rmtree(self._plan.out, ignore_errors=True)  # the same command may use it again
            return
        if failure is not None:
            words = f"The app failed after round {audit.seen}: {reason_of(failure)}."
            audit.add_limitations(Limitation("app", words))
        if self._own is not None:
            self._own.finish()
        else:
            audit.abandon()
            audit.finish(self._num_rounds)

    def _grid_for(self, messages: Sequence[Message]) -> Grid:
        """Return the grid that audits, from the first round on."""
        if self._own is None and self.is_fresh and any(map(is_training, messages)):
            made = self._plan.made()
            self._own = AuditedGrid(
                self.grid, made, num_rounds=self._num_rounds, **self._plan.about(self._callbacks)
            )
            self._audit = self._own.audit
            self._audit.logs_verdict = False
        return self._own or self.grid


def is_training(message: Message) -> bool:
    """Whether a message asks a client to train a model, and is none of the audit's own."""
    is_train = message.metadata.message_type.partition(".")[0] == "train"
    is_replay = wire.replay_number(message.content) is not None
    return is_train and not is_replay and bool(message.content.array_records)


@contextmanager
def audited_grid(grid: Grid, plan: AppAudit, callbacks: Sequence[Callback] = ()) -> Iterator[Grid]:
    """Audit every round of the app that gets this grid, and write the report in the end."""
    watching = WatchingGrid(grid, plan, callbacks)
    failure: BaseException | None = None
    try:
        with _starting(watching):
            yield watching
    except BaseException as error:
        failure = error
        raise
    finally:  # also after a failure: what was measured is not lost
        watching.finish(failure)


@contextmanager
def _starting(watching: WatchingGrid) -> Iterator[None]:
    """Notice when a strategy is started on our grid, whose classes alone are changed meanwhile."""
    loops = {one: one.__dict__["start"] for one in _classes(Strategy) if "start" in one.__dict__}
    for owner, loop in loops.items():
        owner.start = _noticed(loop, watching)
    try:
        yield
    finally:
        for owner, loop in loops.items():
            owner.start = loop


def _classes(kind: type[Any]) -> Iterator[type[Any]]:
    """Yield a class of strategies and all below it, but those of the audit itself."""
    if not issubclass(kind, Wrapper):
        yield kind
        for below in kind.__subclasses__():
            yield from _classes(below)


def _noticed(loop: Callable[..., Any], watching: WatchingGrid) -> Callable[..., Any]:
    """Return a `start` that is audited if it gets our grid, with any arguments of its own."""
    kinds = {parameter.kind for parameter in signature(loop).parameters.values()}

    @wraps(loop)
    def start(self: Strategy, *args: Any, **more: Any) -> Any:
        is_ours = any(one is watching for one in (*args, *more.values()))
        if is_ours and watching.is_fresh and Parameter.VAR_POSITIONAL not in kinds:
            return watching.start(self, signature(start).bind(self, *args, **more).arguments)
        result = loop(self, *args, **more)
        if is_ours and isinstance(result, Result):
            watching.knows(result.arrays)
        return result

    return start


class Legacy:
    """Audits the strategy of an app of the legacy API; called when its server starts.

    Args:
        plan: What to audit, and how.
        callbacks: Told of the rounds.
    """

    def __init__(self, plan: AppAudit, callbacks: Sequence[Callback] = ()) -> None:
        self.plan, self._callbacks = plan, callbacks
        self._made: list[LegacyAudited] = []

    def __call__(self, strategy: Any, num_rounds: int) -> LegacyAudited:
        """Return the strategy with its audit."""
        about = self.plan.about(self._callbacks)
        made = LegacyAudited(strategy, self.plan.made(), num_rounds=num_rounds, **about)
        made.audit.logs_verdict = False
        self._made.append(made)
        return made

    def watch(self, noted: Noted) -> Callable[[Grid], AbstractContextManager[Grid]]:
        """Return what audits the grid of the app that has registered this, whatever its API."""
        self.plan = self.plan.knowing(noted)
        if noted.is_legacy:
            return self.watching
        return partial(audited_grid, plan=self.plan, callbacks=self._callbacks)

    @contextmanager
    def watching(self, grid: Grid) -> Iterator[Grid]:
        """Yield the grid as it is, and write the report in the end."""
        try:
            yield grid
        finally:
            for made in self._made:
                made.finish()


class _ShownRounds(Callback):
    """Shows rounds as they end."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def on_start(self, start: RunStart) -> None:
        """Show what is claimed."""
        self._progress.claims(start.claims)

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
            f"{reason_of(error)} (client {client}, the first to fail). Correct that; what the app "
            "reads from node_config, beyond partition-id and num-partitions, give by --node-config."
        )
        return AppError(text, error, self._project.path)


def run_audit(audit: AppAudit, progress: Progress) -> list[AppError]:
    """Run the app in this process with its audit; return how it failed, if it did.

    The server's failure, which ends the run, is the first; that of a client is the last. What was
    audited until then is on disk.
    """
    legacy = Legacy(audit, [_ShownRounds(progress)])
    with loaded(audit.project, MODS, legacy) as app:
        client = ToldClient(audit.project, app.client)
        failed = run_here(audit, app.server, client, legacy.watch(app.noted))
    return failed + client.failed


def run_here(
    audit: AppAudit,
    server: ServerApp,
    client: Callable[[Message, Context], Message],
    watch: Callable[[Grid], AbstractContextManager[Grid]],
) -> list[AppError]:
    """Run both apps in this process, on a grid that is watched; return how the server failed."""
    project = audit.project
    failed: list[AppError] = []

    def main(grid: Grid, context: Context) -> None:
        try:
            with watch(grid) as own:
                server(own, context)
        except ConfigError:  # of our own, such as too few clients
            raise
        except (Exception, SystemExit) as error:
            if isinstance(error, SystemExit) and not error.code:
                return
            text = (
                f"the serverapp of {project.path} must run to its end, got {reason_of(error)}. "
                "What was audited before is kept. Try the app alone: flwr run ."
            )
            failed.append(AppError(text, error, project.path, is_fatal=True))

    run_inline(main, client, audit.clients, project.config, project.node)
    return failed


def end_audit(audit: AppAudit, progress: Progress, before: str) -> int:
    """Write the page, print the verdict and whether the app is unchanged, return the exit code."""
    from leakmeter.fl_app.run.run import end  # which needs torch

    progress.stop()
    if not (audit.out / REPORT).exists():
        progress.say(_same_files(audit, before))
        progress.say(_NOTHING)
        return EXIT_CODES["unable"]
    run = read_run(audit.out)
    is_done = end(run, progress)
    progress.say(_same_files(audit, before))
    said, code = gate_outcome(audit.out, Config())
    for line in said:
        progress.say(line)
    return code if is_done else 1


def _same_files(audit: AppAudit, before: str) -> str:
    """Return whether the app's files are as they were."""
    after = audit.project.digest(audit.out)
    if after == before:
        return f"app: unchanged, SHA-256 {before} before and after"
    return f"app: its files have CHANGED during the run, SHA-256 {before} before, {after} after"


Mod = Callable[..., Any]


class AppError(Exception):
    """The app itself failed.

    Attributes:
        shown: The app's own traceback.
        is_fatal: Whether it has ended the run.
    """

    def __init__(
        self, text: str, error: BaseException, folder: Path, *, is_fatal: bool = False
    ) -> None:
        super().__init__(text)
        self.shown, self.is_fatal = own_traceback(error, folder), is_fatal


@dataclass
class Noted:
    """What the app has registered while it was imported.

    Attributes:
        actions: Actions of `ClientApp.train` that have our mods.
        is_legacy: Whether it is a `client_fn` of Flower's legacy API.
        mods: The app's own mods.
    """

    actions: list[str]
    is_legacy: bool = False
    mods: list[Mod] = field(default_factory=list)


@dataclass(frozen=True)
class LoadedApp:
    """Both apps of a project, with our mods in the client's."""

    server: ServerApp
    client: ClientApp
    noted: Noted


@contextmanager
def loaded(
    project: AppProject, mods: Sequence[Mod], legacy: LegacyAudit | None = None
) -> Iterator[LoadedApp]:
    """Import both apps, with `mods` innermost in training; undo everything in the end.

    The working directory is a temporary one in between, so that files which the app writes do not
    end up among its own.

    Args:
        project: The app.
        mods: Added to each train function.
        legacy: Audits the strategy of an app of the legacy API; None leaves it as it is.
    """
    noted = Noted([])
    around = nullcontext() if legacy is None else legacy_apps_audited(legacy)
    packages = {one.partition(":")[0].partition(".")[0] for one in (project.server, project.client)}
    with _in_scratch(), importing(project.path, packages):
        with appending(mods, noted), around:
            client = _component(project, project.client, "clientapp", ClientApp)
            server = _component(project, project.server, "serverapp", ServerApp)
        yield LoadedApp(server, client, noted)


@contextmanager
def appending(mods: Sequence[Mod], noted: Noted) -> Iterator[None]:
    """Append mods to those of every train function that is registered meanwhile."""
    train, create = ClientApp.train, ClientApp.__init__

    def with_ours(self: ClientApp, action: str = "default", **more: Any) -> Any:
        noted.actions.append(action)
        noted.mods += more.get("mods") or []
        return train(self, action, **{**more, "mods": [*(more.get("mods") or []), *mods]})

    def noting(self: ClientApp, client_fn: Any = None, mods: list[Mod] | None = None) -> None:
        noted.is_legacy |= client_fn is not None
        noted.mods += mods or []
        create(self, client_fn, mods)

    ClientApp.train, ClientApp.__init__ = with_ours, noting  # type: ignore[method-assign]
    try:
        yield
    finally:
        ClientApp.train, ClientApp.__init__ = train, create  # type: ignore[method-assign]


@contextmanager
def _in_scratch() -> Iterator[None]:
    """Work in a temporary folder."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="leakmeter-") as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


@contextmanager
def importing(folder: Path, names: set[str]) -> Iterator[None]:
    """Put a folder first on the path; afterwards its modules are forgotten.

    `names` are its packages. Others of these names that are loaded already are set aside.
    """
    path, writes = list(sys.path), sys.dont_write_bytecode
    aside = {name: one for name, one in sys.modules.items() if name.partition(".")[0] in names}
    before = set(sys.modules) - set(aside)
    for name in aside:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True  # nothing is added to the app's folder, no cache either
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:], sys.dont_write_bytecode = path, writes
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in names or _is_below(sys.modules[name], folder):
                del sys.modules[name]
        sys.modules.update(aside)


def _is_below(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and Path(file).is_relative_to(folder)


def _component(project: AppProject, place: str, name: str, kind: type[Any]) -> Any:
    """Return one of the two apps."""
    module, _, attribute = place.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        raise AppError(_failed_import(project, place, name, error), error, project.path) from error
    if not isinstance(found, kind):
        raise ConfigError(
            f"{name} of {project.path} must be a {kind.__name__}, got "
            f"{type(found).__name__} at {place}. Correct the line in its pyproject.toml."
        )
    return found


def reason_of(error: BaseException) -> str:
    """Return an exception in one line, without a full stop."""
    return wire.one_line(f"{type(error).__name__}: {error}", 300).rstrip(".")


def _failed_import(project: AppProject, place: str, name: str, error: BaseException) -> str:
    reason = reason_of(error)
    fix = f"Try whether this works: cd {project.path} && python -c 'import {place.split(':')[0]}'."
    if isinstance(error, ImportError) and (error.name or "").startswith("flwr."):
        fix = f"It was written for another release of Flower than {version('flwr')}: install that."
    elif isinstance(error, ModuleNotFoundError):
        fix = f"Install what the app needs: pip install -e {project.path}"
    return f"the {name} of {project.path} must be importable, got {reason}. {fix}"


def own_traceback(error: BaseException, folder: Path) -> str:
    """Return a traceback from the app's own first line on, without ours and Python's importer."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [i for i, one in enumerate(frames) if Path(one.filename).is_relative_to(folder)]
    shown = [one for one in frames[own[0] :] if "importlib" not in one.filename] if own else frames
    lines = traceback.format_list(shown) + traceback.format_exception_only(error)
    return "Traceback of the app (most recent call last):\n" + "".join(lines).rstrip()
