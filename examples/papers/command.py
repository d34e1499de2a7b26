"""What `reproduce` does: lists the experiments, runs one, or writes the page of results."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from leakmeter.fl_app.config.field import ConfigError, nearest, unknown_name
from leakmeter.fl_app.config.settings import ENGINES
from leakmeter.papers.registry import EXPERIMENTS, SCALES, Entry, duration


def reproduce(arguments: argparse.Namespace) -> int:
    """List, write the page of results, or run one experiment."""
    if arguments.list:
        print(_listing())
        return 0
    if arguments.results is not None:
        from leakmeter.papers.results_page import write_page

        print(f"written to {write_page(Path(arguments.results))}")
        return 0
    if arguments.name is None:
        raise ConfigError(
            f"NAME is missing; try {next(iter(EXPERIMENTS))}, or --list for all names"
        )
    if arguments.name not in EXPERIMENTS:
        hint = nearest(arguments.name, EXPERIMENTS) or "; --list shows all of them"
        raise ConfigError(f"unknown experiment {arguments.name}{hint}")
    if arguments.scale not in SCALES:
        raise unknown_name("--scale", arguments.scale, SCALES)
    if arguments.engine not in ENGINES:
        raise unknown_name("--engine", arguments.engine, ENGINES)
    if arguments.ray_address and arguments.engine != "ray":
        raise ConfigError(f"--ray-address needs --engine ray, got --engine {arguments.engine}")
    where = arguments.out or f"runs/reproduce/{arguments.name}-{arguments.scale}"
    with _engine(arguments.name, arguments.engine, arguments.ray_address):
        return _run(arguments.name, arguments.scale, Path(where))


def _listing() -> str:
    """Return a line for every experiment: name, times of both scales, data, and what it shows."""
    rows = [("name", "small", "paper", "data", "what")]
    for name, entry in EXPERIMENTS.items():
        times = duration(entry.small), duration(entry.paper)
        rows.append((name, *times, _data(entry), entry.what))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [
        f"{row[0]:{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  "
        f"{row[3]:{widths[3]}}  {row[4]}"
        for row in rows
    ]
    return "\n".join([*lines, "(data in brackets are for the scale paper only)"])


def _data(entry: Entry) -> str:
    """Return which data sets are read, those of the published size alone in brackets."""
    shown = [name if name in entry.small_data else f"({name})" for name in entry.data]
    return " ".join(shown) or "-"


def _engine(name: str, engine: str, address: str) -> AbstractContextManager[None]:
    """Return what an experiment runs in."""
    if engine == "inline":
        return nullcontext()
    if not EXPERIMENTS[name].distributes:
        print(f"{name} has no work that Ray could distribute; it runs in this process")
        return nullcontext()
    from leakmeter.papers.distribute import over_ray

    return over_ray(address)


def _run(name: str, scale: str, folder: Path) -> int:
    """Compute what is missing and print the table."""
    import logging

    from leakmeter.papers.base import Cells, Plan, write_table
    from leakmeter.papers.plot import require_matplotlib

    require_matplotlib()
    entry = EXPERIMENTS[name]
    time = duration(entry.seconds(scale))
    print(f"{name}, scale {scale}: about {time} on one core;")
    print(f"cells that are already in {folder} are kept", flush=True)
    experiment = entry.load()
    # After this import: Flower sets its own level when it is imported.
    logging.getLogger("flwr").setLevel(logging.WARNING)
    plan = Plan(entry.cells, entry.paper) if scale == "paper" else None
    cells = Cells(folder, partial(print, flush=True), partial(_require, entry, scale), plan)
    table = experiment(scale, cells)
    write_table(table, folder)
    print(table.to_markdown())
    print(f"written to {folder}")
    return 0


def _require(entry: Entry, scale: str) -> None:
    """Raise what is wrong with the data before anything is computed from them."""
    from leakmeter.fl_app.data import dataset as data

    for name in entry.needs(scale):
        if name == "writers":
            data.load("mnist").known_users()
        else:
            data.load(name)
