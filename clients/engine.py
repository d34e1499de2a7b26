"""How a chunk of clients trains: their batches side by side, and engines for any module.

Ragged clients are padded to one rectangle a step. `Functional` trains through `torch.func` where
that works and pays, `Plain` by the rule itself. Networks of linear layers have an engine of their
own, `Dense` of `clients.cohort`.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from leakmeter.auditors.values import Indices
from leakmeter.clients.update import LocalSteps, UpdateRule

Parameters = dict[str, Tensor]

# Clients that make `vmap` worth its overhead well; with a quarter of them a loop is faster.
_FEW = 16

# How a trial may fail. If it is the user's mistake, the plain rule will meet it and tell.
_REFUSALS = (RuntimeError, ValueError, TypeError, AttributeError, IndexError, Warning)

# vmap over the weights of a convolution is slower than a loop on a CPU; recurrent layers and what
# keeps running statistics or draws at random, vmap cannot do.
_BY_LOOP = (
    nn.modules.conv._ConvNd,
    nn.RNNBase,
    nn.RNNCellBase,
    nn.modules.dropout._DropoutNd,
    nn.modules.batchnorm._NormBase,
)

# Bytes of gathered inputs in a chunk. More falls out of the cache; with less, Python's time shows.
_CACHE = 2**22


@dataclass(frozen=True)
class Chunk:
    """Clients that train together, the largest first.

    Attributes:
        records: Which examples each client holds.
        rngs: From where each client's batches are drawn.
    """

    records: Sequence[Indices]
    rngs: Sequence[np.random.Generator]

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.records)


class Engine(Protocol):
    """A way to train a chunk of clients."""

    def clients_at_once(self, size: int) -> int:
        """Return how many clients of `size` examples make the fastest chunk."""
        ...

    def bytes_each(self, models: int, size: int) -> int:
        """Return the memory that a client of a chunk takes, besides `x`, `y` and the result."""
        ...

    def train(self, start: Tensor, x: Tensor, y: Tensor, chunk: Chunk, out: Tensor) -> None:
        """Write trained minus start into `out`, (models, clients, dim); start is (models, dim)."""
        ...


@dataclass(frozen=True)
class Step:
    """One step of those clients that still have a batch in this pass: the first of the chunk.

    Attributes:
        index: Examples of the batches, then padding. # (active, width)
        counts: How many of each row are the client's batch, descending. # (active,)
    """

    index: Indices
    counts: Indices


def clients_in_cache(batch_bytes: int) -> int:
    """Return how many clients' batches fit into the cache together, at least one."""
    return max(1, _CACHE // max(1, batch_bytes))


def steps(rule: LocalSteps, chunk: Chunk) -> Iterator[Step]:
    """Yield all steps of a chunk, drawn as the plain rule draws them for each client."""
    sizes = [len(own) for own in chunk.records]
    lengths = np.array([rule.weight(size) for size in sizes])
    longest, most = int(lengths[0]), rule.width(sizes[0])
    is_even = sizes[-1] == sizes[0]  # the largest come first
    records = np.stack(chunk.records) if is_even else None  # (clients, size)
    index = np.empty((len(chunk), longest), dtype=np.int64)
    for _ in range(rule.passes):
        orders = [rule.order(size, rng) for size, rng in zip(sizes, chunk.rngs, strict=True)]
        if records is not None:  # all clients in one call
            index = np.take_along_axis(records, np.stack(orders), axis=1)
        else:
            for row, own, order in zip(index, chunk.records, orders, strict=True):
                row[: len(order)] = own[order]
                # One of the client's own, so that no other's NaN gets in.
                row[len(order) :] = row[0]
        for first in range(0, longest, most):
            active = int(np.searchsorted(-lengths, -first))  # those with lengths > first
            counts = np.minimum(lengths[:active] - first, most)
            yield Step(index[:active, first : first + most], counts)


@dataclass(frozen=True)
class Plain(Engine):
    """The rule itself, client by client and model by model."""

    module: nn.Module
    rule: UpdateRule
    example_bytes: int

    def clients_at_once(self, size: int) -> int:
        """Return one: nothing is shared."""
        return 1

    def bytes_each(self, models: int, size: int) -> int:
        """Count data, model, gradient and updates, also in double precision; no signals."""
        copies = (3 * models + 3) * sum(p.nbytes for p in self.module.parameters())
        return copies + size * (self.example_bytes + 16)

    def train(self, start: Tensor, x: Tensor, y: Tensor, chunk: Chunk, out: Tensor) -> None:
        for place, (records, rng) in enumerate(zip(chunk.records, chunk.rngs, strict=True)):
            own = torch.tensor(records).to(x.device)
            inputs, labels = x[own], y[own]
            # All models see the same batches, and `rng` moves on as if there were one.
            again = [copy.deepcopy(rng) for _ in start[1:]]
            for model, source, update in zip(start, [rng, *again], out[:, place], strict=True):
                net = copy.deepcopy(self.module)  # buffers start afresh too
                vector_to_parameters(model.clone(), net.parameters())
                with torch.enable_grad():
                    self.rule(net, inputs, labels, source)
                torch.sub(parameters_to_vector(net.parameters()).detach(), model, out=update)


class Functional(Engine):
    """Steps of all clients of a chunk by `vmap` over `grad`; nothing is padded."""

    def __init__(self, module: nn.Module, rule: LocalSteps, example: Tensor) -> None:
        self._module, self._rule = module, rule
        self._shapes = {name: p.shape for name, p in module.named_parameters()}
        self._model_bytes = sum(p.nbytes for p in module.parameters())
        self._example_bytes = example.nbytes
        self._signal_bytes = _saved_bytes(module, example.unsqueeze(0))

    def clients_at_once(self, size: int) -> int:
        """Return as many as have their batches in the cache together, but not too few to pay."""
        return max(_FEW, clients_in_cache(self._rule.width(size) * self._example_bytes))

    def bytes_each(self, models: int, size: int) -> int:
        """Count the batch, its indices, eight copies of the model, and the signals twice."""
        batch = self._rule.width(size) * (
            self._example_bytes + 2 * models * self._signal_bytes + 32
        )
        return batch + 8 * models * self._model_bytes + 16 * size

    def train(self, start: Tensor, x: Tensor, y: Tensor, chunk: Chunk, out: Tensor) -> None:
        if len(start) * len(chunk) < _FEW // 4:
            plain = Plain(self._module, self._rule, self._example_bytes)
            return plain.train(start, x, y, chunk, out)
        slopes, begin = self._slopes(), self._split(start)
        now = {  # (clients, models, …)
            name: value.expand(len(chunk), *value.shape).clone(
                memory_format=torch.contiguous_format
            )
            for name, value in begin.items()
        }
        for step in steps(self._rule, chunk):
            for rows, index in _groups(step):
                batch = torch.from_numpy(index).to(x.device)
                values = {name: value[rows] for name, value in now.items()}
                self._descend(values, slopes(values, x[batch], y[batch]), begin)
        flat = torch.cat([value.flatten(2) for value in now.values()], dim=2)
        out.copy_(flat.sub_(start).transpose(0, 1))
        return None

    def is_right(self, x: Tensor, y: Tensor) -> bool:
        """Whether `vmap` gives the gradient that autograd gives, without complaint or detour."""
        net = copy.deepcopy(self._module)
        weights = list(net.parameters())
        here = parameters_to_vector(weights).detach()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # vmap warns where it falls back to a slow loop
                parts = self._split(torch.stack([here, here]))
                found = self._slopes()({k: v[None] for k, v in parts.items()}, x[None], y[None])
            with torch.enable_grad():
                twins = torch.autograd.grad(cross_entropy(net(x), y), weights)
        except _REFUSALS:
            return False
        return all(
            torch.allclose(slope[0, 1], twin, rtol=1e-3, atol=1e-5)
            for slope, twin in zip(found.values(), twins, strict=True)
        )

    def _slopes(self) -> Callable[[Parameters, Tensor, Tensor], Parameters]:
        """Return the gradients of (clients, models, …) parameters on (clients, width, …) inputs."""
        net = copy.deepcopy(self._module)  # functional_call changes it for a while: one per thread

        def loss(parameters: Parameters, x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(functional_call(net, parameters, (x,)), y)

        # Inner: the models, which share a batch. Outer: the clients.
        return vmap(vmap(grad(loss), in_dims=(0, None, None)))

    def _descend(self, values: Parameters, slopes: Parameters, begin: Parameters) -> None:
        """Take one step in place."""
        for name, value in values.items():
            slope = slopes[name]
            if self._rule.mu:
                slope = slope.add(value - begin[name], alpha=self._rule.mu)
            value.sub_(slope, alpha=self._rule.lr)

    def _split(self, flat: Tensor) -> Parameters:
        """Cut (models, dim) into parameters (models, …)."""
        parts = torch.split(flat, [shape.numel() for shape in self._shapes.values()], dim=1)
        named = zip(self._shapes.items(), parts, strict=True)
        return {name: part.reshape(len(flat), *shape) for (name, shape), part in named}


def functional(module: nn.Module, rule: LocalSteps, x: Tensor, y: Tensor) -> Functional | None:
    """Return the engine for modules that `vmap` does rightly and faster than a loop, else None."""
    parameters = [p for _, p in module.named_parameters(remove_duplicate=False)]
    has_ties = len(parameters) != len(list(module.parameters()))
    is_frozen = not all(p.requires_grad for p in parameters)
    has_buffers = next(module.buffers(), None) is not None
    by_loop = any(isinstance(m, _BY_LOOP) for m in module.modules())
    if has_ties or is_frozen or has_buffers or by_loop:
        return None
    try:
        engine = Functional(module, rule, x[0])
    except _REFUSALS:
        return None
    return engine if engine.is_right(x[:2], y[:2]) else None


def _groups(step: Step) -> Iterator[tuple[slice, Indices]]:
    """Yield clients whose batches are of one size: padding could change what a module does."""
    first = 0
    while first < len(step.counts):
        count = step.counts[first]
        last = int((step.counts >= count).sum())  # counts descend
        yield slice(first, last), step.index[first:last, :count].copy()
        first = last


def _saved_bytes(module: nn.Module, x: Tensor) -> int:
    """Return what autograd keeps of one example between forward and backward."""
    own = {p.data_ptr() for p in module.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in own:
            kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        logits = module(x)
    return sum(kept.values()) + 3 * int(logits.nbytes)
