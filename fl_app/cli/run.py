"""`leakmeter run`, the default command: train, audit, and leave a folder with the results."""

from __future__ import annotations

import argparse
import sys
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakmeter import __version__
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError, two_multipliers
from leakmeter.fl_app.config.field import expanded, kebab, read_toml
from leakmeter.fl_app.config.meaning import check_meaning, is_written_by_a_run

if TYPE_CHECKING:
    from leakmeter.fl_app.run.folder import RunFolder

_GROUPS = {
    "task": "Data and model",
    "federation": "Federation",
    "client": "Client",
    "privacy": "Protection",
    "audit": "Audit",
    "run": "Run",
}
_USAGE = """\
%(prog)s [--config FILE] [--out DIR | --resume DIR] [settings]
       %(prog)s report RUN [RUN ...]
       %(prog)s reproduce NAME
       %(prog)s replay RUN --auditors NAMES [settings]"""
_DESCRIPTION = """\
Runs federated learning and measures what its aggregates leak: clients train a model together,
auditors look at every round, and a report says what an adversary could have learnt.
"""
_EPILOG = """\
commands:
  run         train and audit; the default, so you can leave the word out
  report      write a page about one run, or compare several
  reproduce   repeat a published table or figure
  replay      audit a recorded run again, without training
  `%(prog)s report --help` and so on list the options of each.

examples:
  %(prog)s
      the default job: 60 clients learn handwritten digits, four audits; results in runs/
  %(prog)s --out runs/demo --rounds 50
      longer, in a folder of your choice
  %(prog)s --config runs/demo/config.toml --seed 1
      the same settings with another seed
  %(prog)s --resume runs/demo
      resume an interrupted run
  %(prog)s report runs/demo runs/other
      one page about both runs, side by side
  %(prog)s reproduce --list
      all published tables and figures that can be repeated
  %(prog)s --out runs/kept --auditors one-shot,recorder
  %(prog)s replay runs/kept --auditors one-shot,likelihood-ratio --delta 1e-6
      record a run, then audit it again with other auditors and settings
"""


def set_up(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command, made from the fields of `Config`."""
    parser.usage, parser.description, parser.epilog = _USAGE, _DESCRIPTION, _EPILOG
    parser.set_defaults(call=run, program=parser.prog)
    parser.add_argument("--version", action="version", version=f"leakmeter {__version__}")
    parser.add_argument("--config", metavar="FILE", help="TOML file with any of the settings below")
    parser.add_argument(
        "--out", metavar="DIR", help="new folder for the results (default: runs/<time>)"
    )
    parser.add_argument("--resume", metavar="DIR", help="resume the run in this folder")
    parser.add_argument("--verbose", action="store_true", help="show Flower's log too")
    groups = {name: parser.add_argument_group(title) for name, title in _GROUPS.items()}
    for spec in fields(Config):
        text = spec.metadata["help"]
        if type(spec.default) is not bool and spec.default != "":
            shown = f"{spec.default:g}" if isinstance(spec.default, float) else spec.default
            text += f" (default: {shown})"
        add_setting(groups[spec.metadata["group"]], spec, text)


def add_setting(group: argparse._ActionsContainer, spec: Field[Any], text: str) -> None:
    """Add the option of one setting; it is in the result only if the user gives it."""
    kind, meta = type(spec.default), spec.metadata
    options: dict[str, Any] = {"default": argparse.SUPPRESS, "dest": kebab(spec.name)}
    if kind is bool:
        options |= {"action": argparse.BooleanOptionalAction}
    else:
        # Choices and ranges are checked by Config, so that TOML gets the same messages.
        names = "|".join(meta["choices"]) or meta["metavar"]
        options |= {"type": kind, "metavar": names or {int: "N", float: "X"}[kind]}
    group.add_argument(f"--{kebab(spec.name)}", help=text, **options)


def run(arguments: argparse.Namespace) -> int:
    """Run or resume, with progress, and print where the results are."""
    known = {kebab(spec.name) for spec in fields(Config)}
    given = {name: value for name, value in vars(arguments).items() if name in known}
    config = _config(arguments, given)
    import logging

    # Loaded before anything is planned: it shows that clients are simulated, and so that the
    # cohorts are those of the run's seed.
    from leakmeter.fl_app.engines import inline  # noqa: F401
    from leakmeter.fl_app.run.folder import RunFolder, default_path
    from leakmeter.fl_app.run.preflight import preflight

    # After these imports: Flower sets its own level when it is imported.
    logging.getLogger("flwr").setLevel(logging.INFO if arguments.verbose else logging.WARNING)

    if config is None:
        folder = RunFolder.open(Path(arguments.resume))
        preflight(folder.config, folder.path)
        folder.load()  # a broken checkpoint is an error before anything starts
    else:
        config = preflight(config)
        out = Path(arguments.out) if arguments.out else default_path(config, Path("runs"))
        folder = RunFolder.create(out, config)
    return _launch(folder, f"resume with: {arguments.program} --resume {folder.path}")


def _config(arguments: argparse.Namespace, given: dict[str, Any]) -> Config | None:
    """Return the settings of a new run; None for one that is resumed, whose folder has them."""
    if arguments.resume is not None:
        more = {"config": arguments.config, "out": arguments.out}
        names = sorted(given) + [name for name, value in more.items() if value]
        if names:
            raise ConfigError(
                f"--resume takes all settings from the folder; leave out --{', --'.join(names)}"
            )
        return None
    settings = read_toml(Path(arguments.config)) if arguments.config else {}
    wanted = {**settings, **given}
    if is_written_by_a_run(settings):  # what is typed now has the meaning of now
        check_meaning(wanted, Path(arguments.config))
    config = Config.from_mapping(wanted)
    if config.target_epsilon and "noise-multiplier" in wanted:
        raise two_multipliers(config.noise_multiplier, config.target_epsilon)
    paths = {"data_dir": config.data_dir, "ledger": config.ledger}
    # So that the run can be repeated and resumed from anywhere.
    absolute = {k: str(expanded(kebab(k), v)) for k, v in paths.items() if v}
    return replace(config, **absolute)  # type: ignore[arg-type]


def _launch(folder: RunFolder, how_to_resume: str) -> int:
    """Launch, and say how to resume a run that is cut short."""
    from leakmeter.fl_app.report import leave_page
    from leakmeter.fl_app.run.launch import launch
    from leakmeter.fl_app.run.progress import Progress

    progress = Progress()
    try:
        outcome = launch(folder, progress)
    except ConfigError:
        raise
    except KeyboardInterrupt:
        progress.stop()
        progress.say(f"interrupted; {how_to_resume}")
        return 130
    except OSError as error:
        progress.stop()
        if (words := folder.explained(error)) is None:
            progress.say(f"the run failed; {how_to_resume}")
            raise
        print(f"error: {words}; {how_to_resume}", file=sys.stderr)
        return 1
    except BaseException:
        progress.stop()
        progress.say(f"the run failed; {how_to_resume}")
        raise
    progress.summary(outcome.findings, outcome.failures, outcome.limitations, outcome.warnings)
    has_page = leave_page(folder.path, progress.say)
    if not (folder.path / "report.json").exists():
        progress.say(f"no report could be written; {how_to_resume}")
        return 1
    progress.say(f"report: {folder.path / 'report.json'}")
    return 0 if outcome.is_complete and has_page else 1
