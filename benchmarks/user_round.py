"""What do rounds of 100 clients cost a user, against Flower's Ray simulation and pfl?

Whole runs in processes of their own, from the start to the last model: `run_sim.py` without secure
aggregation and audits, Flower's `FedAvg` with clients as users write them, and pfl-research's
federated averaging. MNIST, 600 records a client, one epoch of batches of 64, learning rate 0.1, all
100 clients in each of 30 rounds, as many as `run_sim.py` has by itself, or of 2 with the
convolutional model. CPU seconds of all processes that a run starts, Ray's daemons included. Ours
also tests the model after each round and writes its report. Set LEAKMETER_PFL_PYTHON to a Python
that has pfl and torch: pfl pins older libraries.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.cpu import cpu_seconds
from benchmarks.default_job import job
from benchmarks.measure import OURS, Row, Scale, Timer, interleave
from benchmarks.mnist import digits

CLIENTS, PYTHON = 100, "LEAKMETER_PFL_PYTHON"
PEERS = {"flower": "Flower on Ray", "pfl": "pfl"}


@dataclass(frozen=True)
class Work:
    """A model's rounds, and how many times as much as ours each peer's are to cost."""

    rounds: int
    targets: Mapping[str, float]


MODELS = {
    "linear": Work(30, {"flower": 9, "pfl": 2}),
    "mlp": Work(30, {"flower": 9, "pfl": 2}),
    "cnn": Work(2, {"flower": 1.4, "pfl": 1.4}),
}


def ours(model: str, rounds: int, sample: int = CLIENTS) -> float:
    """Return the CPU seconds of our run, in which so many clients train."""
    numbers = {"clients": CLIENTS, "sample": sample, "rounds": rounds, "epochs": 1}
    names = {"dataset": "mnist", "model": model, "secagg": "off", "auditors": "", "lr": 0.1}
    settings = {**numbers, **names, "batch-size": 64}
    return job([part for name, value in settings.items() for part in (f"--{name}", str(value))])


def theirs(peer: str, file: Path, model: str, rounds: int) -> float:
    """Return the CPU seconds of a peer's run."""
    python = os.environ[PYTHON] if peer == "pfl" else sys.executable
    script = Path(__file__).with_name("user_round_peers.py")
    command = [python, str(script), peer, str(file), model, str(rounds)]
    os.environ.update({"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"})
    return cpu_seconds(command)


def measure(scale: Scale) -> Iterator[Row]:
    """Yield a row for each model and peer."""
    # Quickly, the peers' 100 clients have as many records as 10 of ours.
    records, sample, times = (6_000, 10, 1) if scale == "quick" else (60_000, CLIENTS, 2)
    peers = [peer for peer in PEERS if peer != "pfl" or os.environ.get(PYTHON)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "data.npz")
        x, y = digits(records)
        np.savez(file, x=x.flatten(1).numpy(), y=y.numpy())
        for model, work in MODELS.items():
            rounds = min(work.rounds, 2) if scale == "quick" else work.rounds
            timers: dict[str, Timer] = {OURS: partial(ours, model, rounds, sample)}
            for peer in peers:
                timers[peer] = partial(theirs, peer, file, model, rounds)
            found = interleave(timers, times, warm_up=False)
            for peer, name in PEERS.items():
                case = f"MNIST {model}, {CLIENTS} clients, {rounds} rounds"
                if peer in found:
                    yield Row(case, found[OURS], found[peer], name, target=work.targets[peer])
                else:
                    yield Row(
                        case,
                        [],
                        note=f"not measured: {PYTHON} must name a Python that has pfl, got nothing",
                    )
