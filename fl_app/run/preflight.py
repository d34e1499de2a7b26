"""Everything that can be found wrong before any training starts."""

from __future__ import annotations

from pathlib import Path

from leakmeter.fl_app import build
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.run.budget import check_budget
from leakmeter.fl_app.run.early import check_early
from leakmeter.fl_app.task import load_task


def preflight(config: Config, folder: Path | None = None) -> None:
    """Load the data, build model and auditors; raise ConfigError on what cannot work.

    `folder` is that of an interrupted run.
    """
    check_early(config)
    build.auditors(config, load_task(config).dim)
    check_budget(config, build.server_strategy(config), folder)
