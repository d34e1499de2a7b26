"""Local update rules: how a client turns its data into a model.

FedAvg, FedSGD, FedProx and gradient descent are four settings of one rule, `LocalSteps`.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas (2017), Communication-Efficient Learning of Deep
Networks from Decentralized Data, arXiv:1602.05629, Algorithm 1 and section 2 (FedSGD). FedProx is
Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith (2020), Federated Optimization in Heterogeneous
Networks, arXiv:1812.06127, Algorithm 2, with SGD as the local solver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

from leakmeter.auditors.values import require
from leakmeter.clients.layers import Layer, Stack, dense_layers, descend, fast_forward


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
        if self.batch_size < 0:
            allowed = "at least 1, or 0 for all examples"
            raise ValueError(f"batch_size must be {allowed}, got {self.batch_size}")
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
        layers: Sequence[Layer],
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
        start = [p.detach().clone() for p in parameters] if self.mu else None
        forward = fast_forward(model)
        for _ in range(self.passes):
            order = torch.from_numpy(self.order(len(y), rng)).to(x.device)
            for batch in torch.split(order, self.batch_size or len(y)):
                loss = cross_entropy(forward(x[batch]), y[batch])
                slopes = torch.autograd.grad(loss, parameters)
                with torch.no_grad():
                    descend(parameters, slopes, self.lr, self.mu, start)
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
