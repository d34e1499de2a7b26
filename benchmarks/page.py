"""The data that a run leaves, and the page: one screen of answers, then every row."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.measure import Row, Scale, Unit

DATA, PAGE, HEAD = "benchmarks.json", "BENCHMARKS.md", Path(__file__).with_name("page.md")
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
    rows: Sequence[Row]
    failure: str = ""


def read(folder: Path) -> list[Entry]:
    """Return the entries in a folder; none if there is no data."""
    found = json.loads(path.read_text("utf-8")) if (path := folder / DATA).exists() else []
    return [Entry(**{**entry, "rows": [Row(**row) for row in entry["rows"]]}) for entry in found]


def write(entries: Iterable[Entry], folder: Path, questions: Mapping[str, str]) -> None:
    """Write data and page; a later entry replaces an earlier one, unless it failed."""
    kept: dict[tuple[int, Scale], Entry] = {}
    for entry in entries:
        name = f"{entry.name}, {entry.scale} scale, {entry.date}"
        if entry.name not in questions:
            print(f"left out, no such benchmark: {name}", file=sys.stderr)
            continue
        key = list(questions).index(entry.name), entry.scale
        if entry.failure and key in kept and not kept[key].failure:
            print(f"left out, it failed: {name}", file=sys.stderr)
        else:
            kept[key] = entry
    latest = [kept[key] for key in sorted(kept)]
    lines = (json.dumps(asdict(entry), ensure_ascii=False) for entry in latest)
    data = "[\n" + ",\n".join(lines) + "\n]\n"  # a line each, so that Git can merge two runs
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in ((DATA, data), (PAGE, page(latest, questions))):
        new = folder / f"{file}.new"
        new.write_text(text, encoding="utf-8")
        new.replace(folder / file)  # at once: a run that is ended here loses nothing


def page(entries: Sequence[Entry], questions: Mapping[str, str]) -> str:
    """Return the page with all questions; equal data give equal bytes."""
    margins = [row.margin for entry in entries for row in entry.rows if row.margin is not None]
    met = f"Targets met: {sum(margin >= 1 for margin in margins)} of {len(margins)}."
    answers, minutes = [], sum(entry.seconds for entry in entries if entry.scale != "long") / 60
    parts = [f"Machine: {machine}.\n" for machine in dict.fromkeys(e.machine for e in entries)]
    for name, question in questions.items():
        own = [entry for entry in entries if entry.name == name]
        answers.append(f"| [{question}](../benchmarks/{name}.py) | {_answer(name, own)} |")
        parts += [f"## {question}\n", *map(_section, own)] if own else []
    known = {"met": met, "answers": "\n".join(answers), "data": DATA, "minutes": round(minutes)}
    return "\n".join([HEAD.read_text("utf-8").format(**known), *parts])


def _answer(name: str, entries: Sequence[Entry]) -> str:
    """Return the first table's cells: those of the row nearest to its target, or of the first."""
    rows = [row for entry in entries for row in entry.rows if row.ours]
    if not rows:
        return f"not measured: `python -m benchmarks {name} --out docs` | "
    row = min(rows, key=lambda row: math.inf if row.margin is None else row.margin)
    figures = amount(row.ratios or row.ours, "" if row.ratios else row.unit)
    return f"{figures}: {row.case} | {target(row)}"


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
