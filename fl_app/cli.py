"""The command line; imports nothing heavy before it knows what to do."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_app.config import Config, kebab, read_toml
from fl_app.errors import ConfigError

if TYPE_CHECKING:
    from fl_app.folder import RunFolder

_GROUPS = {
    "task": "what is learnt",
    "federation": "who learns it",
    "client": "what a client does",
    "audit": "what is looked for",
    "run": "how it is run",
}
_EPILOG = """\
examples:
  python run_sim.py                                   the default job: digits, 60 clients, one audit
  python run_sim.py --out runs/demo --rounds 50       longer, in a folder of your choice
  python run_sim.py --config runs/demo/config.toml --seed 1      the same again with another seed
  python run_sim.py --resume runs/demo                go on with a run that was interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 0 done, 1 failed, 2 a user's mistake."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["run"]:
        arguments = arguments[1:]
    try:
        return _run(_parser().parse_args(arguments))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    """Return the parser, made from the fields of `Config`."""
    parser = argparse.ArgumentParser(
        prog="leakmeter",
        description="Runs federated learning and measures what its aggregates leak.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file with any of these settings")
    parser.add_argument("--out", metavar="DIR", help="new folder of the run (default: runs/<time>)")
    parser.add_argument("--resume", metavar="DIR", help="go on with the run in this folder")
    parser.add_argument("--verbose", action="store_true", help="show Flower's log too")
    groups = {name: parser.add_argument_group(title) for name, title in _GROUPS.items()}
    for spec in fields(Config):
        meta = spec.metadata
        options: dict[str, Any] = {"default": argparse.SUPPRESS, "dest": kebab(spec.name)}
        text = meta["help"]
        if spec.type == "bool":
            options |= {"action": argparse.BooleanOptionalAction}
        else:
            # Choices and ranges are checked by Config, so that TOML gets the same messages.
            names = "|".join(meta["choices"])
            kind = {"int": int, "float": float}.get(str(spec.type), str)
            options |= {"type": kind, "metavar": names or {int: "N", float: "X"}.get(kind, "TEXT")}
        if spec.default not in ("", False):
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
            raise ConfigError(f"resume takes all settings from the folder, got also {names}")
    else:
        settings = read_toml(Path(arguments.config)) if arguments.config else {}
        config = Config.from_mapping({**settings, **given})
    from fl_app.engine import launch
    from fl_app.folder import RunFolder, default_path
    from fl_app.preflight import preflight
    from fl_app.progress import Progress

    # After these imports: Flower sets its own level when it is imported.
    logging.getLogger("flwr").setLevel(logging.INFO if arguments.verbose else logging.WARNING)

    if arguments.resume is not None:
        folder = RunFolder.open(Path(arguments.resume))
        preflight(folder.config)
        folder.load()  # a broken checkpoint is an error before anything starts
    else:
        preflight(config)
        out = Path(arguments.out) if arguments.out else default_path(config, Path("runs"))
        folder = RunFolder.create(out, config)
    return _conduct(folder, Progress(), launch)


def _conduct(folder: RunFolder, progress: Any, launch: Any) -> int:
    """Launch, and say how to go on if it is cut short."""
    try:
        outcome = launch(folder, progress)
    except KeyboardInterrupt:
        progress.stop()
        progress.say(f"interrupted; go on with: python run_sim.py --resume {folder.path}")
        return 130
    except BaseException:
        progress.stop()
        progress.say(f"the run died; go on with: python run_sim.py --resume {folder.path}")
        raise
    progress.summary(outcome.findings, outcome.failures)
    progress.say(f"report: {folder.path / 'report.json'}")
    return 1 if outcome.failures else 0
