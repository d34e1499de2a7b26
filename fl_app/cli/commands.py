"""The small commands: `leakmeter replay`, `reproduce`, `keys` and `self-audit`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from leakmeter.fl_app.cli.run import add_setting, add_verbose, typed_settings
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError, interrupted_code, kebab
from leakmeter.fl_app.config.settings import ENGINES

if TYPE_CHECKING:
    from leakmeter.auditors.records.own_models import OwnLosses
    from leakmeter.clients.secure_sum.signing import Identity

# The experiments are no part of an installation. A checkout has them in examples/papers, and offers
# them under this name.
_PAPERS = "leakmeter.papers"
_RESULTS = "docs/results"
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


def set_up_replay(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.description, parser.epilog = _REPLAY, _REPLAY_MORE
    parser.usage = "%(prog)s RUN [--auditors NAMES] [--out DIR] [settings]"
    parser.set_defaults(call=_replay)
    parser.add_argument("run", metavar="RUN", help="folder of a recorded run, or its recording")
    parser.add_argument(
        "--out", metavar="DIR", help="new folder for the results (default: <RUN>-replay)"
    )
    add_verbose(parser)
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
    config = recorded.settings(typed_settings(arguments))
    from leakmeter.fl_app.run.progress import Progress, set_flower_log
    from leakmeter.fl_app.run.run import end

    set_flower_log(verbose=arguments.verbose)  # after these imports: Flower sets its own level
    progress = Progress()
    out = free_folder(arguments.out, recorded.run)
    try:
        done = audit_again(recorded, config, out, progress)
    except KeyboardInterrupt as stop:
        progress.stop()
        progress.say("interrupted; a replay cannot be resumed, start it again")
        return interrupted_code(stop)
    return 0 if end(done, progress) else 1


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


def set_up_keys(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.description, parser.epilog = _KEYS, _KEYS_EXAMPLES
    actions = parser.add_subparsers(required=True, metavar="new | show | list")
    for name, call, about, more in _KEY_ACTIONS:
        own = actions.add_parser(
            name, prog=f"{parser.prog} {name}", help=about, description=more, allow_abbrev=False
        )
        own.set_defaults(call=call)
        if name == "list":
            words = "a text file with one public line per client"
            own.add_argument("file", metavar="FILE", help=words)
            continue
        words = "folder for the key; made if missing" if name == "new" else "its folder or file"
        own.add_argument("folder", metavar="DIR", help=words)
        own.add_argument("--name", default="", help="name to print on the public line")


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
        MIN_CLIENTS,
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
    is_short = count < MIN_CLIENTS
    few = f"; a secure sum needs at least {MIN_CLIENTS} clients" if is_short else ""
    print(f"{count} client{'' if count == 1 else 's'}{few}")
    return 0 if count else 1


_KEY_ACTIONS = (
    (
        *("new", _make_key, "make a client's key"),
        "Makes a key that only its owner can read, and prints its public line. A key that exists "
        "is kept: then its line is printed.",
    ),
    ("show", _show_key, "print the public line of a key", "Prints a client's public line."),
    (
        *("list", _check_list, "check a list of public lines"),
        "Checks a list of public lines and prints the keys on it.",
    ),
)


_SELF_AUDIT = """\
Tells a client what taking part reveals about its own records. The client has
kept the models that it was sent, with the mod keep_models(DIR), and compares
losses on records that it trained on with losses on records that it held back.
It runs where the records are and sends nothing.
"""
_KEPT = "Nothing has been sent: this audit has read files of this machine alone."
_AFTER_A_LEAK = (
    "Train with noise for each record (DP-SGD, such as Opacus), on more records or in fewer "
    "passes, and ask the server for noise. Then audit again."
)
_AFTER_NOTHING = "Hold back more records in the next run."
_EXAMPLE = """\
example:
  %(prog)s models --losses my_app.task:losses
      losses(arrays) returns two lists: of members, and of held-back records
"""


def set_up_self_audit(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.description, parser.epilog = _SELF_AUDIT, _EXAMPLE
    parser.set_defaults(call=_self_audit)
    parser.add_argument("models", metavar="DIR", help="folder with the kept models")
    parser.add_argument(
        "--losses",
        metavar="MODULE:FUNCTION",
        required=True,
        help="your function: from a model's arrays by name to the cross-entropy losses of records "
        "that you trained on, and of records that you held back",
    )
    parser.add_argument(
        "--drawn-by-lot",
        action="store_true",
        help="say that chance alone decided which records you held back; what is found needs no "
        "further assumption then",
    )
    parser.add_argument("--delta", type=float, default=1e-5, help="of the bounds (default: 1e-5)")
    parser.add_argument(
        "--confidence", type=float, default=0.95, help="of the bounds (default: 0.95)"
    )


def _self_audit(arguments: argparse.Namespace) -> int:
    """Print what the models reveal."""
    losses = _function(arguments.losses)
    from leakmeter.auditors.records.own_models import self_audit
    from leakmeter.auditors.verdict.labels import LEAKS
    from leakmeter.auditors.verdict.lines import Ending, NextStep, details, summary
    from leakmeter.auditors.verdict.verdict import judge

    try:
        found = self_audit(
            Path(arguments.models),
            losses,
            alike=arguments.drawn_by_lot,
            delta=arguments.delta,
            confidence=arguments.confidence,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    verdict = judge(found)
    is_shown = verdict.severity in LEAKS
    ending = Ending([NextStep(_AFTER_A_LEAK if is_shown else _AFTER_NOTHING)], adds_noise=None)
    print("\n".join([*summary(verdict, ending=ending), *details(verdict), "", _KEPT]))
    return 0


def _function(text: str) -> OwnLosses:
    """Return the function that an option names, from the current folder or an installation."""
    module, _, name = text.partition(":")
    allowed = "MODULE:FUNCTION, such as my_app.task:losses"
    if not module or not name:
        raise ConfigError(f"--losses must be {allowed}, got {text!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        function: OwnLosses = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"--losses must be {allowed}, got {text!r}: {error}. Call it from the folder that "
            f"contains {module.partition('.')[0]}"
        ) from None
    if not callable(function):
        raise ConfigError(f"--losses must name a function, got {text!r}, which is none")
    return function
