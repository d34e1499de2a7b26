"""Reads a run's settings from Flower's run configuration."""

from __future__ import annotations

from flwr.app import Context

from leakmeter.fl_app.config.config import Config

# Settings of the launch that are no part of what a run does.
OUT, RESUME = "out", "resume"


def from_context(context: Context) -> Config:
    """Return the configuration in `context.run_config`, defaults where it is silent."""
    given = {k: v for k, v in context.run_config.items() if k not in (OUT, RESUME)}
    # Flower's own runtime is the engine of such a run, whatever the default is.
    return Config.from_mapping({**given, "engine": "ray"})
