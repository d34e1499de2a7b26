"""How a run was made and how to make it again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.config.field import kebab
from leakmeter.fl_app.config.meaning import in_todays_words
from leakmeter.fl_app.report.markup import Markup, joined, tag
from leakmeter.fl_app.report.read.run import REPLAY_OF, Run

_DEFAULTS = {kebab(spec.name): spec.default for spec in fields(Config)}
_OF_AUDITS = {kebab(spec.name) for spec in fields(Config) if spec.metadata["group"] == "audit"}


def _command(run: Run) -> str | None:
    """Return the command that makes the run again; None for a project of another kind.

    Every setting that differs from its default is named, so that it needs no file.
    """
    if not run.settings:
        return None
    noted = {name: value for name, value in run.settings.items() if name != REPLAY_OF}
    try:
        settings = Config.from_mapping(in_todays_words(noted)).to_mapping()
    except ConfigError:  # of another release
        return None
    words = ["python", "run_sim.py"]
    if (source := run.settings.get(REPLAY_OF)) is not None:  # which has all but the audit's
        words += ["replay", shlex.quote(str(source)), "--auditors", settings.pop("auditors")]
        settings = {name: value for name, value in settings.items() if name in _OF_AUDITS}
    for name, value in settings.items():
        if value == _DEFAULTS[name] and name != "seed":
            continue
        if name == "noise-multiplier" and settings["target-epsilon"]:
            continue  # calibrated again
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            words += [f"--{name}", shlex.quote(str(value))]
    return " ".join(words)


def repeat(run: Run) -> Markup:
    """Return settings, releases and the command."""
    again = _command(run)
    if again is None:
        how = tag("p", "This run is of another project: start it again as you did, same seeds.")
    else:
        how = joined(
            tag("p", "The same seed gives the same findings on the same machine:"),
            tag("pre", tag("code", again)),
        )
    if not run.is_finished and again is not None:
        how = joined(
            tag("p", "The run is not finished. To resume it:"),
            tag("pre", tag("code", f"python run_sim.py --resume {shlex.quote(str(run.folder))}")),
            how,
        )
    return joined(
        how,
        _pairs("Settings", run.config) if run.config else tag("p", "No settings were noted."),
        _pairs("Releases", run.versions) if run.versions else None,
        tag("p", "Folder: ", tag("code", str(run.folder))),
    )


def _pairs(title: str, values: Mapping[str, Any]) -> Markup:
    """Return a folded table of names and values; what is not the default stands out."""
    rows = []
    for name, value in values.items():
        changed = name in _DEFAULTS and value != _DEFAULTS[name]
        shown = tag("strong", _words(value)) if changed else _words(value)
        rows.append(tag("tr", tag("th", name, scope="row"), tag("td", shown)))
    caption = title + ("; bold is not the default" if title == "Settings" else "")
    table = tag("table", tag("caption", caption), tag("tbody", *rows), class_="pairs")
    summary = tag("summary", f"{title} ({len(values)})")
    return tag("details", summary, table, data_print=True)  # paper cannot be unfolded


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if value != "" else "–"
