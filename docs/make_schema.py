"""Writes the JSON Schema of report.json, `docs/report.schema.json`, from our dataclasses.

`python docs/make_schema.py` rewrites the file, `--check` only says whether it is up to date.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args

from leakmeter.auditors.codec import DEFINITIONS, codec
from leakmeter.fl_app.report.read import DERIVED, Rehearsal, Report, Schema
from leakmeter.strategies.accounting.ledger import Head

FILE = Path(__file__).with_name("report.schema.json")
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
    "Rehearsal": {"accuracies": _SHARE, "without_noise": _SHARE, "clipped_share": _SHARE},
    "Claim": {"epsilon": _COUNT, "delta": {"minimum": 0, "exclusiveMaximum": 1}},
    "Schedule": {"every": {"minimum": -1}, "num_rounds": _COUNT, "audited": {"minimum": 1}},
    "Histogram": {"included": _COUNT, "excluded": _COUNT, "null": _SHARE},
}


def text() -> str:
    """Return what belongs into the file."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of report.json."""
    # Through text, so that nothing in it is shared with another part.
    schema: dict[str, Any] = json.loads(json.dumps(codec(Report).schema))
    _limit(schema)
    # Not a field: it follows from the kind and the assumptions, and is written for other readers.
    schema["properties"]["findings"]["items"]["properties"][DERIVED] = {
        "type": "boolean",
        "description": "Whether it is a lower bound only if something holds that nobody checked.",
    }
    # Not required: runs without a ledger, or without a rehearsal, have none.
    schema["properties"]["ledger"] = json.loads(json.dumps(codec(Head).schema))
    rehearsal = json.loads(json.dumps(codec(Rehearsal).schema))
    rehearsal["properties"]["guarantees"]["items"] = {"$ref": "#/properties/findings/items"}
    _limit(rehearsal)
    said = "Rehearsals without auditors: of a clip norm to measure, and of noise that is advised."
    schema["properties"]["rehearsal"] = {
        "type": "array",
        "items": rehearsal,
        "description": said,
    }
    schema["properties"]["parameters"] = {
        "type": "integer",
        "minimum": 1,
        "description": "Float parameters of the model.",
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


def main() -> int:
    """Write the file, or compare it."""
    if "--check" in sys.argv[1:]:
        return int(FILE.read_text(encoding="utf-8") != text())
    FILE.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
