"""One run of a Flower app in a process of its own, audited with canaries or not: what it takes.

The grid calls the client app in this process, so the peak is that of server and clients together.
Every client holds its reply until the strategy has it, as in Flower's own simulation.

    python -m benchmarks.audited_run noise 10000000 100 12 10 0

The arguments are the client, its size (parameters of `noise`, images of the others), rounds,
clients, canary seats (0 seats are no audit), and 1 for a search in single updates as well. It
prints JSON.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from benchmarks.memory import peak
from leakmeter import Audited, OneShotCanaries, SingleUpdates, canary_mod
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.layout import Layout
from leakmeter.auditors.rng import stream
from leakmeter.fl_app.engines.inline import run_inline

if TYPE_CHECKING:
    from torch.nn import Module

Train = Callable[[ArrayRecord, int], ArrayRecord]  # model and client to trained model

LR, BATCH, SIDE, CLASSES = 0.01, 32, 32, 10


@dataclass(frozen=True)
class Spent:
    """What a run took.

    Attributes:
        peak: Most memory of the process, in MB.
        cpu: Seconds of the processor from the first round to the report.
        wall: Seconds by the clock.
        disk: Most that was in the folder of the audit, in MB.
        dim: Float parameters of the model.
        findings: Number of findings; 0 without an audit.
    """

    peak: float
    cpu: float
    wall: float
    disk: float
    dim: int
    findings: int


def spent(
    client: str, size: int, *, rounds: int, clients: int, seats: int, in_updates: bool = False
) -> Spent:
    """Run an app in a fresh process."""
    numbers = map(str, (size, rounds, clients, seats, int(in_updates)))
    command = [sys.executable, "-m", __name__, client, *numbers]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Spent(**json.loads(done.stdout))


def noise(dim: int) -> tuple[ArrayRecord, Train]:
    """Return a model of zeros, and a client that adds noise to what it gets."""

    def train(arrays: ArrayRecord, client: int) -> ArrayRecord:
        model = arrays["weights"].numpy()
        added = stream(0, "noise", client).standard_normal(dim, dtype=np.float32)
        added *= np.float32(1e-3)
        added += model
        return ArrayRecord({"weights": Array(added)})

    return ArrayRecord({"weights": Array(np.zeros(dim, dtype=np.float32))}), train


def resnet(images: int) -> tuple[ArrayRecord, Train]:
    """Return an untrained ResNet-18, and a client that trains it for an epoch on noise."""
    import torch
    from torchvision.models import resnet18

    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = resnet18(num_classes=CLASSES)
    return ArrayRecord(net.state_dict()), trainer(net, images)


def trainer(net: Module, images: int) -> Train:
    """Return a client that trains a network for an epoch on noise."""
    import torch
    from torch.nn.functional import cross_entropy

    def train(arrays: ArrayRecord, client: int) -> ArrayRecord:
        net.load_state_dict(arrays.to_torch_state_dict())
        made = torch.Generator().manual_seed(client)
        x = torch.randn((images, 3, SIDE, SIDE), generator=made)
        y = torch.randint(0, CLASSES, (images,), generator=made)
        optimiser = torch.optim.SGD(net.parameters(), lr=LR)
        for first in range(0, images, BATCH):
            optimiser.zero_grad()
            loss = cross_entropy(net(x[first : first + BATCH]), y[first : first + BATCH])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return ArrayRecord(net.state_dict())

    return train


def convolutions(images: int) -> tuple[ArrayRecord, Train]:
    """Return a network of a million parameters, and a client that trains it for an epoch."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    widths, layers = (3, 32, 64, 128, 128, 192), list[nn.Module]()
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(192, 2800), nn.ReLU())
    net.append(nn.Linear(2800, CLASSES))
    return ArrayRecord(net.state_dict()), trainer(net, images)


CLIENTS = {"noise": noise, "resnet": resnet, "convolutions": convolutions}


def client_app(train: Train, *, seated: bool) -> ClientApp:
    """Return clients that train like this."""
    app = ClientApp(mods=[canary_mod] if seated else [])

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        content = {
            "arrays": train(wire.arrays(message.content), client),
            "metrics": MetricRecord({"num-examples": 100}),
        }
        return Message(RecordDict(content), reply_to=message)  # type: ignore[arg-type]

    return app


def run(
    client: str, size: int, rounds: int, clients: int, seats: int, in_updates: int = 0
) -> Spent:
    """Run an app in this process."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    initial, train = CLIENTS[client](size)
    strategy: Strategy = FedAvg(
        fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients
    )
    server_app, sizes = ServerApp(), [0]
    with tempfile.TemporaryDirectory() as folder:
        if seats:
            auditors = [OneShotCanaries(seats=seats), *[SingleUpdates()] * in_updates]
            strategy = Audited(strategy, auditors, out=folder)

        def note(*_: object) -> None:
            sizes.append(sum(path.stat().st_size for path in Path(folder).iterdir()))

        @server_app.main()
        def serve(grid: Grid, _: Context) -> None:
            strategy.start(grid, initial, num_rounds=rounds, evaluate_fn=note)

        begin = time.process_time(), time.perf_counter()
        run_inline(server_app, client_app(train, seated=seats > 0), clients)
        took = time.process_time() - begin[0], time.perf_counter() - begin[1]
    found = 0
    if isinstance(strategy, Audited):
        assert not strategy.failures, strategy.failures
        found = len(strategy.findings())
    return Spent(peak(), *took, max(sizes) / 1e6, Layout.of(initial).dim, found)


if __name__ == "__main__":
    numbers = [int(number) for number in sys.argv[2:]]
    print(json.dumps(asdict(run(sys.argv[1], *numbers))))
