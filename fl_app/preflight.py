"""Everything that can be found wrong before any training starts."""

from __future__ import annotations

from fl_app import build
from fl_app.config import Config
from fl_app.task import load_task


def preflight(config: Config) -> None:
    """Load the data, deal it, build model and auditors; raise ConfigError on what cannot work."""
    task = load_task(config)
    dim = sum(p.numel() for p in task.new_model().parameters())
    build.auditors(config, dim)
    build.server_strategy(config)
