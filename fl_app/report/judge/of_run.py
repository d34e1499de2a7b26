"""What a whole run says: its verdict."""

from __future__ import annotations

from collections.abc import Sequence

from leakmeter.auditors.verdict.result import AuditResult
from leakmeter.auditors.verdict.verdict import Asked, Verdict, judge
from leakmeter.fl_app.report.read import Run


def verdict_of(run: Run, also: Sequence[Asked] = ()) -> Verdict:
    """Return the verdict on a run; on an unfinished one, that of its last audited round."""
    shown = run.of_the_run
    if not run.is_finished and run.findings:
        last = max(f.server_round or 0 for f in run.findings)
        shown = tuple(f for f in run.findings if f.server_round == last)
    return judge(shown, run.warnings, accuracy=run.accuracy, also=also)


def result_of(run: Run) -> AuditResult:
    """Return a run as the result that Python and the gate work with."""
    return AuditResult(
        verdict_of(run),
        run.of_the_run,
        run.failures,
        run.limitations,
        folder=run.folder,
        is_finished=run.is_finished,
    )
