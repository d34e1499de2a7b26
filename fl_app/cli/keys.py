"""`leakmeter keys`: signing keys of clients, for secure sums that need not trust the server."""

from __future__ import annotations

import argparse
from pathlib import Path

from leakmeter.fl_app.config.errors import ConfigError

_DESCRIPTION = """\
Makes and checks the keys with which clients sign in secure sums. Each client
has its own key, and a list of the public lines of all clients, including its
own. The lists must not come from the server.
"""
_EPILOG = """\
examples:
  %(prog)s new ~/.leakmeter
      make a key and print its public line
  %(prog)s list trusted.txt
      check a list of public lines
"""


def set_up(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
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
    new.set_defaults(call=make)
    listed = actions.add_parser(
        "list",
        prog=f"{parser.prog} list",
        help="check a list of public lines",
        description="Checks a list of public lines and prints the keys on it.",
        allow_abbrev=False,
    )
    listed.add_argument("file", metavar="FILE", help="a text file with one public line per client")
    listed.set_defaults(call=check)


def make(arguments: argparse.Namespace) -> int:
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


def check(arguments: argparse.Namespace) -> int:
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
