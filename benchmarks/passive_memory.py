"""How much memory does `passive()` take above the same run without an audit?

Canaries in two seats of every round, and by replays the likelihood-ratio and the
mutual-information audit of round 1. Clients add random numbers to the model instead of training.
Two rounds in one process. Each run has a process of its own; a figure is the peak of the audited
one less the peak of the plain one. Samples beyond 64 MB are in a temporary file, which is not
counted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from benchmarks.measure import Row, Scale
from benchmarks.memory import grown, peak
from leakmeter.auditors import Audited, canary_mod, passive
from leakmeter.auditors.hook import wire
from leakmeter.auditors.rng import stream
from leakmeter.fl_app.engines.inline import run_inline

SEATS, ROUNDS, SMALL = 2, 2, 1_000
SPARE = 2**20  # offsets at which an update may begin in the table of random numbers
SIZES = {  # dim and honest clients
    "quick": ((20_000, 4),),
    "full": ((1_000_000, 20),),
    "long": ((10_000_000, 10), (10_000_000, 20)),
}
TARGET = 2_000.0  # MB


def client(dim: int) -> ClientApp:
    """Return an app whose updates are random and cost little."""
    rng = stream(0, "passive-memory")
    table = rng.standard_normal(dim + SPARE, dtype=np.float32)
    app = ClientApp()

    @app.train(mods=[canary_mod])
    def train(message: Message, context: Context) -> Message:  # noqa: ARG001
        begin = rng.integers(SPARE)
        sent = wire.arrays(message.content)["w"].numpy()
        trained = sent + table[begin : begin + dim]
        record = ArrayRecord({"w": Array(trained)})
        return Message(
            RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 1})}),
            reply_to=message,
        )

    return app


def run(dim: int, honest: int, *, is_audited: bool) -> None:
    """Train for some rounds, with the auditors or without."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    clients, app = honest + SEATS, ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:  # noqa: ARG001
        strategy: Any = FedAvg(
            min_train_nodes=clients, min_available_nodes=clients, fraction_evaluate=0.0
        )
        if is_audited:
            strategy = Audited(strategy, passive(seats=SEATS), sends="models")
        arrays = ArrayRecord({"w": Array(np.zeros(dim, np.float32))})
        strategy.start(grid, arrays, num_rounds=ROUNDS)
        if is_audited and strategy.failures:
            raise RuntimeError(strategy.failures[0])

    run_inline(app, client(dim), clients)


def held(dim: int, honest: int, scale: Scale, *, is_audited: bool) -> float:
    """Return the memory that a run takes, in MB."""
    call = partial(run, honest=honest, is_audited=is_audited)
    if scale != "quick":
        return grown(call, SMALL, dim)[0]
    before = peak()  # in this process: whether it runs is all that is asked
    call(dim)
    return peak() - before


def measure(scale: Scale) -> Iterator[Row]:
    """Yield a row a size."""
    for dim, honest in SIZES[scale]:
        plain, audited = (
            held(dim, honest, scale, is_audited=is_audited) for is_audited in (False, True)
        )
        yield Row(
            f"d = {dim:,}, {honest} honest clients and {SEATS} seats",
            [max(audited - plain, 0.0)],
            unit="MB",
            target=TARGET,
            note=f"peak without the audit: {plain:,.0f} MB",
        )
