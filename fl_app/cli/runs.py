"""Commands about runs that are there: `leakmeter list`, `open`, `report`, `watch` and `gate`."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakmeter.fl_app.cli.run import add_address, add_setting, check_port, typed_settings
from leakmeter.fl_app.config.field import (
    ConfigError,
    checked_all,
    expanded,
    kebab,
    nearest,
    program,
    read_toml,
    setting,
    shown_name,
    unknown_name,
)
from leakmeter.fl_app.report import NAME

if TYPE_CHECKING:
    from leakmeter.auditors.verdict.gate import GateLimits
    from leakmeter.auditors.verdict.verdict import Verdict
    from leakmeter.fl_app.report.read import Run

_RUNS = "runs"  # where runs go by default
_LIST = """\
Lists the runs in a folder, the newest first: when, how many rounds, the most
that is shown to any attacker, and how to resume those that are not finished.
"""
_OPEN = """\
Opens the page of a run in the browser, and prints where it is. A page that is
missing or older than the run is made first.
"""
_REPORT = """\
Writes a page about one run, or compares several: what leaks, to whom, how
strong the evidence is, and what to do. The page is one file that fetches
nothing. An unfinished run is shown as far as it went. --text prints the same
here. A folder of runs stands for the newest run in it.
"""
_WATCH = """\
Serves the page of a run folder on this machine and keeps it up to date during
the run. You may start it first: it waits for the run. The folder may be that of
any run: of this program, of a Flower project with Audited(..., out=...), or a
copy synced from another machine. Ctrl-C ends it.
"""


def set_up_list(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.description = _LIST
    parser.set_defaults(call=_list)
    _add_folder(parser, "folder of runs")
    parser.add_argument("--json", action="store_true", help="print a JSON list instead")


def _add_folder(parser: argparse.ArgumentParser, about: str) -> None:
    words = f"{about} (default: {_RUNS})"
    parser.add_argument("folder", metavar="DIR", nargs="?", default=_RUNS, help=words)


def _list(arguments: argparse.Namespace) -> int:
    """Print one line for each run, or the same in JSON."""
    from leakmeter.fl_app.report.read import FILES, runs_in

    folder = expanded("DIR", arguments.folder)
    if folder.is_file():
        raise ConfigError(f"DIR must be a folder of runs, got a file: {folder}. Try {_RUNS}.")
    if not folder.exists() and arguments.folder != _RUNS:  # before the first run there is none
        raise ConfigError(f"DIR must be a folder of runs, got no folder: {folder}. Try {_RUNS}.")
    is_run = any((folder / name).is_file() for name in FILES)
    listed = [_listed(one) for one in ([folder] if is_run else runs_in(folder))]
    if arguments.json:
        print(json.dumps(listed, indent=1))
        return 0
    if not listed:
        start = f"{program()} --out {shlex.quote(arguments.folder)}/demo"
        print(f"no runs in {folder}. Start one: {start}")
        return 0
    print("\n".join(_lines(listed)))
    return 0


def _listed(folder: Path) -> dict[str, Any]:
    """Return what a list says of a run, in JSON types."""
    from leakmeter.auditors.verdict.sentences import headline
    from leakmeter.fl_app.report.judge import resume_command, verdict_of
    from leakmeter.fl_app.report.live import LiveFolder
    from leakmeter.fl_app.report.read import changed
    from leakmeter.fl_app.run.folder import is_held

    live, date = LiveFolder(folder), datetime.fromtimestamp(changed(folder))
    known = {"name": folder.name, "path": str(folder), "date": date.isoformat(" ", "minutes")}
    try:
        run = live.run()
    except ConfigError as error:
        return {**known, "state": "damaged", "verdict": str(error)}
    verdict, is_ours = verdict_of(run), (folder / "config.toml").is_file()
    is_running = is_held(folder) if is_ours else live.is_running
    state = "finished" if run.is_finished else "running" if is_running else "interrupted"
    return {
        **known,
        "state": state,
        "rounds": len(run.rounds),
        "planned": run.config.get("rounds"),
        "accuracy": run.accuracy,
        "verdict": _in_short(verdict) if run.rounds else "no round yet",
        "at_most": _guaranteed(verdict) if run.rounds else "",
        "headline": headline(verdict),
        "resume": resume_command(run, program()) if state == "interrupted" and is_ours else None,
    }


def _in_short(verdict: Verdict) -> str:
    """Return the most that a run shows, and to whom."""
    from leakmeter.auditors.verdict.labels import NOT_YET, shown_cell

    if verdict.is_distorted:
        return "distorted"
    if any(one.is_refuted for one in verdict.claims):
        return "claim refuted"
    most = next(iter(verdict.rows), None)
    if most is None or not most.low:
        return "nothing" if verdict.progress is None else NOT_YET
    return f"{shown_cell(most)}, {most.attacker.observer}"


def _guaranteed(verdict: Verdict) -> str:
    """Return what is guaranteed to whom the run shows the most."""
    from leakmeter.auditors.verdict.labels import at_most_cell

    return "" if verdict.is_distorted or not verdict.rows else at_most_cell(verdict.rows[0])


def _lines(listed: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a table, with the way out below each run that is not whole."""
    width = max(len("RUN"), *(len(one["name"]) for one in listed))
    yield f"{'RUN':{width}}  {'DATE':16}  {'ROUNDS':8}  {'SHOWN':20}  AT MOST"
    for one in listed:
        state, planned = one["state"], one.get("planned")
        rounds = str(one.get("rounds", "?"))
        if planned or state != "finished":  # an app's own report does not say what was planned
            rounds += f"/{planned or '?'}"
        is_whole = state != "damaged"
        cells = f"{one['verdict']:20}  {one['at_most']}" if is_whole else ""
        yield f"{one['name']:{width}}  {one['date']}  {rounds:8}  {cells}".rstrip()
        if state != "finished":
            then = one["resume"] if is_whole else one["verdict"]
            yield f"  {state}{f': {then}' if then else ''}"


