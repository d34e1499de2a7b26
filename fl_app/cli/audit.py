"""`leakmeter audit` and `leakmeter check`: a Flower app as it is, without a changed line."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakmeter import __version__
from leakmeter.auditors.wording import counted
from leakmeter.fl_app.audit_app.project import AppProject
from leakmeter.fl_app.cli.run import add_setting, add_verbose, typed_settings, with_default
from leakmeter.fl_app.config.field import (
    ConfigError,
    checked_all,
    expanded,
    interrupted_code,
    kebab,
    names_of,
    out_of_range,
    setting,
)

if TYPE_CHECKING:
    from leakmeter.auditors.verdict.claim import Claim
    from leakmeter.fl_app.audit_app.session import AppAudit, AppError

_AUDIT = """\
Audits a Flower app as it is. PATH is the folder where you call `flwr run .`.
The app runs as usual; a few clients per round send a canary in place of their
update. No file of the app changes. The last lines are the verdict, and a page
in the results' folder has the rest.
"""
_AUDIT_MORE = """\
exit codes:
  0  the app was audited
  1  the app or an auditor failed
  2  a wrong option or path, or an app that cannot be loaded
  4  all rounds were abandoned, so nothing was audited

examples:
  %(prog)s .
      audit the app in this folder with 10 clients
  %(prog)s . --clients 50 --run-config "num-server-rounds=20"
      more clients: more canaries per round, a sharper result
  %(prog)s ../my-app --claim "10@1e-5 server round"
      check a claim: refuted, or how far the audit could have seen
  %(prog)s ../my-app --thorough
      also train clients of round 1 again, to measure what single sums reveal
"""
_CHECK = """\
Runs a Flower app twice in this process, with the audit and without, and
compares what honest clients reply, bit for bit. In both runs, the same seats
send the same canaries. Nothing is written.
"""
_CHECK_MORE = """\
exit codes:
  0  all replies are equal: the audit does not change the training
  1  the app failed
  2  a wrong option or path, or an app that cannot be loaded
  3  replies differ
  4  cannot tell: two runs without the audit differ from one another too
