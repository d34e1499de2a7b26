"""The log of a run: one line per round while it runs, one report at its end."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from leakmeter.auditors.finding import Finding, plain

SCHEMA = "leakmeter-report/1"
# Packages whose release a number may depend on.
_PACKAGES = ("leakmeter", "flwr", "torch", "numpy", "scipy", "ray", "dp-accounting")


@dataclass(frozen=True)
class RoundLine:
    """What is kept of one finished round."""

    server_round: int
    num_clients: int
    metrics: Mapping[str, float]
    findings: tuple[Finding, ...] = ()

    @property
    def accuracy(self) -> float | None:
        """Accuracy after the round, where anybody measured it."""
        return self.metrics.get("accuracy")

    def to_json(self) -> dict[str, Any]:
        """Return the line as a plain dictionary."""
        return {
            "server_round": self.server_round,
            "accuracy": plain(self.accuracy),
            "num_clients": self.num_clients,
            "metrics": plain(self.metrics),  # the loss of a diverged model is no JSON number
            "findings": [f.to_json() for f in self.findings],
        }


class RunLog:
    """Writes `rounds.jsonl` line by line and `report.json` at the end.

    Args:
        folder: Where to; made if it is not there.
        config: What the report says about how the run was made.
        keep: Rounds of an interrupted run to keep; lines after them are dropped. With 0 a log
            that is already there is an error: nothing is overwritten.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], keep: int = 0) -> None:
        self._rounds, self._report = folder / "rounds.jsonl", folder / "report.json"
        self._config = plain(config)
        json.dumps(self._config)  # what JSON cannot hold is an error now, not after the last round
        folder.mkdir(parents=True, exist_ok=True)
        if not keep:
            for path in (self._rounds, self._report):
                if path.exists():
                    raise FileExistsError(f"out must be a folder without a run log, got {path}")
            self._rounds.touch()
        else:
            lines = [line for line in read_rounds(folder) if line["server_round"] <= keep]
            if [line["server_round"] for line in lines] != list(range(1, keep + 1)):
                raise ValueError(f"{self._rounds} must hold rounds 1 to {keep}, got {len(lines)}")
            write_atomically(self._rounds, "".join(_line(x) for x in lines))

    def add(self, line: RoundLine) -> None:
        """Append a round and make sure that it is on disk."""
        with self._rounds.open("a") as file:
            file.write(_line(line.to_json()))
            file.flush()
            os.fsync(file.fileno())

    def finish(self, findings: Sequence[Finding], failures: Sequence[str]) -> Path:
        """Write the report: all rounds, all findings, and which auditors failed."""
        rounds = read_rounds(self._rounds.parent)
        of_rounds = [finding for line in rounds for finding in line.pop("findings")]
        report = {
            "schema": SCHEMA,
            "config": self._config,
            "versions": versions(),
            "rounds": rounds,
            "findings": of_rounds + [f.to_json() for f in findings],
            "failures": list(failures),
        }
        write_atomically(self._report, json.dumps(report, indent=1, allow_nan=False) + "\n")
        return self._report


def versions() -> dict[str, str]:
    """Return Python's release and those of the packages that are installed."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a plug-in needs few of them
            continue
    return found


def _line(values: Mapping[str, Any]) -> str:
    return json.dumps(values, allow_nan=False) + "\n"


def read_rounds(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of `rounds.jsonl`; a last line that was cut off does not count."""
    path = folder / "rounds.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def write_atomically(path: Path, data: str | bytes) -> None:
    """Write a file so that a reader finds the old one or the new one, never half of one."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
