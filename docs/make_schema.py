"""Writes the JSON Schema of report.json, `docs/report.schema.json`, from our dataclasses.

`python docs/make_schema.py` rewrites the file, `--check` only says whether it is up to date.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from leakmeter.fl_app.report.read import json_schema

FILE = Path(__file__).with_name("report.schema.json")


def text() -> str:
    """Return what belongs into the file."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Write the file, or compare it."""
    if "--check" in sys.argv[1:]:
        return int(FILE.read_text(encoding="utf-8") != text())
    FILE.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
