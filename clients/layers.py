"""What can be computed faster than by autograd over a module as it is.

Networks of linear layers and ReLU have a gradient that can be written by hand. `Stack` takes the
steps of autograd without its graph, which takes most of the time of a step on a small batch.
Clients with equally many examples share each operation. The product of two stacks of matrices has
the bits of the single products, so a client's model does not depend on who trains beside it.
Networks with convolutions have a faster order of the same layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import nll_loss

Forward = Callable[[Tensor], Tensor]

# Stacks of smaller products, in multiplications each, torch computes by code of its own, whose last
# bits differ from those of a single product.
_SMALL = 400


@dataclass(frozen=True)
class Layer:
    """Where a linear layer's parameters are in the flat model, and whether a ReLU follows."""

    first: int
    fan_in: int
    fan_out: int
    has_bias: bool
    relu: bool

    @property
    def weight(self) -> slice:
        """Where the weights are."""
        return slice(self.first, self.first + self.fan_out * self.fan_in)

    @property
    def bias(self) -> slice:
        """Where the bias is; empty if there is none."""
        return slice(self.weight.stop, self.stop)

    @property
    def stop(self) -> int:
        """Where the next layer begins."""
        return self.first + self.fan_out * (self.fan_in + self.has_bias)


def layers_of(module: nn.Module) -> tuple[Layer, ...] | None:
    """Return the layers if the module is `Flatten`, `Linear` and `ReLU` only, else None."""
    children = list(module) if type(module) is nn.Sequential else [module]
    if any(m._forward_hooks or m._forward_pre_hooks for m in (module, *children)):
        return None
    parameters = list(module.parameters())
    if not all(p.requires_grad for p in parameters):  # the plain rule refuses it
        return None
    if any(p._backward_hooks for p in parameters):
        return None
    children = [child for child in children if not _is_flatten(child)]
    layers: list[Layer] = []
    first = 0
    for place, child in enumerate(children):
        if type(child) is nn.Linear:
            relu = type(children[place + 1]) is nn.ReLU if place + 1 < len(children) else False
            fan_out, fan_in = child.weight.shape
            layers.append(Layer(first, fan_in, fan_out, child.bias is not None, relu))
            first = layers[-1].stop
        elif type(child) is not nn.ReLU or not layers:
            return None
    is_whole = first == sum(p.numel() for p in module.parameters())  # no layer is there twice
    return tuple(layers) if layers and not layers[-1].relu and is_whole else None


def _is_flatten(module: nn.Module) -> bool:
    return type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)


def is_classified(module: nn.Module, x: Tensor, y: Tensor, classes: int) -> bool:
    """Whether the data is what the closed form of the gradient is made for."""
    dtype = next(module.parameters()).dtype
    is_flat = x.ndim == 2 or (type(module) is nn.Sequential and type(module[0]) is nn.Flatten)
    if not is_flat or x.ndim < 2 or x.dtype != dtype or y.ndim != 1 or y.dtype != torch.int64:
        return False
    lowest, highest = torch.aminmax(y)  # cross_entropy skips -100 and refuses other strangers
    return bool(lowest >= 0) and bool(highest < classes)


def dense_layers(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Layer, ...] | None:
    """Return the layers of a model that a `Stack` can train on such data, else None."""
    layers = layers_of(model)
    is_dense = layers is not None and is_classified(model, x, y, layers[-1].fan_out)
    return layers if is_dense else None


