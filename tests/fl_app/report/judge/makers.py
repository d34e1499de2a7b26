"""Findings of each kind, and runs that have left them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from leakmeter.auditors import Finding
from leakmeter.fl_app.report.judge.advice import advice
from leakmeter.fl_app.report.judge.verdict import Verdict, verdicts
from leakmeter.fl_app.report.read.run import Run
from tests.helpers import findings

finding = partial(
    findings.finding,
    delta=1e-5,
    auditor="one-shot",
    threat_model="outsider who gets the model before and after every round",
    adjacency="zero-out",
)


def bound(value: float, **changed: Any) -> Finding:
    return finding(**({"kind": "lower_bound", "confidence": 0.95, "value": value} | changed))


def guarantee(value: float, **changed: Any) -> Finding:
    own = {"kind": "guarantee", "value": value, "auditor": "accountant", "assumptions": ("noise",)}
    return finding(**(own | changed))


OURS = ("dataset", "model", "algorithm", "secagg", "auditors", "engine")


def run(*findings: Finding, **config: Any) -> Run:
    """Return a run with some of our settings; without any it is a foreign project's."""
    named = {name.replace("_", "-"): value for name, value in config.items()}
    named = dict.fromkeys(OURS if config else (), "some") | named
    return Run("run", Path("/run"), config=named, findings=findings)


def one(*findings: Finding, **config: Any) -> tuple[Verdict, str]:
    """Return the only verdict, and all that the page says of it in one text."""
    whole = run(*findings, **config)
    [verdict] = verdicts(whole)
    todo = advice(verdict, whole, [verdict])
    said = " ".join([verdict.headline, *verdict.found, *verdict.sure, *todo])
    return verdict, said.replace("\N{NO-BREAK SPACE}", " ")
