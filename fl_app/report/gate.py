"""What came of a run's limits, for people and for the tools of a pipeline.

Text for a terminal, JSON, JUnit for test reports, SARIF 2.1.0 for code scanning, Markdown for the
summary of a job. All of them name δ: an ε without it means nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any, Final
from urllib.parse import quote
from xml.etree import ElementTree

from leakmeter import __version__
from leakmeter.auditors.run_log import REPORT
from leakmeter.auditors.verdict import sentences
from leakmeter.auditors.verdict.gate import (
    EXIT_CODES,
    Check,
    Limits,
    Outcome,
    check,
    delta,
    outcome,
)
from leakmeter.auditors.verdict.result import AuditResult
from leakmeter.auditors.verdict.verdict import Verdict
from leakmeter.auditors.wording import plain_spaces
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.report.judge.of_run import result_of
from leakmeter.fl_app.report.read import read_run

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
_SAID: Final[Mapping[Outcome, str]] = {
    "passed": "passed: the run keeps its limits",
    "exceeded": "failed: a limit is exceeded",
    "unable": "failed: the audit cannot tell",
}
_MARKS: Final[Mapping[Outcome, str]] = {"passed": "✅", "exceeded": "❌", "unable": "❔"}
# "open": the rule was evaluated, and there was not enough information to decide (SARIF, 3.27.9).
# A level other than "none" is for results of the kind "fail" only.
_SARIF: Final[Mapping[Outcome, tuple[str, str]]] = {
    "passed": ("pass", "none"),
    "exceeded": ("fail", "error"),
    "unable": ("open", "none"),
}
_HEAD, _WIDTH = "GATE  ", 80  # columns of an ordinary terminal
EXCEEDED: Final = EXIT_CODES["exceeded"]
_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
# Characters that XML 1.0 cannot contain, not even escaped; words of another project may.
_NOT_XML: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Gate:
    """A run, its limits, and what came of each.

    Attributes:
        name: What the run is called.
        folder: Where it is; None if it is not kept.
        verdict: On the run.
        limits: What it must keep.
        checks: What came of each limit.
    """

    name: str
    folder: Path | None
    verdict: Verdict
    limits: Limits
    checks: tuple[Check, ...]

    @classmethod
    def of(cls, result: AuditResult, limits: Limits) -> Gate:
        """Return what came of the limits of a run.

        Raises:
            ValueError: Nothing is asked for.
        """
        name = "run" if result.folder is None else result.folder.name
        checks = tuple(check(result, limits))
        return cls(name, result.folder, result.verdict, limits, checks)

    @property
    def outcome(self) -> Outcome:
        """What came of all limits together."""
        return outcome(self.checks)

    @property
    def code(self) -> int:
        """What a process ends with."""
        return EXIT_CODES[self.outcome]


def lines(gate: Gate) -> list[str]:
    """Return what came of a gate for a terminal: first the answer, then each limit."""
    said = [(_HEAD, f"{_SAID[gate.outcome]} (exit code {gate.code}; {_terms(gate)})")]
    said += [("  ", f"{one.outcome:<9} {one.name}: {one.text}") for one in gate.checks]
    return [
        line
        for head, text in said
        for line in wrap(
            text,
            _WIDTH,
            initial_indent=head,
            subsequent_indent=" " * 12 if head.isspace() else " " * len(head),
            break_on_hyphens=False,
        )
    ]


def _text(gate: Gate) -> str:
    return "\n".join(lines(gate)) + "\n"


def _json(gate: Gate) -> str:
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
    return json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _junit(gate: Gate) -> str:
    """Return a suite with one test for each limit; one that nobody could check is an error."""
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
    return text.decode() + "\n"


def _add_case(suite: ElementTree.Element, gate: Gate, one: Check) -> None:
    owner = {"classname": _xml(f"leakmeter.gate.{gate.name}"), "name": one.name, "time": "0"}
    case = ElementTree.SubElement(suite, "testcase", owner)
    said = _xml(f"{one.text} ({_terms(gate)})")
    if one.outcome == "passed":
        ElementTree.SubElement(case, "system-out").text = said
        return
    tag = "failure" if one.outcome == "exceeded" else "error"
    ElementTree.SubElement(case, tag, {"message": said, "type": one.outcome}).text = said


def _sarif(gate: Gate) -> str:
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
    return json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _result(gate: Gate, one: Check) -> dict[str, Any]:
    kind, level = _SARIF[one.outcome]
    place = {"physicalLocation": {"artifactLocation": {"uri": _uri(gate.folder)}}}
    return {
        "ruleId": one.name,
        "ruleIndex": list(_RULES).index(one.name),
        "kind": kind,
        "level": level,
        "message": {"text": f"{one.text} ({_terms(gate)})"},
        "locations": [place],
        # So that a tool knows the same limit again in the next run, whatever its numbers are.
        "partialFingerprints": {"limit/v1": f"{one.name}/{gate.limits.against or 'all'}"},
    }


def _markdown(gate: Gate) -> str:
    return "\n".join(_paragraphs(gate)) + "\n"


def _paragraphs(gate: Gate) -> Iterator[str]:
    yield f"### {_MARKS[gate.outcome]} Leakmeter gate {_SAID[gate.outcome]}"
    yield ""
    yield f"Run {_cell(gate.name)}; {_terms(gate)}; exit code {gate.code}."
    yield ""
    yield "| limit | outcome | why |"
    yield "|---|---|---|"
    for one in gate.checks:
        yield f"| {one.name} | {_MARKS[one.outcome]} {one.outcome} | {_cell(one.text)} |"
    yield ""
    yield _cell(sentences.headline(gate.verdict))


FORMATS: Final[Mapping[str, Callable[[Gate], str]]] = {
    "text": _text,
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


def _terms(gate: Gate) -> str:
    against = "" if gate.limits.against is None else f", against {gate.limits.against}"
    # A reconstruction has no δ, and a run of such tests alone no ε.
    at = f"ε at {delta(gate.verdict)}" if gate.verdict.rows else "no attacker has an ε"
    return at + against


def _uri(folder: Path | None) -> str:
    """Return where the report is, relative to the current folder if it is inside."""
    if folder is None:
        return REPORT
    file = folder / REPORT
    here = os.path.relpath(file)
    return file.as_uri() if here.startswith("..") else quote(Path(here).as_posix())


def _cell(text: str) -> str:
    """Return text that stays in its cell, and is no markup."""
    plain = " ".join(plain_spaces(text).split())
    return re.sub(r"([\\|`*_<>\[\]#])", r"\\\1", plain)


def _xml(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def gated(folder: Path, config: Config) -> tuple[list[str], int]:
    """Return lines about the limits that a run was started with, and its exit code.

    A run without limits passes, unless none of its rounds released anything.
    """
    result = result_of(read_run(folder))
    asked = (config.fail_above or None, config.require_guarantee or None, config.against or None)
    limits = Limits(*asked)
    if not limits.is_empty:
        gate = Gate.of(result, limits)
        return lines(gate), gate.code
    for warning in result.verdict.warnings:
        if warning.kind == "abandoned-rounds" and warning.count == warning.total:
            code = EXIT_CODES["unable"]
            return [f"All rounds were abandoned, so nothing was audited (exit code {code})."], code
    return [], 0
