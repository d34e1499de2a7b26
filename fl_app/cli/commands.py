"""The small commands: `leakmeter report`, `replay`, `reproduce`, `watch` and `keys`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from leakmeter.fl_app.cli.run import add_address, add_setting, check_port, given_settings
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.config.field import kebab
from leakmeter.fl_app.config.settings import ENGINES

if TYPE_CHECKING:
    from leakmeter.clients.secure_sum.signing import Identity

# The experiments are no part of an installation. A checkout has them in examples/papers, and offers
# them under this name.
_PAPERS = "leakmeter.papers"
_RESULTS = "docs/results"
_WATCH = """\
Serves the page of a run folder on this machine and keeps it up to date during
the run. The folder may be that of any run: of this program, of a Flower project
with Audited(..., out=...), or a copy synced from another machine. Ctrl-C ends
it.
"""
_KEYS = """\
Makes and checks the keys with which clients sign in secure sums. Each client
has its own key, and a list of the public lines of all clients, including its
own. The lists must not come from the server.
"""
_KEYS_EXAMPLES = """\
examples:
  %(prog)s new ~/.leakmeter
      make a key and print its public line
  %(prog)s show ~/.leakmeter
      print the public line of a key
  %(prog)s list trusted.txt
      check a list of public lines
"""
_REPORT = """\
Writes a page about one run, or compares several: what leaks, to whom, how
strong the evidence is, and what to do. The page is one file that fetches
nothing. An unfinished run is shown as far as it went. --text prints the same
here.
"""
_REPLAY = """\
Audits a recorded run again, without training: with other auditors, or with
other settings of theirs. The run must have been recorded with --auditors
...,recorder. The same settings give the same findings. Settings that you leave
out are those of the recorded run.
"""
_REPLAY_MORE = """\
Settings of the training and of the canaries are those of the recorded run and
cannot be changed.
An interrupted run is audited as far as it was recorded.
"""
# Where the data are; everything else that is not about audits belongs to the recorded run.
_ELSEWHERE = ("data-dir", "download")


def set_up_report(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.description = _REPORT
    parser.set_defaults(call=_report)
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
    """Write the page, and the tables if asked for; with --text print everything instead."""
    if arguments.text:
        return _print(arguments)
    if arguments.summary:
        return _summarize(arguments)
    from leakmeter.auditors.run_log import write_atomically
    from leakmeter.fl_app.report import NAME
    from leakmeter.fl_app.report.read import read_runs

    runs = read_runs([Path(run) for run in arguments.runs])
    # After a wrong folder has been refused: the page takes a second to import.
    from leakmeter.fl_app.report.export import write_csv
    from leakmeter.fl_app.report.html import page

    here = runs[0].folder if len(runs) == 1 else Path.cwd()
    out = Path(arguments.out).expanduser() if arguments.out else here / NAME
    galleries = [Path(folder).expanduser() for folder in arguments.pictures]
    if empty := [folder for folder in galleries if not any(folder.glob("*.png"))]:
        raise ConfigError(f"--pictures must be a folder with PNG files, got {empty[0]}")
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

    if unused := [name for name in ("out", "csv", "summary") if getattr(arguments, name)]:
        raise ConfigError(f"--text writes no file; leave out --{unused[0]}")
    for run in read_runs([Path(one) for one in arguments.runs]):
        print("\n".join(text(run, is_named=len(arguments.runs) > 1)))
    return 0


def _summarize(arguments: argparse.Namespace) -> int:
    """Write one sheet about each run into its folder, and say where it is."""
    from leakmeter.fl_app.report.html.summary import NAME, write_summary
    from leakmeter.fl_app.report.read import read_runs

    if unused := [name for name in ("out", "csv", "pictures") if getattr(arguments, name)]:
        raise ConfigError(f"--summary writes {NAME} into the run's folder; leave out --{unused[0]}")
    for run in read_runs([Path(one) for one in arguments.runs]):
        try:
            _check_page(run.folder / NAME, NAME)
            print(f"summary: {write_summary(run)}")
        except OSError as error:
            raise ConfigError(f"{error.filename} must be writable: {error.strerror}") from None
    return 0


def _check_page(path: Path, what: str = "--out") -> None:
    """Refuse to write over anything but an earlier page."""
    from leakmeter.fl_app.report.html import GENERATOR

    if not path.exists():
        return
    if not path.is_file() or GENERATOR not in path.read_text(encoding="utf-8", errors="replace"):
        raise ConfigError(
            f"{what} must be a new file or an earlier page, got {path}. Name another file"
            f"{'' if what == '--out' else ' or move that one'}"
        )


def set_up_replay(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.description, parser.epilog = _REPLAY, _REPLAY_MORE
    parser.set_defaults(call=_replay)
    parser.add_argument("run", metavar="RUN", help="folder of a recorded run, or its recording")
    parser.add_argument(
        "--out", metavar="DIR", help="new folder for the results (default: <RUN>-replay)"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="show Flower's log and repeated warnings too"
    )
    group = parser.add_argument_group("Audit")
    for spec in fields(Config):
        is_ours = spec.metadata["group"] == "audit" or kebab(spec.name) in _ELSEWHERE
        # The others are known too, so that giving one is refused with the reason.
        add_setting(group, spec, spec.metadata["help"] if is_ours else argparse.SUPPRESS)


def _replay(arguments: argparse.Namespace) -> int:
    """Audit the recorded run and print where the results are."""
    from leakmeter.fl_app.run.replay import audit_again, free_folder, open_recorded

    # A mistake here needs no torch, so that is imported after it.
    recorded = open_recorded(Path(arguments.run))
    config = recorded.settings(given_settings(arguments))
    from leakmeter.fl_app.run.progress import Progress, set_flower_log
    from leakmeter.fl_app.run.run import end

    set_flower_log(verbose=arguments.verbose)  # after these imports: Flower sets its own level
    progress = Progress()
    out = free_folder(arguments.out, recorded.run)
    try:
        done = audit_again(recorded, config, out, progress)
    except KeyboardInterrupt:
        progress.stop()
        progress.say("interrupted; a replay cannot be resumed, start it again")
        return 130
    has_page = end(done, progress)
    return 1 if done.failures or not has_page else 0


def set_up_reproduce(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.description = "Repeats a published table or figure and lists both results together."
    parser.set_defaults(call=_reproduce)
    parser.add_argument("name", metavar="NAME", nargs="?", help="table or figure; see --list")
    parser.add_argument("--list", action="store_true", help="list all tables and figures")
    parser.add_argument(
        "--scale",
        metavar="paper|small",
        default="small",
        help="paper = the size on the results page, small = seconds (default: small)",
    )
    parser.add_argument(
        "--engine",
        metavar="|".join(ENGINES),
        default="inline",
        help="where updates are sampled: in this process, or on Ray with the same results "
        "(default: inline)",
    )
    parser.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        default="",
        help="Ray cluster to join with --engine ray: HOST:PORT, or auto (default: the environment "
        "variable RAY_ADDRESS, or a new local Ray)",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="folder for the results (default: runs/reproduce/NAME-SCALE)"
    )
    parser.add_argument(
        "--results",
        metavar="DIR",
        nargs="?",
        const=_RESULTS,
        help="write RESULTS.md, the page of all results in DIR, next to that folder "
        f"(default: {_RESULTS})",
    )


def experiments() -> tuple[str, ...]:
    """Return the names of all experiments; none where there is no checkout."""
    if find_spec(_PAPERS) is None:
        return ()
    return tuple(import_module(f"{_PAPERS}.registry").EXPERIMENTS)


def _reproduce(arguments: argparse.Namespace) -> int:
    """Hand over to the experiments of the checkout."""
    if find_spec(_PAPERS) is None:
        raise ConfigError(
            "reproduce needs a clone of the repository, since an installation does not contain the "
            "experiments (examples/papers); in the clone, run python run_sim.py reproduce --list"
        )
    code: int = import_module(f"{_PAPERS}.command").reproduce(arguments)
    return code


def set_up_watch(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.description = _WATCH
    parser.set_defaults(call=_watch)
    parser.add_argument("run", metavar="DIR", help="folder of a run")
    add_address(parser)


def _watch(arguments: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    from leakmeter.fl_app.live.page import LiveFolder
    from leakmeter.fl_app.live.server import open_server

    check_port(arguments.port)
    folder = LiveFolder.at(Path(arguments.run))
    folder.check()
    with open_server(arguments.host, arguments.port) as server:
        server.folder = folder
        print(f"live page: {server.url} (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever(0.1)
        except KeyboardInterrupt:
            print()
    return 0


def set_up_keys(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.description, parser.epilog = _KEYS, _KEYS_EXAMPLES
    actions = parser.add_subparsers(required=True, metavar="new | show | list")
    new = actions.add_parser(
        "new",
        prog=f"{parser.prog} new",
        help="make a client's key",
        description="Makes a key that only its owner can read, and prints its public line. A key "
        "that exists is kept: then its line is printed.",
        allow_abbrev=False,
    )
    new.add_argument("folder", metavar="DIR", help="folder for the key; made if missing")
    new.add_argument("--name", default="", help="name to print on the public line")
    new.set_defaults(call=_make_key)
    show = actions.add_parser(
        "show",
        prog=f"{parser.prog} show",
        help="print the public line of a key",
        description="Prints the public line of a client's key.",
        allow_abbrev=False,
    )
    show.add_argument("folder", metavar="DIR", help="folder of the key, or its file")
    show.add_argument("--name", default="", help="name to print on the public line")
    show.set_defaults(call=_show_key)
    listed = actions.add_parser(
        "list",
        prog=f"{parser.prog} list",
        help="check a list of public lines",
        description="Checks a list of public lines and prints the keys on it.",
        allow_abbrev=False,
    )
    listed.add_argument("file", metavar="FILE", help="a text file with one public line per client")
    listed.set_defaults(call=_check_list)


def _make_key(arguments: argparse.Namespace) -> int:
    """Make a key, or keep the one that exists, and print its public line."""
    from leakmeter.clients.secure_sum.signing import Identity, KeyExistsError, KeyFileError

    folder = _key_folder(arguments, "new")
    try:
        identity = Identity.create(folder)
    except KeyExistsError as kept:
        code = _show_key(arguments)
        # Not on standard output, which may be appended to a list.
        print(f"kept: {kept}", file=sys.stderr)
        return code
    except KeyFileError as error:
        raise ConfigError(str(error)) from None
    return _print_line(identity, arguments.name)


def _show_key(arguments: argparse.Namespace) -> int:
    """Print the public line of a key that exists."""
    from leakmeter.clients.secure_sum.signing import Identity, KeyFileError

    try:
        identity = Identity.load(_key_folder(arguments, "show"))
    except KeyFileError as error:
        raise ConfigError(str(error)) from None
    return _print_line(identity, arguments.name)


def _key_folder(arguments: argparse.Namespace, action: str) -> Path:
    """Return the folder that was typed; raise if it or the name for the line cannot be."""
    name = arguments.name
    if name != " ".join(name.split()) or not name.isprintable() or len(name) > 100:
        raise ConfigError(f"--name must be one line of at most 100 characters, got {name!r}")
    if not arguments.folder.strip():  # such as a variable of the shell that is not set
        raise ConfigError(
            f"keys {action} must be given a folder, got an empty name; try ~/.leakmeter"
        )
    return Path(arguments.folder).expanduser()


def _print_line(identity: Identity, name: str) -> int:
    from leakmeter.clients.secure_sum.signing import public_line

    print(public_line(identity.public, name))
    return 0


def _check_list(arguments: argparse.Namespace) -> int:
    """Check a list and print who is on it."""
    from leakmeter.clients.secure_sum.signing import (
        LEAST_CLIENTS,
        KeyFileError,
        TrustedKeys,
        public_line,
    )

    try:
        trusted = TrustedKeys.of(Path(arguments.file))
    except KeyFileError as error:
        raise ConfigError(str(error)) from None
    for key, name in trusted.names.items():
        print(public_line(key, name))
    count = len(trusted)
    is_short = count < LEAST_CLIENTS
    few = f"; a secure sum needs at least {LEAST_CLIENTS} clients" if is_short else ""
    print(f"{count} client{'' if count == 1 else 's'}{few}")
    return 0 if count else 1
