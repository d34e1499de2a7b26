"""All checks that run before any training starts."""

from __future__ import annotations

from pathlib import Path

from leakmeter.fl_app import build
from leakmeter.fl_app.build.calibrate import calibrated
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.run.budget import check_budget
from leakmeter.fl_app.run.early import check_early
from leakmeter.fl_app.task import load_task


def preflight(config: Config, folder: Path | None = None) -> Config:
    """Load the data, build model and auditors; raise ConfigError on what cannot work.

    `folder` is that of an interrupted run, which has its noise multiplier. For a new run the
    configuration is returned with the one that its target asks for.
    """
    check_early(config)  # before the calibration, which plans all rounds many times
    if folder is None:
        config = calibrated(config)
    build.auditors(config, load_task(config).dim)
    check_budget(config, build.server_strategy(config), folder)
    return config
