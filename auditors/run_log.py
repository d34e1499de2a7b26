"""What a run leaves and says while it runs: its log, its report, and callbacks that are told.

The log has one line per round while the run lasts, and one report at its end. Also how files are
written that must survive a crash, and a lock on a file that lasts as long as the process that has
it and says who that is.

Subclass `Callback` to send what `Audited` says anywhere. A callback only listens: it changes
neither the training nor the audit. One that fails is logged and left out, and the run continues
without it. `StopAbove` alone does more: it ends the run.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import platform
import time
from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import Any

from leakmeter.auditors.auditor import Schedule
from leakmeter.auditors.codec import plain
from leakmeter.auditors.finding import Finding, Limitation, RunWarning
from leakmeter.auditors.values import require
from leakmeter.auditors.verdict.claim import Claim
from leakmeter.auditors.verdict.sentences import headline, protection
from leakmeter.auditors.verdict.verdict import WITHOUT_NOISE, judge
from leakmeter.auditors.wording import plain_spaces, sentence_of

SCHEMA = "leakmeter-report/2"
ROUNDS, REPORT = "rounds.jsonl", "report.json"
_log = logging.getLogger("flwr")
_BLOCK = 2**16  # bytes of a file that are written at a time
# Packages whose release a number may depend on.
_PACKAGES = ("leakmeter", "flwr", "torch", "numpy", "scipy", "ray", "dp-accounting")
# What a file system without locks answers, such as NFS without a lock service.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
_PAUSE = 0.05  # seconds between two attempts


@dataclass(frozen=True)
class RoundLine:
    """What is kept of one finished round."""

    server_round: int
    num_clients: int
    metrics: Mapping[str, float]
    findings: tuple[Finding, ...] = ()

    @property
    def accuracy(self) -> float | None:
        """Accuracy after the round, where anybody measured it."""
        return self.metrics.get("accuracy")

    def to_json(self) -> dict[str, Any]:
        """Return the line as a plain dictionary."""
        return {
            "schema": SCHEMA,
            "server_round": self.server_round,
            "accuracy": plain(self.accuracy),
            "num_clients": self.num_clients,
            "metrics": plain(self.metrics),  # the loss of a diverged model is no JSON number
            "findings": [f.to_json() for f in self.findings],
        }


class RunLog:
    """Writes `rounds.jsonl` line by line and `report.json` at the end.

    Args:
        folder: Where to; made if it is not there.
        config: What the report says about how the run was made.
        keep: Rounds of an interrupted run to keep; lines after them are dropped. With 0 nothing is
            overwritten: if a log is already there, the next free folder name is taken.
        name: What the report calls the run; None leaves it to the folder.

    Attributes:
        folder: Where the log is.
    """

    folder: Path

    def __init__(
        self, folder: Path, config: Mapping[str, Any], keep: int = 0, *, name: str | None = None
    ) -> None:
        self._config, self._name, self._wanted = plain(config), name, folder
        # What JSON cannot hold is an error now, not after the last round.
        json.dumps([self._config, self._name])
        if not keep:
            self.start_again()
        else:
            self.folder = folder
            path = folder / ROUNDS
            lines = [line for line in read_rounds(folder) if line["server_round"] <= keep]
            if (other := other_schema(lines)) is not None:
                raise ValueError(
                    f"{path} must contain rounds of {SCHEMA}, got {other}: a run cannot be "
                    "resumed across schemas"
                )
            if [line["server_round"] for line in lines] != list(range(1, keep + 1)):
                raise ValueError(f"{path} must contain rounds 1 to {keep}, got {len(lines)}")
            write_atomically(path, "".join(_line(x) for x in lines))

    def start_again(self) -> None:
        """Begin an empty log, in the first folder without one."""
        folder, number = self._wanted, 2
        while not _claimed(folder):
            folder, number = self._wanted.with_name(f"{self._wanted.name}-{number}"), number + 1
        if folder != self._wanted:
            _log.warning("%s already contains a run; this one goes to %s", self._wanted, folder)
        self.folder = folder

    def add(self, line: RoundLine) -> None:
        """Append a round and make sure that it is on disk."""
        append_line(self.folder / ROUNDS, _line(line.to_json()))

    def finish(
        self,
        findings: Sequence[Finding],
        failures: Sequence[str],
        limitations: Sequence[Limitation] = (),
        warnings: Sequence[RunWarning] = (),
        *,
        schedules: Sequence[Schedule] = (),
        claims: Sequence[Claim] = (),
        more: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write the report.

        Args:
            findings: Those of the run; those of its rounds are in the log already.
            failures: Which auditors were left out, when and why.
            limitations: What auditors cannot see or show here.
            warnings: Reasons to doubt the run itself.
            schedules: Which rounds auditors looked at, of those that may skip some.
            claims: Privacy claims about the run.
            more: Fields of its own that an app adds; `accuracy_without_noise` enters the verdict.
        """
        rounds, path = read_rounds(self.folder), self.folder / REPORT
        listed = [finding for line in rounds for finding in line.pop("findings")]
        listed += [f.to_json() for f in findings]
        added = dict(more or {})
        report = {
            "schema": SCHEMA,
            "name": self._name,
            "config": self._config,
            "versions": versions(),
            "rounds": [{k: v for k, v in line.items() if k != "schema"} for line in rounds],
            "findings": listed,
            "failures": list(failures),
            "limitations": plain(limitations),
            "warnings": plain(warnings),
            "schedules": plain(schedules),
            "glossary": glossary(listed),
            "claims": plain(claims),
            "verdict": _verdict(findings, warnings, rounds, claims, added.pop(WITHOUT_NOISE, None)),
            **added,
        }
        # Piece by piece: the text of a long run takes several times the memory of its findings.
        encoder = json.JSONEncoder(indent=1, allow_nan=False)
        write_atomically(path, chain(encoder.iterencode(report), "\n"))
        return path


