"""The folder of a run: its configuration, its log, and where to resume."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from leakmeter.auditors.run_log import SCHEMA, other_schema, read_rounds
from leakmeter.fl_app.build.calibrate import calibrated
from leakmeter.fl_app.config.config import CALIBRATED, Config
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.config.field import read_toml
from leakmeter.fl_app.run import checkpoint

# Settings that say where a run finds things, not what it does.
MAY_CHANGE = ("data-dir", "download", "engine", "ray-address", "ledger", "budget", "over-budget")


@dataclass(frozen=True)
class RunFolder:
    """A folder with `config.toml`, and later `rounds.jsonl`, `report.json` and a checkpoint."""

    path: Path
    config: Config

    @classmethod
    def create(cls, path: Path, config: Config) -> Self:
        """Make the folder; one that is already there with anything in it is an error."""
        path = path.expanduser().absolute()
        try:
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise ConfigError(
                    f"out must be a new or empty folder, got {path}; "
                    f"choose another, or resume an interrupted run with --resume {path}"
                )
            config = calibrated(config)
            path.mkdir(parents=True, exist_ok=True)
            (path / "config.toml").write_text(config.to_toml(), encoding="utf-8")
            if config.target_epsilon:
                found = f"noise-multiplier = {config.noise_multiplier!r}\n"
                (path / CALIBRATED).write_text(found, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"out must be writable, got {path}: {error.strerror}") from None
        return cls(path, config)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the folder of an interrupted run."""
        path = path.expanduser().absolute()
        if not (path / "config.toml").is_file():
            raise ConfigError(f"resume must be the folder of a run with config.toml, got {path}")
        if (path / "report.json").exists():
            raise ConfigError(f"resume must be an unfinished run, but {path} has its report.json")
        config = Config.from_toml(path / "config.toml")
        if config.target_epsilon:  # the same noise as before, whatever a new calibration would say
            found = read_toml(path / CALIBRATED)
            config = Config.from_mapping({**config.to_mapping(), **found})
        return cls(path, config)

    @property
    def checkpoint(self) -> Path:
        """Where the state after the last whole round is."""
        return self.path / "checkpoint.npz"

    def save(self, state: Mapping[str, Any]) -> None:
        """Keep the state after a round, and which settings it belongs to."""
        checkpoint.save(self.checkpoint, {**state, "config": self.config.to_mapping()})

    def load(self) -> dict[str, Any] | None:
        """Return the state after the last whole round; None if not one was kept.

        Everything that would make the rest of the run another run is a user's mistake: a damaged
        file, a run log that lacks rounds, settings that are not those the run began with.
        """
        try:
            lines = read_rounds(self.path)
            rounds = [int(line["server_round"]) for line in lines]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"resume needs whole lines in {self.path / 'rounds.jsonl'}: {error}"
            ) from None
        # The line of a round is written before its checkpoint, so the first may stand alone.
        if not self.checkpoint.exists() and rounds in ([], [1]):
            return None
        if (other := other_schema(lines)) is not None:
            raise ConfigError(
                f"resume needs a run of {SCHEMA}, but {self.path} has rounds of {other}: resume it "
                f"with the release that began it, or start again with --config "
                f"{self.path / 'config.toml'}"
            )
        state = checkpoint.load(self.checkpoint)
        self._check(state, rounds)
        return dict(state)

    def start_over(self) -> None:
        """Drop the log of a run that was cut short before its first checkpoint."""
        (self.path / "rounds.jsonl").unlink(missing_ok=True)

    def _check(self, state: Any, rounds: list[int]) -> None:
        """Raise if a checkpoint does not belong to this folder's settings and run log."""
        wanted = {"server_round", "model", "strategy", "audit", "config"}
        if not isinstance(state, dict) or not wanted <= set(state):
            raise ConfigError(f"resume needs a checkpoint of a run, but {self.checkpoint} is none")
        # A setting that is newer than the checkpoint had its default.
        began = {**Config().to_mapping(), **state["config"]}
        ours = self.config.to_mapping()
        changed = [k for k, v in ours.items() if k not in MAY_CHANGE and began[k] != v]
        if changed:
            raise ConfigError(
                f"resume needs the settings that the run began with, but {self.path}/config.toml "
                f"has other values of {', '.join(changed)}"
            )
        done = int(state["server_round"])
        if rounds[:done] != list(range(1, done + 1)):
            raise ConfigError(
                f"resume needs rounds 1 to {done} in {self.path / 'rounds.jsonl'}, got {rounds}"
            )


def default_path(config: Config, parent: Path) -> Path:
    """Return a folder name that says what ran and when, not taken yet."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    base = parent / f"{stamp}-{config.dataset}-{config.model}"
    path, number = base, 2
    while path.exists():
        path, number = base.with_name(f"{base.name}-{number}"), number + 1
    return path
