"""What is in a folder, and the report of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def everything_under(folder: Path) -> dict[str, bytes | None]:
    """Return all files and folders with what is in them."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def report_in(folder: Path | str) -> dict[str, Any]:
    """Return the report of a run."""
    found: dict[str, Any] = json.loads(Path(folder, "report.json").read_text())
    return found
