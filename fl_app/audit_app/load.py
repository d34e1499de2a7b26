"""Loads a Flower app with our mods inside, and leaves Python as it was.

Flower wraps a client's functions when they are registered, so mods that are added later do
nothing. Ours go into the public argument `mods=` before the app's module is imported. They are the
innermost ones: clipping, noise and masks of the app process a canary like an update.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.legacy import Audit as LegacyAudit
from leakmeter.auditors.hook.legacy import legacy_apps_audited
from leakmeter.fl_app.audit_app.project import AppProject
from leakmeter.fl_app.config.errors import ConfigError

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
    with _in_scratch(), importing(project.path, _packages(project)):
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


def _packages(project: AppProject) -> set[str]:
    return {one.partition(":")[0].partition(".")[0] for one in (project.server, project.client)}


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
