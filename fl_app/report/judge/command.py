"""The command that makes a run again, as it was or with other settings."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from leakmeter.auditors.wording import assigned
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.config.field import kebab
from leakmeter.fl_app.config.settings import AUTO
from leakmeter.fl_app.report.read import FLOWER, LAUNCH, REPLAY_OF, Run

DEFAULTS = {kebab(spec.name): spec.default for spec in fields(Config)}
_OF_AUDITS = {kebab(spec.name) for spec in fields(Config) if spec.metadata["group"] == "audit"}
_OF_ENGINES = ("engine", "ray-address")  # which Flower's runtime is itself
SCRIPT = "python run_sim.py"


def program() -> str:
    """Return how this program was called, for commands that can be copied."""
    return "leakmeter" if Path(sys.argv[0]).stem == "leakmeter" else SCRIPT


def again(
    run: Run, changes: Mapping[str, Any] | None = None, *, out: str = "", called: str = SCRIPT
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
    noted = {k: value for k, value in run.settings.items() if k not in (REPLAY_OF, LAUNCH)}
    try:
        settings = Config.from_mapping({**noted, **(changes or {})}).to_mapping()
    except ConfigError:  # of another release, or changes that do not fit
        return None
    if run.spelling == "run-config":
        return _by_flower(run, settings, {"out": out} if out else {})
    words = [called]
    if (source := run.settings.get(REPLAY_OF)) is not None:  # which has all but the audit's
        words += ["replay", shlex.quote(str(source)), "--auditors", settings.pop("auditors")]
        settings = {name: value for name, value in settings.items() if name in _OF_AUDITS}
    return spelled(words, settings, out)


def spelled(words: Sequence[str], settings: Mapping[str, Any], out: str = "") -> str:
    """Return a command that begins with these words and names every setting that it must."""
    options = [word for name, value in _given(settings).items() for word in _option(name, value)]
    return " ".join([*words, *options, *(["--out", quoted(out)] if out else [])])


def typed(folder: Path, *, is_whole: bool = False) -> str:
    """Return a folder as its user may type it: from here, from the home folder, or whole.

    Args:
        folder: The folder.
        is_whole: Whether the command runs elsewhere, as in Flower's runtime.
    """
    folder, here, home = folder.absolute(), Path.cwd(), Path.home()
    if folder.is_relative_to(here) and not is_whole:
        return str(folder.relative_to(here))
    # A page may be shown to others, who need not know what the home folder is called.
    return f"~/{folder.relative_to(home)}" if folder.is_relative_to(home) else str(folder)


def quoted(path: str) -> str:
    """Return a path for a shell, which expands a leading ~ only where it is not quoted.

    >>> quoted("runs/my demo"), quoted("~/runs/my demo")
    ("'runs/my demo'", "~/'runs/my demo'")
    """
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)


def resumed(run: Run, called: str = SCRIPT) -> str:
    """Return the command that finishes an interrupted run."""
    folder = typed(run.folder, is_whole=True)
    if run.spelling == "run-config":
        return _by_flower(run, {}, {"resume": folder})
    return f"{called} --resume {quoted(folder)}"


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a command must name; the seed is always worth a word."""
    is_calibrated = bool(settings.get("target-epsilon"))  # then the multiplier is found again
    if settings.get("clipping") == "measured" and not settings["clip-norm"]:
        settings = {**settings, "clip-norm": AUTO, "clipping": DEFAULTS["clipping"]}
    return {
        name: value
        for name, value in settings.items()
        if (value != DEFAULTS[name] or name == "seed")
        and not (name == "noise-multiplier" and is_calibrated)
    }


def _by_flower(run: Run, settings: Mapping[str, Any], more: Mapping[str, str]) -> str:
    """Return the command of Flower's that starts our app with these settings."""
    words = ["flwr run ."]
    if run.settings.get(LAUNCH) == FLOWER:  # a deployment has its SuperNodes
        nodes = settings.get("clients", run.settings.get("clients"))
        words.append(f"--federation-config 'num-supernodes={nodes}'")
    own = {k: v for k, v in _given(settings).items() if k not in _OF_ENGINES}
    return " ".join([*words, "--run-config", shlex.quote(assigned("run-config", {**own, **more}))])


def _option(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    shown = f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else value
    return [f"--{name}", shlex.quote(str(shown))]