def set_up_open(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.description = _OPEN
    parser.set_defaults(call=_open)
    _add_folder(parser, "folder of a run, or of runs for the newest")


def _open(arguments: argparse.Namespace) -> int:
    """Show the page in the browser."""
    import webbrowser

    from leakmeter.fl_app.report.read import changed, read_run
    from leakmeter.fl_app.run.folder import named_run

    run = read_run(named_run(Path(arguments.folder), "DIR"))
    page = run.folder / NAME
    if not page.is_file() or page.stat().st_mtime < changed(run.folder):
        _write_page([run], page)
    print(f"page: {page}", flush=True)
    if not webbrowser.open(page.as_uri()):
        print("no browser was found here: open the file on a machine that has one")
    return 0


def set_up_report(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.description = _REPORT
    parser.set_defaults(call=_report)
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help=f"folder of a run, or of runs for the newest (default: {_RUNS})",
    )
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
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the report itself, and nothing else; a list of them for several runs",
    )
    parser.add_argument(
        "--summary",
        action="store_true",
        help="write summary.html into the run's folder: one sheet for data-protection readers",
    )
    parser.add_argument("--csv", metavar="DIR", help="write findings, rounds and curves as CSV too")
    parser.add_argument(
        "--pictures",
        metavar="DIR",
        action="append",
        default=[],
        help="show the PNG files of this folder as reconstructions; can be repeated",
    )


def _report(arguments: argparse.Namespace) -> int:
    """Write the page, and the tables if asked for; with --text or --json print instead.

    --summary writes another page alone.
    """
    from leakmeter.fl_app.report.read import read_runs
    from leakmeter.fl_app.run.folder import named_run

    printed = [name for name in ("text", "json", "summary") if getattr(arguments, name)]
    unused = [name for name in ("out", "csv", "pictures") if getattr(arguments, name)]
    if more := printed[1:] or unused[: len(printed)]:
        does = "summary.html alone" if printed[0] == "summary" else "no file"
        raise ConfigError(f"--{printed[0]} writes {does}; leave out --{more[0]}")
    folders = [named_run(Path(run), "RUN") for run in arguments.runs or [_RUNS]]
    if arguments.json:
        return _print_json(folders)
    runs = read_runs(folders)
    if arguments.text:
        return _print(runs)
    if arguments.summary:
        return _summarize(runs)
    # After a wrong folder has been refused: the page takes a second to import.
    from leakmeter.fl_app.report.export import write_csv

    here = runs[0].folder if len(runs) == 1 else Path.cwd()
    out = Path(arguments.out).expanduser() if arguments.out else here / NAME
    galleries = [Path(folder).expanduser() for folder in arguments.pictures]
    if empty := [folder for folder in galleries if not any(folder.glob("*.png"))]:
        raise ConfigError(f"--pictures must be a folder with PNG files, got {empty[0]}")
    _write_page(runs, out, galleries)
    with _writing(runs):
        tables = write_csv(runs, Path(arguments.csv).expanduser()) if arguments.csv else []
    about = "" if len(runs) == 1 else f" comparing {len(runs)} runs"
    print(f"page{about}: {out.absolute()}")
    for path in tables:
        print(f"table: {path.absolute()}")
    return 0


