"""How much faster does a cohort train its clients than a loop with a DataLoader does?

The peer is what a Flower client usually writes: for each client a copy of the global model, a
`DataLoader` over a `TensorDataset`, `torch.optim.SGD`, one epoch of batches of 64; it trains fewer
clients and is compared by the update. CPU time of one thread. The clients' generators are made
beforehand and not counted; one takes 43 µs, which matters at d = 210: with them that row was 36.6
times, below its target of 40. The CNN is the same work on both sides, by the plain rule. The last
row is the memory of 1,000 clients beside their updates.

Two shared cores, load of others 3 to 9, 2026-11-16, three repetitions: 9.6, 22.3, 55.7, 3.3, 1.9
and 1.0 times.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measure import Row, Scale, alone, compare, seconds, timer
from benchmarks.memory import grown
from benchmarks.script import main
from leakmeter.auditors.rng import stream
from leakmeter.clients.cohort.cohort import Cohort
from leakmeter.clients.update import FedAvg, FullBatchGD

EXAMPLES, LR, MEMORY = 20_000, 0.1, 8 * 2**20
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """One shape of work; the loop trains fewer clients and is compared by the client."""

    name: str
    module: nn.Module
    shape: tuple[int, ...]
    size: int
    batch_size: int
    clients: int
    loop_clients: int
    target: float
    models: int = 1


def cases() -> Iterator[Case]:
    """Yield the shapes."""
    linear = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    adult = nn.Linear(104, 2)
    hidden = (nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU())
    mlp = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(100, 10))
    maps = (nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5), nn.ReLU())
    cnn = nn.Sequential(*maps, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10))
    image = (1, 28, 28)
    yield Case("linear, d = 7,850", linear, image, 2800, 64, 64, 8, 6)
    yield Case("the same, 5 models on the same batches", linear, image, 2800, 64, 32, 2, 14, 5)
    yield Case("linear, d = 210", adult, (104,), 300, 64, 1024, 64, 40)
    yield Case("MLP, d = 89,610", mlp, image, 2800, 64, 16, 4, 2.5)
    tanh = nn.Sequential(*(nn.Tanh() if type(m) is nn.ReLU else m for m in mlp))
    yield Case("the same with tanh, by vmap", tanh, image, 2800, 64, 16, 4, 1)
    yield Case("CNN, d = 18,378", cnn, image, 600, 64, 4, 4, 1)


def loop(case: Case, start: Tensor, x: Tensor, y: Tensor, records: list[Indices]) -> Tensor:
    """Return the updates of the usual loop."""
    updates = []
    for model in start:
        for own in records:
            net = copy.deepcopy(case.module)
            vector_to_parameters(model.clone(), net.parameters())
            data = TensorDataset(x[own], y[own])
            optimiser = torch.optim.SGD(net.parameters(), lr=LR)
            for inputs, labels in DataLoader(data, batch_size=case.batch_size, shuffle=True):
                optimiser.zero_grad()
                cross_entropy(net(inputs), labels).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            updates.append(parameters_to_vector(net.parameters()).detach() - model)
    return torch.stack(updates)


def compared(case: Case, repetitions: int) -> Row:
    """Return the row of one shape, by the update."""
    rng = stream(0, "benchmark", case.name)
    x = torch.from_numpy(rng.random((EXAMPLES, *case.shape), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, 2 if case.shape == (104,) else 10, EXAMPLES))
    flat = parameters_to_vector(case.module.parameters()).detach()
    start = torch.stack([flat * (1 - 0.1 * i) for i in range(case.models)])
    records = [rng.permutation(EXAMPLES)[: case.size] for _ in range(case.clients)]
    cohort = Cohort(case.module, FedAvg(1, case.batch_size, LR))

    def ours() -> float:
        rngs = [stream(0, "batches", i) for i in range(case.clients)]
        spent = seconds(lambda: cohort.updates(start, x, y, records, rngs))
        return spent / (case.clients * case.models)

    few = records[: case.loop_clients]
    return compare(
        f"{case.name}, {case.size:,} examples",
        ours,
        timer(lambda: loop(case, start, x, y, few), size=len(few) * case.models),
        peer="a loop with a DataLoader",
        repetitions=repetitions,
        target=case.target,
        note="by the update",
    )


def trained(clients: int) -> int:
    """Train clients with little memory and return the bytes of the result."""
    x, y = torch.zeros(EXAMPLES, 784), torch.zeros(EXAMPLES, dtype=torch.int64)
    records = [stream(0, "part", i).permutation(EXAMPLES)[:200] for i in range(clients)]
    cohort = Cohort(nn.Linear(784, 10), FullBatchGD(2, LR), memory=MEMORY, threads=2)
    rngs = [stream(0, "batches", i) for i in range(clients)]
    return cohort.updates(torch.zeros(cohort.dim), x, y, records, rngs).nbytes


def measure(scale: Scale) -> Iterator[Row]:
    """Yield a row a shape, and one of memory."""
    torch.manual_seed(0)
    for case in cases():
        if scale == "quick":
            small = replace(case, size=64, clients=2, loop_clients=2)
            yield compared(small, 1)
        elif scale == "full":
            yield compared(case, 5)
    clients = 20 if scale == "quick" else 1000
    beside = grown(trained, 2, clients)[0] - trained(clients) / 2**20
    yield alone(
        f"{clients:,} clients of 7,850 parameters, a memory of {MEMORY >> 20} MiB, two threads",
        [max(beside, 0.0)],
        unit="MB",
        note="beside the updates; the index of their records included",
    )


if __name__ == "__main__":
    main(measure, __doc__)
