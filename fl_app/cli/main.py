"""The command line; imports nothing heavy before it knows what to do."""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakmeter.fl_app.cli.parser import Parser
from leakmeter.fl_app.config.config import Config, kebab, read_toml
from leakmeter.fl_app.config.errors import ConfigError

if TYPE_CHECKING:
    from leakmeter.fl_app.run.folder import RunFolder

_GROUPS = {
    "task": "what is learnt",
    "federation": "who learns it",
    "client": "what a client does",
    "privacy": "what protects it",
    "audit": "what is looked for",
    "run": "how it is run",
}
_DESCRIPTION = """\
Runs federated learning and measures what its aggregates leak: clients train a model together,
auditors look at every round, and a report says what an adversary could have learnt.
"""
_EPILOG = """\
examples:
  %(prog)s
      the default job: 60 clients learn handwritten digits, one audit; results in runs/
  %(prog)s --out runs/demo --rounds 50
      longer, in a folder of your choice
  %(prog)s --config runs/demo/config.toml --seed 1
      the same again with another seed
  %(prog)s --resume runs/demo
      go on with a run that was interrupted
  %(prog)s report runs/demo runs/other
      one page about both runs, side by side
  %(prog)s reproduce --list
      published tables and figures that can be run again, each by its name
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 0 done, 1 failed, 2 a user's mistake."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # no ε in the terminal's alphabet ends no run
            stream.reconfigure(errors="replace")
    # Small vectors on many threads cost more than they save, tenfold where cores are shared. These
    # are read when numpy is imported, which nothing has done yet; a user's own settings stay.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["run"]:
        arguments = arguments[1:]
    try:
        if arguments[:1] == ["reproduce"]:
            from leakmeter.fl_app.cli.reproduce import main as reproduce

            return reproduce(arguments[1:])
        if arguments[:1] == ["report"]:
            from leakmeter.fl_app.cli.report import main as report

            return report(arguments[1:], _program())
        return _run(_parser().parse_args(arguments))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before the run has begun
        return 130


def _program() -> str:
    """Return how this program was called, for examples that can be copied."""
    return "leakmeter" if Path(sys.argv[0]).stem == "leakmeter" else "python run_sim.py"


def _parser() -> argparse.ArgumentParser:
    """Return the parser, made from the fields of `Config`."""
    parser = Parser(
        prog=_program(),
        usage="%(prog)s [--config FILE] [--out DIR | --resume DIR] [settings]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file with any of the settings below")
    parser.add_argument(
        "--out", metavar="DIR", help="new folder for the results (default: runs/<time>)"
    )
    parser.add_argument("--resume", metavar="DIR", help="go on with the run in this folder")
    parser.add_argument("--verbose", action="store_true", help="show Flower's log too")
    groups = {name: parser.add_argument_group(title) for name, title in _GROUPS.items()}
    for spec in fields(Config):
        meta = spec.metadata
        options: dict[str, Any] = {"default": argparse.SUPPRESS, "dest": kebab(spec.name)}
        text = meta["help"]
        kind = type(spec.default)
        if kind is bool:
            options |= {"action": argparse.BooleanOptionalAction}
        else:
            # Choices and ranges are checked by Config, so that TOML gets the same messages.
            names = "|".join(meta["choices"]) or meta["metavar"]
            options |= {"type": kind, "metavar": names or {int: "N", float: "X"}[kind]}
        if kind is not bool and spec.default != "":
            text += f" (default: {spec.default})"
        groups[meta["group"]].add_argument(f"--{kebab(spec.name)}", help=text, **options)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    """Run or resume, with progress, and print where the results are."""
    given = {
        k: v for k, v in vars(arguments).items() if k in {kebab(f.name) for f in fields(Config)}
    }
    if arguments.resume is not None:
        if given or arguments.config or arguments.out:
            names = (
                sorted(given) + ["config"] * bool(arguments.config) + ["out"] * bool(arguments.out)
            )
            raise ConfigError(
                f"resume takes all settings from the folder, got also {', '.join(names)}"
            )
    else:
        settings = read_toml(Path(arguments.config)) if arguments.config else {}
        config = Config.from_mapping({**settings, **given})
        paths = {"data_dir": config.data_dir, "ledger": config.ledger}
        # So that the run can be repeated and resumed from anywhere.
        absolute = {k: str(Path(v).expanduser().absolute()) for k, v in paths.items() if v}
        config = replace(config, **absolute)  # type: ignore[arg-type]
    from leakmeter.fl_app.engines.launch import launch
    from leakmeter.fl_app.run.folder import RunFolder, default_path
    from leakmeter.fl_app.run.preflight import preflight
    from leakmeter.fl_app.run.progress import Progress

    # After these imports: Flower sets its own level when it is imported.
    logging.getLogger("flwr").setLevel(logging.INFO if arguments.verbose else logging.WARNING)

    if arguments.resume is not None:
        folder = RunFolder.open(Path(arguments.resume))
        preflight(folder.config, folder.path)
        folder.load()  # a broken checkpoint is an error before anything starts
    else:
        preflight(config)
        out = Path(arguments.out) if arguments.out else default_path(config, Path("runs"))
        folder = RunFolder.create(out, config)
    return _conduct(folder, Progress(), launch)


def _conduct(folder: RunFolder, progress: Any, launch: Any) -> int:
    """Launch, and say how to go on if it is cut short."""
    go_on = f"go on with: {_program()} --resume {folder.path}"
    try:
        outcome = launch(folder, progress)
    except ConfigError:
        raise
    except KeyboardInterrupt:
        progress.stop()
        progress.say(f"interrupted; {go_on}")
        return 130
    except BaseException:
        progress.stop()
        progress.say(f"the run died; {go_on}")
        raise
    from leakmeter.fl_app.report import leave_page

    progress.summary(outcome.findings, outcome.failures)
    has_page = leave_page(folder.path, progress.say)
    progress.say(f"report: {folder.path / 'report.json'}")
    return 1 if outcome.failures or not has_page else 0
