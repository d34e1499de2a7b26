"""What a whole run says: its verdicts, and what in it cannot be."""

from __future__ import annotations

from leakmeter.auditors.judge.adversary import covers
from leakmeter.auditors.judge.verdict import Verdict, judged
from leakmeter.auditors.wording import capital, claim, percent, terms
from leakmeter.fl_app.report.read import Run


def verdicts(run: Run) -> list[Verdict]:
    """Return one verdict per attacker; for an unfinished run, of its last audited round."""
    shown = run.of_the_run
    if not run.is_finished and run.findings:
        last = max(f.server_round or 0 for f in run.findings)
        shown = tuple(f for f in run.findings if f.server_round == last)
    return judged(shown)


def contradictions(run: Run) -> list[str]:
    """Return what cannot be: lower bounds above a guarantee for the same attacker."""
    return [
        f"{capital(bound.auditor)} shows {claim(bound)}{terms(bound)}, above the "
        f"guarantee {claim(upper)}{terms(upper)}. Unless it is one of the "
        f"{percent(1 - (bound.confidence or 0))} of bounds that miss, an "
        "assumption of one of them does not hold."
        for bound in run.of_the_run
        for upper in run.of_the_run
        if bound.value > upper.value and covers(upper, bound)
    ]
