"""Writes what lists all settings: Flower's table in `pyproject.toml` and the page `settings.md`.

`python docs/make_settings.py` rewrites both, from the fields that the command line is made of.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from leakmeter.fl_app.cli.run import GROUPS
from leakmeter.fl_app.config.audits import AUDITORS
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import kebab
from leakmeter.fl_app.config.settings import PRESETS

ROOT = Path(__file__).parents[1]
PYPROJECT, PAGE = ROOT / "pyproject.toml", ROOT / "docs" / "settings.md"
_TABLE = re.compile(r"(?<=\[tool\.flwr\.app\.config\]\n).*?(?=\n\[)", re.DOTALL)
_LAUNCH = """\
out = ""        # absolute folder of the run; empty: LEAKMETER_RUNS or ~/leakmeter-runs
resume = ""     # absolute folder of a run to resume
"""
# Flower's runtime is the engine itself, and its exit code is its own.
_NOT_FLOWERS = ("engine", "ray_address", "fail_above", "require_guarantee", "against")
_HEAD = """\
# Settings

<!-- Written by `python docs/make_settings.py`. -->

Every setting has one name: `--rounds` on the command line, `rounds` in a TOML file
(`--config FILE`) and under Flower (`flwr run . --run-config 'rounds=5'`). A default that you did
not set gives way where it contradicts what you set, and the run says so: `--clients 10 --sample 5`
leaves 5 canary seats. Under Flower a value that equals its default counts as not set.
"""

_PRESETS = """\
A preset is a set of other defaults, for runs and sweeps. What you type wins over a settings file
(`--config`), the file wins over the preset, and the preset over the usual defaults. The run prints
what the preset sets and saves it in `config.toml`, so that repeating and resuming need no preset.
"""


def flower_table() -> str:
    """Return the settings that Flower accepts, with their defaults."""
    specs = (spec for spec in fields(Config) if spec.name not in _NOT_FLOWERS)
    lines = [f"{kebab(spec.name)} = {json.dumps(spec.default)}\n" for spec in specs]
    return _LAUNCH + "".join(lines)


def pyproject() -> str:
    """Return the project file with today's settings."""
    return _TABLE.sub(lambda _: flower_table(), PYPROJECT.read_text(encoding="utf-8"))


def page() -> str:
    """Return the page of all settings and all auditors."""
    return "\n".join(
        [_HEAD, *_presets(), *_auditors(), *(line for group in GROUPS for line in _group(group))]
    )


def _presets() -> Iterator[str]:
    yield from (
        "## Names for `--preset`",
        "",
        _PRESETS,
        "| name | what for | settings |",
        "|---|---|---|",
    )
    for name, preset in PRESETS.items():
        words = " ".join(f"--{setting} {value}" for setting, value in preset.settings.items())
        yield f"| `{name}` | {preset.about} | `{words}` |"
    yield ""


def _auditors() -> Iterator[str]:
    yield from ("## Names for `--auditors`", "", "| name | what it does |", "|---|---|")
    for name, owner in AUDITORS.items():
        yield f"| `{name}` | {(owner.__doc__ or '').splitlines()[0]} |"
    yield ""


def _group(group: str) -> Iterator[str]:
    yield from (f"## {GROUPS[group]}", "", "| setting | default | what it does |", "|---|---|---|")
    for spec in fields(Config):
        if spec.metadata["group"] == group:
            choices = ", ".join(f"`{choice}`" for choice in spec.metadata["choices"])
            text = spec.metadata["help"].replace("|", "\\|")
            text += f" ({choices})" if choices else ""
            yield f"| `--{kebab(spec.name)}` | `{json.dumps(spec.default)}` | {text} |"
    yield ""


if __name__ == "__main__":
    PYPROJECT.write_text(pyproject(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
