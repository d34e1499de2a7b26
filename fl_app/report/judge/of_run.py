"""What a whole run says: its verdict, and what in it cannot be."""

from __future__ import annotations

from collections.abc import Sequence

from leakmeter.auditors.verdict.labels import who
from leakmeter.auditors.verdict.result import AuditResult
from leakmeter.auditors.verdict.verdict import Asked, Verdict, judge
from leakmeter.auditors.wording import capital, claim, percent, terms
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


def contradictions(verdict: Verdict) -> list[str]:
    """Return what cannot be: lower bounds above a guarantee for the same attacker."""
    return [
        f"{capital(row.shown.auditor)} shows {claim(row.shown)}{terms(row.shown)} for "
        f"{who(row.attacker)}, above the guarantee {claim(row.at_most)}{terms(row.at_most)}. "
        f"Unless it is one of the {percent(1 - (row.shown.confidence or 0))} of bounds that miss, "
        "an assumption of one of them does not hold."
        for row in verdict.rows
        if row.shown is not None and row.at_most is not None and row.low > row.high
    ]
