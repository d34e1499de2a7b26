"""The folder of a sweep, and the run in it: rehearsals of all points, audits of the frontier.

What is there already is read, so a sweep that was cut off continues where it stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from rich.console import Console

from leakmeter.auditors.codec import codec, plain
from leakmeter.auditors.run_log import REPORT, write_atomically
from leakmeter.auditors.wording import counted
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError, expanded
from leakmeter.fl_app.report import NAME
from leakmeter.fl_app.report.page import leave_page
from leakmeter.fl_app.report.read import read_run
from leakmeter.fl_app.run.folder import RunFolder, check_free, locked_folder, read_rehearsal
from leakmeter.fl_app.run.launch import launch
from leakmeter.fl_app.run.progress import Progress
from leakmeter.fl_app.run.rehearsal import rehearse
from leakmeter.fl_app.run.run import new_run, preflight, use_one_thread
from leakmeter.fl_app.sweep.points import Point, SweepPlan
from leakmeter.fl_app.sweep.results import AUDIT, POINTS, SCHEMA, TABLE, Result, Results, page

_PLAN = "sweep.json"


@dataclass(frozen=True)
class _Kept:
    """What `sweep.json` contains."""

    schema: str
    plan: SweepPlan


@dataclass(frozen=True)
class SweepFolder:
    """The folder of a sweep: its plan, a folder for each point, and what came of all of them."""

    path: Path
    plan: SweepPlan

    @classmethod
    def create(cls, path: Path, plan: SweepPlan) -> Self:
        """Make the folder; raise if it exists and is not empty."""
        path = expanded("--out", path)
        check_free(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            kept = json.dumps(plain(_Kept(SCHEMA, plan)), indent=1)
            write_atomically(path / _PLAN, f"{kept}\n")
        except OSError as error:
            raise ConfigError(f"--out must be writable, got {path}: {error.strerror}") from None
        return cls(path, plan)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the folder of a sweep that was cut off, or to write its page again."""
        path = expanded("--resume", path)
        try:
            values = json.loads((path / _PLAN).read_bytes())
            kept: _Kept = codec(_Kept).read(values)
            if kept.schema != SCHEMA:
                raise ValueError(f"schema must be {SCHEMA}, got {kept.schema}")
        except FileNotFoundError:
            raise ConfigError(
                f"--resume must be the folder of a sweep with {_PLAN}, got {path}"
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"--resume needs a whole {path / _PLAN}, got: {error}") from None
        return cls(path, kept.plan)

    def rehearsal(self, point: Point, config: Config) -> Path:
        """Return the file with the rehearsal of a point for one seed."""
        return self.path / point.folder / f"rehearsal-{config.seed}.json"

    def audit(self, point: Point) -> Path:
        """Return the folder of a point's audited run."""
        return self.path / point.folder / AUDIT


def check_points(plan: SweepPlan, points: Sequence[Point]) -> tuple[list[Point], list[str]]:
    """Load data, build models and auditors and calibrate the noise of all points.

    Returns:
        The points that can run, and in words why others cannot.

    Raises:
        ConfigError: Some cannot, and none is to be left out; or none can.
    """
    made, refused = [], []
    for point in points:
        try:
            for config in point.configs:
                # A norm that is not measured yet changes nothing that is checked here.
                preflight(replace(config, clip_norm=1.0) if config.measures_clip else config)
            made.append(point)
        except ConfigError as error:
            refused.append(f"{point.label}: {error}")
    return made, plan.accepted(refused, len(made))


def run_sweep(
    folder: SweepFolder, points: Sequence[Point], refused: Sequence[str], progress: Progress
) -> Results:
    """Run what is not there yet, and write the page and the tables.

    Args:
        folder: Of the sweep.
        points: That can run.
        refused: Why others cannot.
        progress: Shows each step, and how long the rest takes.
    """
    use_one_thread()
    with locked_folder(folder.path):
        rehearsed = _rehearsals(folder, points, progress)
        results = Results(folder.plan, tuple(rehearsed), tuple(refused))
        _write(folder, results)
        audited = {one.point.name: one for one in _audits(folder, results, progress)}
        every = tuple(audited.get(one.point.name, one) for one in results.points)
        results = replace(results, points=every)
        _write(folder, results)
    return results