def _verdict(
    findings: Sequence[Finding],
    warnings: Sequence[RunWarning],
    rounds: Sequence[Mapping[str, Any]],
    claims: Sequence[Claim],
    without_noise: float | None,
) -> dict[str, Any]:
    """Return the verdict as data, with its two sentences for people."""
    known = [line["accuracy"] for line in rounds if isinstance(line.get("accuracy"), float)]
    accuracy = known[-1] if known else None
    told: Any = {"accuracy": accuracy, "without_noise": without_noise, "claims": claims}
    verdict = judge(findings, warnings, **told)
    said = {"sentence": headline(verdict), "protection": protection(verdict)}
    return {**{name: plain_spaces(words) for name, words in said.items()}, **verdict.to_json()}


def _claimed(folder: Path) -> bool:
    """Make an empty log in the folder; False if there is one, perhaps of another process."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / REPORT).exists():
        return False
    try:
        (folder / ROUNDS).open("x").close()
    except FileExistsError:
        return False
    return True


def glossary(findings: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return each assumption of the findings with its sentence, for readers without Python."""
    names = {name for finding in findings for name in finding["assumptions"]}
    return {name: sentence_of(name) for name in sorted(names)}


def versions() -> dict[str, str]:
    """Return Python's release and those of the packages that are installed."""
    found = {name: release for name in _PACKAGES if (release := _release(name))}
    return {"python": platform.python_version(), **found}


