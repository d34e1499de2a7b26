"""A small run with masks, canaries and noise, in the words of each way to start it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Setting = str | int | float

# Masking, canaries and all auditors are on by default; noise is not.
SMALL: dict[str, Setting] = {
    "dataset": "synthetic",
    "synthetic-examples": 200,
    "model": "linear",
    "clients": 10,
    "sample": 4,
    "canary-seats": 2,
    "rounds": 3,
    "seed": 11,
    "noise": "distributed",
    "clip-norm": 0.5,
    "noise-multiplier": 0.3,
}


def arguments(settings: Mapping[str, Setting]) -> list[str]:
    """Return settings as arguments of `run_sim.py` and `leakmeter`."""
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def run_config(settings: Mapping[str, Setting]) -> str:
    """Return settings as Flower takes them after `--run-config`."""
    return " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())


def report(folder: Path) -> dict[str, Any]:
    """Return the report of a run."""
    loaded: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return loaded


def auditors(report: Mapping[str, Any]) -> set[str]:
    """Return who has found something."""
    return {finding["auditor"] for finding in report["findings"]}
