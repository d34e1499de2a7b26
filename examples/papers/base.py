"""What experiments share: cells that are computed once, and tables for people and programs."""

from __future__ import annotations

import csv
import io
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from leakmeter.auditors.codec import plain
from leakmeter.auditors.run_log import write_atomically
from leakmeter.papers.plot import Gallery, Panel, drawn
from leakmeter.papers.registry import duration

if TYPE_CHECKING:
    from torch import nn

    from leakmeter.auditors import Auditor
    from leakmeter.fl_app.config.config import Config
    from leakmeter.fl_app.report.read import Run
    from leakmeter.fl_app.task import Task

Say = Callable[[str], None]
T = TypeVar("T")
Key = TypeVar("Key", bound=tuple[Any, ...])
P = ParamSpec("P")
CELLS = "cells.jsonl"  # what was computed, a cell per line
_PATIENCE = 60.0  # seconds without a word


@dataclass(frozen=True)
class Comparison:
    """What was published, and what came out here."""

    source: str  # where it is published, such as "Andrew et al. 2024, Table 1"
    what: str  # what is compared, with its conditions
    paper: str  # the published figure or claim
    ours: str  # the same of ours
    why: str = ""  # why they differ; empty where they agree


@dataclass(frozen=True)
class Table:
    """Rows of an experiment, with what they mean."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = ()
    figures: Mapping[str, Sequence[Panel] | Gallery] = field(default_factory=dict)  # by file name
    comparisons: Sequence[Comparison] = ()

    def to_csv(self) -> str:
        """Return the table for programs."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([self.columns, *self.rows])
        return text.getvalue()

    def to_markdown(self) -> str:
        """Return the table for people."""
        lines = [f"## {self.title}", "", table_line(self.columns)]
        lines += map(table_line, (["---"] * len(self.columns), *self.rows))
        for name in self.figures:
            lines += ["", f"![{self.title}]({name})"]
        return "\n".join([*lines, "", *self.notes]) + "\n"


@dataclass(frozen=True)
class Plan:
    """How much work is ahead."""

    cells: int
    seconds: float  # that they usually take

    def left(self, kept: int, fresh: int, spent: float) -> float:
        """Return how many more seconds it will take, as if all cells took equally long.

        Args:
            kept: Cells of earlier runs.
            fresh: Cells of this run.
            spent: Seconds that these have taken.
        """
        each = spent / fresh if fresh else self.seconds / self.cells
        return each * max(self.cells - kept - fresh, 0)


