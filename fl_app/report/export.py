"""A run as lines of text, its numbers as CSV, and what came of its limits for other tools.

In CSV, numbers have all their digits; the column `claim` has the words that page and terminal
print. A gate is text for a terminal, JSON, JUnit for test reports, SARIF 2.1.0 for code scanning,
or Markdown for the summary of a job.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from xml.etree import ElementTree

from leakmeter import __version__
from leakmeter.auditors.codec import plain
from leakmeter.auditors.finding import Finding, ThreatModel
from leakmeter.auditors.run_log import REPORT, ROUNDS
from leakmeter.auditors.verdict import sentences
from leakmeter.auditors.verdict.claim import Claim, ClaimResult
from leakmeter.auditors.verdict.gate import SAID, Check, Gate, Outcome, lines
from leakmeter.auditors.verdict.gate import terms as gate_terms
from leakmeter.auditors.verdict.lines import Ending, details, summary
from leakmeter.auditors.wording import claim, plain_spaces, terms
from leakmeter.fl_app.report import NAME
from leakmeter.fl_app.report.curves import figures
from leakmeter.fl_app.report.judge import next_steps, verdict_of
from leakmeter.fl_app.report.read import Run

_ATTACKER = [spec.name for spec in fields(ThreatModel)]
_APART = ("details", "null_band", "threat_model")
_FIELDS = [spec.name for spec in fields(Finding) if spec.name not in _APART]
_HEADS = ["run", "claim", *_FIELDS, "conditional", *_ATTACKER, "null_low", "null_high"]
_CLAIM = ["run", "result", *ClaimResult(Claim(0.0)).to_json()]
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a formula of a spreadsheet begins
_REST = "All findings, with their assumptions, are in {}."
_CURVE = ["figure", "line", "x_label", "y_label", "x", "y", "low", "high"]
# What each check asks, for tools that list rules.
_RULES: Final = {
    "complete": "Every auditor worked to the end of the run.",
    "distortion": "The run is sound: its numbers are not those of a broken one.",
    "max-epsilon": "No ε above the limit is proven, and the audit could have proven one.",
    "require-guarantee": "An ε of at most the limit is guaranteed.",
    "no-reconstruction": "A reconstruction test was played and recovered nothing.",
    "min-accuracy": "The last model is at least this accurate.",
    "claims": "No privacy claim is refuted, and the audit could have refuted each.",
}
_MARKS: Final[Mapping[Outcome, str]] = {"passed": "✅", "exceeded": "❌", "unable": "❔"}
# "open": the rule was evaluated, and there was not enough information to decide (SARIF, 3.27.9).
# A level other than "none" is for results of the kind "fail" only.
_SARIF: Final[Mapping[Outcome, tuple[str, str]]] = {
    "passed": ("pass", "none"),
    "exceeded": ("fail", "error"),
    "unable": ("open", "none"),
}
_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
# Characters that XML 1.0 cannot contain, not even escaped; words of another project may.
_NOT_XML: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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
        *(
            ["", _REST.format(REPORT if run.is_finished else ROUNDS)]
            if verdict.rows or verdict.others
            else []
        ),
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
            csv.writer(file).writerows([csv_cell(value) for value in row] for row in rows)
    return [folder / name for name in written]


def _claims(runs: Sequence[Run]) -> list[list[Any]]:
    """Return what each run's audit makes of its claims, refuted ones first."""
    rows = []
    for run in runs:
        for one in verdict_of(run).claims:
            words = plain_spaces(sentences.refutation(one))
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


def csv_cell(value: Any) -> Any:
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


def write_gate(gate: Gate, form: str) -> str:
    """Return what came of the limits, in one of `FORMATS`."""
    return "\n".join(FORMATS[form](gate)) + "\n"


def _json(gate: Gate) -> Iterator[str]:
    found = {
        "outcome": gate.outcome,
        "exit_code": gate.code,
        "run": gate.name,
        "delta": gate.verdict.delta or 0.0,
        "confidence": gate.verdict.confidence,
        "limits": asdict(gate.limits),
        "checks": [asdict(one) for one in gate.checks],
        "verdict": plain_spaces(sentences.headline(gate.verdict)),
    }
    yield json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False)


