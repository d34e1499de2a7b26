"""The command line of one benchmark: measures at a scale, prints rows, keeps them for the page."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.measure import Measure, Row, Scale, Skipped, Spread
from benchmarks.words import line

SCALES: dict[Scale, str] = {
    "quick": "a second or two: whether it runs, not how fast",
    "full": "what the question asks (default)",
    "long": "only the shapes that take many minutes, where there are any",
}


def question(doc: str | None) -> str:
    """Return the first line of a script's docstring."""
    return (doc or "").strip().partition("\n")[0]


def main(measure: Measure, doc: str | None) -> None:
    """Measure at the scale that the command line names, with one thread for each library."""
    parser = argparse.ArgumentParser(description=question(doc), allow_abbrev=False)
    for scale in ("quick", "long"):
        parser.add_argument(
            f"--{scale}", dest="scale", action="store_const", const=scale, help=SCALES[scale]
        )
    parser.set_defaults(scale="full")
    parser.add_argument("--rows", metavar="FILE", help="write the rows as lines of JSON too")
    arguments = parser.parse_args()
    _one_thread()
    print(question(doc), flush=True)
    out = Path(arguments.rows) if arguments.rows else None
    for row in rows_at(measure, arguments.scale):
        print(f"  {line(row)}", flush=True)
        if out is not None:  # at once, so that a failure later on costs no row
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(to_json(row), ensure_ascii=False) + "\n")


def rows_at(measure: Measure, scale: Scale) -> Iterator[Row | Skipped]:
    """Yield the rows of a scale; targets are for what the question asks, not for the quick one."""
    for row in measure(scale):
        if scale == "quick" and isinstance(row, Row):
            yield replace(row, target=None)
        else:
            yield row


def to_json(row: Row | Skipped) -> dict[str, object]:
    """Return a row as JSON has it; what is not there is left out."""
    return {name: value for name, value in asdict(row).items() if value not in (None, "")}


def from_json(entry: dict[str, Any]) -> Row | Skipped:
    """Return the row that `to_json` has written."""
    if "reason" in entry:
        return Skipped(**entry)
    spreads: dict[str, Any] = {
        name: Spread(**entry[name]) for name in ("ours", "theirs", "ratio") if name in entry
    }
    return Row(**{**entry, **spreads})


def _one_thread() -> None:
    """Hold what is loaded, and what is started from here, to one thread each."""
    from threadpoolctl import threadpool_limits

    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    threadpool_limits(1)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
