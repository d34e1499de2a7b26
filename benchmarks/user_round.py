"""What do rounds of 100 clients cost a user, against Flower's Ray simulation and pfl?

Whole runs in processes of their own, from the start to the last model: `run_sim.py` without secure
aggregation and audits, Flower's `FedAvg`, and pfl-research's federated averaging. Flower's clients
read torchvision's MNIST through `ToTensor`, as Flower's documentation does. A second row has
clients that keep tensors in memory, which is less work. 600 records a client, one epoch of batches
of 64, learning rate 0.1, all 100 clients in each of 30 rounds, the default of `run_sim.py`, or of 2
with the convolutional model. CPU seconds of all processes that a run starts, Ray's daemons
included. Ours also tests the model after each round and writes its report. pfl is measured if it is
installed: `pip install -e ".[bench]"`. Bare products are those of our steps alone, of one client
after the other, with nothing read, rectified, sent or averaged: less is impossible.

Of our linear run, imports take a fifth, and reading batches out of 188 MB of images takes as long
as the products. What did not help: scaling MNIST block by block, since the first touch of its
memory takes longer, and faster copies and checks of messages, which save 1 % at most. Collections
of garbage take 0.2 s.
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from benchmarks.cpu import cpu_seconds
from benchmarks.default_job import job
from benchmarks.measure import OURS, Row, Scale, Timer, interleave
from benchmarks.mnist import digits
from leakmeter.clients.update import fedavg, products

CLIENTS, BARE = 100, "bare products"
_TIMES = 200  # that each product is repeated
PEERS = {
    "flower-images": "Flower on Ray, images",
    "flower": "Flower on Ray, tensors in memory",
    "pfl": "pfl",
}


@dataclass(frozen=True)
class Work:
    """A model's rounds, and how many times as much as ours each peer's are to cost."""

    rounds: int
    targets: Mapping[str, float]


MODELS = {
    "linear": Work(30, {"flower-images": 9, "flower": 9, "pfl": 2.5}),
    "mlp": Work(30, {"flower-images": 9, "flower": 9, "pfl": 2}),
    "cnn": Work(2, {"flower": 2, "pfl": 1.4}),
}


def ours(model: str, rounds: int, sample: int = CLIENTS) -> float:
    """Return the CPU seconds of our run, in which so many clients train."""
    numbers = {"clients": CLIENTS, "sample": sample, "rounds": rounds, "epochs": 1}
    names = {"dataset": "mnist", "model": model, "secagg": "off", "auditors": "", "lr": 0.1}
    settings = {**numbers, **names, "batch-size": 64}
    return job([part for name, value in settings.items() for part in (f"--{name}", str(value))])


def theirs(peer: str, folder: str, model: str, rounds: int) -> float:
    """Return the CPU seconds of a peer's run."""
    script = Path(__file__).with_name("user_round_peers.py")
    command = [sys.executable, str(script), peer, folder, model, str(rounds)]
    os.environ.update({"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"})
    return cpu_seconds(command)


def bare(model: str, rounds: int) -> float:
    """Return the CPU seconds of the products of all steps of our run's clients."""
    widths = {"linear": (784, 10), "mlp": (784, 100, 100, 10)}[model]
    spent = 0.0
    for batch in fedavg(1, 64, 0.1).batch_sizes(60_000 // CLIENTS):
        for place, (fan_in, fan_out) in enumerate(pairwise(widths)):
            weights, below = torch.rand(1, fan_out, fan_in), torch.rand(1, batch, fan_in)
            slope = torch.rand(1, fan_out, batch)
            pairs = [(weights, below.mT), (slope, below), (weights.mT, slope)]
            for pair in pairs if place else pairs[:2]:  # nobody asks for the slope in the inputs
                products(*pair, exact=False)
                begin = time.process_time()
                for _ in range(_TIMES):
                    products(*pair, exact=False)
                spent += (time.process_time() - begin) / _TIMES
    return spent * CLIENTS * rounds


def write(folder: Path, count: int) -> None:
    """Write the first digits as tensors, and as images in the files that torchvision reads."""
    x, y = digits(count)
    np.savez(folder / "data.npz", x=x.flatten(1).numpy(), y=y.numpy())
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    pixels = (x * 255).round().to(torch.uint8).numpy().tobytes()
    for part in ("train", "t10k"):  # torchvision looks for both
        images = struct.pack(">4i", 0x803, count, 28, 28) + pixels
        labels = struct.pack(">2i", 0x801, count) + y.to(torch.uint8).numpy().tobytes()
        (raw / f"{part}-images-idx3-ubyte").write_bytes(images)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(labels)


def measure(scale: Scale) -> Iterator[Row]:
    """Yield a row for each model and peer."""
    # Quickly, the peers' 100 clients have as many records as 10 of ours.
    records, sample, times = (6_000, 10, 1) if scale == "quick" else (60_000, CLIENTS, 2)
    peers = [peer for peer in PEERS if peer != "pfl" or find_spec("pfl")]
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), records)
        for model, work in MODELS.items():
            rounds = min(work.rounds, 2) if scale == "quick" else work.rounds
            timers: dict[str, Timer] = {OURS: partial(ours, model, rounds, sample)}
            for peer in work.targets:
                if peer in peers:
                    timers[peer] = partial(theirs, peer, folder, model, rounds)
            if model != "cnn":
                timers[BARE] = partial(bare, model, rounds)
            found = interleave(timers, times, warm_up=False)
            for peer, target in work.targets.items():
                case = f"MNIST {model}, {CLIENTS} clients, {rounds} rounds"
                if peer in found:
                    yield Row(case, found[OURS], found[peer], PEERS[peer], target=target)
                else:
                    yield Row(case, [], note='not measured: pip install -e ".[bench]" brings pfl')
            if BARE in found:
                yield Row(case, found[OURS], found[BARE], BARE, note="the most that can be had")