class Stack:
    """The models of some clients while they train.

    Args:
        layers: Of the network, as `layers_of` finds them.
        start: Its parameters, from which all clients start.
        clients: Number of clients.

    Attributes:
        parameters: As in `start`, with an axis over the clients in front.
    """

    def __init__(self, layers: Sequence[Layer], start: Sequence[Tensor], clients: int) -> None:
        self._layers, self._start = layers, [p.detach() for p in start]
        self.parameters = [p.expand(clients, *p.shape).clone() for p in self._start]
        # One room for all steps: the first touch of new pages takes as long as the products.
        self._gradients = [torch.empty_like(p) for p in self.parameters]

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor, lr: float, mu: float) -> list[float]:
        """Take one step of each client and return the mean losses before it.

        Args:
            x: Inputs, (clients, batch, features).
            y: Labels, (clients, batch).
            lr: Step length.
            mu: Strength of the pull back to the start.
        """
        signals, logs = self._forward(x)
        slope = torch.zeros_like(logs).scatter_(2, y[..., None], -1 / y.shape[1])
        slope = torch._log_softmax_backward_data(slope, logs, 2, logs.dtype)
        place = len(self.parameters)
        for depth in range(len(self._layers) - 1, -1, -1):
            layer, below = self._layers[depth], signals[depth]
            place -= 1 + layer.has_bias
            gradients = self._gradients[place : place + 1 + layer.has_bias]
            _products(slope.mT, below, out=gradients[0])
            if layer.has_bias:
                torch.sum(slope, dim=1, out=gradients[1])
            if depth:  # through the weights as they were
                slope = _products(slope, self.parameters[place])
            if depth and self._layers[depth - 1].relu:
                torch.ops.aten.threshold_backward.grad_input(slope, below, 0, grad_input=slope)
            there = slice(place, place + len(gradients))
            start = self._start[there] if mu else None
            descend(self.parameters[there], gradients, lr, mu, start)
        losses = [nll_loss(own, labels) for own, labels in zip(logs, y, strict=True)]
        found: list[float] = torch.stack(losses).tolist()  # a GPU is waited for once
        return found

    def _forward(self, signal: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the input of each layer, (clients, batch, fan_in), and the log-probabilities."""
        inputs, left = [], iter(self.parameters)
        for layer in self._layers:
            inputs.append(signal)
            weights = next(left).mT
            signal = _products(signal, weights, next(left) if layer.has_bias else None)
            signal = signal.relu() if layer.relu else signal
        return inputs, signal.log_softmax(dim=2)


def descend(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    lr: float,
    mu: float = 0.0,
    start: Sequence[Tensor] | None = None,
) -> None:
    """Take one step in place, without a graph around it.

    With a start, the proximal term's gradient mu (w - w_start) is added.
    """
    for at, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        if start is not None:
            gradient = gradient + mu * (parameter - start[at])
        parameter.sub_(gradient, alpha=lr)


def _products(
    left: Tensor, right: Tensor, biases: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """Return each client's product, (clients, n, m) by (clients, m, k), plus its bias, (k,).

    Products without biases may be written into `out`.
    """
    if left.shape[1] * left.shape[2] * right.shape[2] < _SMALL:
        pairs = zip(left, right, strict=True)
        if biases is None:
            return torch.stack([one @ other for one, other in pairs], out=out)
        return torch.stack([torch.addmm(b, *pair) for b, pair in zip(biases, pairs, strict=True)])
    if biases is None:
        return torch.bmm(left, right, out=out)
    return torch.baddbmm(biases[:, None], left, right)


@contextmanager
def fast_forward(module: nn.Module) -> Iterator[Forward]:
    """Give what computes the module's outputs, faster where it is a stack with convolutions.

    Channels come last in memory meanwhile, which convolutions on a CPU prefer. A ReLU before a
    maximum pool comes after it: the two commute, also in their gradients, and less is left to
    rectify. Outputs differ from the module's own in their last digits. On another device the module
    computes as it is.
    """
    children = list(module) if type(module) is nn.Sequential else []
    convolutions = [child for child in children if type(child) is nn.Conv2d]
    is_here = all(child.weight.device.type == "cpu" for child in convolutions)
    if not convolutions or not is_here or any(_has_hooks(m) for m in module.modules()):
        yield module
        return
    for place, (first, second) in enumerate(pairwise(children)):
        if type(first) is nn.ReLU and type(second) is nn.MaxPool2d and not second.return_indices:
            children[place : place + 2] = second, first

    def forward(x: Tensor) -> Tensor:
        for child in children:
            if type(child) is nn.Conv2d and x.ndim == 4:
                x = _channels_last(x)
            x = child(x)
        return x

    _lay_out(convolutions, torch.channels_last)
    try:
        yield forward
    finally:
        _lay_out(convolutions, torch.contiguous_format)


def _channels_last(x: Tensor) -> Tensor:
    """Return images (batch, channels, height, width) with their channels last in memory."""
    x = x.contiguous(memory_format=torch.channels_last)
    _, channels, height, width = x.shape
    if channels > 1:
        return x
    # One channel is first and last at once. Torch takes it for first, unless the strides say last:
    # then the first convolution is five times as fast, and a pool after it ten times.
    return x.as_strided(x.shape, (height * width, 1, width, 1))


def _lay_out(convolutions: list[nn.Conv2d], memory_format: torch.memory_format) -> None:
    for convolution in convolutions:
        weight = convolution.weight
        weight.data = weight.data.contiguous(memory_format=memory_format)


def _has_hooks(module: nn.Module) -> bool:
    kinds = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    return any((*kinds, module._backward_pre_hooks))
