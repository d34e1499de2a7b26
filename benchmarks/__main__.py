"""`python -m benchmarks`: measures all questions, or those that are named, and writes the page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Scale
from benchmarks.page import FILE_NAME, write
from benchmarks.report import Report
from benchmarks.script import SCALES
from benchmarks.suite import HAVE_LONG, ROOT, SCRIPTS, asked, run

DOCS = ROOT / "docs"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 all was measured, 1 something failed, 2 a user's mistake."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    for name in arguments.names:
        if name not in SCRIPTS:
            parser.error(f"NAME must be one of {', '.join(SCRIPTS)}, got {name!r}")
    if arguments.list:
        for name in SCRIPTS:
            print(f"{name:28} {asked(name)}")
        return 0
    if arguments.page:
        write(Report.read(arguments.out or DOCS), arguments.out or DOCS)
        return 0
    is_whole = not arguments.names and arguments.scale == "full"
    known = HAVE_LONG if arguments.scale == "long" else tuple(SCRIPTS)
    names = [name for name in known if not arguments.names or name in arguments.names]
    if not names:
        parser.error(f"--long is for {', '.join(HAVE_LONG)}, got {', '.join(arguments.names)}")
    return _measure(names, arguments.scale, arguments.out or (DOCS if is_whole else None))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a question; see --list")
    parser.add_argument("--list", action="store_true", help="list the questions")
    for scale in ("quick", "long"):
        parser.add_argument(
            f"--{scale}", dest="scale", action="store_const", const=scale, help=SCALES[scale]
        )
    parser.set_defaults(scale="full")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of data and page; other questions in it stay (default: docs for a whole run, "
        "nowhere for a part of one)",
    )
    parser.add_argument("--page", action="store_true", help="only write the page from the data")
    return parser


def _measure(names: Sequence[str], scale: Scale, folder: Path | None) -> int:
    """Run scripts, say how far it is, and write after each: who stops early keeps what is done."""
    failed = []
    for i, name in enumerate(names):
        print(f"[{i + 1}/{len(names)}] {name}{_estimate(names[i:], scale)}", flush=True)
        entry = run(name, scale)
        end = f"; failed: {entry.failure}" if entry.failure else ""
        print(f"  took {entry.seconds:.0f} s{end}", flush=True)
        failed += [name] if entry.failure else []
        if folder is not None:
            write(Report.read(folder).having([entry], SCRIPTS), folder)
    if folder is not None:
        print(f"page: {folder / FILE_NAME}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _estimate(names: Sequence[str], scale: Scale) -> str:
    """Return how long the first of these takes, and all of them."""
    if scale != "full":
        return ""
    left = sum(SCRIPTS[name] for name in names)
    return f": about {SCRIPTS[names[0]]} s; {left / 60:.0f} minutes to go"


if __name__ == "__main__":
    sys.exit(main())
