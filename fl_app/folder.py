"""The folder of a run: its configuration, its record, and where to go on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from fl_app import checkpoint
from fl_app.config import Config
from fl_app.errors import ConfigError


@dataclass(frozen=True)
class RunFolder:
    """A folder with `config.toml`, and later `rounds.jsonl`, `report.json` and a checkpoint."""

    path: Path
    config: Config

    @classmethod
    def create(cls, path: Path, config: Config) -> Self:
        """Make the folder; one that is already there with anything in it is an error."""
        path = path.expanduser().absolute()
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(
                f"out must be a new or empty folder, got {path}; "
                f"choose another, or go on with it by --resume {path}"
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / "config.toml").write_text(config.to_toml())
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
        return cls(path, Config.from_toml(path / "config.toml"))

    @property
    def checkpoint(self) -> Path:
        """Where the state after the last whole round is."""
        return self.path / "checkpoint.npz"

    def save(self, state: Any) -> None:
        """Keep the state after a round."""
        checkpoint.save(self.checkpoint, state)

    def load(self) -> Any | None:
        """Return the state after the last whole round; None if not one was finished."""
        if not self.checkpoint.exists() and not _has_rounds(self.path):
            return None
        return checkpoint.load(self.checkpoint)


def _has_rounds(path: Path) -> bool:
    rounds = path / "rounds.jsonl"
    return rounds.exists() and rounds.stat().st_size > 0


def default_path(config: Config, parent: Path) -> Path:
    """Return a folder name that says what ran and when, not taken yet."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    base = parent / f"{stamp}-{config.dataset}-{config.model}"
    path, number = base, 2
    while path.exists():
        path, number = base.with_name(f"{base.name}-{number}"), number + 1
    return path
