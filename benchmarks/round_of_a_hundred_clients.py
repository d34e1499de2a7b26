"""How much sooner does a cohort finish a round of 100 clients than Flower's Ray simulation?

Each client trains a linear model of 7,850 parameters for one epoch on 600 examples, batch 64; ours
with two threads, Flower's with two actors. Flower's clients are written as usual: `DataLoader`,
`torch.optim.SGD`; an actor makes the data once. Its rounds are those of `FedAvg.start`, without
evaluation, and the first, in which the actors start, is left out. Ours is generators, updates and
their mean, once between any two of Flower's rounds, while its server waits. Wall time.
"""

from __future__ import annotations

import logging
import os
import time
from functools import lru_cache
from itertools import pairwise
from typing import Any

os.environ.update(
    {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "OMP_NUM_THREADS": "1",
    }
)

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measure import Row, Scale
from leakmeter.auditors.hook import wire
from leakmeter.auditors.rng import stream
from leakmeter.clients.cohort import Cohort
from leakmeter.clients.update import fedavg

CLIENTS, SIZE, BATCH, LR, TARGET = 100, 600, 64, 0.1, 9
BACKEND: Any = {
    "init_args": {
        "address": "local",
        "num_cpus": 2,
        "include_dashboard": False,
        "logging_level": logging.ERROR,
        "log_to_driver": False,
    },
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
}


@lru_cache(maxsize=1)
def data() -> tuple[Tensor, Tensor]:
    """Return inputs and labels of all clients, one client after the other."""
    rng = stream(0, "benchmark")
    x = torch.from_numpy(rng.random((CLIENTS * SIZE, 1, 28, 28), dtype=np.float32))
    return x, torch.from_numpy(rng.integers(0, 10, CLIENTS * SIZE))


def model() -> nn.Module:
    """Return the linear model."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def train(message: Message, client: int) -> Message:
    """Answer as a client of Flower's usually does."""
    torch.set_num_threads(1)
    x, y = data()
    own = slice(client * SIZE, (client + 1) * SIZE)
    net = model()
    net.load_state_dict(wire.arrays(message.content).to_torch_state_dict())
    optimiser = torch.optim.SGD(net.parameters(), lr=LR)
    for inputs, labels in DataLoader(TensorDataset(x[own], y[own]), BATCH, shuffle=True):
        optimiser.zero_grad()
        cross_entropy(net(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    content: dict[str, ArrayRecord | MetricRecord | ConfigRecord] = {
        "arrays": ArrayRecord(net.state_dict()),
        "metrics": MetricRecord({"num-examples": SIZE}),
    }
    return Message(RecordDict(content), reply_to=message)


def rounds_in_turn(rounds: int) -> list[tuple[float, float]]:
    """Return the seconds of ours and of Flower's rounds; ours run while Flower's server waits."""
    from flwr.simulation import run_simulation

    times: list[tuple[float, float, float]] = []  # Flower's round ended, ours took, goes on
    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()
    def answer(message: Message, context: Context) -> Message:
        # By its name, so that an actor imports this file once and keeps the data.
        from benchmarks.round_of_a_hundred_clients import train

        return train(message, int(context.node_config["partition-id"]))

    @server_app.main()
    def serve(grid: Grid, _: Context) -> None:
        strategy = FlowerFedAvg(min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
        strategy.fraction_evaluate = 0.0

        def between(*_: object) -> None:
            ended = time.perf_counter()
            ours = our_round()
            times.append((ended, ours, time.perf_counter()))

        strategy.start(grid, ArrayRecord(model().state_dict()), rounds + 1, evaluate_fn=between)

    run_simulation(server_app, client_app, CLIENTS, backend_config=BACKEND)
    return [(now[1], now[0] - last[2]) for last, now in pairwise(times[1:])]


def our_round() -> float:
    """Return the seconds of one round of ours."""
    net, (x, y) = model(), data()
    records = [np.arange(SIZE) + client * SIZE for client in range(CLIENTS)]
    begin = time.perf_counter()
    start = parameters_to_vector(net.parameters()).detach()
    rngs = [stream(0, "batches", client) for client in range(CLIENTS)]
    cohort = Cohort(net, fedavg(1, BATCH, LR), threads=2)
    start + cohort.updates(start, x, y, records, rngs).mean(dim=0)
    return time.perf_counter() - begin


def measure(scale: Scale) -> list[Row]:
    """Return the row of all rounds."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    times = rounds_in_turn(2 if scale == "quick" else 10)
    ours, theirs = zip(*times, strict=True)
    name = f"{CLIENTS} clients, two cores"
    return [Row(name, ours, theirs, peer="Flower on Ray", unit="wall s", target=TARGET)]
