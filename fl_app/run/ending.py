"""The end of a run: its page, then verdict, attackers and next steps on the screen."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakmeter.auditors.judge.summary import Ending
from leakmeter.auditors.wording import counted
from leakmeter.fl_app.report import leave_page
from leakmeter.fl_app.report.judge.command import program
from leakmeter.fl_app.report.judge.next_steps import next_steps
from leakmeter.fl_app.report.read.run import Run
from leakmeter.fl_app.run.progress import Progress

if TYPE_CHECKING:
    from leakmeter.fl_app.run.run import Outcome


def end(folder: Path, config: Mapping[str, Any], outcome: Outcome, progress: Progress) -> bool:
    """Write the page and print what came of a run.

    Args:
        folder: Of the run.
        config: Its settings.
        outcome: What it says.
        progress: Where to print.

    Returns:
        Whether there is a page.
    """
    places: list[str] = []
    has_page = leave_page(folder, places.append)
    limits = len(outcome.limitations)
    more = f"  ({counted(limits, 'limit')} of this audit)" if limits else ""
    places.append(f"details: {program()} report --text {shlex.quote(str(folder))}{more}")
    run = Run(
        name=folder.name,
        folder=folder,
        config=config,
        findings=tuple(outcome.findings),
        warnings=tuple(outcome.warnings),
    )
    adds_noise = config.get("noise") not in (None, "none")
    ending = Ending(next_steps(run), adds_noise=adds_noise, places=places)
    progress.summary(outcome.findings, outcome.failures, outcome.warnings, ending)
    return has_page
