"""`leakmeter reproduce`: repeat a published table or figure, for programs and for people."""

from __future__ import annotations

import argparse
from importlib import import_module
from importlib.util import find_spec

from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.config.settings import ENGINES

# The experiments are no part of an installation. A checkout has them in examples/papers, and offers
# them under this name.
_PAPERS = "leakmeter.papers"
_RESULTS = "docs/results"


def set_up(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.description = "Repeats a published table or figure and lists both results together."
    parser.set_defaults(call=reproduce)
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


def reproduce(arguments: argparse.Namespace) -> int:
    """Hand over to the experiments of the checkout."""
    if find_spec(_PAPERS) is None:
        raise ConfigError(
            "reproduce needs a clone of the repository, since an installation does not contain the "
            "experiments (examples/papers); in the clone, run python run_sim.py reproduce --list"
        )
    code: int = import_module(f"{_PAPERS}.command").reproduce(arguments)
    return code
