"""What a whole run says: its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leakmeter.auditors.finding import Finding
from leakmeter.auditors.verdict.order import Question, attacker, unsized
from leakmeter.auditors.verdict.result import AuditResult
from leakmeter.auditors.verdict.verdict import Asked, Verdict, judge
from leakmeter.auditors.wording import is_epsilon
from leakmeter.fl_app.report.read import Run


def verdict_of(run: Run, also: Sequence[Asked] = ()) -> Verdict:
    """Return the verdict on a run; on an unfinished one, what holds so far.

    There, only bounds that hold at all rounds together are proven, so that what is proven never
    shrinks. A bound of one round is in no row: see `this_round`.
    """
    told: Any = {"accuracy": run.accuracy, "claims": run.claims}
    if run.is_finished:
        return judge(run.of_the_run, run.warnings, also=also, **told)
    largest: dict[tuple[str, Asked | None], Finding] = {}
    for f in sorted(run.findings, key=lambda f: f.value):
        if f.is_anytime:
            largest[f.auditor, _asked(f)] = f
    others = [f for f in _latest(run) if f.kind != "lower_bound"]
    asked = (*also, *this_round(run))
    return judge([*largest.values(), *others], run.warnings, also=asked, **told)


def this_round(run: Run) -> dict[Asked, Finding]:
    """Return the largest bound of the last round of an unfinished run, by attacker and question.

    It is about that round alone: looking after every round, and keeping the largest, would break
    its confidence.
    """
    found: dict[Asked, Finding] = {}
    for f in sorted(_latest(run), key=lambda f: f.value):
        asked = _asked(f)
        is_of_round = f.kind == "lower_bound" and not f.is_anytime and not f.is_conditional
        if is_of_round and is_epsilon(f) and asked is not None:
            found[asked] = f
    return found


def _latest(run: Run) -> list[Finding]:
    """Return the findings of the last audited round of an unfinished run."""
    last = max((f.server_round or 0 for f in run.findings), default=0)
    return [f for f in run.findings if f.server_round == last and not run.is_finished]


def _asked(finding: Finding) -> Asked | None:
    question = Question.of(finding)
    return None if question is None else (unsized(attacker(finding)), question)


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
