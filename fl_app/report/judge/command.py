"""The command that makes a run again, as it was or with other settings."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.config.field import kebab
from leakmeter.fl_app.report.read import REPLAY_OF, Run

DEFAULTS = {kebab(spec.name): spec.default for spec in fields(Config)}
_OF_AUDITS = {kebab(spec.name) for spec in fields(Config) if spec.metadata["group"] == "audit"}
_SCRIPT = "python run_sim.py"


def program() -> str:
    """Return how this program was called, for commands that can be copied."""
    return "leakmeter" if Path(sys.argv[0]).stem == "leakmeter" else _SCRIPT


def again(
    run: Run, changes: Mapping[str, Any] | None = None, *, out: str = "", called: str = _SCRIPT
) -> str | None:
    """Return the command that makes a run again; None for a project of another kind.

    Every setting that differs from its default is named, so that it needs no file.

    Args:
        run: The run.
        changes: Settings to give other values; None is returned where they do not go together.
        out: Folder for the results; empty takes the usual one.
        called: How the program is called.
    """
    if not run.settings:
        return None
    noted = {name: value for name, value in run.settings.items() if name != REPLAY_OF}
    try:
        settings = Config.from_mapping({**noted, **(changes or {})}).to_mapping()
    except ConfigError:  # of another release, or changes that do not fit
        return None
    words = [called]
    if (source := run.settings.get(REPLAY_OF)) is not None:  # which has all but the audit's
        words += ["replay", shlex.quote(str(source)), "--auditors", settings.pop("auditors")]
        settings = {name: value for name, value in settings.items() if name in _OF_AUDITS}
    for name, value in settings.items():
        if value == DEFAULTS[name] and name != "seed":
            continue
        if name == "noise-multiplier" and settings.get("target-epsilon"):
            continue  # calibrated again
        words += _option(name, value)
    if out:
        words += ["--out", shlex.quote(out)]
    return " ".join(words)


def _option(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    shown = f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else value
    return [f"--{name}", shlex.quote(str(shown))]
