"""Local update rules: how a client turns its data into a model.

FedAvg, FedSGD, FedProx and gradient descent are four settings of one rule, `LocalSteps`.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas (2017), Communication-Efficient Learning of Deep
Networks from Decentralized Data, arXiv:1602.05629, Algorithm 1 and section 2 (FedSGD). FedProx is
Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith (2020), Federated Optimization in Heterogeneous
Networks, arXiv:1812.06127, Algorithm 2, with SGD as the local solver.

Networks of linear layers and ReLU have a gradient that can be written by hand: that of the mean
cross-entropy in the logits is (softmax - one-hot) / batch, the rest is the chain rule through
W a + b and max(0, ·). How `Stack` differs from autograd over the same layers:
1. clients share each operation, and there is no graph, which takes most of the time of a step on a
   small batch;
2. products run along the batch where it is not far smaller than the layers: W Xᵀ is up to twice as
   fast as X Wᵀ;
3. a product is added to the weights while it is in the cache;
4. several initial models lie side by side in the first layer, which reads each batch once;
5. large products are oneDNN's.
Where asked for, a client's model has the same bits whoever trains beside it, if all of these have
batches of the same size. Networks with convolutions have a faster order and layout of the same
layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

from leakmeter.auditors.values import require

Forward = Callable[[Tensor], Tensor]

# Multiplications from which on oneDNN takes half the time of a product of MKL, which is torch's
# usual one, on processors that are not Intel's. With fewer its start shows.
_LARGE = 2**20
# Below these sizes, (n, m) by (m, k), the last bits of MKL's products were seen to depend on where
# in memory a matrix begins, and on whether there are several.
_STEADY = (4, 2, 12)
_HAS_ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class DenseLayer:
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


def layers_of(module: nn.Module) -> tuple[DenseLayer, ...] | None:
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
    layers: list[DenseLayer] = []
    first = 0
    for place, child in enumerate(children):
        if type(child) is nn.Linear:
            relu = type(children[place + 1]) is nn.ReLU if place + 1 < len(children) else False
            fan_out, fan_in = child.weight.shape
            layers.append(DenseLayer(first, fan_in, fan_out, child.bias is not None, relu))
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


def dense_layers(model: nn.Module, x: Tensor, y: Tensor) -> tuple[DenseLayer, ...] | None:
    """Return the layers of a model that a `Stack` can train on such data, else None."""
    layers = layers_of(model)
    is_dense = layers is not None and is_classified(model, x, y, layers[-1].fan_out)
    return layers if is_dense else None


class Stack:
    """The models of some clients while they train; those of one client are together.

    Signals and slopes are (clients · models, batch, fan_out) to read; in memory the longer of the
    last two axes comes last, so that the products run along it.

    Args:
        layers: Of the network, as `layers_of` finds them.
        start: Where all clients start, (models, dim).
        clients: Number of clients.
        lr: Step length.
        mu: Strength of the pull back to the start.
        exact: Whether the bits of a client's model must not depend on who trains beside it.

    Attributes:
        parameters: In the module's order, each with an axis over the clients · models in front.
    """

    def __init__(
        self,
        layers: Sequence[DenseLayer],
        start: Tensor,
        clients: int,
        lr: float,
        mu: float,
        *,
        exact: bool,
    ) -> None:
        self._layers, self._start, self._models = layers, start, len(start)
        self._lr, self._mu, self._exact = lr, mu, exact
        self._widest = max(layer.fan_out for layer in layers)
        # Lists over the layers of (clients · models, fan_out, fan_in) and (…, fan_out).
        self._weights = [
            start[:, layer.weight].repeat(clients, 1).view(-1, layer.fan_out, layer.fan_in)
            for layer in layers
        ]
        self._biases = [start[:, layer.bias].repeat(clients, 1) for layer in layers]
        self._one_hot = torch.eye(layers[-1].fan_out).to(start)

    @property
    def parameters(self) -> list[Tensor]:
        """The models as they are now."""
        pairs = zip(self._weights, self._biases, strict=True)
        return [part for pair in pairs for part in pair if part.numel()]

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor, counts: NDArray[np.int64] | None = None) -> Tensor:
        """Take one step of the first clients and return log-probabilities before it.

        Args:
            x: Inputs, (clients, batch, features).
            y: Labels, (clients, batch).
            counts: How many examples of each client's batch are its own, the largest first; the
                rest is padding. None for all. # (clients,)

        Returns:
            (clients · models, batch, classes).
        """
        # Models lie side by side in the first layer's outputs, which must come first for that.
        # Measured: products along the batch are faster, unless it is far smaller than the layers.
        batch = x.shape[1]
        self._is_wide = self._models > 1 or 4 * batch > self._widest
        signals = self._forward(x)
        # Softmax runs along an axis as it lies in memory.
        logs = signals[-1]
        logs = logs.mT.log_softmax(dim=1).mT if self._is_wide else logs.log_softmax(dim=2)
        hot = self._one_hot[y][:, None]  # (clients, 1, batch, classes)
        slope = logs.exp()
        each = slope.view(len(x), self._models, *slope.shape[1:])
        each.sub_(hot).mul_(self._scales(batch, counts))
        for place in range(len(self._layers) - 1, 0, -1):
            following = self._product(slope, self._weights[place][: len(slope)])  # it moves below
            self._descend(place, slope, signals[place - 1])
            if self._layers[place - 1].relu:  # zero where the signal is, in one pass
                torch.ops.aten.threshold_backward.grad_input(
                    following, signals[place - 1], 0, grad_input=following
                )
            slope = following
        self._descend(0, slope, x)
        return logs

    def _scales(self, batch: int, counts: NDArray[np.int64] | None) -> Tensor | float:
        """Return what an example counts in its client's mean; padding counts nothing."""
        if counts is None or counts[-1] == batch:
            return 1 / batch
        real = np.arange(batch) < counts[:, None]
        return torch.from_numpy(real / counts[:, None]).to(self._start).view(-1, 1, batch, 1)

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the products of two stacks of matrices, laid out as `_is_wide` says."""
        if self._is_wide:
            return products(right.mT, left.mT, exact=self._exact).mT
        return products(left, right, exact=self._exact)

    def _forward(self, below: Tensor) -> list[Tensor]:
        """Return each layer's output, (clients · models, batch, fan_out)."""
        rows, signals = len(below) * self._models, []
        for layer, weights, biases in zip(self._layers, self._weights, self._biases, strict=True):
            signal = self._product(below, weights[:rows].view(len(below), -1, layer.fan_in).mT)
            if len(signal) < rows:  # models side by side
                signal = signal.mT.view(rows, layer.fan_out, -1).mT
            if layer.has_bias:
                signal.add_(biases[:rows, None])
            below = signal.relu_() if layer.relu else signal
            signals.append(below)
        return signals

    def _descend(self, place: int, slope: Tensor, below: Tensor) -> None:
        """Move one layer: w ← w - lr (gradient + mu (w - w_start))."""
        layer, rows = self._layers[place], len(slope)
        weight, bias = self._weights[place][:rows], self._biases[place][:rows]
        if self._mu:
            for part, where in ((weight.flatten(1), layer.weight), (bias, layer.bias)):
                each = part.view(rows // self._models, self._models, -1)
                each.lerp_(self._start[:, where], self._lr * self._mu)
        slopes = slope.mT
        if len(below) < rows:  # models side by side
            slopes = slopes.reshape(len(below), -1, slope.shape[1])
        joined = weight.view(len(below), -1, layer.fan_in)
        _add_products(joined, slopes, below, -self._lr, exact=self._exact)
        if layer.has_bias:
            bias.sub_(slope.sum(dim=1), alpha=self._lr)


def products(left: Tensor, right: Tensor, *, exact: bool) -> Tensor:
    """Return the products of two stacks of matrices, (clients, n, m) by (clients, m, k)."""
    if not _is_apart(left, right, exact=exact):
        return torch.bmm(left, right)
    return torch.stack([_by_onednn(*pair) for pair in zip(left, right, strict=True)])


def _add_products(to: Tensor, left: Tensor, right: Tensor, factor: float, *, exact: bool) -> None:
    """Add a multiple of the products of two stacks of matrices in place."""
    if not _is_apart(left, right, exact=exact):
        to.baddbmm_(left, right, alpha=factor)
        return
    for own, *pair in zip(to, left, right, strict=True):  # while the product is in the cache
        own.add_(_by_onednn(*pair), alpha=factor)


def _is_apart(left: Tensor, right: Tensor, *, exact: bool) -> bool:
    """Whether oneDNN computes each product: it is large, or bits matter that MKL does not keep."""
    sizes = (*left.shape[1:], right.shape[2])
    is_fragile = exact and any(size < low for size, low in zip(sizes, _STEADY, strict=True))
    return (is_fragile or math.prod(sizes) >= _LARGE) and _is_single(left) and _HAS_ONEDNN


def _by_onednn(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the product of two matrices, plus a bias in each row."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.mT, bias, "none", [], "")
    return product


def fast_forward(module: nn.Module) -> Forward:
    """Return what computes the module's outputs, faster where it is a stack of known layers.

    Images stay in oneDNN's own layout from a convolution to the last pool after it. A ReLU before a
    maximum pool comes after it: the two commute, also in their gradients, and less is left to
    rectify. Linear layers are oneDNN's where no gradient is asked for. Outputs differ from the
    module's own in their last digits. In double precision and on another device than the CPU the
    module computes as it is.
    """
    children = list(module) if type(module) is nn.Sequential else []
    is_known = _HAS_ONEDNN and all(_is_single(p) for p in module.parameters())
    if not is_known or any(_has_hooks(m) for m in module.modules()):
        return module
    for place, (first, second) in enumerate(pairwise(children)):
        if type(first) is nn.ReLU and type(second) is nn.MaxPool2d and not second.return_indices:
            children[place : place + 2] = second, first

    def forward(x: Tensor) -> Tensor:
        for child in children:
            if type(child) is nn.Conv2d and _is_blockable(child) and _is_single(x) and x.ndim == 4:
                x = x if x.is_mkldnn else x.to_mkldnn()
            elif x.is_mkldnn and not _is_blockable(child):
                x = x.to_dense()
            if type(child) is nn.ReLU:  # never in place: a pool needs its output again
                x = x.relu()
            elif type(child) is nn.Linear and x.ndim == 2 and not torch.is_grad_enabled():
                x = _by_onednn(x, child.weight.mT, child.bias)
            else:
                x = child(x)
        return x.to_dense() if x.is_mkldnn else x

    return forward if children else module


def _is_single(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu"


def _is_blockable(module: nn.Module) -> bool:
    """Whether a layer computes on images in oneDNN's layout."""
    if type(module) is nn.Conv2d:
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)
    if type(module) is nn.MaxPool2d:
        return module.dilation in (1, (1, 1)) and not module.return_indices
    return type(module) is nn.ReLU


def _has_hooks(module: nn.Module) -> bool:
    kinds = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    return any((*kinds, module._backward_pre_hooks))


@dataclass(frozen=True)
class Trained:
    """What a client says besides its model: number of examples used, and their mean loss."""

    num_examples: int
    loss: float


class UpdateRule(Protocol):
    """Changes `model` in place by training on one client's data."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, rng: np.random.Generator) -> Trained:
        """Train and return what happened; all randomness comes from `rng`."""
        ...


@final
@dataclass(frozen=True)
class LocalSteps:
    """Nothing but gradient steps on batches that can be named beforehand.

    Each of `passes` passes takes one `order` of the local examples and cuts it into batches, the
    last of which may be smaller. Each batch is one step w ← w - lr (mean gradient + mu (w -
    w_start)). The reported loss is that of the data alone.

    Attributes:
        passes: Number of orders that are drawn.
        batch_size: Examples in a step; 0 takes the whole order.
        lr: Step length.
        mu: Strength of the pull back to the model as it arrived, FedProx's proximal term.
        batches: "all" uses all batches of a shuffled order; "first" uses the first one alone;
            "unshuffled" uses all examples as they are and draws nothing.
    """

    passes: int
    batch_size: int
    lr: float
    mu: float = 0.0
    batches: Literal["all", "first", "unshuffled"] = "all"

    def __post_init__(self) -> None:
        require("at least 1", passes=self.passes)
        require("at least 0", batch_size=self.batch_size)
        require("(0, inf)", lr=self.lr)
        require("[0, inf)", mu=self.mu)

    @property
    def is_one_step(self) -> bool:
        """Whether a client takes a single step, so that its update is a gradient."""
        return self.passes == 1 and (self.batches == "first" or self.batch_size == 0)

    def order(self, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return which of `size` local examples one pass visits, and in what order."""
        if self.batches == "unshuffled":
            return np.arange(size)
        return rng.permutation(size)[: self.weight(size)]

    def weight(self, size: int) -> int:
        """Return the examples that a client with `size` of them uses in a pass.

        With the first batch alone this makes the server's weighted mean of the replies exactly one
        gradient step on all batches together.
        """
        return min(self.batch_size or size, size) if self.batches == "first" else size

    def width(self, size: int) -> int:
        """Return the examples in the largest batch of a client with `size` examples."""
        return min(self.batch_size or size, size)

    def batch_sizes(self, size: int) -> list[int]:
        """Return the examples in each step of one pass, for a client with `size` examples.

        >>> fedavg(2, batch_size=8, lr=0.1).batch_sizes(20), fedsgd(8, lr=0.1).batch_sizes(20)
        ([8, 8, 4], [8])
        """
        used, most = self.weight(size), self.width(size)
        return [min(most, used - first) for first in range(0, used, most)]

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, rng: np.random.Generator) -> Trained:
        """Train `model` in place; return its weight and the mean loss before the steps."""
        if not len(y):  # the mean gradient of nothing is NaN
            raise ValueError("y must contain at least one example, got 0")
        if (layers := dense_layers(model, x, y)) is None:
            return self._by_autograd(model, x, y, rng)
        stack, (done,) = self.train_together(layers, model, x, y, [np.arange(len(y))], [rng])
        with torch.no_grad():
            for parameter, trained in zip(model.parameters(), stack, strict=True):
                parameter.copy_(trained[0])
        return done

    def train_together(
        self,
        layers: Sequence[DenseLayer],
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        records: Sequence[NDArray[np.int64]],
        rngs: Sequence[np.random.Generator],
    ) -> tuple[list[Tensor], list[Trained]]:
        """Train clients with equally many examples, each as it would alone, bit for bit.

        Args:
            layers: Of the model, from `dense_layers`.
            model: Where all clients start; it is not changed.
            x: Inputs of all examples.
            y: Their labels.
            records: Which examples each client holds, equally many.
            rngs: From where each client's batches are drawn, one generator each.

        Returns:
            The trained parameters, each with an axis over the clients in front, and what each
            client tells beside them.
        """
        start = parameters_to_vector(model.parameters()).detach()[None]
        stack = Stack(layers, start, len(records), self.lr, self.mu, exact=True)
        size, told = len(records[0]), []
        inputs = x.flatten(1)
        # One room for all batches: the first touch of new pages takes longer than the copy.
        room = inputs.new_empty(len(records) * self.width(size), inputs.shape[1])
        for _ in range(self.passes):
            orders = [own[self.order(size, rng)] for own, rng in zip(records, rngs, strict=True)]
            index = torch.from_numpy(np.stack(orders)).to(x.device)  # (clients, size)
            for batch in torch.split(index, self.batch_size or size, dim=1):
                taken = torch.index_select(inputs, 0, batch.flatten(), out=room[: batch.numel()])
                labels = y[batch]
                logs = stack.step(taken.view(*batch.shape, -1), labels)
                told.append(logs.gather(2, labels[..., None])[..., 0])  # (clients, batch)
        # A row's mean does not depend on the other rows: these are by client, of steps of batches.
        means = [logs.cpu().double().numpy().mean(axis=1) for logs in told]
        losses = -np.stack(means, axis=1).mean(axis=1)
        return stack.parameters, [Trained(self.weight(size), float(loss)) for loss in losses]

    def _by_autograd(
        self, model: nn.Module, x: Tensor, y: Tensor, rng: np.random.Generator
    ) -> Trained:
        """Take all steps of any module."""
        parameters, losses = list(model.parameters()), []
        start = [p.detach().clone() for p in parameters]
        forward = fast_forward(model)
        for _ in range(self.passes):
            order = torch.from_numpy(self.order(len(y), rng)).to(x.device)
            for batch in torch.split(order, self.batch_size or len(y)):
                loss = cross_entropy(forward(x[batch]), y[batch])
                slopes = torch.autograd.grad(loss, parameters)
                with torch.no_grad():
                    for now, slope, before in zip(parameters, slopes, start, strict=True):
                        pulled = slope + self.mu * (now - before) if self.mu else slope
                        now.sub_(pulled, alpha=self.lr)
                losses.append(loss.item())
        return Trained(self.weight(len(y)), float(np.mean(losses)))


def fedavg(epochs: int, batch_size: int, lr: float) -> LocalSteps:
    """Return FedAvg: `epochs` passes of plain SGD over shuffled batches."""
    return LocalSteps(epochs, batch_size, lr)


def fedprox(epochs: int, batch_size: int, lr: float, mu: float) -> LocalSteps:
    """Return FedProx: FedAvg with the proximal term mu/2 ‖w - w_global‖² in the loss."""
    return LocalSteps(epochs, batch_size, lr, mu)


def fedsgd(batch_size: int, lr: float) -> LocalSteps:
    """Return FedSGD: one step on one batch, drawn without replacement."""
    return LocalSteps(1, batch_size, lr, batches="first")


def gd(steps: int, lr: float) -> LocalSteps:
    """Return gradient descent: steps on all local examples, and nothing random."""
    return LocalSteps(steps, 0, lr, batches="unshuffled")
