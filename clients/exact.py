"""Networks of linear layers and ReLU, trained bit for bit as autograd trains them.

These are the operations of autograd without its graph, which takes most of the time of a step on a
small batch. Clients with equally many examples share each operation. The product of two stacks of
matrices has the bits of the single products, so a client's model does not depend on who trains
beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from leakmeter.clients.layers import Layer

# Stacks of smaller products, in multiplications each, torch computes by code of its own, whose last
# bits differ from those of a single product.
_SMALL = 400


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
            self._descend(place, gradients, lr, mu)
        return [nll_loss(own, labels).item() for own, labels in zip(logs, y, strict=True)]

    def _forward(self, signal: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the input of each layer, (clients, batch, fan_in), and the log-probabilities."""
        inputs, left = [], iter(self.parameters)
        for layer in self._layers:
            inputs.append(signal)
            weights = next(left).mT
            signal = _products(signal, weights, next(left) if layer.has_bias else None)
            signal = signal.relu() if layer.relu else signal
        return inputs, signal.log_softmax(dim=2)

    def _descend(self, place: int, gradients: Sequence[Tensor], lr: float, mu: float) -> None:
        for at, gradient in enumerate(gradients, start=place):
            if mu:  # the proximal term's gradient, mu (w - w_global)
                gradient = gradient + mu * (self.parameters[at] - self._start[at])
            self.parameters[at].sub_(gradient, alpha=lr)


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
