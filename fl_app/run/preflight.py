"""Everything that can be found wrong before any training starts."""

from __future__ import annotations

import socket
from pathlib import Path

from leakmeter.fl_app import build
from leakmeter.fl_app.build.calibrate import calibrated
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import out_of_range
from leakmeter.fl_app.run.budget import check_budget
from leakmeter.fl_app.run.size import check_size
from leakmeter.fl_app.task import load_task


def preflight(config: Config, folder: Path | None = None) -> Config:
    """Load the data, deal it, build model and auditors; raise ConfigError on what cannot work.

    `folder` is that of an interrupted run, which has its noise multiplier. For a new run the
    configuration is returned with the one that its target asks for.
    """
    check_size(config)  # before the calibration, which plans all rounds many times
    if folder is None:
        config = calibrated(config)
    build.auditors(config, load_task(config).dim)
    check_budget(config, build.server_strategy(config), folder)
    if config.ray_address not in ("", "auto"):
        _check_listens(config.ray_address)
    return config


def _check_listens(address: str) -> None:
    """Raise if nothing listens where a Ray cluster should be: Ray itself would wait for ever."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise out_of_range("ray-address", "HOST:PORT or auto", address)
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise out_of_range("ray-address", f"where a Ray cluster listens ({error})", address) from (
            None
        )
