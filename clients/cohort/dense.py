"""Networks of linear layers and ReLU, trained for many clients at once by hand-written products.

The gradient of the mean cross-entropy in the logits is (softmax - one-hot) / batch; the rest is the
chain rule through W a + b and max(0, ·). How this differs from autograd over the same layers:
1. products run along the longer of batch and features: with batches of 64 and few classes forward
   is W Xᵀ, two to three times as fast as X Wᵀ, and with batches of 8 and a hundred hidden units it
   is the other way round;
2. the product itself adds the gradient to the weights;
3. several initial models lie side by side in the first layer, which reads each batch once.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from leakmeter.clients.cohort.engine import Chunk, Step, clients_in_cache, steps
from leakmeter.clients.layers import Layer
from leakmeter.clients.update import LocalSteps


@dataclass(frozen=True)
class Dense:
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
        """Write trained minus start into `out`, (models, clients, dim)."""
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
