"""`python -m benchmarks`: answer all questions, or those that are named, and write the page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Scale
from benchmarks.page import read, write
from benchmarks.run import FOLDER, questions, run

DOCS = FOLDER.parent / "docs"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 all was measured, 1 something failed, 2 a user's mistake."""
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="a benchmark; see --list")
    add("--list", action="store_true", help="list names and questions")
    add("--quick", dest="scale", action="store_const", const="quick", help="small sizes, seconds")
    add("--long", dest="scale", action="store_const", const="long", help="sizes of many minutes")
    add("--page", action="store_true", help="write the page from its data, measure nothing")
    add("--out", type=Path, metavar="DIR", help="folder of page and data (default: docs if all)")
    parser.set_defaults(scale="full")
    asked, known = parser.parse_args(argv), questions()
    if unknown := [name for name in asked.names if name not in known]:
        parser.error(f"NAME must be one of {', '.join(known)}, got {unknown[0]!r}")
    if asked.scale == "long" and not asked.names:
        parser.error("--long needs the NAME of at least one benchmark, got none")
    is_whole = asked.scale == "full" and not asked.names
    out: Path | None = asked.out or (DOCS if is_whole else None)
    if asked.list:
        print(*(f"{name:28} {question}" for name, question in known.items()), sep="\n")
    elif asked.page:
        write(read(out or DOCS), out or DOCS, list(known))
    else:
        return _measure(asked.names or list(known), asked.scale, out)
    return 0


def _measure(names: Sequence[str], scale: Scale, out: Path | None) -> int:
    """Measure one after the other; the page is written after each, so nothing is lost."""
    known, failed, spent = questions(), [], 0.0
    for number, name in enumerate(names, 1):
        print(f"[{number}/{len(names)}] {name}: {known[name]}", flush=True)
        entry = run(name, known[name], scale)
        spent += entry.seconds
        print(f"  {entry.seconds:.0f} s, {spent / 60:.1f} min so far {entry.failure}", flush=True)
        failed += [name] if entry.failure else []
        if out is not None:
            write([*read(out), entry], out, list(known))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