class Cells:
    """Results kept one by one in `cells.jsonl`, so that an interrupted experiment can resume.

    Args:
        folder: Folder of the experiment.
        say: Told of every cell that was computed, and now and then of one that takes long.
        before: Called once, before the first cell that has to be computed; it may refuse.
        plan: From which `say` learns how much time is left.
    """

    def __init__(
        self,
        folder: Path,
        say: Say,
        before: Callable[[], None] | None = None,
        plan: Plan | None = None,
    ) -> None:
        self.folder, self._say, self._before, self._plan = folder, say, before, plan
        self._start = self._latest = time.monotonic()
        self._kept = read_cells(folder)
        self._earlier = len(self._kept)

    def get(self, key: str, compute: Callable[P, Any], /, *args: P.args, **how: P.kwargs) -> Any:
        """Return what `compute` gave for this key, now or in an earlier run."""
        if key in self._kept:
            return self._kept[key]
        if self._before:
            self._before()
            self._before = None
        # As it will be read again, so that a resumed experiment has the same numbers.
        with self._watched(key):
            self._kept[key] = json.loads(json.dumps(plain(compute(*args, **how))))
        self.folder.mkdir(parents=True, exist_ok=True)
        # All cells by name: interruptions do not change the file.
        lines = [
            json.dumps({"cell": name, "value": self._kept[name]}) for name in sorted(self._kept)
        ]
        write_atomically(self.folder / CELLS, "\n".join(lines) + "\n")
        self._latest = time.monotonic()
        self._say(f"  {key}: done after {duration(self._latest - self._start)}{self._ahead()}")
        return self._kept[key]

    @contextmanager
    def _watched(self, key: str) -> Iterator[None]:
        """Say once a minute that a cell is still computed."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(_PATIENCE):
                spent = duration(time.monotonic() - self._start)
                self._say(f"  {key}: still running after {spent}{self._ahead()}")

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        try:
            yield
        finally:
            done.set()
            watching.join()

    def _ahead(self) -> str:
        """Return what is left to do, in words."""
        if self._plan is None or (total := self._plan.cells) <= (done := len(self._kept)):
            return ""
        spent = self._latest - self._start
        left = self._plan.left(self._earlier, done - self._earlier, spent)
        left -= time.monotonic() - self._latest  # of the cell that is computed now
        about = f"about {duration(left)} left" if left > 0 else "longer than usual"
        return f"; {done} of {total} cells, {about}"

    def each(self, name: str, keys: Iterable[Key], compute: Callable[..., Any]) -> dict[Key, Any]:
        """Return a cell for each key, named by `name.format(*key)`: what `compute(*key)` gave."""
        return {key: self.get(name.format(*key), compute, *key) for key in keys}


# What the function `run` of a module is: computes all cells at a scale and returns the table.
Experiment = Callable[[str, Cells], Table]


def read_cells(folder: Path) -> dict[str, Any]:
    """Return the kept cells of an experiment by their names; none if nothing was kept."""
    path = folder / CELLS
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {line["cell"]: line["value"] for line in lines}


def write_table(table: Table, folder: Path) -> None:
    """Leave the table as CSV, JSON and Markdown, and its figures as SVG or PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {
        "title": table.title,
        "columns": table.columns,
        "rows": table.rows,
        "comparisons": [asdict(row) for row in table.comparisons],
    }
    write_atomically(folder / "table.csv", table.to_csv())
    write_atomically(folder / "table.json", json.dumps(plain(data), indent=1) + "\n")
    write_atomically(folder / "table.md", table.to_markdown())
    for name, figure in table.figures.items():
        write_atomically(folder / name, drawn(figure))


def audited_run(
    config: Config, auditors: Sequence[Auditor] | None = None
) -> tuple[Run, dict[str, Any]]:
    """Run a configuration as the command line does; return what came out, and its report.

    `auditors` replace those that the configuration names.

    Raises:
        RuntimeError: An auditor failed: no cell is kept that lacks its audit.
    """
    from rich.console import Console

    from leakmeter.fl_app.run.launch import launch
    from leakmeter.fl_app.run.progress import Progress
    from leakmeter.fl_app.run.run import new_run

    with quiet(), TemporaryDirectory() as parent:
        folder = new_run(config, Path(parent) / "run")
        outcome = launch(folder, Progress(Console(quiet=True)), auditors)
        if outcome.failures:
            raise RuntimeError("; ".join(outcome.failures))
        return outcome, json.loads((folder.path / "report.json").read_text(encoding="utf-8"))


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the log of many runs away: what it warns of is in the tables' notes."""
    log = logging.getLogger("flwr")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def median_range(values: Sequence[float], digits: str = ".2f") -> str:
    """Return median, smallest and largest of several runs or models: ε is never averaged."""
    numbers = [float(value) for value in values]
    if len(numbers) == 1:
        return f"{numbers[0]:{digits}}"
    low, middle, high = np.quantile(numbers, [0.0, 0.5, 1.0])
    return f"{middle:{digits}} ({low:{digits}} to {high:{digits}})"


def table_line(values: Sequence[Any]) -> str:
    """Return a line of a table in Markdown."""
    return "| " + " | ".join(str(value).replace("|", "\\|") for value in values) + " |"


def within_a_run(work: Callable[[], T]) -> T:
    """Do the work where Flower lets messages be made, and return what comes of it."""
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    from leakmeter.fl_app.engines.inline import run_inline

    server = ServerApp()
    results: list[T] = []

    @server.main()
    def main(_: object, __: object) -> None:
        results.append(work())

    run_inline(server, ClientApp(), 1)
    return results[0]


def accuracy(task: Task, net: nn.Module) -> float:
    """Return the accuracy of a model on the task's test set."""
    from flwr.app import ArrayRecord

    return float(task.evaluate(ArrayRecord(net.state_dict()))["accuracy"])  # type: ignore[arg-type]
