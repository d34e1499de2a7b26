"""A run as lines of text for `leakmeter report --text`, and its numbers as CSV.

In CSV, numbers have all their digits; the column `claim` has the words that page and terminal
print.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from leakmeter.auditors.codec import plain
from leakmeter.auditors.finding import Finding, ThreatModel
from leakmeter.auditors.verdict import sentences
from leakmeter.auditors.verdict.claim import Claim, ClaimResult
from leakmeter.auditors.verdict.lines import Ending, details, summary
from leakmeter.auditors.wording import claim, plain_spaces, terms
from leakmeter.fl_app.report import NAME
from leakmeter.fl_app.report.draw import figures
from leakmeter.fl_app.report.judge.next_steps import next_steps
from leakmeter.fl_app.report.judge.of_run import verdict_of
from leakmeter.fl_app.report.read import Run

_ATTACKER = [spec.name for spec in fields(ThreatModel)]
_APART = ("details", "null_band", "threat_model")
_FIELDS = [spec.name for spec in fields(Finding) if spec.name not in _APART]
_HEADS = ["run", "claim", *_FIELDS, "conditional", *_ATTACKER, "null_low", "null_high"]
_CLAIM = ["run", "result", *ClaimResult(Claim(0.0)).to_json()]
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a formula of a spreadsheet begins
_REST = "All findings, with their assumptions, are in report.json."
_CURVE = ["figure", "line", "x_label", "y_label", "x", "y", "low", "high"]


def text(run: Run, *, is_named: bool = False) -> list[str]:
    """Return the verdict and all about each attacker, below its name where several are printed."""
    noise = run.settings.get("noise")
    page = run.folder / NAME
    ending = Ending(
        next_steps(run),
        adds_noise=None if noise is None else noise != "none",
        places=[f"page: {page}"] if page.exists() else [],
    )
    verdict = verdict_of(run)
    return [
        *([f"=== {run.name}"] if is_named else []),
        *summary(verdict, run.failures, ending),
        *details(verdict, run.failures, run.limitations),
        *(["", _REST] if verdict.rows or verdict.others else []),
    ]


def write_csv(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write claims, findings, rounds and curves as CSV files into a folder, made if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    metrics = sorted({name for run in runs for one in run.rounds for name in one.metrics})
    rounds = [
        [run.name, one.server_round, one.num_clients, *map(one.metrics.get, metrics)]
        for run in runs
        for one in run.rounds
    ]
    written: dict[str, list[list[Any]]] = {
        "claims.csv": [_CLAIM, *_claims(runs)],
        "findings.csv": [_HEADS, *_findings(runs)],
        "rounds.csv": [["run", "server_round", "num_clients", *metrics], *rounds],
        "curves.csv": [_CURVE, *_curves(runs)],
    }
    for name, rows in written.items():
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([_cell(value) for value in row] for row in rows)
    return [folder / name for name in written]


def _claims(runs: Sequence[Run]) -> list[list[Any]]:
    """Return what each run's audit makes of its claims, refuted ones first."""
    rows = []
    for run in runs:
        for one in verdict_of(run).claims:
            words = plain_spaces(sentences.refuted(one))
            rows.append([run.name, words, *one.to_json().values()])
    return rows


def _findings(runs: Sequence[Run]) -> list[list[Any]]:
    rows = []
    for run in runs:
        for f in run.findings:
            band = f.null_band or (None, None)
            own = (getattr(f, name) for name in _FIELDS)
            attacker = (getattr(f.threat_model, name) for name in _ATTACKER)
            words = plain_spaces(claim(f) + terms(f))
            rows.append([run.name, words, *own, f.is_conditional, *attacker, *band])
    return rows


def _curves(runs: Sequence[Run]) -> list[list[Any]]:
    return [
        [figure.title, line.label, figure.x.label, figure.y.label, *rest]
        for figure in figures(runs)
        for line, *rest in figure.values()
    ]


def _cell(value: Any) -> Any:
    """Return what one cell contains: lists and objects as JSON, numbers with all digits.

    A report may be a stranger's, and spreadsheets compute texts that look like formulas.
    """
    if value is None:
        return ""
    if isinstance(value, tuple | list | dict):
        return json.dumps(plain(value), ensure_ascii=False)
    if isinstance(value, str) and value.startswith(_FORMULA) and value != "-inf":
        return f"'{value}"
    return repr(value) if isinstance(value, float) else value
