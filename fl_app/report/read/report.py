"""The fields of report.json and rounds.jsonl, schema 2, and their published JSON Schema.

The annotations here and in `auditors.finding` are the one statement of the fields. `docs/report.md`
describes them in words, `docs/report.schema.json` is made from them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from leakmeter.auditors.auditor import Schedule
from leakmeter.auditors.codec import DEFINITIONS, codec
from leakmeter.auditors.finding import Finding, Limitation, RunWarning

Schema = Literal["leakmeter-report/2"]
_DERIVED: Final = "conditional"
# What the classes themselves check, for the schema: by class, then by field or items of a field.
_SHARE: Final = {"minimum": 0, "maximum": 1}
_COUNT: Final = {"minimum": 0}
_LIMITS: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
    "Round": {"server_round": {"minimum": 1}, "num_clients": _COUNT},
    "Finding": {
        "value": {"not": {"const": "nan"}},
        "delta": {"minimum": 0, "exclusiveMaximum": 1},
        "confidence": {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
        "server_round": {"minimum": 1},
    },
    "ThreatModel": {"participations": _COUNT, "colluders": _COUNT},
    "RunWarning": {"value": _SHARE, "count": _COUNT, "total": {"minimum": 1}},
    "ErrorCurve": {
        "deltas": {"minimum": 0, "exclusiveMaximum": 1},
        **dict.fromkeys(("fpr", "fnr", "observed_fpr", "observed_fnr", "balanced_error"), _SHARE),
    },
    "Schedule": {"every": {"minimum": -1}, "num_rounds": _COUNT, "audited": {"minimum": 1}},
    "Histogram": {"included": _COUNT, "excluded": _COUNT, "null": _SHARE},
}


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
        name: What the run is called, if somebody named it.
        schedules: Which rounds auditors looked at, of those that may skip some.
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
    name: str | None = None
    schedules: tuple[Schedule, ...] = ()


def read(hint: Any, values: Any, where: str = "") -> Any:
    """Return values in the form of a type, a report or lines of one.

    Raises:
        CodecError: They have another form. The text names the place.
    """
    found = codec(hint).read(values, where)
    lines = values if isinstance(values, list) else [values]
    for i, line in enumerate(lines):
        inside = f"{where}[{i}]." if isinstance(values, list) else ""
        for j, finding in enumerate(line.get("findings", ())):
            # Follows from the kind and the assumptions, so the value itself is not needed.
            codec(bool).read(finding.get(_DERIVED, False), f"{inside}findings[{j}].{_DERIVED}")
    return found


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of report.json."""
    # Through text, so that nothing in it is shared with another part.
    schema: dict[str, Any] = json.loads(json.dumps(codec(Report).schema))
    _limit(schema)
    # Not a field: it follows from the kind and the assumptions, and is written for other readers.
    schema["properties"]["findings"]["items"]["properties"][_DERIVED] = {
        "type": "boolean",
        "description": "Whether it is a lower bound only if something holds that nobody checked.",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": get_args(Schema)[0],
        "$defs": dict(DEFINITIONS),
    }


def _limit(schema: dict[str, Any]) -> None:
    """Put the limits of numbers into the schema of a class and all that it contains."""
    limits = _LIMITS.get(schema.get("title", ""), {})
    for name, one in schema.get("properties", {}).items():
        (one["items"] if one.get("type") == "array" else one).update(limits.get(name, {}))
        _limit(one)
    for inner in (schema.get("items"), *schema.get("anyOf", ())):
        if inner is not None:
            _limit(inner)