@cache  # each reads a file of the package
def _release(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:  # a plug-in needs few of them
        return None


def _line(values: Mapping[str, Any]) -> str:
    return json.dumps(values, allow_nan=False) + "\n"


def read_rounds(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of `rounds.jsonl`; a last line that was cut off does not count.

    Raises:
        ValueError: A line is not that of a round. The text says which, and what it lacks.
    """
    path = folder / ROUNDS
    # Only "\n" ends a line: JSON may contain other characters that Python takes for an end.
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(_checked(json.loads(line)))
        except (ValueError, RecursionError) as error:  # also what is not UTF-8, or nested too deep
            raise ValueError(f"line {number} is not that of a round: {error}") from None
    return found


def _checked(line: Any) -> dict[str, Any]:
    """Return a line if it has what the report and a resumed run read from it."""
    if not isinstance(line, dict):
        raise ValueError(f"it must be an object, got {type(line).__name__}")
    if type(line.get("server_round")) is not int:
        raise ValueError("server_round must be a whole number")
    if line.get("schema") != SCHEMA:  # whoever reads it says so
        return line
    if not isinstance(line.get("metrics", {}), dict):
        raise ValueError("metrics must be an object")
    findings = line.get("findings")
    if not isinstance(findings, list):
        raise ValueError("findings must be a list")
    for one in findings:
        names = one.get("assumptions") if isinstance(one, dict) else None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("each finding must be an object with a list of assumptions")
    return line


def other_schema(lines: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the schema of the first line that differs from ours."""
    found = (str(line.get("schema", "no schema")) for line in lines)
    return next((schema for schema in found if schema != SCHEMA), None)


def append_line(path: Path, line: str) -> None:
    """Append a line and make sure that it is on disk; a failed write leaves the file as it was."""
    left = memoryview(line.encode())
    # Unbuffered: with a buffer a full disk would show in a later call, or never.
    with path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            while left:  # the system may take less than it is given
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        except BaseException:
            with suppress(OSError):
                file.truncate(size)
            raise


def write_atomically(path: Path, data: str | bytes | Iterable[str]) -> None:
    """Write a file so that a reader finds the old one or the new one, never half of one.

    Args:
        path: The file.
        data: All of it, or its pieces, of which a few are in memory at a time.
    """
    content = data.encode() if isinstance(data, str) else data  # may fail: before anything is there
    pieces = (content,) if isinstance(content, bytes) else (piece.encode() for piece in content)
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb", buffering=_BLOCK) as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:  # also what a piece raises while it is made
        with suppress(OSError):  # a full disk needs the space
            partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make sure that a new name in the folder outlives a power failure, where that is possible."""
    with suppress(OSError):  # Windows opens no folders, and some file systems sync none
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


class HeldError(Exception):
    """Another process has the lock. The text says which."""


class NoLockFileError(OSError):
    """The file of a lock cannot be opened. The text says which and why."""


@contextmanager
def locked(path: Path, *, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock of `path`, a file that is made if missing and stays.

    The system frees the lock when the process ends, however it ends: nothing is left to clean up.
    Where the system or the file system has no locks, a warning says so and the block runs without.

    Args:
        path: The file. Its text names the last process that had the lock.
        wait: Seconds to wait for the lock. A process that was stopped keeps its lock.

    Raises:
        HeldError: Another process has it all the time.
        NoLockFileError: The file cannot be opened, for example because a folder has its name.
    """
    try:
        # Not truncated yet: the text is that of the process that has the lock.
        opened = path.open("a+b", buffering=0)
    except OSError as error:
        # Of its own type: whoever holds the lock may raise an OSError too.
        raise NoLockFileError(error.errno, error.strerror, str(path)) from None
    with opened as file:
        until = time.monotonic() + wait
        while _is_taken(file, path):
            if time.monotonic() >= until:
                file.seek(0)
                raise HeldError(file.read(200).decode(errors="replace") or "another process")
            time.sleep(_PAUSE)
        with suppress(OSError):  # a name for others to read; the lock holds without it
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}".encode())
        yield


def _is_taken(file: FileIO, path: Path) -> bool:
    """Take the lock and return whether another process has it."""
    try:
        import fcntl
    except ImportError:
        _warn(path, "this system has no fcntl")
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _warn(path, str(error.strerror))
    return False


def _warn(path: Path, reason: str) -> None:
    _log.warning(
        "%s cannot be locked (%s): make sure yourself that no second process writes there",
        *(path, reason),
    )


PROGRESS = "progress.json"


@dataclass(frozen=True)
class RunStart:
    """What is known before round 1.

    Attributes:
        num_rounds: Length of the whole run.
        rounds_done: Rounds of an interrupted run that are already there.
        name: What the report calls the run.
        config: How the run was made, as far as `Audited` was told.
        folder: Where the run log is written; None if nothing is.
        claims: Privacy claims that are known.
    """

    num_rounds: int
    rounds_done: int = 0
    name: str = "run"
    config: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    claims: Sequence[Claim] = ()


@dataclass(frozen=True)
class RunEnd:
    """What is known after the last round.

    Attributes:
        findings: About the run as a whole; those of its rounds came with the rounds.
        failures: Which auditors were left out, when and why.
        limitations: What auditors cannot see or show in this project.
        warnings: Reasons to doubt the run itself.
        folder: Where `report.json` is; None if nothing was written.
        claims: Privacy claims about the run.
    """

    findings: Sequence[Finding]
    failures: Sequence[str] = ()
    limitations: Sequence[Limitation] = ()
    warnings: Sequence[RunWarning] = ()
    folder: Path | None = None
    claims: Sequence[Claim] = ()


class Callback(ABC):
    """Called at the start, after every round and at the end; override what you need.

    Example:
        class Alarm(Callback):
            def on_round(self, line, warnings):
                for finding in line.findings:
                    if finding.kind == "lower_bound" and finding.value > 1:
                        print(f"round {line.server_round}: epsilon above {finding.value:.2f}")

        strategy = Audited(FedAvg(), auditors=[...], callbacks=[Alarm()])
    """

    def on_start(self, start: RunStart) -> None:
        """Called before round 1, with what is about to run."""

    def on_round(self, line: RoundLine, warnings: Sequence[RunWarning]) -> None:
        """Called after a round, with its metrics and findings, and the run's warnings so far."""

    def on_end(self, end: RunEnd) -> None:
        """Called after the last round, when the report is on disk."""


@dataclass(frozen=True)
class StopAbove(Callback):
    """Ends a run in order, before its next round, once an ε above a limit is proven.

    It needs an auditor with `confidence=Anytime(…)`: looking at other bounds after every round, and
    stopping at the first large one, would break their confidence. `start` returns the model and the
    metrics so far; `Audited.ended`, log and report say why.

    Attributes:
        epsilon: The limit.

    Example:
        auditors = [OneShotCanaries(seats=2, confidence=Anytime(0.95))]
        strategy = Audited(FedAvg(), auditors, callbacks=[StopAbove(5.0)])
    """

    epsilon: float

    def __post_init__(self) -> None:
        require("[0, inf)", epsilon=self.epsilon)


@dataclass(frozen=True)
class RunProgress:
    """What `progress.json` says of a run that has no report yet.

    Attributes:
        num_rounds: Length of the whole run.
        rounds_done: Rounds that have ended.
        rounds_before: Of these, how many an earlier process has run.
        started: When this process began, in seconds since 1970.
        updated: When its last round ended.
        warnings: Reasons to doubt the run itself, so far.
    """

    num_rounds: int
    rounds_done: int
    rounds_before: int
    started: float
    updated: float
    warnings: tuple[RunWarning, ...] = ()

    def seconds_left(self, now: float) -> float | None:
        """Return about how long the run will take; None before its first round has ended."""
        if (each := self._seconds_each()) is None:
            return None
        planned = each * (self.num_rounds - self.rounds_done)
        return max(planned - max(now - self.updated, 0.0), 0.0)

    def is_overdue(self, now: float) -> bool:
        """Whether the next round has taken so long that the process has probably ended."""
        if (usual := self._seconds_each()) is None or self.rounds_done >= self.num_rounds:
            return False  # nothing is known of the first round, nor of the report
        return now - self.updated > 60 + 5 * usual

    def _seconds_each(self) -> float | None:
        played = self.rounds_done - self.rounds_before
        return (self.updated - self.started) / played if played > 0 else None


class ProgressFile(Callback):
    """Keeps `progress.json` in the run folder during the run, for whoever watches it.

    It has what `rounds.jsonl` lacks: see `RunProgress`. The report takes its place.
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._now: RunProgress | None = None

    def on_start(self, start: RunStart) -> None:
        """Begin the file; without a run folder there is none."""
        self._path = None if start.folder is None else start.folder / PROGRESS
        now, done = time.time(), start.rounds_done
        self._write(RunProgress(start.num_rounds, done, done, now, now))

    def on_round(self, line: RoundLine, warnings: Sequence[RunWarning]) -> None:
        """Note a finished round."""
        assert self._now is not None
        self._write(
            replace(
                self._now,
                rounds_done=line.server_round,
                updated=time.time(),
                warnings=tuple(warnings),
            )
        )

    def on_end(self, end: RunEnd) -> None:
        """Remove the file: the report says all of it."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _write(self, now: RunProgress) -> None:
        self._now = now
        if self._path is not None:
            write_atomically(self._path, json.dumps(plain(now)) + "\n")


class Listeners:
    """The callbacks of a run.

    Args:
        callbacks: Whom to tell, in this order.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        if wrong := [one for one in callbacks if not isinstance(one, Callback)]:
            raise ValueError(
                f"callbacks must be a list of Callback objects, got {wrong[0]!r}; "
                "for example callbacks=[TensorBoard()]"
            )
        self._callbacks = list(callbacks)

    def tell(self, say: Callable[[Callback], None]) -> None:
        """Call each of them; what one raises never reaches the training."""
        for callback in list(self._callbacks):
            try:
                say(callback)
            except Exception as error:
                self._callbacks.remove(callback)
                _log.warning(
                    "%s failed and is left out from here on: %s: %s",
                    *(type(callback).__name__, type(error).__name__, error),
                )
