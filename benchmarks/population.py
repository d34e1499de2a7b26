"""What does it cost to train on 100 of up to a million clients, and does it grow with their number?

Whole runs in processes of their own, three rounds of `run_sim.py` on synthetic clients that
generate 100 records each when they train. Without audit and masks they stand beside
pfl-research's federated averaging with the same model, steps and records, which is measured if it
is installed: `pip install -e ".[bench]"`. With secure aggregation and canaries, the default, a note
says when the first model was there and what each later round took; the last rows have all default
auditors. CPU seconds from the start of the process to the report. Memory is the peak of the whole
process before it ends, most of it torch's own libraries; unloading them touches another 0.1 GB.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

from benchmarks.default_job import job
from benchmarks.measure import OURS, Row, Scale, Timer, interleave
from benchmarks.memory import peak
from benchmarks.page import amount
from benchmarks.user_round import theirs

CLIENTS = (1_000, 10_000, 100_000, 1_000_000)
ROUNDS, RECORDS, SECONDS, MEGABYTES = 3, 100, 20.0, 1_000.0
DEFAULT = "one-shot,likelihood-ratio,mutual-information,mine"


def options(clients: int, **more: object) -> list[str]:
    """Return the options of a run with so many clients, 100 of whom train in a round."""
    size = {"clients": clients, "sample": 100, "rounds": ROUNDS, "synthetic-per-client": RECORDS}
    named = {"dataset": "synthetic", **size, **more}
    return [word for name, value in named.items() for word in (f"--{name}", str(value))]


@dataclass(frozen=True)
class Cost:
    """CPU seconds of a run, until its first model and for each later round; its peak in MB."""

    total: float
    first: float
    later: float
    memory: float


def watched(given: Sequence[str]) -> Cost:
    """Return what a run costs in a process of its own, round by round."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cost.json")
        words = [*given, "--out", str(Path(folder, "run"))]
        child = get_context("spawn").Process(target=_watch, args=(words, path))
        child.start()
        child.join()
        return Cost(**json.loads(path.read_text(encoding="utf-8")))


def _watch(words: Sequence[str], path: Path) -> None:
    """Run the command line in this process and write down its costs."""
    from leakmeter.fl_app.cli.main import main
    from leakmeter.fl_app.run.progress import Progress

    done, said = list[float](), Progress.round

    def noted(self: Progress, line: object) -> None:
        done.append(time.process_time())
        said(self, line)  # type: ignore[arg-type]

    Progress.round = noted  # type: ignore[method-assign]
    with open(os.devnull, "w") as null, redirect_stdout(null), redirect_stderr(null):
        code = main(list(words))
    if code or len(done) != ROUNDS:
        raise RuntimeError(f"{' '.join(words)} ended with code {code}")
    later = (done[-1] - done[0]) / (len(done) - 1)
    cost = Cost(time.process_time(), done[0], later, peak())
    path.write_text(json.dumps(asdict(cost)), encoding="utf-8")


def measure(scale: Scale) -> Iterator[Row]:
    """Yield rows without an audit, beside pfl, then with canaries, then with all auditors."""
    sizes, times = (CLIENTS[:1], 1) if scale == "quick" else (CLIENTS, 3)
    for clients in sizes:
        yield unaudited(clients, times)
    for clients in sizes:
        yield from audited(clients, "one-shot", times)
    if scale != "quick":
        yield from audited(CLIENTS[-1], DEFAULT, times)


def unaudited(clients: int, times: int) -> Row:
    """Return the row of a run without audit and masks, beside pfl if it is installed."""
    case, peer = f"{ROUNDS} rounds, {clients:,} clients, no audit, no masks", "pfl"
    bare = {"auditors": "none", "secagg": "off"}
    timers: dict[str, Timer] = {OURS: partial(job, options(clients, **bare))}
    if find_spec(peer):
        timers[peer] = partial(theirs, "pfl-population", str(clients), "small", ROUNDS)
    found = interleave(timers, times, warm_up=False)
    return Row(case, found[OURS], found.get(peer, ()), peer if peer in found else "")


def audited(clients: int, auditors: str, times: int) -> Iterator[Row]:
    """Yield time and memory of a run with masks and these auditors."""
    found = [watched(options(clients, auditors=auditors)) for _ in range(times)]
    who = "default auditors" if auditors == DEFAULT else "canaries"
    case = f"{ROUNDS} rounds, {clients:,} clients, masks and {who}"
    first, later = ([getattr(one, name) for one in found] for name in ("first", "later"))
    note = f"first model after {amount(first, 'CPU s')}, a later round {amount(later, 'CPU s')}"
    yield Row(case, [one.total for one in found], target=SECONDS, note=note)
    yield Row(f"{case}, whole process", [one.memory for one in found], unit="MB", target=MEGABYTES)
