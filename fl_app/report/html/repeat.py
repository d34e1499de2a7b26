"""How a run was made and how to make it again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from leakmeter.fl_app.report.judge.command import DEFAULTS, again
from leakmeter.fl_app.report.markup import Markup, command_line, joined, tag
from leakmeter.fl_app.report.read.run import Run


def repeat(run: Run) -> Markup:
    """Return settings, releases and the command."""
    command = again(run)
    if command is None:
        how = tag(
            "p", "This run is of another project: start it again as before, with the same seeds."
        )
    else:
        how = joined(
            tag("p", "The same seed gives the same findings on the same machine:"),
            tag("pre", command_line(command)),
        )
    if not (run.is_finished or run.is_running) and command is not None:
        how = joined(
            tag("p", "The run is not finished. To resume it:"),
            tag("pre", tag("code", f"python run_sim.py --resume {shlex.quote(run.folder.name)}")),
            how,
        )
    return joined(
        how,
        _pairs("Settings", run.config) if run.config else tag("p", "No settings were noted."),
        _pairs("Releases", run.versions) if run.versions else None,
        tag("p", "Folder: ", tag("code", run.folder.name)),
    )


def _pairs(title: str, values: Mapping[str, Any]) -> Markup:
    """Return a folded table of names and values; what is not the default stands out."""
    rows = []
    for name, value in values.items():
        changed = name in DEFAULTS and value != DEFAULTS[name]
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