def _summarize(runs: Sequence[Run]) -> int:
    """Write one sheet about each run into its folder, and say where it is."""
    from leakmeter.fl_app.report import summary

    for run in runs:
        out = run.folder / summary.NAME
        _write_page([run], out, make=summary.summary)
        print(f"summary: {out}")
    return 0


def _write_page(
    runs: Sequence[Run],
    out: Path,
    galleries: Sequence[Path] = (),
    make: Callable[[Run], str] | None = None,
) -> None:
    """Write a page about runs, or what `make` makes; raise if something else is in its place."""
    from leakmeter.auditors.run_log import write_atomically
    from leakmeter.fl_app.report.page import GENERATOR, page

    with _writing(runs):
        is_ours = not out.exists() or (
            out.is_file() and GENERATOR in out.read_text(encoding="utf-8", errors="replace")
        )
        if not is_ours:
            what = "--out" if make is None else out.name
            raise ConfigError(
                f"{what} must be a new file or an earlier page, got {out}. Name another file"
            )
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, page(runs, galleries) if make is None else make(runs[0]))


@contextmanager
def _writing(runs: Sequence[Run]) -> Iterator[None]:
    """Say in words why a file about these runs cannot be written."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{error.filename} must be writable: {error.strerror}") from None
    except UnicodeEncodeError:  # what a run wrote has been checked, the names of its files have not
        names = [str(run.folder) for run in runs]
        raise ConfigError(f"RUN must have a name in Unicode, got {names}") from None


def _print(runs: Sequence[Run]) -> int:
    """Print what each run says in full."""
    from leakmeter.fl_app.report.export import text

    for run in runs:
        print("\n".join(text(run, is_named=len(runs) > 1)))
    return 0


def _print_json(folders: Sequence[Path]) -> int:
    """Print the reports of finished runs as they are, in letters that every terminal has."""
    from leakmeter.auditors.run_log import REPORT
    from leakmeter.fl_app.report.judge import resume_command
    from leakmeter.fl_app.report.read import read_run

    found = []
    for run in map(read_run, folders):
        if not run.is_finished:
            raise ConfigError(
                f"RUN must be finished for --json, got {run.folder} after round "
                f"{len(run.rounds)}. Finish it: {resume_command(run, program())}"
            )
        found.append(json.loads((run.folder / REPORT).read_bytes()))
    print(json.dumps(found[0] if len(found) == 1 else found, indent=1))
    return 0


def set_up_watch(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.description = _WATCH
    parser.set_defaults(call=_watch)
    parser.add_argument("run", metavar="DIR", help="folder of a run, also of one to come")
    add_address(parser)


def _watch(arguments: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    from leakmeter.fl_app.report.live import LiveFolder, open_server

    check_port(arguments.port)
    folder = LiveFolder.at(Path(arguments.run))
    folder.check()
    with open_server(arguments.host, arguments.port) as server:
        server.folder = folder
        if not folder.has_run:
            print(f"waiting for a run in {folder.path}", flush=True)
        print(f"live page: {server.url} (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever(0.1)
        except KeyboardInterrupt:
            print()
    return 0


_DESCRIPTION = """\
Checks whether a finished run keeps its limits, for a pipeline. An audit that
shows nothing passes only if it could have shown more than the limit. Limits can
also be in [tool.leakmeter.gate] of pyproject.toml in the current folder;
options on the command line win.
"""
_EPILOG = """\
exit codes:
  0  the run keeps its limits
  1  the program failed
  2  a wrong option, file or folder
  3  a limit is exceeded, or a privacy claim about the run is refuted
  4  the audit cannot tell: the run is distorted, incomplete, or no audit could
     have shown more than the limit

examples:
  %(prog)s runs/demo --max-epsilon 8 --against outsider
      fail if an ε above 8 is proven for whoever sees the models
  %(prog)s runs/demo --require-guarantee 8 --min-accuracy 0.8
      fail unless ε ≤ 8 is guaranteed against every attacker of the run
  %(prog)s runs/demo --claims
      fail if a claim about the run is refuted, or was not tested
  %(prog)s runs/demo --claims --format junit --output gate.xml
      write a file that test reports show
