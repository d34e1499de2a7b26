"""The page that people read, from the data that a run leaves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.measure import Row, Skipped
from benchmarks.report import FILE, Entry, Report, Setup
from benchmarks.words import amount, amounts, clock, figure, spread, target

FILE_NAME = "BENCHMARKS.md"
_HEAD = """\
# Benchmarks

Each question has a script in [`benchmarks/`](../benchmarks), which says how it is measured and can
be run alone. Ours and its peer take turns in one process, and the order changes with every
repetition. A ratio is what the peer takes over what ours takes in the same repetition: above 1 ours
is faster. Figures are medians, with the lowest and the highest in brackets. One thread for each
library, unless a row says two. CPU time counts a core's work whatever else runs on it; wall time
does not. Memory is the peak of a process beside its libraries. A target is what was asked for;
rows without one had none.

`python -m benchmarks` measures all again and writes this page; `python -m benchmarks --page` writes
it from the data in [`{data}`]({data}); `python -m benchmarks NAME --out docs`
measures one again.
"""
_SCALES = {
    "full": "",
    "long": ", the shapes that are too long for a whole run",
    "quick": ", a quick run: that it works, not how fast",
}


def write(report: Report, folder: Path) -> None:
    """Write data and page."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(report.to_text(), encoding="utf-8")
    (folder / FILE_NAME).write_text(page(report), encoding="utf-8")


def page(report: Report) -> str:
    """Return the page; the same data give the same bytes."""
    setups = report.setups
    parts = [_HEAD.format(data=FILE), *_setups(setups), *_targets(report.entries)]
    last = ""
    for entry in report.entries:
        parts += [f"## {entry.question}\n"] if entry.name != last else []
        last = entry.name
        parts += _entry(entry, setups)
    return "\n".join(parts)


def _setups(setups: Sequence[Setup]) -> list[str]:
    """Return where the figures come from."""
    named = zip(_letters(len(setups)), setups, strict=True)
    return [
        f"{letter}{setup.machine}; "
        + ", ".join(f"{name} {number}" for name, number in setup.versions.items())
        + ".\n"
        for letter, setup in named
    ]


def _letters(count: int) -> list[str]:
    """Return a name for each setup; a single one needs no letter."""
    if count < 2:
        return ["Machine: "] * count
    return [f"Machine {chr(65 + i)}: " for i in range(count)]


def _targets(entries: Iterable[Entry]) -> list[str]:
    """Return how many targets are met, and which are not."""
    rows = [
        (entry, row)
        for entry in entries
        for row in entry.rows
        if isinstance(row, Row) and row.is_met is not None and entry.scale != "quick"
    ]
    if not rows:
        return []
    missed = [f"{entry.name}: {row.case} ({target(row)})" for entry, row in rows if not row.is_met]
    lines = [f"Targets met: {len(rows) - len(missed)} of {len(rows)}." + "\n" * (not missed)]
    if missed:
        lines = [f"{lines[0]} Missed:\n", *(f"- {name}" for name in missed), ""]
    return lines


def _entry(entry: Entry, setups: Sequence[Setup]) -> list[str]:
    """Return the table of one script and where it was measured."""
    link = f"[`{entry.name}`](../benchmarks/{entry.name}.py)"
    where = f", machine {chr(65 + setups.index(entry.setup))}" if len(setups) > 1 else ""
    load = "" if entry.load is None else f", load average {entry.load:.1f} before"
    took = "" if entry.seconds is None else f"; {entry.seconds:,.0f} s in all"
    parts = [f"{link}, {entry.date}{where}{load}{_SCALES[entry.scale]}{took}.\n"]
    rows = [row for row in entry.rows if isinstance(row, Row)]
    growths = [row for row in rows if row.expected is not None]
    parts += _growth(growths) if growths else []
    parts += _table([row for row in rows if row.expected is None])
    for row in entry.rows:
        if isinstance(row, Skipped):
            parts.append(f"Not measured: {row.case} ({row.reason}).\n")
    if entry.failure:
        parts.append(f"It failed: {entry.failure}\n")
    return parts


def _growth(rows: Sequence[Row]) -> list[str]:
    """Return the table of exponents."""
    lines = ["| cost | exponent | expected | at each size |", "|---|---|---|---|"]
    for row in rows:
        assert row.ratio is not None
        assert row.expected is not None
        lines.append(f"| {row.case} | {spread(row.ratio)} | {row.expected:g} | {row.note} |")
    return [*lines, ""]


def _table(rows: Sequence[Row]) -> list[str]:
    """Return the table of rows, without the columns that are empty in all of them."""
    if not rows:
        return []
    columns = {
        "ratio": [spread(row.ratio) if row.ratio else "" for row in rows],
        "case": [row.case for row in rows],
        "ours": [amounts(row.ours, row.unit) for row in rows],
        "peer": [_peer(row) for row in rows],
        "target": [target(row) for row in rows],
        "memory": [amount(row.memory, "MB") if row.memory is not None else "" for row in rows],
        "time": [clock(row.unit) for row in rows],
        "repetitions": [figure(row.repetitions) for row in rows],
        "note": [row.note for row in rows],
    }
    kept = {name: cells for name, cells in columns.items() if any(cells)}
    lines = [_line(kept), "|" + "---|" * len(kept), *map(_line, zip(*kept.values(), strict=True))]
    return [*lines, ""]


def _peer(row: Row) -> str:
    return f"{row.peer}: {amounts(row.theirs, row.unit)}" if row.theirs else ""


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
