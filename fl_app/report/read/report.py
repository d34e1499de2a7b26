"""The fields of report.json and rounds.jsonl, schema 2, and their published JSON Schema.

The annotations here and in `auditors.finding` are the one statement of the fields. `docs/report.md`
describes them in words, `docs/report.schema.json` is made from them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from leakmeter.auditors.finding import Finding, Limitation, RunWarning
from leakmeter.auditors.form import DEFINITIONS, form

Schema = Literal["leakmeter-report/2"]


@dataclass(frozen=True)
class Round:
    """One finished round.

    Attributes:
        server_round: Which round, from 1.
        accuracy: Accuracy after it, if anybody measured it.
        num_clients: Clients whose updates arrived.
        metrics: All metrics of training and evaluation.
    """

    server_round: int
    accuracy: float | None
    num_clients: int
    metrics: Mapping[str, float]

    def __post_init__(self) -> None:
        for name, least in (("server_round", 1), ("num_clients", 0)):
            if (value := getattr(self, name)) < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")


@dataclass(frozen=True)
class Line(Round):
    """One line of rounds.jsonl: a round and what it showed.

    Attributes:
        schema: Name and number of this schema.
        findings: Those of this round.
    """

    schema: Schema
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Report:
    """What a finished run leaves.

    Attributes:
        schema: Name and number of this schema.
        config: Settings of the run.
        versions: Releases of Python and of packages that numbers may depend on.
        rounds: Finished rounds.
        findings: Those of the rounds in their order, then those of the run.
        failures: Auditors that were left out, when and why.
        limitations: What auditors cannot see or show in this project.
        warnings: Reasons to doubt the run itself.
        glossary: Each assumption of the findings with its sentence.
    """

    schema: Schema
    config: Mapping[str, Any]
    versions: Mapping[str, str]
    rounds: tuple[Round, ...]
    findings: tuple[Finding, ...]
    failures: tuple[str, ...]
    limitations: tuple[Limitation, ...]
    warnings: tuple[RunWarning, ...]
    glossary: Mapping[str, str]


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of report.json."""
    schema: dict[str, Any] = copy.deepcopy(dict(form(Report).schema))
    # Not a field: it follows from the kind and the assumptions, and is written for other readers.
    schema["properties"]["findings"]["items"]["properties"]["conditional"] = {
        "type": "boolean",
        "description": "Whether it is a lower bound only if something holds that nobody checked.",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": get_args(Schema)[0],
        "$defs": dict(DEFINITIONS),
    }