"""
_FILE, _TABLE = Path("pyproject.toml"), "tool.leakmeter.gate"
_FORMATS = ("text", "junit", "sarif", "markdown", "json")


@dataclass(frozen=True)
class _LimitOptions:
    """The limits as options. A default is only the value that an error suggests."""

    max_epsilon: float = setting(
        8.0,
        "no ε above this may be proven, and the audit must have been able to prove one",
        low=0,
        metavar="E",
    )
    against: str = setting(
        "outsider",
        "attackers that --max-epsilon, --require-guarantee and --claims are about: server, "
        "outsider or wire, or one with what it sees, such as server/round-sum (default: all "
        "attackers of the run)",
        metavar="ATTACKER",
    )
    require_guarantee: float = setting(
        8.0,
        "an ε of at most this must be guaranteed against these attackers",
        low=0,
        metavar="E",
    )
    no_reconstruction: bool = setting(
        False, "a reconstruction test must have been played and found nothing"
    )
    min_accuracy: float = setting(
        0.8, "least accuracy of the last model", low=0, high=1, metavar="A"
    )
    claims: bool = setting(
        False,
        "each privacy claim about the run must have been tested and not refuted",
    )


def set_up_gate(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.set_defaults(call=_gate)
    parser.add_argument("run", metavar="DIR", help="folder of a finished run")
    limits = parser.add_argument_group("Limits")
    for spec in fields(_LimitOptions):
        if spec.type == "bool":  # no second option that turns it off
            flags: dict[str, Any] = {"action": "store_true", "default": argparse.SUPPRESS}
            name = kebab(spec.name)
            limits.add_argument(f"--{name}", dest=name, help=spec.metadata["help"], **flags)
        else:
            add_setting(limits, spec, spec.metadata["help"])
    parser.add_argument(
        "--format",
        metavar="|".join(_FORMATS),
        default="text",
        help="how to write what came of it (default: text)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="file to write, replaced if there; the text is printed as well (default: print)",
    )


def _gate(arguments: argparse.Namespace) -> int:
    """Check the limits, print or write what came of them, and return the exit code."""
    if arguments.format not in _FORMATS:
        raise unknown_name("--format", arguments.format, _FORMATS)
    known = {kebab(spec.name) for spec in fields(_LimitOptions)}
    values = {**_from_file(_FILE, known), **typed_settings(arguments, _LimitOptions)}
    asked = checked_all(fields(_LimitOptions), values)
    from leakmeter.auditors.verdict.gate import Gate, lines
    from leakmeter.fl_app.report.export import write_gate
    from leakmeter.fl_app.report.judge import result_of
    from leakmeter.fl_app.report.read import read_run

    limits = _limits(asked)
    gate = Gate.of(result_of(read_run(Path(arguments.run))), limits)
    text = write_gate(gate, arguments.format)
    if not arguments.output:
        print(text, end="")
        return gate.code
    path = expanded("--output", arguments.output)
    _write(path, text)
    print("\n".join(lines(gate)))
    print(f"{arguments.format}: {path}")
    return gate.code


def _limits(asked: Mapping[str, Any]) -> GateLimits:
    """Return the limits; raise if there are none, or if nobody attacks under this name."""
    from leakmeter.auditors.verdict.gate import ALLOWED, ATTACKERS, GateLimits

    if asked.get("against") not in (None, *ATTACKERS):
        raise unknown_name("--against", asked["against"], ATTACKERS, allowed=ALLOWED)
    limits = GateLimits(**asked)
    if limits.is_empty:
        raise ConfigError(
            "gate needs a limit, one of --max-epsilon, --require-guarantee, --no-reconstruction, "
            f"--min-accuracy and --claims, here or in [{_TABLE}] of {_FILE}, got none. Try "
            "--max-epsilon 8."
        )
    return limits


def _from_file(path: Path, known: Iterable[str]) -> dict[str, Any]:
    """Return the limits in the project's file; none where there is no file or no table."""
    if not path.is_file():
        return {}
    table: Any = read_toml(path, "the limits' file")
    for name in _TABLE.split("."):
        table = table.get(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: [{_TABLE}] must be a table, got {name} = {table!r}")
    for name in table:
        if name not in known:
            hint = nearest(name, known) or f"; known limits: {', '.join(sorted(known))}"
            raise ConfigError(f"{path}: unknown limit {shown_name(name)} in [{_TABLE}]{hint}")
    return dict(table)


def _write(path: Path, text: str) -> None:
    from leakmeter.auditors.run_log import write_atomically

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise ConfigError(
            f"--output must be a file that can be written, got {path}: {error.strerror}. "
            "Try --output gate.txt."
        ) from None
