"""Reads a run's settings from Flower's run configuration."""

from __future__ import annotations

import json
from functools import lru_cache

from flwr.app import Context

from leakmeter.fl_app.config.config import Config

# Settings of the launch, which do not change what a run does.
OUT, RESUME = "out", "resume"


def from_context(context: Context) -> Config:
    """Return the configuration in `context.run_config`, with defaults for what it does not set."""
    # As text, because a cache does not distinguish the keys 1, 1.0 and true.
    return _parsed(json.dumps(dict(context.run_config)))


@lru_cache(maxsize=4)
def _parsed(run_config: str) -> Config:
    given = {k: v for k, v in json.loads(run_config).items() if k not in (OUT, RESUME)}
    # Flower's runtime is the engine of such a run, whatever the default is.
    return Config.from_mapping({**given, "engine": "ray"})
