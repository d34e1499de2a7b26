"""Many clients, or many redraws of one, trained at once from one global model or several.

The updates are those of the plain rules of `clients.update` on the same batches, up to rounding.
Three trainers do it, each where it is the fastest: `Dense` runs the `Stack` of `clients.update` for
networks of linear layers, `Functional` runs `torch.func` for other modules, and `Plain` the rule
itself for the rest: convolutions, where `vmap` is slower than a loop on a CPU, rules that are not
known to be plain steps, and what `vmap` cannot do. Ragged clients are padded to one rectangle a
step.
"""

from __future__ import annotations

import copy
import math
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.values import Indices, require
from leakmeter.clients.update import (
    DenseLayer,
    LocalSteps,
    Stack,
    UpdateRule,
    is_classified,
    layers_of,
)

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


class Trainer(Protocol):
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


def clients_in_cache(batch_bytes: int) -> int:
    """Return how many clients' batches fit into the cache together, at least one."""
    return max(1, _CACHE // max(1, batch_bytes))


def steps(rule: LocalSteps, chunk: Chunk) -> Iterator[tuple[Indices, Indices]]:
    """Yield all steps of a chunk, drawn as the plain rule draws them for each client.

    A step is of the first clients, those that still have a batch in this pass: examples of the
    batches, then padding, (active, width); and how many of each row are its batch, descending.
    """
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
            yield index[:active, first : first + most], counts


@dataclass(frozen=True)
class Plain(Trainer):
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


class Functional(Trainer):
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
        for padded, counts in steps(self._rule, chunk):
            for rows, index in _groups(padded, counts):
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


def _groups(padded: Indices, counts: Indices) -> Iterator[tuple[slice, Indices]]:
    """Yield clients whose batches are of one size: padding could change what a module does."""
    first = 0
    while first < len(counts):
        last = int((counts >= counts[first]).sum())  # counts descend
        yield slice(first, last), padded[first:last, : counts[first]].copy()
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


_PROJECTED = 2**20  # bytes of updates that are projected together


class Cohort:
    """Trains many clients, or many redraws of one, at once.

    Which clients train together depends on their sizes and on `memory`, never on `threads`: the
    numbers are the same for any number of threads.

    Args:
        module: The model; its parameters' values are not used, and it is never changed. Clients
            train on the device that it is on.
        rule: What every client does.
        memory: Bytes that the work may take, besides the data and the result.
        threads: Chunks of clients at a time; fewer if `memory` would not do. Torch is
            held to one thread of its own meanwhile, which loses less on a machine that is shared.

    Attributes:
        dim: Number of parameters.
        device: Where clients train.
        free: Coordinates that determine an update. The slopes of a softmax's logits sum to zero, so
            the rows of the output layer do in every update, and the last class's are left out.
            None if the module does not end in a `Linear` or the rule is unknown.

    >>> from leakmeter.clients.update import fedavg
    >>> cohort = Cohort(nn.Linear(104, 2), fedavg(epochs=1, batch_size=64, lr=0.1))
    >>> cohort.dim, len(cohort.free)
    (210, 105)
    """

    def __init__(
        self,
        module: nn.Module,
        rule: UpdateRule,
        *,
        memory: int = 2**28,
        threads: int = 1,
    ) -> None:
        require("at least 1", memory=memory, threads=threads)
        self._module = copy.deepcopy(module)
        self._rule, self._steps = rule, rule if isinstance(rule, LocalSteps) else None
        self._memory, self._threads = memory, threads
        self._layers = layers_of(self._module)
        self._others: dict[tuple[torch.Size, torch.dtype], Trainer] = {}
        self.dim = sum(p.numel() for p in module.parameters())
        self.device = next(module.parameters()).device
        self.free = _free(module, self.dim) if self._steps else None

    @property
    def sends_gradient(self) -> bool | None:
        """Whether the rule takes one step, so that its update is a gradient; None if unknown."""
        return None if self._steps is None else self._steps.is_one_step

    def weights(self, records: Sequence[Indices]) -> NDArray[np.float64]:
        """Return what `Trained.num_examples` would be for each client.

        For another rule than `LocalSteps`, the number of its examples.
        """
        weight = self._steps.weight if self._steps else int
        return np.array([weight(len(own)) for own in records], dtype=np.float64)

    def updates(
        self,
        start: Tensor | NDArray[np.floating],
        x: Tensor,
        y: Tensor,
        records: Sequence[Indices],
        rngs: Sequence[np.random.Generator],
        project: Tensor | None = None,
    ) -> Tensor:
        """Return trained minus start for every client.

        Args:
            start: The global model, flat in the order of `module.parameters()`, (dim,); or several
                that are to see the same batches, (models, dim).
            x: Inputs of all examples.
            y: Their labels.
            records: Which examples each client holds; any sizes.
            rngs: From where each client's batches are drawn, one generator each.
            project: Matrix that updates are multiplied with while they are in the cache, (dim, k),
                or one a model, (models, dim, k).

        Returns:
            Updates (clients, dim), or (models, clients, dim), in the module's precision and on its
            device. Their projections, (clients, k) or (models, clients, k), are in the precision
            and on the device of `project`.

        Raises:
            ValueError: Something does not fit together, or one client alone needs more than the
                memory allowed.
        """
        begin = self._begin(start)
        _check(records, rngs)
        models = begin.reshape(-1, self.dim)
        length = (self.dim,) if project is None else project.shape[-1:]
        updates = (models if project is None else project).new_empty(
            (len(models), len(records), *length)
        )
        if not len(records):
            return updates.view(*begin.shape[:-1], 0, updates.shape[-1])
        if project is not None:
            # Column by column in memory: products with few columns then run along the updates, in
            # a third of the time.
            project = project.mT.contiguous().mT
        x, y = x.contiguous().to(self.device), y.to(self.device)
        own = [np.asarray(part, dtype=np.int64) for part in records]
        engine = self._engine(x, y)
        chunks, workers = self._chunks(engine, len(models), np.array([len(part) for part in own]))

        def train(members: Indices) -> None:
            chunk = Chunk([own[i] for i in members], [rngs[i] for i in members])
            is_row = project is None and bool((np.diff(members) == 1).all())
            with torch.no_grad():  # a thread of its own has a mode of its own
                shape = (len(models), len(members), self.dim)
                out = (
                    updates[:, members[0] : members[-1] + 1] if is_row else models.new_empty(shape)
                )
                engine.train(models, x, y, chunk, out)
                if not is_row:
                    done = out if project is None else _projected(out, project)
                    updates[:, torch.from_numpy(members).to(updates.device)] = done

        with _one_torch_thread(), ThreadPoolExecutor(workers) as pool:
            # One worker is this thread, which keeps tracebacks and profiles plain.
            list(map(train, chunks) if workers == 1 else pool.map(train, chunks))
        return updates if begin.ndim == 2 else updates[0]

    def _begin(self, start: Tensor | NDArray[np.floating]) -> Tensor:
        """Return a start as the module's numbers, after a look at its shape."""
        # Flower's arrays are read-only, which torch warns of unless they are copied.
        begin = start.detach() if isinstance(start, Tensor) else torch.tensor(np.asarray(start))
        if begin.ndim not in (1, 2) or begin.shape[-1] != self.dim:
            allowed = f"({self.dim},) or (models, {self.dim})"
            raise ValueError(f"start must have shape {allowed}, got {tuple(begin.shape)}")
        return begin.to(next(self._module.parameters()).dtype).to(self.device)

    def _engine(self, x: Tensor, y: Tensor) -> Trainer:
        """Return how to train on such data."""
        plain = Plain(self._module, self._rule, x.itemsize * math.prod(x.shape[1:]))
        if self._steps is None:
            return plain
        first = next(self._module.parameters())
        if self._layers and is_classified(self._module, x, y, self._layers[-1].fan_out):
            return Dense(self._layers, self._steps, first.itemsize)
        key = x.shape[1:], x.dtype
        if key not in self._others:  # found out once for each shape of example
            self._others[key] = functional(self._module, self._steps, x, y) or plain
        return self._others[key]

    def _chunks(
        self, engine: Trainer, models: int, sizes: NDArray[np.int64]
    ) -> tuple[list[Indices], int]:
        """Return which clients train together, of similar sizes, and how many chunks at a time."""
        order = np.argsort(-sizes, kind="stable")
        chunks: list[Indices] = []
        done, largest = 0, 0
        while done < len(order):
            size = int(sizes[order[done]])
            each = engine.bytes_each(models, size)
            if each > self._memory:
                raise BadValueError(
                    "memory", f"at least {each} bytes for a client of {size} examples", self._memory
                )
            # Elsewhere the CPU's cache is no limit, and every operation takes its time to start.
            most = engine.clients_at_once(size) if self.device.type == "cpu" else len(order)
            count = min(most, self._memory // each, len(order) - done)
            chunks.append(order[done : done + count])
            largest, done = max(largest, count * each), done + count
        return chunks, min(self._threads, self._memory // largest, len(chunks))


def _projected(updates: Tensor, project: Tensor) -> Tensor:
    """Return updates (models, clients, dim) times (dim, k) or (models, dim, k)."""
    # A few clients at a time: their numbers in double precision are used before they leave the
    # cache.
    few = max(1, _PROJECTED // (8 * updates.shape[2]))
    parts = torch.split(updates.to(project.device), few, dim=1)  # not every device has doubles
    return torch.cat([part.to(project.dtype) @ project for part in parts], dim=1)


def _check(records: Sequence[Indices], rngs: Sequence[np.random.Generator]) -> None:
    if len(rngs) != len(records):
        raise BadValueError("rngs", f"{len(records)}, one per client", len(rngs))
    if len({id(rng.bit_generator) for rng in rngs}) != len(rngs):
        raise ValueError("rngs must be a different generator for each client, got one twice")
    for client, own in enumerate(records):
        if not len(own):
            raise ValueError(f"records[{client}] must contain at least one example, got 0")


def _free(module: nn.Module, dim: int) -> NDArray[np.int64] | None:
    """Return all coordinates but those of the last class, if the module ends in a `Linear`."""
    last = module
    while type(last) is nn.Sequential and len(last) and not last._forward_hooks:
        last = last[-1]
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    has_ties = len(names) != len(list(module.parameters()))
    if type(last) is not nn.Linear or last._forward_hooks or last._forward_pre_hooks or has_ties:
        return None
    biases = last.out_features if last.bias is not None else 0
    weights_end = dim - biases
    dropped = [*range(weights_end - last.in_features, weights_end), *([dim - 1] if biases else [])]
    return np.delete(np.arange(dim), dropped)


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Hold torch to one thread: Python threads share the work better, and in a fixed order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Dense(Trainer):
    """The engine of networks that `layers_of` knows."""

    layers: tuple[DenseLayer, ...]
    rule: LocalSteps
    itemsize: int
    scratch: threading.local = field(default_factory=threading.local, compare=False)

    def clients_at_once(self, size: int) -> int:
        """Return as many as have their batches and half their models in the cache together."""
        # Measured: small batches want more than fit, and threads want more than one chunk.
        numbers = self.rule.width(size) * self.layers[0].fan_in + self.layers[-1].stop // 2
        return clients_in_cache(numbers * self.itemsize)

    def bytes_each(self, models: int, size: int) -> int:
        """Count the batch and its indices, four copies of the model, and the signals."""
        most, dim = self.rule.width(size), self.layers[-1].stop
        # Weights, updates, and these in double precision where they are projected.
        # A layer's output; the slope in it; and for a moment its mask or the one-hot labels.
        signals = 3 * models * most * sum(layer.fan_out for layer in self.layers)
        numbers = most * self.layers[0].fan_in + 4 * models * dim + signals
        return self.itemsize * numbers + 8 * (2 * size + 4 * most)

    def train(self, start: Tensor, x: Tensor, y: Tensor, chunk: Chunk, out: Tensor) -> None:
        stack = Stack(self.layers, start, len(chunk), self.rule.lr, self.rule.mu, exact=False)
        x = x.flatten(1)
        for padded, counts in steps(self.rule, chunk):
            index = torch.from_numpy(padded.ravel()).to(x.device)
            inputs = self._gather(x, index).view(*padded.shape, -1)
            stack.step(inputs, y[index].view(padded.shape), counts)
        first = 0
        for part in stack.parameters:
            where = slice(first, first := first + math.prod(part.shape[1:]))
            now = part.view(len(chunk), len(start), -1).transpose(0, 1)
            torch.sub(now, start[:, None, where], out=out[..., where])

    def _gather(self, x: Tensor, index: Tensor) -> Tensor:
        """Copy rows into a buffer of this thread's: fresh memory costs as much as the products."""
        buffer: Tensor | None = getattr(self.scratch, "buffer", None)
        if buffer is None or len(buffer) < len(index):
            self.scratch.buffer = buffer = None  # never both in memory
            buffer = self.scratch.buffer = x.new_empty((len(index), x.shape[1]))
        return torch.index_select(x, 0, index, out=buffer[: len(index)])
