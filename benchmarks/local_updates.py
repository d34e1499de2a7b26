"""How much faster does a cohort train its clients than a loop over them?

The peers are what a user writes: for each client a copy of the global model, `torch.optim.SGD`, one
epoch of batches of 64 (in the default job two of 8), either from a `DataLoader` over a
`TensorDataset`, as most Flower clients do, or by slicing a shuffled copy of the client's tensors,
which is the faster loop. They train fewer clients and are compared by the update. CPU time of one
thread, with the clients' generators as the samplers make them. Bare convolutions are those of all
steps alone, forwards and backwards in oneDNN's own layout: less is impossible. The last row is the
memory of 1,000 clients beside their updates.

Beside its convolutions a CNN spends most on the slopes of its maximum pools, which are oneDNN's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measure import OURS, Row, Scale, interleave, timer
from benchmarks.memory import grown
from leakmeter.auditors.rng import stream
from leakmeter.clients.cohort import Cohort
from leakmeter.clients.sampler import Generators
from leakmeter.clients.update import fedavg, gd

EXAMPLES, LR, MEMORY = 20_000, 0.1, 8 * 2**20
BARE = "bare convolutions"
Indices = NDArray[np.int64]
Batches = Callable[[Tensor, Tensor, int], Iterable[tuple[Tensor, Tensor]]]


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
    target: float | None
    models: int = 1
    epochs: int = 1
    most: float | None = None  # seconds that one of our updates may take


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
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), *hidden[1:], nn.Linear(100, 10))
    name = "MLP of the default job, d = 17,610"
    yield Case(name, own, (8, 8), 24, 8, 360, 12, None, epochs=2, most=0.39e-3 / 2)
    yield Case("CNN, d = 18,378", cnn, image, 600, 64, 4, 4, 2)


def loaded(x: Tensor, y: Tensor, size: int) -> Iterable[tuple[Tensor, Tensor]]:
    """Return batches as a DataLoader makes them."""
    return DataLoader(TensorDataset(x, y), batch_size=size, shuffle=True)


def sliced(x: Tensor, y: Tensor, size: int) -> Iterable[tuple[Tensor, Tensor]]:
    """Return batches as slices of a shuffled copy."""
    order = torch.randperm(len(y))
    return zip(torch.split(x[order], size), torch.split(y[order], size), strict=True)


LOOPS: dict[str, Batches] = {"a loop with a DataLoader": loaded, "a loop over slices": sliced}


def loop(
    case: Case, batches: Batches, start: Tensor, x: Tensor, y: Tensor, records: list[Indices]
) -> Tensor:
    """Return the updates of a loop over clients."""
    updates = []
    for model in start:
        for own in records:
            net = copy.deepcopy(case.module)
            vector_to_parameters(model.clone(), net.parameters())
            optimiser = torch.optim.SGD(net.parameters(), lr=LR)
            for _ in range(case.epochs):
                for inputs, labels in batches(x[own], y[own], case.batch_size):
                    optimiser.zero_grad()
                    cross_entropy(net(inputs), labels).backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
            updates.append(parameters_to_vector(net.parameters()).detach() - model)
    return torch.stack(updates)


def convolved(case: Case) -> Callable[[], None]:
    """Return what computes the convolutions of one client's steps, and nothing else."""
    work = []
    for batch in fedavg(1, case.batch_size, LR).batch_sizes(case.size):
        x = torch.rand(batch, *case.shape)
        for layer in case.module:  # type: ignore[attr-defined]
            if type(layer) is nn.Conv2d:
                work.append((layer, x.to_mkldnn(), layer(x).detach().to_mkldnn()))
            x = layer(x).detach()

    def run() -> None:
        for layer, inputs, slopes in work:
            where = layer.stride, layer.padding, layer.dilation
            layer(inputs)
            wanted = [inputs.shape[1:] != case.shape, True, True]  # no slope in the first inputs
            torch.ops.aten.convolution_backward(
                slopes, inputs, layer.weight, [len(layer.weight)], *where, False, [0, 0], 1, wanted
            )

    return torch.no_grad()(run)


def compared(case: Case, repetitions: int) -> Iterator[Row]:
    """Yield a row a peer, by the update; the target is for the DataLoader."""
    rng = stream(0, "benchmark", case.name)
    x = torch.from_numpy(rng.random((EXAMPLES, *case.shape), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, 2 if case.shape == (104,) else 10, EXAMPLES))
    flat = parameters_to_vector(case.module.parameters()).detach()
    start = torch.stack([flat * (1 - 0.1 * i) for i in range(case.models)])
    records = [rng.permutation(EXAMPLES)[: case.size] for _ in range(case.clients)]
    few = records[: case.loop_clients]
    cohort = Cohort(case.module, fedavg(case.epochs, case.batch_size, LR))

    def ours() -> None:
        new = Generators(0, "batches")
        cohort.updates(start, x, y, records, [new(0, i) for i in range(case.clients)])

    timers = {OURS: timer(ours, size=case.clients * case.models)}
    for name, batches in LOOPS.items():
        looped = partial(loop, case, batches, start, x, y, few)
        timers[name] = timer(looped, size=len(few) * case.models)
    if case.name.startswith("CNN"):
        timers[BARE] = timer(convolved(case))
    times = interleave(timers, repetitions)
    shape = f"{case.name}, {case.size:,} examples"
    if case.most is not None:
        yield Row(shape, times[OURS], target=case.most, note="by the update")
    for name in LOOPS:
        target = case.target if name.endswith("DataLoader") else None
        yield Row(
            shape,
            times[OURS],
            times[name],
            peer=name,
            target=target,
            note="by the update",
        )
    if BARE in times:
        note = "by the update; the most that can be had"
        yield Row(shape, times[OURS], times[BARE], peer=BARE, note=note)


def trained(clients: int) -> int:
    """Train clients with little memory and return the bytes of the result."""
    x, y = torch.zeros(EXAMPLES, 784), torch.zeros(EXAMPLES, dtype=torch.int64)
    records = [stream(0, "part", i).permutation(EXAMPLES)[:200] for i in range(clients)]
    cohort = Cohort(nn.Linear(784, 10), gd(2, LR), memory=MEMORY, threads=2)
    rngs = [stream(0, "batches", i) for i in range(clients)]
    return cohort.updates(torch.zeros(cohort.dim), x, y, records, rngs).nbytes


def measure(scale: Scale) -> Iterator[Row]:
    """Yield a row a shape, and one of memory."""
    torch.manual_seed(0)
    for case in cases():
        if scale == "quick":
            small = replace(case, size=64, clients=2, loop_clients=2)
            yield from compared(small, 1)
        elif scale == "full":
            yield from compared(case, 5)
    clients = 20 if scale == "quick" else 1000
    beside = grown(trained, 2, clients)[0] - trained(clients) / 2**20
    yield Row(
        f"{clients:,} clients of 7,850 parameters, a memory of {MEMORY >> 20} MiB, two threads",
        [max(beside, 0.0)],
        unit="MB",
        note="beside the updates; the index of their records included",
    )
