"""`leakmeter sweep`: many settings compared, by accuracy and by what is guaranteed."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import fields
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from leakmeter import __version__
from leakmeter.auditors.wording import counted
from leakmeter.fl_app.cli.run import GROUPS, add_preset, add_setting, given_settings
from leakmeter.fl_app.config.config import Config, preset_line, preset_settings
from leakmeter.fl_app.config.errors import ConfigError, interrupted_code
from leakmeter.fl_app.config.field import kebab, number_or_text, read_toml
from leakmeter.fl_app.report import NAME
from leakmeter.fl_app.sweep.points import REFUSED, Plan, named, plan_of, shown

if TYPE_CHECKING:
    from leakmeter.fl_app.sweep.sweep import SweepFolder

_USAGE = """\
%(prog)s --over NAME=V1,V2 [--seeds N] [settings]
       %(prog)s --resume DIR"""
_DESCRIPTION = """\
Compares settings: how accurate the model becomes, and what is guaranteed. Every
combination of the values is a point. First all points are rehearsed without
auditors, then those on the frontier are audited. A page, a table and JSON in
the sweep's folder have the numbers, and a command for every point.

All settings of a run can be given; those that are not differ from a run in
  --noise distributed (local with --secagg off), --clip-norm auto,
  --auditors one-shot
"""
_EPILOG = """\
exit codes:
  0  all points have run
  1  an audit failed
  2  a wrong option or folder, or points that cannot run

examples:
  %(prog)s --target-epsilon 1..32
      from strong to weak noise: 1, 2, 4, 8, 16 and 32
  %(prog)s --over rounds=20,40 --over sample=30,60 --seeds 3
      four points, each with three seeds
  %(prog)s --noise central --against outsider --rounds 10..80
      guarantees against whoever sees the models only
  %(prog)s --resume runs/sweep
      continue where a sweep stopped; points that are there are read
"""
_AGAINST = (
    "attackers that guarantees are compared for: server, outsider or wire, or one with what it "
    "sees, such as outsider/noised-sum (default: all against whom a point guarantees something)"
)


def set_up(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command, and those of a run."""
    parser.usage, parser.description, parser.epilog = _USAGE, _DESCRIPTION, _EPILOG
    parser.set_defaults(call=_sweep, has_settings=True)
    add_preset(parser)
    parser.add_argument(
        "--over",
        metavar="NAME=V1,V2",
        action="append",
        default=[],
        help="a setting and its values, or a range such as target-epsilon=1..32, whose values "
        "about double; can be repeated. Numbers can also be given so themselves: "
        "--target-epsilon 1..32",
    )
    parser.add_argument(
        "--seeds",
        metavar="N",
        type=partial(number_or_text, int),
        default=1,
        help="runs of each point, with the seed and the next ones; the first is audited "
        "(default: 1)",
    )
    parser.add_argument(
        "--skip-refused",
        action="store_true",
        help="leave out points whose settings do not go together, rather than refusing all",
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file with any of the settings below")
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="new or empty folder for the sweep (default: runs/<time>-sweep)",
    )
    parser.add_argument("--resume", metavar="DIR", help="continue the sweep in this folder")
    parser.add_argument(
        "--verbose", action="store_true", help="show Flower's log and repeated warnings too"
    )
    groups = {name: parser.add_argument_group(title) for name, title in GROUPS.items()}
    for spec in fields(Config):
        text = argparse.SUPPRESS if kebab(spec.name) in REFUSED else spec.metadata["help"]
        text = _AGAINST if spec.name == "against" else text
        add_setting(groups[spec.metadata["group"]], spec, text)


def _sweep(arguments: argparse.Namespace) -> int:
    """Check all points, run the sweep, and print what came of it."""
    folder = None if arguments.resume is None else _opened(arguments)
    plan = _plan(arguments) if folder is None else folder.plan
    points, refused = plan.points()
    out = _out(arguments) if folder is None else folder.path
    axes = "; ".join(f"{axis.name} {', '.join(map(shown, axis.values))}" for axis in plan.axes)
    seeds = f", {counted(plan.seeds, 'seed')} each" if plan.seeds > 1 else ""
    count = counted(len(points), "point")
    print(f"leakmeter {__version__}: {count} ({axes}){seeds}; checking …", flush=True)
    from leakmeter.auditors.verdict.lines import Ending
    from leakmeter.fl_app.engines import inline  # noqa: F401 - clients are simulated
    from leakmeter.fl_app.report.judge import program
    from leakmeter.fl_app.run.progress import Progress, set_flower_log
    from leakmeter.fl_app.sweep.results import TABLE
    from leakmeter.fl_app.sweep.sweep import SweepFolder, check_points, run_sweep

    set_flower_log(verbose=arguments.verbose)  # after these imports: Flower sets its own level
    points, more = check_points(plan, points)
    folder = folder or SweepFolder.create(out, plan)
    progress = Progress()
    try:
        results = run_sweep(folder, points, [*refused, *more], progress)
    except ConfigError:
        raise
    except BaseException as error:
        progress.stop()
        how = f"resume with: {program()} sweep --resume {shlex.quote(str(folder.path))}"
        if isinstance(error, KeyboardInterrupt):
            progress.say(f"interrupted; {how}")
            return interrupted_code(error)
        if isinstance(error, OSError):
            wrong = f"{folder.path} must be writable, got: {error.strerror}"
            print(f"error: {wrong}; free some space there, then {how}", file=sys.stderr)
            return 1
        progress.say(f"the sweep failed; {how}")
        raise
    progress.say("")
    for line in results.lines(progress.fitted(Ending())):
        progress.say(line)
    progress.say(f"page: {folder.path / NAME}")
    progress.say(f"table: {folder.path / TABLE}")
    return int(any(one.audit is not None and one.audit.failures for one in results.points))


def _plan(arguments: argparse.Namespace) -> Plan:
    """Return the plan of a new sweep."""
    preset = preset_settings(arguments.preset)
    settings = preset | (read_toml(Path(arguments.config)) if arguments.config else {})
    for text in arguments.over:  # what is typed replaces what is in the file
        settings.pop(named(text), None)
    given = {**settings, **given_settings(arguments)}
    if preset:
        left = {name: value for name, value in preset.items() if given.get(name) == value}
        print(preset_line(arguments.preset, left))
    return plan_of(
        given, arguments.over, seeds=arguments.seeds, skips_refused=arguments.skip_refused
    )


def _opened(arguments: argparse.Namespace) -> SweepFolder:
    """Return the sweep to continue, which has its settings."""
    more = {"config": arguments.config, "out": arguments.out, "over": arguments.over}
    more |= {"seeds": arguments.seeds != 1, "skip-refused": arguments.skip_refused}
    more["preset"] = arguments.preset
    names = [*given_settings(arguments), *(name for name, value in more.items() if value)]
    if names:
        raise ConfigError(
            f"--resume takes all settings from the folder; leave out --{', --'.join(sorted(names))}"
        )
    from leakmeter.fl_app.sweep.sweep import SweepFolder

    return SweepFolder.open(Path(arguments.resume))


def _out(arguments: argparse.Namespace) -> Path:
    """Return the folder of a new sweep, if one may begin there."""
    from leakmeter.fl_app.run.folder import check_free, free_path

    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    out = Path(arguments.out) if arguments.out else free_path(Path("runs") / f"{stamp}-sweep")
    check_free(out)
    return out
