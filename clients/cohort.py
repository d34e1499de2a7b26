"""Many clients, or many redraws of one, trained at once from one global model or several.

The updates are those of the plain rules of `clients.update` on the same batches, up to rounding.
Three engines do it: hand-written products for networks of linear layers (`Dense`), `torch.func` for
other modules, and the plain rule for the rest: convolutions, where `vmap` is slower than a loop on
a CPU, rules that are not known to be plain steps, and what `vmap` cannot do.

For linear layers and ReLU the gradient of the mean cross-entropy in the logits is (softmax -
one-hot) / batch; the rest is the chain rule through W a + b and max(0, ·). How `Dense` differs from
autograd over the same layers:
1. products run along the longer of batch and features: with batches of 64 and few classes forward
   is W Xᵀ, two to three times as fast as X Wᵀ, and with batches of 8 and a hundred hidden units it
   is the other way round;
2. the product itself adds the gradient to the weights;
3. several initial models lie side by side in the first layer, which reads each batch once.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from leakmeter.auditors._types import Indices, require
from leakmeter.clients.engine import Chunk, Engine, Plain, Step, clients_in_cache, functional, steps
from leakmeter.clients.layers import Layer, is_classified, layers_of
from leakmeter.clients.update import LocalSteps, UpdateRule

_CACHE = 2**20  # bytes of updates that are projected together


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
        if memory < 1:
            raise ValueError(f"memory must be at least 1 byte, got {memory}")
        require("at least 1", threads=threads)
        self._module = copy.deepcopy(module)
        self._rule, self._steps = rule, rule if isinstance(rule, LocalSteps) else None
        self._memory, self._threads = memory, threads
        self._layers = layers_of(self._module)
        self._others: dict[tuple[torch.Size, torch.dtype], Engine] = {}
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

    def _engine(self, x: Tensor, y: Tensor) -> Engine:
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
        self, engine: Engine, models: int, sizes: NDArray[np.int64]
    ) -> tuple[list[Indices], int]:
        """Return which clients train together, of similar sizes, and how many chunks at a time."""
        order = np.argsort(-sizes, kind="stable")
        chunks: list[Indices] = []
        done, largest = 0, 0
        while done < len(order):
            size = int(sizes[order[done]])
            each = engine.bytes_each(models, size)
            if each > self._memory:
                raise ValueError(
                    f"memory must be at least {each} bytes for a client of {size} examples, "
                    f"got {self._memory}"
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
    few = max(1, _CACHE // (8 * updates.shape[2]))
    parts = torch.split(updates.to(project.device), few, dim=1)  # not every device has doubles
    return torch.cat([part.to(project.dtype) @ project for part in parts], dim=1)


def _check(records: Sequence[Indices], rngs: Sequence[np.random.Generator]) -> None:
    if len(rngs) != len(records):
        raise ValueError(f"rngs must be {len(records)}, one per client, got {len(rngs)}")
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
class Dense(Engine):
    """The engine of networks that `layers_of` knows."""

    layers: tuple[Layer, ...]
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
        work = _Work(self.layers, self.rule, start, chunk)
        x = x.flatten(1)
        for step in steps(self.rule, chunk):
            index = torch.from_numpy(step.index.ravel()).to(x.device)
            inputs = self._gather(x, index).view(*step.index.shape, -1)
            work.take(inputs, y.index_select(0, index), step)
        work.updates(out)

    def _gather(self, x: Tensor, index: Tensor) -> Tensor:
        """Copy rows into a buffer of this thread's: fresh memory costs as much as the products."""
        buffer: Tensor | None = getattr(self.scratch, "buffer", None)
        if buffer is None or len(buffer) < len(index):
            self.scratch.buffer = buffer = None  # never both in memory
            buffer = self.scratch.buffer = x.new_empty((len(index), x.shape[1]))
        return torch.index_select(x, 0, index, out=buffer[: len(index)])


