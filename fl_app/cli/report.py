"""`leakmeter report`: a page about one run or several, and CSV if asked for."""

from __future__ import annotations

import argparse
from pathlib import Path

from leakmeter.fl_app.config.errors import ConfigError

_DESCRIPTION = """\
Writes a page about one run, or compares several: what leaks, to whom, how
strong the evidence is, and what to do. The page is one file that fetches
nothing. An unfinished run is shown as far as it went. --text prints the same
here.
"""


def set_up(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.description = _DESCRIPTION
    parser.set_defaults(call=report)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folder of a run")
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="file to write (default: report.html in the run's folder; for several runs, "
        "report.html in the current folder)",
    )
    parser.add_argument(
        "--text",
        action="store_true",
        help="print the verdict and all details here instead of writing a page",
    )
    parser.add_argument("--csv", metavar="DIR", help="write findings, rounds and curves as CSV too")
    parser.add_argument(
        "--pictures",
        metavar="DIR",
        action="append",
        default=[],
        help="show the PNG files of this folder as reconstructions; can be repeated",
    )


def report(arguments: argparse.Namespace) -> int:
    """Write the page, and the tables if asked for; with --text print everything instead."""
    if arguments.text:
        return _print(arguments)
    from leakmeter.auditors.run_log import write_atomically
    from leakmeter.fl_app.report import NAME
    from leakmeter.fl_app.report.read import read_runs

    runs = read_runs([Path(run) for run in arguments.runs])
    # After a wrong folder has been refused: the page takes a second to import.
    from leakmeter.fl_app.report.export import write_csv
    from leakmeter.fl_app.report.html import page

    here = runs[0].folder if len(runs) == 1 else Path.cwd()
    out = Path(arguments.out).expanduser() if arguments.out else here / NAME
    galleries = [_gallery(Path(folder).expanduser()) for folder in arguments.pictures]
    try:
        _check_page(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, page(runs, galleries))
        tables = write_csv(runs, Path(arguments.csv).expanduser()) if arguments.csv else []
    except OSError as error:
        raise ConfigError(f"{error.filename} must be writable: {error.strerror}") from None
    except UnicodeEncodeError:  # what a run wrote has been checked, the names of its files have not
        raise ConfigError(f"RUN must have a name in Unicode, got {arguments.runs}") from None
    about = "" if len(runs) == 1 else f" comparing {len(runs)} runs"
    print(f"page{about}: {out.absolute()}")
    for path in tables:
        print(f"table: {path.absolute()}")
    return 0


def _print(arguments: argparse.Namespace) -> int:
    """Print what each run says in full."""
    from leakmeter.fl_app.report.export import text
    from leakmeter.fl_app.report.read import read_runs

    if unused := [name for name in ("out", "csv") if getattr(arguments, name)]:
        raise ConfigError(f"--text writes no file; leave out --{unused[0]}")
    for run in read_runs([Path(one) for one in arguments.runs]):
        print("\n".join(text(run, is_named=len(arguments.runs) > 1)))
    return 0


def _check_page(path: Path) -> None:
    """Refuse to write over anything but an earlier page."""
    from leakmeter.fl_app.report.html import GENERATOR

    if not path.exists():
        return
    if not path.is_file() or GENERATOR not in path.read_text(encoding="utf-8", errors="replace"):
        raise ConfigError(
            f"--out must be a new file or an earlier page, got {path}. Name another file"
        )


def _gallery(folder: Path) -> Path:
    if not any(folder.glob("*.png")):
        raise ConfigError(f"--pictures must be a folder with PNG files, got {folder}")
    return folder
