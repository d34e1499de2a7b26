"""The data that a run leaves, and the page: one screen of answers, then every row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from statistics import median

from benchmarks.measure import Row, Scale, Unit

DATA, PAGE = "benchmarks.json", "BENCHMARKS.md"
_HEAD = """\
# Benchmarks

A ratio is the peer's cost over ours, so above 1 ours is cheaper: the median, with the lowest and
highest repetition in brackets. Each benchmark shows the row closest to its target. {met}

| question | ratio, or our cost without a peer | target |
|---|---|---|
{answers}

## How it is measured

Each question is a module in [`benchmarks/`](../benchmarks) that says how it is measured. Ours and
its peer take turns in one process, equally often, and the order alternates. Libraries use one
thread unless a row says two. CPU time counts a core's work whatever else runs on it; wall time does
not. Memory is the peak of a process without its libraries. The load is the machine's average when
the benchmark started.

`python -m benchmarks` measures everything again and writes this page; what is on it took {minutes}
minutes, without the long scale. `python -m benchmarks NAME --out docs` measures one benchmark, with
`--long` at its long scale. `python -m benchmarks --page` writes the page from
[`{data}`]({data}), which contains every repetition.
"""
_STEPS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (0.0, "ns"))


@dataclass(frozen=True)
class Entry:
    """One benchmark's rows at one scale, when and where they were measured."""

    name: str
    question: str
    scale: Scale
    date: str
    seconds: float  # by the clock, all of it
    load: float  # the machine's, at the start
    machine: str
    rows: tuple[Row, ...]
    failure: str = ""


def read(folder: Path) -> list[Entry]:
    """Return the entries in a folder; none if there is no data."""
    path = folder / DATA
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return [Entry(**{**entry, "rows": tuple(map(row_of, entry["rows"]))}) for entry in found]


def row_of(fields: dict[str, object]) -> Row:
    """Return the row with these fields; JSON has lists where a row has tuples."""
    return Row(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})  # type: ignore[arg-type]


def write(entries: Iterable[Entry], folder: Path, names: Sequence[str]) -> None:
    """Write data and page; a later entry replaces an earlier one, other names are left out."""
    latest = {(entry.name, entry.scale): entry for entry in entries if entry.name in names}
    kept = sorted(latest.values(), key=lambda entry: (names.index(entry.name), entry.scale))
    folder.mkdir(parents=True, exist_ok=True)
    data = json.dumps([asdict(entry) for entry in kept], ensure_ascii=False, indent=1) + "\n"
    for name, text in ((DATA, data), (PAGE, page(kept))):
        new = folder / f"{name}.new"
        new.write_text(text, encoding="utf-8")
        new.replace(folder / name)  # at once: a run that is ended here loses nothing


def page(entries: Sequence[Entry]) -> str:
    """Return the page; equal data give equal bytes."""
    margins = [row.margin for entry in entries for row in entry.rows if row.margin is not None]
    met = f"Targets met: {sum(margin >= 1 for margin in margins)} of {len(margins)}."
    groups = [list(own) for _, own in groupby(entries, lambda entry: entry.name)]
    answers = "\n".join(map(_answer, groups))
    minutes = round(sum(entry.seconds for entry in entries if entry.scale != "long") / 60)
    parts = [_HEAD.format(met=met, answers=answers, data=DATA, minutes=minutes)]
    parts += [f"Machine: {machine}.\n" for machine in dict.fromkeys(e.machine for e in entries)]
    for own in groups:
        parts += [f"## {own[0].question}\n", *map(_section, own)]
    return "\n".join(parts)


def _answer(entries: Sequence[Entry]) -> str:
    """Return a benchmark's line of the first table: the row nearest to its target, or the first."""
    rows = [row for entry in entries for row in entry.rows if row.ours]
    question = f"[{entries[0].question}](../benchmarks/{entries[0].name}.py)"
    if not rows:
        return f"| {question} | not measured |  |"
    aims = [row for row in rows if row.margin is not None]
    row = min(aims, key=lambda row: row.margin or 0.0) if aims else rows[0]
    figures = amount(row.ratios or row.ours, "" if row.ratios else row.unit)
    return f"| {question} | {figures}: {row.case} | {target(row)} |"


def _section(entry: Entry) -> str:
    """Return when one entry was measured, and its table without columns that are all empty."""
    scale = "" if entry.scale == "full" else f", {entry.scale} scale"
    failure = f" It failed: {entry.failure}" if entry.failure else ""
    first = f"{entry.date}, load {entry.load:.1f}{scale}, {entry.seconds:,.0f} s.{failure}"
    table = [cells(row) for row in entry.rows]
    names = [name for name in (table[0] if table else ()) if any(each[name] for each in table)]
    lines = [names, ["---"] * len(names), *([each[name] for name in names] for each in table)]
    return "\n".join([first, "", *(f"| {' | '.join(line)} |" for line in lines if line), ""])


def cells(row: Row) -> dict[str, str]:
    """Return a row's cells by column; empty where there is nothing to say."""
    return {
        "ratio": amount(row.ratios, ""),
        "case": row.case,
        "ours": amount(row.ours, row.unit),
        "peer": f"{row.peer}: {amount(row.theirs, row.unit)}" if row.peer else "",
        "target": target(row),
        "memory": "" if row.memory is None else amount([row.memory], "MB"),
        "time": {"CPU s": "CPU", "wall s": "wall"}.get(row.unit, ""),
        "repetitions": str(len(row.ours)),
        "note": row.note,
    }


def line(row: Row) -> str:
    """Return a row for the terminal."""
    return "; ".join(f"{name} {cell}" for name, cell in cells(row).items() if cell)


def amount(values: Sequence[float], unit: Unit) -> str:
    """Return the median of some figures with their range; short times are in ms or µs."""
    if not values:
        return ""
    step, name = 1.0, unit
    if unit in ("CPU s", "wall s"):
        step, name = next((s or 1e-9, n) for s, n in _STEPS if median(values) >= s)  # type: ignore[assignment]
    middle, low, high = (figure(f(values) / step) for f in (median, min, max))
    return f"{middle} {name}".rstrip() + (f" ({low} to {high})" if low != high else "")


def figure(value: float) -> str:
    """Return three digits, or all that are before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def target(row: Row) -> str:
    """Return the target and whether it is met."""
    if row.target is None or row.margin is None:
        return ""
    aim = f"≥ {figure(row.target)}" if row.peer else f"≤ {amount([row.target], row.unit)}"
    return f"{aim}: {'met' if row.margin >= 1 else '**missed**'}"