class _Work:
    """The models of a chunk while they train; a client's models stand together.

    Signals and slopes are (clients · models, width, fan_out) to read; in memory the longer of the
    last two axes comes last, so that the products run along it.
    """

    def __init__(
        self, layers: tuple[Layer, ...], rule: LocalSteps, start: Tensor, chunk: Chunk
    ) -> None:
        self.layers, self.rule, self.start, self.models = layers, rule, start, len(start)
        widest = max(layer.fan_out for layer in layers)
        # Models lie side by side in the first layer's outputs, which must come first for that.
        self.is_wide = self.models > 1 or rule.width(len(chunk.records[0])) > widest
        # Lists over the layers of (clients · models, fan_out, fan_in) and (…, fan_out).
        self.weights = [
            start[:, layer.weight].repeat(len(chunk), 1).view(-1, layer.fan_out, layer.fan_in)
            for layer in layers
        ]
        self.biases = [start[:, layer.bias].repeat(len(chunk), 1) for layer in layers]
        self.one_hot = torch.eye(layers[-1].fan_out).to(start)

    def updates(self, out: Tensor) -> None:
        """Write trained minus start, (models, clients, dim)."""
        for layer, weight, bias in zip(self.layers, self.weights, self.biases, strict=True):
            for part, where in ((weight.flatten(1), layer.weight), (bias, layer.bias)):
                now = part.view(out.shape[1], self.models, part.shape[1]).transpose(0, 1)
                torch.sub(now, self.start[:, None, where], out=out[..., where])

    def take(self, inputs: Tensor, labels: Tensor, step: Step) -> None:
        """Take one step of the active clients; `inputs` are (active, width, features)."""
        active, width = step.index.shape
        signals = self._forward(inputs)
        hot = self.one_hot.index_select(0, labels).view(active, 1, width, -1)
        # Softmax runs along an axis as it lies in memory.
        slope = signals[-1].mT.softmax(dim=1).mT if self.is_wide else signals[-1].softmax(dim=2)
        slope.view(active, self.models, width, -1).sub_(hot).mul_(self._scales(step))
        for place in range(len(self.layers) - 1, 0, -1):
            following = self._product(slope, self.weights[place][: len(slope)])  # it moves below
            self._descend(place, slope, signals[place - 1])
            if self.layers[place - 1].relu:  # zero where the signal is, in one pass
                torch.ops.aten.threshold_backward.grad_input(
                    following, signals[place - 1], 0, grad_input=following
                )
            slope = following
        self._descend(0, slope, inputs)

    def _scales(self, step: Step) -> Tensor | float:
        """Return what an example counts in its client's mean; padding counts nothing."""
        width = int(step.index.shape[1])
        if step.counts[-1] == width:
            return 1 / width
        real = np.arange(width) < step.counts[:, None]
        scales = torch.from_numpy(real / step.counts[:, None]).to(self.start)
        return scales.view(-1, 1, width, 1)

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the products of two stacks of matrices, laid out as `is_wide` says."""
        return torch.bmm(right.mT, left.mT).mT if self.is_wide else torch.bmm(left, right)

    def _forward(self, inputs: Tensor) -> list[Tensor]:
        """Return each layer's output, (active · models, width, fan_out)."""
        rows = len(inputs) * self.models
        signals: list[Tensor] = []
        below = inputs
        for layer, weights, biases in zip(self.layers, self.weights, self.biases, strict=True):
            weight = weights[:rows].view(len(below), -1, layer.fan_in)
            bias = biases[:rows].view(len(below), 1, -1)
            if not layer.has_bias:
                signal = self._product(below, weight.mT)
            elif self.is_wide:
                signal = torch.baddbmm(bias.mT, weight, below.mT).mT
            else:
                signal = torch.baddbmm(bias, below, weight.mT)
            if len(signal) < rows:  # models side by side
                signal = signal.mT.view(rows, layer.fan_out, -1).mT
            below = signal.relu_() if layer.relu else signal
            signals.append(below)
        return signals

    def _descend(self, place: int, slope: Tensor, below: Tensor) -> None:
        """Move one layer: w ← (1 - lr mu) w + lr mu w_start - lr gradient."""
        layer, rows, lr = self.layers[place], len(slope), self.rule.lr
        weight, bias = self.weights[place][:rows], self.biases[place][:rows]
        pull = lr * self.rule.mu
        products = (
            slope.mT.reshape(len(below), -1, slope.shape[1]) if len(below) < rows else slope.mT
        )
        joined = weight.view(len(below), -1, layer.fan_in)
        joined.baddbmm_(products, below, beta=1 - pull, alpha=-lr)
        if pull:
            bias.mul_(1 - pull)
        if layer.has_bias:
            bias.sub_(slope.sum(dim=1), alpha=lr)
        if pull:
            self._pull_back(weight.flatten(1), layer.weight, pull)
        if pull and layer.has_bias:
            self._pull_back(bias, layer.bias, pull)

    def _pull_back(self, part: Tensor, where: slice, pull: float) -> None:
        """Add a share of the start to a part of all models, in place."""
        part.view(-1, self.models, part.shape[1]).add_(self.start[:, where], alpha=pull)
