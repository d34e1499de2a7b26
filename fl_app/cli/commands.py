"""The small commands: `leakmeter reproduce`, `leakmeter watch` and `leakmeter keys`."""

from __future__ import annotations

import argparse
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.config.field import number_or_text
from leakmeter.fl_app.config.settings import ENGINES
from leakmeter.fl_app.live import HOST, PORT

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
  %(prog)s list trusted.txt
      check a list of public lines
"""


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


def add_address(parser: argparse._ActionsContainer) -> None:
    """Add the options that say where a page is served."""
    parser.add_argument(
        "--port",
        type=partial(number_or_text, int),
        metavar="N",
        help=f"port of the live page (default: {PORT} or the next)",
    )
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        default=HOST,
        help=f"address of the live page; anybody who reaches it can read it (default: {HOST}, "
        "this machine only)",
    )


def check_port(port: int | str | None) -> None:
    """Refuse a port that no machine has."""
    if isinstance(port, str) or (port is not None and not 0 <= port < 65536):
        raise ConfigError(f"--port must be from 0 (any free port) to 65535, got {port}")


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
    actions = parser.add_subparsers(required=True, metavar="new | list")
    new = actions.add_parser(
        "new",
        prog=f"{parser.prog} new",
        help="make a client's key",
        description="Makes a key that only its owner can read, and prints its public line.",
        allow_abbrev=False,
    )
    new.add_argument("folder", metavar="DIR", help="folder for the key; made if missing")
    new.add_argument("--name", default="", help="name to print on the public line")
    new.set_defaults(call=_make_key)
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
    """Make a key and print its public line."""
    from leakmeter.clients.secure_sum.signing import Identity, KeyFileError, public_line

    name = arguments.name
    if name != " ".join(name.split()) or not name.isprintable() or len(name) > 100:
        raise ConfigError(f"--name must be one line of at most 100 characters, got {name!r}")
    if not arguments.folder.strip():  # such as a variable of the shell that is not set
        raise ConfigError("keys new must be given a folder, got an empty name; try ~/.leakmeter")
    try:
        identity = Identity.create(Path(arguments.folder).expanduser())
    except KeyFileError as error:
        raise ConfigError(str(error)) from None
    print(public_line(identity.public, name))
    return 0


def _check_list(arguments: argparse.Namespace) -> int:
    """Check a list and print who is on it."""
    from leakmeter.clients.secure_sum.signing import KeyFileError, TrustedKeys, public_line

    try:
        trusted = TrustedKeys.of(Path(arguments.file))
    except KeyFileError as error:
        raise ConfigError(str(error)) from None
    for key, name in trusted.names.items():
        print(public_line(key, name))
    count = len(trusted)
    few = "; a secure sum needs at least 3 clients" if count < 3 else ""
    print(f"{count} client{'' if count == 1 else 's'}{few}")
    return 0 if count else 1