"""
_CANARIES = ("one-shot", "single-update")
_RESAMPLING = ("likelihood-ratio", "mutual-information")
NAMES = (*_CANARIES, *_RESAMPLING)
_ENGINES = ("inline", "flwr")


@dataclass(frozen=True)
class _CheckOptions:
    """What both commands take."""

    clients: int = setting(
        10, "number of clients; an app does not say it itself", low=2, most=100_000
    )
    auditors: str = setting(
        ",".join(_CANARIES),
        "auditors, separated by commas",
        metavar="|".join(NAMES),
    )
    seats: str = setting(
        "auto",
        "clients per round that play a canary; auto = one in five of those that train",
        metavar="auto|N",
    )
    run_config: str = setting(
        "",
        "settings of the app to change, as in flwr run: pairs such as \"lr=0.1 name='x'\", or a "
        "TOML file",
        metavar="PAIRS",
    )
    node_config: str = setting(
        "",
        "what each client's node_config has beyond partition-id and num-partitions, as for "
        "flower-supernode: pairs such as \"data='x'\", or a TOML file",
        metavar="PAIRS",
    )


@dataclass(frozen=True)
class _AuditOptions(_CheckOptions):
    """What the audit takes on top."""

    engine: str = setting(
        "inline",
        "inline = all clients in this process; flwr = through flwr run, for apps that fork or need "
        "processes of their own",
        choices=_ENGINES,
    )
    claim: str = setting(
        "",
        "claim about the privacy of the app, for the audit to refute or not: ε@δ, against whom "
        "(server, outsider, wire) and per what (round, run); may be given several times; the app's "
        "pyproject.toml may list more, claims in [tool.leakmeter]",
        metavar='"10@1e-5 server round"',
        several=True,
    )


def set_up_audit(parser: argparse.ArgumentParser) -> None:
    """Add the options of `leakmeter audit`."""
    parser.description, parser.epilog = _AUDIT, _AUDIT_MORE
    parser.set_defaults(call=_audit)
    _add(parser, _AuditOptions)
    parser.add_argument(
        "--thorough",
        action="store_true",
        help=f"add {' and '.join(_RESAMPLING)}, which train the clients of round 1 again, about a "
        "hundred times each",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="new or empty folder for the results (default: runs/<time>-<app>)",
    )


def set_up_check(parser: argparse.ArgumentParser) -> None:
    """Add the options of `leakmeter check`."""
    parser.description, parser.epilog = _CHECK, _CHECK_MORE
    parser.set_defaults(call=_check, thorough=False, out=None)
    _add(parser, _CheckOptions)


def _add(parser: argparse.ArgumentParser, options: type[_CheckOptions]) -> None:
    parser.usage = "%(prog)s PATH [--clients N] [options]"
    parser.add_argument("path", metavar="PATH", help="folder of the app, with its pyproject.toml")
    for spec in fields(options):
        add_setting(parser, spec, with_default(spec))
    add_verbose(parser)


def _audit(arguments: argparse.Namespace) -> int:
    """Audit the app, print what came of it, and return the exit code."""
    options = _given(arguments, _AuditOptions)
    audit = _planned(arguments, options)
    print(f"leakmeter {__version__}: {_what(audit)}; starting …", flush=True)
    from leakmeter.fl_app.audit_app.session import AppError, announced, end_audit, run_audit
    from leakmeter.fl_app.audit_app.through_flower import run_through_flower
    from leakmeter.fl_app.run.progress import Progress, set_flower_log

    set_flower_log(verbose=arguments.verbose)
    progress, before = Progress(), audit.project.digest(audit.out)
    progress.begin_with(announced(audit, before), audit.rounds)
    try:
        run = run_through_flower if options["engine"] == "flwr" else run_audit
        failed = run(audit, progress)
    except AppError as error:  # not even loaded
        progress.stop()
        return _failed(error, 2)
    except KeyboardInterrupt as stop:
        progress.stop()
        progress.say(f"interrupted; the rounds so far: leakmeter report --text {audit.out}")
        return interrupted_code(stop)
    code = end_audit(audit, progress, before)
    for one in failed:
        code = _failed(one, 1 if one.is_fatal else code)
    return code


def _check(arguments: argparse.Namespace) -> int:
    """Run the app with and without the audit, print how replies differ, return the exit code."""
    audit = _planned(arguments, _given(arguments, _CheckOptions))
    print(f"leakmeter {__version__}: {_what(audit)}; running it twice …", flush=True)
    from leakmeter.fl_app.audit_app.check import compare
    from leakmeter.fl_app.audit_app.session import AppError
    from leakmeter.fl_app.run.progress import set_flower_log

    set_flower_log(verbose=arguments.verbose)
    try:
        found = compare(audit)
    except AppError as error:
        return _failed(error, 1)
    print("\n".join(found.lines()))
    return found.code


def _failed(error: AppError, code: int) -> int:
    """Show how the app failed, its own lines first."""
    print(f"{error.shown}\nerror: {error}", file=sys.stderr)
    return code


def _given(arguments: argparse.Namespace, options: type[_CheckOptions]) -> dict[str, Any]:
    """Return all options, checked, by their Python names."""
    usual = {kebab(spec.name): spec.default for spec in fields(options)}
    return checked_all(fields(options), {**usual, **typed_settings(arguments, options)})


def _planned(arguments: argparse.Namespace, options: dict[str, Any]) -> AppAudit:
    """Return what is asked for; raise for what cannot be."""
    clients = options["clients"]
    auditors, seats = _auditors(options, arguments.thorough), _seats(options["seats"], clients)
    project = AppProject.read(arguments.path, options["run_config"], options["node_config"])
    if project.node and options.get("engine") == "flwr":
        allowed = "left out with --engine flwr, whose clients have a number and nothing more"
        raise out_of_range(
            "--node-config", allowed, options["node_config"], fix="Try --engine inline"
        )
    claims = _claims(project, options.get("claim", ""))
    from leakmeter.fl_app.audit_app.session import AppAudit
    from leakmeter.fl_app.run.folder import check_free

    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    out = expanded("--out", arguments.out or f"runs/{stamp}-{Path(project.name).name}")
    check_free(out)
    return AppAudit(project, out, clients, auditors, seats, claims)


def _auditors(options: dict[str, Any], thorough: bool) -> tuple[str, ...]:
    named = names_of("--auditors", options["auditors"], NAMES)
    return tuple(dict.fromkeys([*named, *(_RESAMPLING if thorough else ())]))


def _claims(project: AppProject, typed: str) -> tuple[Claim, ...]:
    """Return what the app's file and the command line claim."""
    from leakmeter.auditors.verdict.claim import claims_of  # imports numpy

    try:
        listed = claims_of(project.claims, f"{project.path / 'pyproject.toml'}: claims")
        return claims_of([*listed, *claims_of(typed, "--claim")])
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _seats(text: str, clients: int) -> int:
    """Return the number of seats; 0 for auto."""
    if text == "auto":
        return 0
    most = (clients - 1) // 2
    if not text.isdecimal() or not 1 <= int(text) <= max(most, 1):
        allowed = f"auto or from 1 to {max(most, 1)}, fewer than half of --clients {clients}"
        raise out_of_range("--seats", allowed, text, fix="Try --seats auto")
    return int(text)


def _what(audit: AppAudit) -> str:
    return f"{audit.project.name}, {counted(audit.clients, 'client')}"
