"""`leakmeter watch`: the page of a run folder, kept up to date in the browser."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.config.field import number_or_text
from leakmeter.fl_app.live import HOST, PORT

_DESCRIPTION = """\
Serves the page of a run folder on this machine and keeps it up to date during
the run. The folder may be that of any run: of this program, of a Flower project
with Audited(..., out=...), or a copy synced from another machine. Ctrl-C ends
it.
"""


def set_up(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.description = _DESCRIPTION
    parser.set_defaults(call=watch)
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


def watch(arguments: argparse.Namespace) -> int:
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