def _rehearsals(
    folder: SweepFolder, points: Sequence[Point], progress: Progress
) -> Iterator[Result]:
    """Yield each point with its rehearsals, which are read or run."""
    wanted = [(point, config) for point in points for config in point.configs]
    known = {place: read_rehearsal(place) for place in (folder.rehearsal(*one) for one in wanted)}
    steps = _Steps(progress, "rehearsal", len(wanted), sum(map(bool, known.values())))
    for point in points:
        found = []
        for config in point.configs:
            place = folder.rehearsal(point, config)
            if (one := known[place]) is None:
                one = rehearse(config)
                place.parent.mkdir(exist_ok=True)
                write_atomically(place, json.dumps(plain(one)) + "\n")
                steps.done(f"{point.name}  {point.label}  accuracy {one.accuracy:.3f}")
            found.append(one)
        yield Result(point, tuple(found))
    steps.stop()


def _audits(folder: SweepFolder, results: Results, progress: Progress) -> Iterator[Result]:
    """Yield the points of the frontier with their audited runs, which are read or run."""
    wanted = [one for one in results.frontier if one.point.configs[0].auditor_names]
    places = [folder.audit(one.point) for one in wanted]
    steps = _Steps(progress, "audit", len(places), sum((p / REPORT).exists() for p in places))
    for one, place in zip(wanted, places, strict=True):
        if not (place / REPORT).exists():
            _audit(one, place)
            steps.done(f"{one.point.name}  {one.point.label}")
        yield replace(one, audit=read_run(place))
    steps.stop()


def _audit(result: Result, place: Path) -> None:
    """Run or resume the audited run of a point with its first seed, and leave its page."""
    if (place / "config.toml").exists():
        run = RunFolder.open(place)
    else:
        [config, *_], [rehearsal, *_] = result.point.configs, result.rehearsals
        if config.measures_clip and rehearsal.clip_norm is not None:
            config = replace(config, clip_norm=rehearsal.clip_norm)
        run = new_run(config, place)
        run.keep(rehearsal)
    launch(run, Progress(Console(quiet=True, force_terminal=False)), without_masks=True)
    leave_page(place, lambda _: None)


def _write(folder: SweepFolder, results: Results) -> None:
    """Write the table, the numbers and the page."""
    write_atomically(folder.path / TABLE, results.to_csv())
    write_atomically(
        folder.path / POINTS, json.dumps(results.to_json(), indent=1, allow_nan=False) + "\n"
    )
    write_atomically(folder.path / NAME, page(results))


class _Steps:
    """Says how far a sweep is, and how long steps of this kind will still take."""

    def __init__(self, progress: Progress, kind: str, total: int, known: int) -> None:
        self._progress, self._kind, self._total = progress, kind, total
        self._before, self._number = known, known
        self._start = time.monotonic()
        if known:
            progress.say(f"{counted(known, kind)} of {total} read from the folder")
        if known < total:
            progress.begin_with([], total, known, f"{kind}s")

    def done(self, text: str) -> None:
        """Say what a step has given."""
        self._number += 1
        each = (time.monotonic() - self._start) / (self._number - self._before)
        left = each * (self._total - self._number)
        width = len(str(self._total))
        after = f"; about {_duration(left)} left" if self._number < self._total else ""
        self._progress.step(
            f"{self._kind} {self._number:>{width}}/{self._total}  {text}{after}", self._number
        )

    def stop(self) -> None:
        """Remove the bar."""
        self._progress.stop()


def _duration(seconds: float) -> str:
    """Return a time in words.

    >>> _duration(3.2), _duration(200), _duration(9000)
    ('4 s', '3 min', '2.5 h')
    """
    if seconds < 100:
        return f"{int(seconds) + 1} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
