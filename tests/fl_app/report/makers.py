"""Findings of each kind, and runs that have left them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from leakmeter.auditors import Finding, ThreatModel
from leakmeter.auditors.verdict import sentences
from leakmeter.auditors.verdict.verdict import Block, Row, Verdict
from leakmeter.auditors.wording import Assumption
from leakmeter.fl_app.report.judge import advice, verdict_of
from leakmeter.fl_app.report.read import Run
from tests.helpers import findings

CANARY = ThreatModel(
    observer="outsider", sees="all models", holds="canary", knows_cohort=True, participations=1
)
ANYONE = ThreatModel(observer="outsider", sees="noised sum", knows_cohort=True, participations=10)
finding = partial(
    findings.finding, delta=1e-5, auditor="one-shot", threat_model=CANARY, adjacency="zero-out"
)


def bound(value: float, **changed: Any) -> Finding:
    own = {"kind": "lower_bound", "confidence": 0.95, "value": value}
    return finding(**(own | {"assumptions": (Assumption.FAIR_COINS,)} | changed))


def conditional(value: float, **changed: Any) -> Finding:
    return bound(value, **({"assumptions": (Assumption.INDEPENDENT_SCORES,)} | changed))


def guarantee(value: float, **changed: Any) -> Finding:
    own = {"kind": "guarantee", "value": value, "auditor": "accountant", "threat_model": ANYONE}
    return finding(**(own | {"assumptions": (Assumption.EQUAL_WEIGHTS,)} | changed))


OURS = ("dataset", "model", "algorithm", "secagg", "auditors", "engine")


def run(*findings: Finding, **config: Any) -> Run:
    """Return a run with some of our settings; without any it is a foreign project's."""
    named = {name.replace("_", "-"): value for name, value in config.items()}
    named = dict.fromkeys(OURS if config else (), "some") | named
    return Run("run", Path("/run"), config=named, findings=findings)


def part_of(verdict: Verdict, finding: Finding) -> Row | Block:
    """Return the row or the block that a finding is in."""
    parts = (*verdict.rows, *verdict.others)
    return next(part for part in parts if any(f is finding for f in part.findings))


def one(*findings: Finding, **config: Any) -> tuple[Row | Block, str]:
    """Return where the first finding is, and all that the page says of it in one text."""
    whole = run(*findings, **config)
    verdict = verdict_of(whole)
    part = part_of(verdict, findings[0])
    head = [sentences.ends(part)] if isinstance(part, Row) else []
    todo = advice(part, whole, verdict)
    said = " ".join(
        [*head, *sentences.findings_in_words(part), *sentences.reliability(part), *todo]
    )
    return part, said.replace("\N{NO-BREAK SPACE}", " ")
