"""The page of a run folder as it is now, with a bar on top that keeps it up to date.

The page itself is that of `leakmeter report`. A short script asks once a second whether the folder
has changed, and then exchanges the content of `main`. Place, open folds and focus stay.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leakmeter.auditors.callback import PROGRESS, RunProgress
from leakmeter.auditors.codec import CodecError, codec
from leakmeter.auditors.run_log import REPORT, ROUNDS
from leakmeter.auditors.wording import counted
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.live.script import BAR, SCRIPT, STYLE
from leakmeter.fl_app.report.html.page import Live, document, page
from leakmeter.fl_app.report.markup import tag
from leakmeter.fl_app.report.read.run import Run, read_run

_FILES = (REPORT, ROUNDS, PROGRESS)
FIRST = "The numbers of the first round will appear here as soon as it has ended."


@dataclass(frozen=True)
class LiveFolder:
    """A run folder that somebody watches."""

    path: Path

    @classmethod
    def at(cls, path: Path) -> LiveFolder:
        """Return the folder that a user has named, perhaps by a file in it."""
        path = path.expanduser().absolute()
        return cls(path.parent if path.name in _FILES else path)

    @property
    def is_finished(self) -> bool:
        """Whether the run has its report."""
        return (self.path / REPORT).is_file()

    def stamp(self) -> str:
        """Return a text that changes whenever the page would."""
        changed = [_changed(self.path / name) for name in _FILES]
        return "-".join([*changed, "on" if self.is_running else "off"])

    def state(self, now: float | None = None) -> dict[str, Any]:
        """Return what the bar shows: progress, time left and warnings, in words."""
        if self.is_finished:
            return {"stamp": self.stamp(), "finished": True, "share": 1.0, "text": "finished"}
        progress = self._progress()
        if progress is None:
            text = "the rounds so far" if self.has_run else "waiting for the first file of a run"
            share, warnings = 0.0, []
        else:
            share = progress.rounds_done / max(progress.num_rounds, 1)
            text = _words(progress, time.time() if now is None else now)
            warnings = [warning.text for warning in progress.warnings]
        known = {"stamp": self.stamp(), "finished": False, "share": share, "text": text}
        return {**known, "warnings": warnings}

    def html(self) -> str:
        """Return the page with its bar.

        Raises:
            ConfigError: A file is damaged, or only half of it has arrived.
        """
        live = self._live()  # before the files are read: what changes meanwhile is asked for again
        empty = Run(self.path.name, self.path, is_finished=False)
        run = read_run(self.path) if self.has_run else empty
        if not (run.rounds or run.is_finished):
            return self._saying(FIRST, live)
        return page([replace(run, is_running=self.is_running)], live=live)

    def excuse(self, error: ConfigError) -> str:
        """Return a page that says why there is none yet, and asks again."""
        return self._saying(str(error), self._live(""))

    def check(self) -> None:
        """Refuse what cannot become the folder of a run.

        Raises:
            ConfigError: It cannot.
        """
        if not self.path.is_dir():
            raise ConfigError(f"DIR must be the folder of a run, got {self.path}: no such folder")
        runs = [one.parent for name in _FILES for one in self.path.glob(f"*/{name}")]
        if runs and not self.has_run:
            newest = max(runs, key=lambda one: one.stat().st_mtime)
            raise ConfigError(
                f"DIR must be the folder of one run, got {self.path}; "
                f"the newest run in it is {newest}"
            )

    @property
    def has_run(self) -> bool:
        """Whether anything of a run has arrived."""
        return any((self.path / name).is_file() for name in (REPORT, ROUNDS))

    @property
    def is_running(self) -> bool:
        """Whether a process seems to add to it: the next round is not long overdue."""
        progress = None if self.is_finished else self._progress()
        return progress is not None and not progress.is_overdue(time.time())

    def _saying(self, words: str, live: Live) -> str:
        return document(self.path.name, self.path.name, [tag("p", words)], live)

    def _live(self, stamp: str | None = None) -> Live:
        return Live(BAR.format(stamp=self.stamp() if stamp is None else stamp), STYLE, SCRIPT)

    def _progress(self) -> RunProgress | None:
        """Return how far the run is; None if nothing says so, or nothing that can be read."""
        try:
            values = json.loads((self.path / PROGRESS).read_bytes())
            found: RunProgress = codec(RunProgress).read(values)
            return found
        except (OSError, ValueError, RecursionError, CodecError, ConfigError):
            return None


def _changed(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return "0"
    return f"{found.st_mtime_ns:x}.{found.st_size:x}"


def _words(progress: RunProgress, now: float) -> str:
    """Return round, time left and how old this is."""
    done = f"round {progress.rounds_done} of {progress.num_rounds}"
    if progress.rounds_done >= progress.num_rounds:
        return f"{done}; the report is being made"
    left = progress.seconds_left(now)
    if left is None:
        return f"{done}; started {_duration(max(now - progress.started, 0))} ago"
    if left <= 0:
        return f"{done}; last round ended {_duration(max(now - progress.updated, 0))} ago"
    return f"{done}; about {_duration(left)} left"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return counted(round(seconds), "second")
    if seconds < 5400:
        return counted(round(seconds / 60), "minute")
    return f"{seconds / 3600:.1f} hours"
