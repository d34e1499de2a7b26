"""The folder of a sweep: its plan, a folder for each point, and what came of all of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from leakmeter.auditors.codec import codec, plain
from leakmeter.auditors.run_log import write_atomically
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.config.field import expanded
from leakmeter.fl_app.run.folder import check_free
from leakmeter.fl_app.sweep.plan import Plan, Point

SCHEMA: Final = "leakmeter-sweep/1"
AUDIT: Final = "audit"  # the folder of a point's audited run, in that of the point
POINTS, TABLE = "points.json", "points.csv"  # all numbers
_PLAN = "sweep.json"


@dataclass(frozen=True)
class _Kept:
    """What `sweep.json` contains."""

    schema: str
    plan: Plan


@dataclass(frozen=True)
class SweepFolder:
    """The folder of a sweep: its plan, a folder for each point, and what came of all of them."""

    path: Path
    plan: Plan

    @classmethod
    def create(cls, path: Path, plan: Plan) -> Self:
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