def _junit(gate: Gate) -> Iterator[str]:
    """Yield a suite with one test for each limit; one that nobody could check is an error."""
    found = [one.outcome for one in gate.checks]
    counts = {
        "tests": str(len(found)),
        "failures": str(found.count("exceeded")),
        "errors": str(found.count("unable")),
    }
    root = ElementTree.Element("testsuites", {"name": "leakmeter gate", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": _xml(gate.name), **counts})
    suite.set("skipped", "0")
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in _facts(gate).items():
        ElementTree.SubElement(properties, "property", {"name": name, "value": str(value)})
    for one in gate.checks:
        _add_case(suite, gate, one)
    ElementTree.indent(root)
    # Not as "unicode", whose declaration would name the machine's encoding.
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    yield text.decode()


def _add_case(suite: ElementTree.Element, gate: Gate, one: Check) -> None:
    owner = {"classname": _xml(f"leakmeter.gate.{gate.name}"), "name": one.name, "time": "0"}
    case = ElementTree.SubElement(suite, "testcase", owner)
    said = _xml(f"{one.text} ({gate_terms(gate)})")
    if one.outcome == "passed":
        ElementTree.SubElement(case, "system-out").text = said
        return
    tag = "failure" if one.outcome == "exceeded" else "error"
    ElementTree.SubElement(case, tag, {"message": said, "type": one.outcome}).text = said


def _sarif(gate: Gate) -> Iterator[str]:
    driver = {
        "name": "leakmeter",
        "version": __version__,
        "rules": [
            {"id": name, "shortDescription": {"text": words}} for name, words in _RULES.items()
        ],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": True, "exitCode": gate.code}],
        "columnKind": "unicodeCodePoints",
        "results": [_result(gate, one) for one in gate.checks],
        "properties": _facts(gate),
    }
    found = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    yield json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False)


def _result(gate: Gate, one: Check) -> dict[str, Any]:
    kind, level = _SARIF[one.outcome]
    place = {"physicalLocation": {"artifactLocation": {"uri": _uri(gate.folder)}}}
    return {
        "ruleId": one.name,
        "ruleIndex": list(_RULES).index(one.name),
        "kind": kind,
        "level": level,
        "message": {"text": f"{one.text} ({gate_terms(gate)})"},
        "locations": [place],
        # So that a tool knows the same limit again in the next run, whatever its numbers are.
        "partialFingerprints": {"limit/v1": f"{one.name}/{gate.limits.against or 'all'}"},
    }


def _markdown(gate: Gate) -> Iterator[str]:
    yield f"### {_MARKS[gate.outcome]} Leakmeter gate {SAID[gate.outcome]}"
    yield ""
    yield f"Run {_markdown_cell(gate.name)}; {gate_terms(gate)}; exit code {gate.code}."
    yield ""
    yield "| limit | outcome | why |"
    yield "|---|---|---|"
    for one in gate.checks:
        yield f"| {one.name} | {_MARKS[one.outcome]} {one.outcome} | {_markdown_cell(one.text)} |"
    yield ""
    yield _markdown_cell(sentences.headline(gate.verdict))


FORMATS: Final[Mapping[str, Callable[[Gate], Iterable[str]]]] = {
    "text": lines,
    "junit": _junit,
    "sarif": _sarif,
    "markdown": _markdown,
    "json": _json,
}


def _facts(gate: Gate) -> dict[str, Any]:
    """Return what every number depends on."""
    facts: dict[str, Any] = {"delta": gate.verdict.delta or 0.0, "against": gate.limits.against}
    facts |= {"confidence": gate.verdict.confidence, "leakmeter": __version__}
    return {name: value for name, value in facts.items() if value is not None}


def _uri(folder: Path | None) -> str:
    """Return where the report is, relative to the current folder if it is inside."""
    if folder is None:
        return REPORT
    file = folder / REPORT
    here = os.path.relpath(file)
    return file.as_uri() if here.startswith("..") else quote(Path(here).as_posix())


def _markdown_cell(text: str) -> str:
    """Return text that stays in its cell, and is no markup."""
    plain = " ".join(plain_spaces(text).split())
    return re.sub(r"([\\|`*_<>\[\]#])", r"\\\1", plain)


def _xml(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
