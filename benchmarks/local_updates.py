"""How much faster does a cohort train its clients than a loop with a DataLoader does?

The peer is what a Flower client usually writes: for each client a copy of the global model, a
`DataLoader` over a `TensorDataset`, `torch.optim.SGD`, one epoch of batches of 64. CPU time of one
thread, interleaved. The clients' generators are made beforehand and not counted; one takes 43 us,
which matters at d = 210: with them that row was 36.6x (21.7 to 43.3), below its target of 40x, and
would be about 36x now. Two shared cores, load of others 3 to 9, 2026-11-16; medians (smallest to
largest) of 3 repetitions, the last of two runs of this form:

    local update                           ratio               ours      loop
    linear, d = 7,850, 2,800 examples      9.6x (8.8-9.7)      5.0 ms    48.7 ms
    the same, 5 models, per model          22.3x (22.3-22.6)   2.3 ms    51.9 ms
    linear, d = 210, 300 examples          55.7x (52.7-60.8)   0.078 ms  4.4 ms
    MLP, d = 89,610, 2,800 examples        3.3x (3.0-3.9)      24 ms     80 ms
    the same with tanh, by vmap            1.9x (1.9-2.5)      39 ms     75 ms
    CNN, d = 18,378, by the plain rule     1.0x (1.0-1.1)      165 ms    177 ms

The medians of the run before, of 5 repetitions, in the same order: 8.2x, 23.9x, 52.1x, 3.2x, 2.6x,
and 1.0x for the CNN, where ours took 189 ms and the loop 180 ms. The CNN is the same work
on both sides: 23 pairs in alternating order gave 217 ms against 223 ms, and a median of the ratios
of 0.96 with quartiles 0.93 and 1.10, so neither is shown to be faster. 1,000 clients within a
`memory` of 8 MiB, on two threads, took 5.5 to 5.9 MiB beside their updates.
"""

from __future__ import annotations

import argparse
import copy
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

from auditors.rng import stream
from clients.cohort import Cohort
from clients.update import FedAvg, FullBatchGD

EXAMPLES, LR = 20_000, 0.1


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
    yield Case("linear, d = 7,850, 2,800 examples", linear, image, 2800, 64, 64, 8, 6)
    yield Case("the same, 5 models on the same batches", linear, image, 2800, 64, 32, 2, 14, 5)
    yield Case("linear, d = 210, 300 examples", adult, (104,), 300, 64, 1024, 64, 40)
    yield Case("MLP, d = 89,610, 2,800 examples", mlp, image, 2800, 64, 16, 4, 2.5)
    tanh = nn.Sequential(*(nn.Tanh() if type(m) is nn.ReLU else m for m in mlp))
    yield Case("the same with tanh, by vmap", tanh, image, 2800, 64, 16, 4, 1)
    yield Case("CNN, d = 18,378, 600 examples", cnn, image, 600, 64, 4, 4, 1)


def loop(case: Case, start: Tensor, x: Tensor, y: Tensor, records: list[np.ndarray]) -> Tensor:
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
                cross_entropy(net(inputs), labels).backward()
                optimiser.step()
            updates.append(parameters_to_vector(net.parameters()).detach() - model)
    return torch.stack(updates)


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes the processor: others share the cores."""
    start = time.process_time()
    call()
    return time.process_time() - start


def compare(case: Case, repetitions: int) -> None:
    """Time both in turns and print the ratio first."""
    rng = stream(0, "benchmark", case.name)
    x = torch.from_numpy(rng.random((EXAMPLES, *case.shape), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, 2 if case.shape == (104,) else 10, EXAMPLES))
    flat = parameters_to_vector(case.module.parameters()).detach()
    start = torch.stack([flat * (1 - 0.1 * i) for i in range(case.models)])
    records = [rng.permutation(EXAMPLES)[: case.size] for _ in range(case.clients)]
    cohort = Cohort(case.module, FedAvg(1, case.batch_size, LR))

    def ours() -> float:
        rngs = [stream(0, "batches", i) for i in range(case.clients)]
        return seconds(lambda: cohort.updates(start, x, y, records, rngs))

    few = records[: case.loop_clients]
    rows = []
    for repetition in range(repetitions + 1):
        fast = [ours()]
        slow = seconds(lambda: loop(case, start, x, y, few)) / (len(few) * case.models)
        fast.append(ours())
        mean = sum(fast) / 2 / (case.clients * case.models)
        if repetition:  # the first finds cold caches
            rows.append((slow / mean, 1e3 * mean, 1e3 * slow))
    ratios, fasts, slows = (sorted(column) for column in zip(*rows, strict=True))
    print(
        f"{case.name}: {statistics.median(ratios):.1f}x ({ratios[0]:.1f} to {ratios[-1]:.1f}, "
        f"target {case.target:g}x); {statistics.median(fasts):.3g} ms an update, "
        f"loop {statistics.median(slows):.3g} ms",
        flush=True,
    )


def print_peak(memory: int) -> None:
    """Print what 1,000 clients take beside the data and the result; the first of the process."""
    x, y = torch.rand(EXAMPLES, 784), torch.zeros(EXAMPLES, dtype=torch.int64)
    records = [stream(0, "part", i).permutation(EXAMPLES)[:200] for i in range(1000)]
    cohort = Cohort(nn.Linear(784, 10), FullBatchGD(2, LR), memory=memory, threads=2)
    start = torch.zeros(cohort.dim)
    cohort.updates(start, x, y, records[:2], [stream(0, "batches", i) for i in range(2)])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = cohort.updates(start, x, y, records, [stream(0, "batches", i) for i in range(1000)])
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    grown -= result.nbytes / 2**20
    print(f"1,000 clients, memory of {memory / 2**20:.0f} MiB: {grown:.1f} MiB beside the result")


def main() -> None:
    """Measure all shapes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of a name to select shapes by")
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print_peak(8 * 2**20)
    for case in cases():
        if arguments.only in case.name:
            compare(case, arguments.repetitions)


if __name__ == "__main__":
    main()
