"""`leakmeter self-audit`: a client finds out what taking part reveals about its own records."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from leakmeter.fl_app.config.errors import ConfigError

if TYPE_CHECKING:
    from leakmeter.auditors.records.own_models import OwnLosses

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


def set_up(parser: argparse.ArgumentParser) -> None:
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
    from leakmeter.auditors.verdict.lines import LEAKS, Ending, Step, details, summary
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
    ending = Ending([Step(_AFTER_A_LEAK if is_shown else _AFTER_NOTHING)], adds_noise=None)
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
