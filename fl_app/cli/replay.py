"""`leakmeter replay`: audit a recorded run again, without training, with other settings."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from leakmeter.fl_app.cli.run import add_setting, given_settings
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import kebab

_DESCRIPTION = """\
Audits a recorded run again, without training: with other auditors, or with
other settings of theirs. The run must have been recorded with --auditors
...,recorder. The same settings give the same findings. Settings that you leave
out are those of the recorded run.
"""
_EPILOG = """\
Settings of the training and of the canaries are those of the recorded run and
cannot be changed.
An interrupted run is audited as far as it was recorded.
"""
# Where the data are; everything else that is not about audits belongs to the recorded run.
_ELSEWHERE = ("data-dir", "download")


def set_up(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.set_defaults(call=replay)
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


def replay(arguments: argparse.Namespace) -> int:
    """Audit the recorded run and print where the results are."""
    from leakmeter.fl_app.run.replay import audit_again, free_folder, open_recorded

    # A mistake here needs no torch, so that is imported after it.
    recorded = open_recorded(Path(arguments.run))
    config = recorded.settings(given_settings(arguments))
    from leakmeter.fl_app.report.read import REPLAY_OF
    from leakmeter.fl_app.run.progress import Progress, set_flower_log
    from leakmeter.fl_app.run.run import end

    set_flower_log(verbose=arguments.verbose)  # after these imports: Flower sets its own level
    progress = Progress()
    out = free_folder(arguments.out, recorded.run)
    try:
        outcome = audit_again(recorded, config, out, progress)
    except KeyboardInterrupt:
        progress.stop()
        progress.say("interrupted; a replay cannot be resumed, start it again")
        return 130
    has_page = end(out, config.to_mapping() | {REPLAY_OF: str(recorded.run)}, outcome, progress)
    return 1 if outcome.failures or not has_page else 0
