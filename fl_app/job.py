"""The default job from Python: `leakmeter.run`, with the settings of the command line."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError, expanded, kebab, option

if TYPE_CHECKING:
    from leakmeter.auditors.verdict.result import AuditResult

# What these ask for in a process, `assert_private` asks for in Python.
_FOR_A_PROCESS = {
    "fail_above": "max_epsilon",
    "require_guarantee": "require_guarantee",
    "against": "against",
}


def run(
    rounds: int = 10,
    *,
    out: str | Path | None = None,
    quiet: bool = True,
    **settings: Any,
) -> AuditResult:
    """Train and audit the default job in this process, as the command line does.

    The same settings and seed give the same findings as `leakmeter --rounds 10`. Numpy and torch
    compute on one thread during the run.

    Args:
        rounds: Training rounds; the command line's default is 30.
        out: New or empty folder to keep with report and page. None works in a temporary folder that
            is removed at the end, so the result has no folder.
        quiet: Whether to print nothing but warnings; False prints what the command line prints
            during a run.
        settings: Any setting of the command line by its Python name, such as `clip_norm=1.0` for
            `--clip-norm 1`. `leakmeter --help` lists them.

    Raises:
        ConfigError: A setting is unknown, out of range or contradicts another one, or `out` is in
            use. The text names the option.

    Example:
        result = leakmeter.run(rounds=10, noise="central", clip_norm=1.0, target_epsilon=8.0)
    """
    for name, limit in _FOR_A_PROCESS.items():
        if settings.get(name):
            raise ConfigError(
                f"{option(name)} must be left out in Python, where no process ends with a code, "
                f"got {settings[name]!r}. Call assert_private(result, {limit}={settings[name]!r})."
            )
    if settings.get("log") and out is None:
        raise ConfigError(
            "--log must be given with a folder to keep, next to which its files are, got "
            f"log={settings['log']!r} and out=None. Try out='runs/mine'."
        )
    given = {kebab(name): value for name, value in {"rounds": rounds, **settings}.items()}
    config, _ = settled(given, typed=given)
    with _one_thread(), _logging(quiet), TemporaryDirectory(prefix="leakmeter-") as temporary:
        result = _audited(config, Path(temporary if out is None else out), quiet=quiet)
    return replace(result, folder=None) if out is None else result


def read_result(folder: str | Path) -> AuditResult:
    """Return the result of a run from its folder, such as for `assert_private`.

    The run may be one of the command line, or of your own project with `Audited(..., out=...)`. An
    unfinished one has the verdict on what holds so far, and passes no limit.

    Raises:
        ConfigError: It is no folder of a run.
    """
    from leakmeter.fl_app.report.judge import result_of
    from leakmeter.fl_app.report.read import read_run

    return result_of(read_run(Path(folder)))


def settled(
    values: Mapping[str, Any], typed: Collection[str], preset: str = ""
) -> tuple[Config, str]:
    """Return the checked settings of a new run, and lines about defaults that gave way, or "".

    Args:
        values: The settings that are given, by kebab-case names.
        typed: The names of those that were given for this run, not in a file of settings.
        preset: Name of other defaults.
    """
    config, words = Config.adapted(values, preset)
    paths = {"data_dir": config.data_dir, "ledger": config.ledger}
    # So that the run can be repeated and resumed from anywhere.
    absolute = {k: str(expanded(option(k), v)) for k, v in paths.items() if v}
    folder = absolute.get("data_dir")
    if "data-dir" in typed and folder and not config.download and not os.path.isdir(folder):
        # Not where data are loaded: a node may lack the folder and have LEAKMETER_DATA.
        raise ConfigError(
            f"--data-dir must be a folder that exists, got {folder}; leave it out to search only "
            "LEAKMETER_DATA"
        )
    return replace(config, **absolute), words  # type: ignore[arg-type]


def _audited(config: Config, out: Path, *, quiet: bool) -> AuditResult:
    """Run in a folder, in the order in which the command line checks and runs."""
    from leakmeter.fl_app.run.early import check_early
    from leakmeter.fl_app.run.folder import check_free

    check_free(out)
    check_early(config)
    from rich.console import Console

    from leakmeter.fl_app.report.page import leave_page
    from leakmeter.fl_app.run.launch import launch
    from leakmeter.fl_app.run.progress import Progress
    from leakmeter.fl_app.run.run import new_run

    progress = Progress(Console(quiet=True, force_terminal=False) if quiet else None)
    folder = new_run(config, out)
    try:
        launch(folder, progress)
    finally:
        progress.stop()
    leave_page(folder.path, progress.say)
    return read_result(folder.path)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Give the caller its threads back: a run takes them for the whole process."""
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    try:
        with threadpool_limits(limits=1):  # at its end, the limits are those from before it
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _logging(quiet: bool) -> Iterator[None]:
    """Show warnings of Flower's log only, and let it be as before in the end."""
    log = logging.getLogger("flwr")
    before = log.level
    try:
        import flwr.serverapp  # noqa: F401 - sets a level of its own

        log.setLevel(logging.WARNING if quiet else before)
        yield
    finally:
        log.setLevel(before)
