"""Runs a published table or figure again and leaves data for programs and a page for people."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import cast

from fl_app.errors import ConfigError, unknown_name
from fl_app.experiments import EXPERIMENTS
from fl_app.parser import Parser

_SCALES = ("paper", "small")


def main(argv: Sequence[str]) -> int:
    """Run `leakmeter reproduce`."""
    parser = Parser(
        prog="leakmeter reproduce",
        description="Runs a published table or figure again, beside what was published.",
        allow_abbrev=False,
    )
    parser.add_argument("name", nargs="?", help="which one; see --list")
    parser.add_argument("--list", action="store_true", help="list what there is")
    parser.add_argument(
        "--scale",
        metavar="|".join(_SCALES),
        default="small",
        help="the published size, or one that takes seconds (default: small)",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="where to (default: runs/reproduce/NAME-SCALE)"
    )
    arguments = parser.parse_args(argv)
    if arguments.list:
        for name, (_, what) in EXPERIMENTS.items():
            print(f"{name:24} {what}")
        return 0
    if arguments.name is None:
        raise ConfigError(f"name must be one of {', '.join(EXPERIMENTS)}, got none")
    if arguments.name not in EXPERIMENTS:
        raise unknown_name("name", arguments.name, EXPERIMENTS)
    if arguments.scale not in _SCALES:
        raise unknown_name("scale", arguments.scale, _SCALES)
    return _run(arguments.name, arguments.scale, arguments.out)


def _run(name: str, scale: str, out: str | None) -> int:
    """Compute what is missing and print the table."""
    from fl_app.experiments.base import Cells, Experiment, write_table

    module = cast(Experiment, import_module(f"fl_app.experiments.{EXPERIMENTS[name][0]}"))
    # After this import: Flower sets its own level when it is imported.
    logging.getLogger("flwr").setLevel(logging.WARNING)
    folder = Path(out) if out else Path("runs") / "reproduce" / f"{name}-{scale}"
    print(f"{name}, scale {scale}: about {module.seconds(scale):.0f} s on a core of its own;")
    print(f"cells that are already in {folder} are kept", flush=True)
    table = module.run(scale, Cells(folder / "cells", lambda text: print(text, flush=True)))
    write_table(table, folder)
    print(table.to_markdown())
    print(f"written to {folder}")
    return 0
