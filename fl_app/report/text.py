"""A run in full as lines of text, for `leakmeter report --text`."""

from __future__ import annotations

from leakmeter.auditors.judge.summary import Ending, details, summary
from leakmeter.fl_app.report import NAME
from leakmeter.fl_app.report.judge.next_steps import next_steps
from leakmeter.fl_app.report.judge.of_run import contradictions
from leakmeter.fl_app.report.read.run import Run


def text(run: Run, *, is_named: bool = False) -> list[str]:
    """Return the verdict and, below it, all that is known about each attacker.

    Args:
        run: The run.
        is_named: Whether to begin with its name, where several are printed.
    """
    noise = run.settings.get("noise")
    page = run.folder / NAME
    ending = Ending(
        next_steps(run),
        adds_noise=None if noise is None else noise != "none",
        places=[f"page: {page}"] if page.exists() else [],
    )
    findings = run.of_the_run if run.is_finished else run.findings
    return [
        *([f"=== {run.name}"] if is_named else []),
        *summary(findings, run.failures, run.warnings, ending),
        *(f"Warning: {words}" for words in contradictions(run)),
        *details(findings, run.failures, run.limitations, run.warnings),
    ]
