"""`python -m benchmarks`: answer all questions, or those that are named, and write the page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

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
    asked, known, failed = parser.parse_args(argv), questions(), list[str]()
    if unknown := [name for name in asked.names if name not in known]:
        parser.error(f"NAME must be one of {', '.join(known)}, got {unknown[0]!r}")
    if asked.scale == "long" and not asked.names:
        parser.error("--long needs the NAME of at least one benchmark, got none")
    is_part = asked.names or asked.scale != "full"
    out: Path | None = asked.out or (DOCS if asked.page or not is_part else None)
    if asked.list:
        print(*(f"{name:28} {question}" for name, question in known.items()), sep="\n")
    elif asked.page and out:
        write(read(out), out, known)
    else:
        for name in asked.names or known:
            print(f"{name}: {known[name]}", flush=True)
            entry = run(name, known[name], asked.scale)
            print(f"  {entry.seconds:.0f} s {entry.failure}", flush=True)
            failed += [name] if entry.failure else []
            if out is not None:  # after each, so that nothing is lost
                write([*read(out), entry], out, known)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
