"""What a run of the benchmarks leaves: rows, when and where they were taken, as JSON."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, Scale, Skipped
from benchmarks.script import from_json, to_json

FILE = "benchmarks.json"
_PACKAGES = ("numpy", "scipy", "torch", "flwr", "ray", "cryptography", "opacus")


@dataclass(frozen=True)
class Setup:
    """A machine and what is installed on it.

    Attributes:
        machine: Processor, cores, memory and system, in words.
        versions: Of Python and of the packages that are measured or used.
    """

    machine: str
    versions: dict[str, str]

    @classmethod
    def here(cls) -> Setup:
        """Return this one."""
        found = {"python": platform.python_version()}
        for name in _PACKAGES:
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                continue
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        system = f"{platform.system()} {platform.release()}"
        return cls(f"{_processor()}, {cores} cores, {memory:.0f} GiB of memory, {system}", found)


def _processor() -> str:
    """Return the processor's name as the system has it."""
    known = Path("/proc/cpuinfo")
    text = known.read_text() if known.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    return found[1] if found else platform.processor() or platform.machine()


@dataclass(frozen=True)
class Entry:
    """One script's rows at one scale.

    Attributes:
        name: The script.
        question: What it asks.
        scale: How much was done.
        date: When, year-month-day.
        seconds: What all of it took by the clock, where that is known.
        load: The machine's load average when it began; in a whole run 1 of it is the script before.
        setup: Where.
        rows: What was measured.
        failure: Why it ended early; empty if it did not.
    """

    name: str
    question: str
    scale: Scale
    date: str
    seconds: float | None
    load: float | None
    setup: Setup
    rows: tuple[Row | Skipped, ...]
    failure: str = ""


@dataclass(frozen=True)
class Report:
    """All that is known, one entry a script and scale."""

    entries: tuple[Entry, ...] = ()

    def having(self, new: Iterable[Entry], order: Iterable[str]) -> Report:
        """Return this report with new entries in place of old ones, in the order of the names.

        What is no longer among the names goes.
        """
        known = {(entry.name, entry.scale): entry for entry in (*self.entries, *new)}
        scales: tuple[Scale, ...] = ("full", "long", "quick")
        keys = [(name, scale) for name in order for scale in scales]
        return replace(self, entries=tuple(known[key] for key in keys if key in known))

    @property
    def setups(self) -> list[Setup]:
        """The different ones, as they come."""
        found: list[Setup] = []
        for entry in self.entries:
            if entry.setup not in found:
                found.append(entry.setup)
        return found

    def to_text(self) -> str:
        """Return JSON; setups stand once and entries name them by number."""
        entries = []
        for entry in self.entries:
            rows = [to_json(row) for row in entry.rows]
            own: dict[str, Any] = {**asdict(entry), "setup": self.setups.index(entry.setup)}
            entries.append({**own, "rows": rows})
        data = {"setups": [asdict(setup) for setup in self.setups], "entries": entries}
        return json.dumps(data, ensure_ascii=False, indent=1) + "\n"

    @classmethod
    def of_text(cls, text: str) -> Report:
        """Return the report that `to_text` has written."""
        data = json.loads(text)
        setups = [Setup(**setup) for setup in data["setups"]]
        return cls(
            tuple(
                Entry(
                    **{
                        **entry,
                        "setup": setups[entry["setup"]],
                        "rows": tuple(from_json(row) for row in entry["rows"]),
                    }
                )
                for entry in data["entries"]
            )
        )

    @classmethod
    def read(cls, folder: Path) -> Report:
        """Return the report in a folder; an empty one if there is none."""
        path = folder / FILE
        return cls.of_text(path.read_text(encoding="utf-8")) if path.exists() else cls()
