"""Local update rules, one plain rule each: how a client turns its data into a model.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas (2017), Communication-Efficient Learning of Deep
Networks from Decentralized Data, arXiv:1602.05629, Algorithm 1 and section 2 (FedSGD).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


@dataclass(frozen=True)
class Trained:
    """What a client tells beside its model: how many examples spoke, and their mean loss."""

    num_examples: int
    loss: float


class UpdateRule(Protocol):
    """Changes `model` in place by training on one client's data."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, rng: np.random.Generator) -> Trained:
        """Train and return what happened; all randomness comes from `rng`."""
        ...


@dataclass(frozen=True)
class FedAvg:
    """`epochs` passes of plain SGD over shuffled batches; the last batch may be smaller.

    Attributes:
        epochs: Passes over the local data.
        batch_size: Examples in a step; 0 takes all.
        lr: Step length.
    """

    epochs: int
    batch_size: int
    lr: float

    def __post_init__(self) -> None:
        _check(epochs=self.epochs, batch_size=self.batch_size, lr=self.lr)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, rng: np.random.Generator) -> Trained:
        """Train `model` in place."""
        _check_examples(y)
        losses = []
        for _ in range(self.epochs):
            order = torch.from_numpy(rng.permutation(len(y)))
            for batch in torch.split(order, self.batch_size or len(y)):
                losses.append(_step(model, x[batch], y[batch], self.lr))
        return Trained(num_examples=len(y), loss=float(np.mean(losses)))


@dataclass(frozen=True)
class FedSGD:
    """One gradient step on one batch drawn without replacement.

    The weight is the number of examples in the batch, so that the server's weighted mean of the
    replies is exactly one gradient step on all batches together.

    Attributes:
        batch_size: Examples in the step; 0, or more than there are, takes all.
        lr: Step length.
    """

    batch_size: int
    lr: float

    def __post_init__(self) -> None:
        _check(batch_size=self.batch_size, lr=self.lr)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, rng: np.random.Generator) -> Trained:
        """Train `model` in place."""
        _check_examples(y)
        size = min(self.batch_size or len(y), len(y))
        batch = torch.from_numpy(rng.permutation(len(y))[:size])
        loss = _step(model, x[batch], y[batch], self.lr)
        return Trained(num_examples=size, loss=loss)


def _step(model: nn.Module, x: Tensor, y: Tensor, lr: float) -> float:
    """Take one step of plain SGD and return the loss before it."""
    loss = cross_entropy(model(x), y)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.sub_(gradient, alpha=lr)
    return loss.item()


def _check_examples(y: Tensor) -> None:
    if not len(y):  # the mean gradient of nothing is NaN
        raise ValueError("y must hold at least one example, got 0")


def _check(*, epochs: int = 1, batch_size: int, lr: float) -> None:
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, got {epochs}")
    if batch_size < 0:
        raise ValueError(f"batch_size must be at least 1, or 0 for all examples, got {batch_size}")
    if not 0 < lr < float("inf"):
        raise ValueError(f"lr must be in (0, inf), got {lr}")
