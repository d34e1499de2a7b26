"""The folder of a run: its configuration, its log, and where to resume."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from numpy.typing import NDArray

from leakmeter.auditors.codec import CodecError, codec, pack, plain, unpack
from leakmeter.auditors.run_log import (
    REPORT,
    SCHEMA,
    HeldError,
    NoLockFileError,
    locked,
    other_schema,
    read_rounds,
    write_atomically,
)
from leakmeter.fl_app.config.config import CALIBRATED, Config
from leakmeter.fl_app.config.field import ConfigError, expanded, kebab, read_toml
from leakmeter.fl_app.report.read import FILES, Rehearsal, runs_in

# Settings that say where a run finds files and machines or what is asked of it in the end, not what
# it does.
MAY_CHANGE = (
    *("data-dir", "download", "engine", "ray-address", "device", "ledger", "budget", "over-budget"),
    *("fail-above", "require-guarantee", "against", "log"),
)

_CANNOT_WRITE = {
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EIO", "EACCES", "EPERM")
    if hasattr(errno, name)
}
_IN_THE_WAY = {errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ELOOP}
_CONFIG, _LOCK, _REHEARSAL = "config.toml", ".lock", "rehearsal.json"
# What a run that was killed before its config.toml was whole may leave: nothing has run there.
_LEFTOVERS = {_LOCK, "config.toml.partial", CALIBRATED, f"{CALIBRATED}.partial"}


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What is kept after a round, so that an interrupted run can be resumed.

    Attributes:
        server_round: The last complete round.
        model: Its arrays by name.
        strategy: The state of each strategy in the chain, outermost first.
        audit: The state of the audit.
        config: The settings that the run began with; the folder adds them.
    """

    server_round: int
    model: dict[str, NDArray[Any]]
    strategy: list[dict[str, Any]]
    audit: dict[str, Any]
    config: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return what `RunFolder.save` wrote; raise if the file is missing or damaged."""
        try:
            found: Self = codec(cls).read(unpack(path.read_bytes()))
        except FileNotFoundError:
            raise ConfigError(f"--resume needs a checkpoint, but there is no {path}") from None
        except (OSError, CodecError) as error:
            raise ConfigError(
                f"--resume needs a whole checkpoint, but {path} is broken: {error}; restore the "
                f"file, or start again with --config {path.parent / _CONFIG}"
            ) from None
        return found


@dataclass(frozen=True)
class RunFolder:
    """A folder with `config.toml`, and later `rounds.jsonl`, `report.json` and a checkpoint."""

    path: Path
    config: Config

    @classmethod
    def create(cls, path: Path, config: Config) -> Self:
        """Create the folder; raise if it exists and is not empty."""
        from leakmeter.fl_app.build.strategy import calibrated  # which needs torch

        path = expanded("--out", path)
        folder = cls(path, calibrated(config))
        check_free(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            # Two runs may have found the same folder empty.
            if not _is_unused(path):
                raise _taken(path)
            with folder.locked():
                if not _is_unused(path):
                    raise _taken(path)
                _clear(path)
                # Whole files only, so that an incomplete one is never read.
                if folder.config.target_epsilon:
                    found = f"noise-multiplier = {folder.config.noise_multiplier!r}\n"
                    write_atomically(path / CALIBRATED, found)
                write_atomically(path / _CONFIG, folder.config.to_toml())
        except OSError as error:
            raise ConfigError(f"--out must be writable, got {path}: {error.strerror}") from None
        return folder

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the folder of an interrupted run."""
        path = expanded("--resume", path)
        try:
            if not (path / _CONFIG).is_file():
                raise ConfigError(
                    f"--resume must be the folder of a run with config.toml, got {path}{_fix(path)}"
                )
            if _is_finished(path):
                raise ConfigError(
                    f"--resume must be an unfinished run, but {path} has its report.json"
                )
        except (OSError, ValueError) as error:  # a folder that may not be entered, a zero byte
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"--resume must be a readable folder, got {path}: {error}") from None
        _check_whole(path / _CONFIG)
        config = Config.from_toml(path / _CONFIG)
        if config.target_epsilon:  # the same noise as before, whatever a new calibration would say
            found = read_toml(path / CALIBRATED)
            config = Config.from_mapping({**config.to_mapping(), **found})
        return cls(path, config)

    def locked(self) -> AbstractContextManager[None]:
        """Lock the folder against other processes while the block runs."""
        return locked_folder(self.path)

    @property
    def checkpoint(self) -> Path:
        """File with the state after the last complete round."""
        return self.path / "checkpoint.npz"

    def save(self, kept: Checkpoint) -> None:
        """Save the state after a round, with the settings that it belongs to."""
        state = {**vars(kept), "config": self.config.to_mapping()}
        write_atomically(self.checkpoint, pack(state))

    def load(self) -> Checkpoint | None:
        """Return the state after the last complete round; None if there is none.

        Raises `ConfigError` for everything that would change the rest of the run: a damaged file, a
        run log that lacks rounds, settings other than those the run began with.
        """
        try:
            lines = read_rounds(self.path)
        except (ValueError, OSError) as error:
            raise ConfigError(
                f"--resume needs whole lines in {self.path / 'rounds.jsonl'}: {error}; restore the "
                f"file, or start again with --config {self.path / _CONFIG}"
            ) from None
        rounds = [line["server_round"] for line in lines]
        # The line of a round is written before its checkpoint, so it may be there without one.
        if not self.checkpoint.exists() and rounds in ([], [1]):
            return None
        if (other := other_schema(lines)) is not None:
            raise ConfigError(
                f"--resume needs a run of {SCHEMA}, but {self.path} has rounds of {other}: resume "
                f"it with the release that began it, or start again with --config "
                f"{self.path / _CONFIG}"
            )
        kept = Checkpoint.read(self.checkpoint)
        self._check(kept, rounds)
        return kept

    @contextmanager
    def taking_up(self, name: str) -> Iterator[None]:
        """Turn errors that a wrong checkpoint causes into a `ConfigError`."""
        try:
            yield
        except (ConfigError, OSError):
            raise
        except Exception as error:  # foreign content can make it anything
            raise self.foreign(f"{name} cannot be used ({type(error).__name__}: {error})") from (
                error
            )

    def foreign(self, wrong: str) -> ConfigError:
        """Return the error for a checkpoint that this run has not written."""
        return ConfigError(
            f"--resume needs a checkpoint of this run, but in {self.checkpoint} {wrong}; restore "
            f"the file, or start again with --config {self.path / _CONFIG}"
        )

    def explained(self, error: OSError) -> str | None:
        """Return in words why the run cannot write any more; None for other errors.

        Results up to the last checkpoint are kept, unless the folder is gone.
        """
        if not self.path.is_dir():
            return f"{self.path} was removed while the run wrote to it, and its results with it"
        if error.errno in _IN_THE_WAY and Path(str(error.filename)).parent == self.path:
            return f"{error.filename} must be a file, got: {error.strerror}; remove it"
        if error.errno not in _CANNOT_WRITE:
            return None
        return (
            f"{self.path} or the ledger cannot be written ({error.strerror}): free some space "
            "there, or make it writable"
        )

    def keep(self, rehearsal: Rehearsal) -> None:
        """Keep a rehearsal of this run, for its report."""
        write_atomically(self.path / _REHEARSAL, json.dumps(plain(rehearsal)) + "\n")

    @property
    def rehearsal(self) -> Rehearsal | None:
        """The rehearsal that was kept; None if there is none."""
        return read_rehearsal(self.path / _REHEARSAL)

    def discard(self) -> None:
        """Remove the folder of a run that has not begun: only the settings are in it."""
        ours = {"config.toml", CALIBRATED, _REHEARSAL, _LOCK}
        if {one.name for one in self.path.iterdir()} <= ours:
            for one in self.path.iterdir():
                one.unlink()
            self.path.rmdir()

    def start_over(self) -> None:
        """Delete the log of a run that was interrupted before its first checkpoint."""
        (self.path / "rounds.jsonl").unlink(missing_ok=True)

    def _check(self, kept: Checkpoint, rounds: list[int]) -> None:
        """Raise if a checkpoint does not belong to this folder's settings and run log."""
        ours = self.config.to_mapping()
        changed = [k for k, v in ours.items() if k not in MAY_CHANGE and kept.config.get(k) != v]
        if changed:
            raise ConfigError(
                f"--resume needs the settings that the run began with, but {self.path}/config.toml "
                f"has other values of {', '.join(changed)}"
            )
        done = kept.server_round
        if not 1 <= done <= self.config.rounds:
            raise ConfigError(
                f"--resume needs a checkpoint of a round from 1 to {self.config.rounds}, but "
                f"{self.checkpoint} is of round {done}"
            )
        if rounds[:done] != list(range(1, done + 1)):
            raise ConfigError(
                f"--resume needs rounds 1 to {done} in {self.path / 'rounds.jsonl'}, got {rounds}"
            )


@contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Lock a folder against other processes while the block runs."""
    try:
        with locked(path / _LOCK):
            yield
    except HeldError as held:
        raise ConfigError(
            f"{path} is in use by {held}: wait until it ends, or end it first"
        ) from None
    except NoLockFileError as error:
        raise ConfigError(
            f"{path / _LOCK} must be a file that can be written, got: {error.strerror}; "
            "remove it and try again"
        ) from None


def read_rehearsal(path: Path) -> Rehearsal | None:
    """Return the rehearsal in a file; None if there is no such file."""
    try:
        found: Rehearsal = codec(Rehearsal).read(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} must be a rehearsal as this release writes it, got: {error}; remove the file"
        ) from None
    return found


def check_free(path: Path) -> None:
    """Raise unless a run may begin in this folder: it must be new or empty."""
    path = expanded("--out", path)
    try:
        is_free = not os.path.lexists(path) or (path.is_dir() and _is_unused(path))
    except (OSError, ValueError) as error:  # a folder that may not be entered, a zero byte
        raise ConfigError(f"--out must be writable, got {path}: {error}") from None
    if not is_free:
        raise _taken(path)


def named_run(path: Path, option: str, *, is_to_resume: bool = False) -> Path:
    """Return the newest run of a folder of runs, and say which; any other path as it is.

    Of runs to resume, it is the newest unfinished one of our own command line.
    """
    folder = expanded(option, path)
    found = runs_in(folder)
    if is_to_resume:
        found = [one for one in found if (one / _CONFIG).is_file() and not _is_finished(one)]
    if not found or any((folder / name).is_file() for name in (*FILES, _CONFIG)):
        return path
    print(f"the newest{' unfinished' * is_to_resume} run in {folder}: {found[0]}", file=sys.stderr)
    return found[0]


def is_held(path: Path) -> bool:
    """Whether a process of this machine is running the run in a folder."""
    try:
        with locked_folder(path) if (path / _LOCK).is_file() else nullcontext():
            return False
    except ConfigError:
        return True


def _is_finished(path: Path) -> bool:
    return (path / REPORT).exists()


def _is_unused(path: Path) -> bool:
    """Whether a folder is empty but for leftovers of a run that was killed before it began."""
    return {one.name for one in path.iterdir()} <= _LEFTOVERS


def _fix(path: Path) -> str:
    """Return what to do with a folder that has no config.toml, as the end of a sentence."""
    if newest := runs_in(path)[:1]:
        return f"; all runs in it are finished, the newest is {newest[0]}"
    if path.is_dir() and not _is_unused(path):
        return "; see which runs there are with: leakmeter list"
    return f"; nothing has run there: start with --out {path}"


def _clear(path: Path) -> None:
    """Remove such leftovers: this run's settings replace them."""
    for name in _LEFTOVERS - {_LOCK}:
        (path / name).unlink(missing_ok=True)


def _taken(path: Path) -> ConfigError:
    is_finished = (path / "report.json").exists()
    then = "" if is_finished else f", or resume the interrupted run with --resume {path}"
    return ConfigError(f"--out must be a new or empty folder, got {path}; choose another{then}")


def _check_whole(path: Path) -> None:
    """Raise if a file lacks settings that every run writes: defaults would replace them."""
    there = read_toml(path)
    if there.get("target-epsilon"):  # then the multiplier is in a file of its own
        there["noise-multiplier"] = None
    if missing := [name for spec in fields(Config) if (name := kebab(spec.name)) not in there]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ConfigError(
            f"--resume needs all settings of the run, but {path} lacks {', '.join(missing[:3])}"
            f"{more}: it is not whole, or another release wrote it; restore it, or start a new run"
        )


def default_path(config: Config, parent: Path) -> Path:
    """Return a free folder name that says what ran and when."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return free_path(parent / f"{stamp}-{config.dataset}-{config.model}")


def free_path(base: Path) -> Path:
    """Return the first of the names base, base-2, base-3, ... that is free."""
    path, number = base, 2
    while path.exists():
        path, number = base.with_name(f"{base.name}-{number}"), number + 1
    return path
