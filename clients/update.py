"""Local update rules, one plain rule each: how a client turns its data into a model.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas (2017), Communication-Efficient Learning of Deep
Networks from Decentralized Data, arXiv:1602.05629, Algorithm 1 and section 2 (FedSGD). FedProx is
Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith (2020), Federated Optimization in Heterogeneous
Networks, arXiv:1812.06127, Algorithm 2, with SGD as the local solver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from leakmeter.clients.exact import Stack
from leakmeter.clients.layers import Forward, Layer, fast_forward, is_classified, layers_of


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


class StepRule(UpdateRule, Protocol):
    """A rule that is nothing but gradient steps on batches which it can name beforehand.

    Each of `passes` passes takes one `order` of the local examples and cuts it into batches; each
    batch is one step w ← w - lr (mean gradient + mu (w - w_start)).
    """

    @property
    def passes(self) -> int:
        """Number of orders that are drawn."""
        ...

    @property
    def batch_size(self) -> int:
        """Examples in a step; 0 takes the whole order."""
        ...

    @property
    def lr(self) -> float:
        """Step length."""
        ...

    @property
    def mu(self) -> float:
        """Strength of the pull back to the model as it arrived."""
        ...

    def order(self, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return which of `size` local examples one pass visits, and in what order."""
        ...

    def weight(self, size: int) -> int:
        """Return `Trained.num_examples` of a client with `size` examples."""
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

    @property
    def passes(self) -> int:
        """Number of orders that are drawn."""
        return self.epochs

    @property
    def mu(self) -> float:
        """No pull."""
        return 0.0

    def order(self, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return all examples, shuffled."""
        return rng.permutation(size)

    def weight(self, size: int) -> int:
        """Return the number of local examples."""
        return size

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, rng: np.random.Generator) -> Trained:
        """Train `model` in place."""
        return _train(self, model, x, y, rng)


@dataclass(frozen=True)
class FedProx:
    """FedAvg with the proximal term mu/2 ‖w - w_global‖² in the loss.

    The reported loss is that of the data alone, comparable with the other rules'.

    Attributes:
        epochs: Passes over the local data.
        batch_size: Examples in a step; 0 takes all.
        lr: Step length.
        mu: Strength of the pull; 0 is FedAvg.
    """

    epochs: int
    batch_size: int
    lr: float
    mu: float

    def __post_init__(self) -> None:
        _check(epochs=self.epochs, batch_size=self.batch_size, lr=self.lr)
        if not 0 <= self.mu < float("inf"):
            raise ValueError(f"mu must be in [0, inf), got {self.mu}")

    @property
    def passes(self) -> int:
        """Number of orders that are drawn."""
        return self.epochs

    def order(self, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return all examples, shuffled."""
        return rng.permutation(size)

    def weight(self, size: int) -> int:
        """Return the number of local examples."""
        return size

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, rng: np.random.Generator) -> Trained:
        """Train `model` in place."""
        return _train(self, model, x, y, rng)


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

    @property
    def passes(self) -> int:
        """One."""
        return 1

    @property
    def mu(self) -> float:
        """No pull."""
        return 0.0

    def order(self, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the one batch."""
        return rng.permutation(size)[: self.weight(size)]

    def weight(self, size: int) -> int:
        """Return the number of examples in the batch."""
        return min(self.batch_size or size, size)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, rng: np.random.Generator) -> Trained:
        """Train `model` in place."""
        return _train(self, model, x, y, rng)


@dataclass(frozen=True)
class FullBatchGD:
    """`steps` steps of gradient descent on all local examples; nothing is random.

    Attributes:
        steps: Number of steps.
        lr: Step length.
    """

    steps: int
    lr: float

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        _check(batch_size=0, lr=self.lr)

    @property
    def passes(self) -> int:
        """One per step."""
        return self.steps

    @property
    def batch_size(self) -> int:
        """All examples."""
        return 0

    @property
    def mu(self) -> float:
        """No pull."""
        return 0.0

    def order(self, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return all examples as they are; `rng` is left alone."""
        return np.arange(size)

    def weight(self, size: int) -> int:
        """Return the number of local examples."""
        return size

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, rng: np.random.Generator) -> Trained:
        """Train `model` in place."""
        return _train(self, model, x, y, rng)


def batch_sizes(rule: StepRule, size: int) -> list[int]:
    """Return the examples in each step of one pass, for a client with `size` examples.

    >>> batch_sizes(FedAvg(epochs=2, batch_size=8, lr=0.1), 20), batch_sizes(FedSGD(8, lr=0.1), 20)
    ([8, 8, 4], [8])
    """
    used = rule.weight(size)
    most = min(rule.batch_size or used, used)
    return [min(most, used - first) for first in range(0, used, most)]


def as_steps(rule: UpdateRule) -> StepRule | None:
    """Return the rule if it is known to be steps on batches and no more, else None.

    By exact type: a subclass may train in ways of its own.
    """
    kinds = (FedAvg, FedProx, FedSGD, FullBatchGD)
    return rule if isinstance(rule, kinds) and type(rule) in kinds else None


def _train(
    rule: StepRule, model: nn.Module, x: Tensor, y: Tensor, rng: np.random.Generator
) -> Trained:
    """Take all steps of a rule, and return its weight and the mean loss before the steps."""
    if not len(y):  # the mean gradient of nothing is NaN
        raise ValueError("y must contain at least one example, got 0")
    if (layers := dense_layers(model, x, y)) is not None:
        stack, (done,) = train_together(rule, layers, model, x, y, [np.arange(len(y))], [rng])
        with torch.no_grad():
            for parameter, trained in zip(model.parameters(), stack, strict=True):
                parameter.copy_(trained[0])
        return done
    anchor = [p.detach().clone() for p in model.parameters()] if rule.mu else None
    losses = []
    with fast_forward(model) as forward:
        for _ in range(rule.passes):
            order = torch.from_numpy(rule.order(len(y), rng))
            for batch in torch.split(order, rule.batch_size or len(y)):
                loss, gradients = _gradient(forward, model, x[batch], y[batch])
                _descend(model, gradients, rule, anchor)
                losses.append(loss)
    return Trained(num_examples=rule.weight(len(y)), loss=float(np.mean(losses)))


def dense_layers(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Layer, ...] | None:
    """Return the layers of a model that `train_together` can train on such data, else None."""
    layers = layers_of(model)
    is_dense = layers is not None and is_classified(model, x, y, layers[-1].fan_out)
    return layers if is_dense else None


def train_together(
    rule: StepRule,
    layers: Sequence[Layer],
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    records: Sequence[NDArray[np.int64]],
    rngs: Sequence[np.random.Generator],
) -> tuple[list[Tensor], list[Trained]]:
    """Train clients with equally many examples, each as the rule alone would, bit for bit.

    Args:
        rule: What every client does.
        layers: Of the model, from `dense_layers`.
        model: Where all clients start; it is not changed.
        x: Inputs of all examples.
        y: Their labels.
        records: Which examples each client holds, equally many.
        rngs: From where each client's batches are drawn, one generator each.

    Returns:
        The trained parameters, each with an axis over the clients in front, and what each client
        tells beside them.
    """
    stack = Stack(layers, list(model.parameters()), len(records))
    size, losses = len(records[0]), []
    inputs = x.flatten(1)
    # One room for all batches: the first touch of new pages takes longer than the copy.
    most = min(rule.batch_size or size, size)
    room = inputs.new_empty(len(records) * most, inputs.shape[1])
    for _ in range(rule.passes):
        orders = [own[rule.order(size, rng)] for own, rng in zip(records, rngs, strict=True)]
        index = torch.from_numpy(np.stack(orders))  # (clients, size)
        for batch in torch.split(index, rule.batch_size or size, dim=1):
            taken = torch.index_select(inputs, 0, batch.flatten(), out=room[: batch.numel()])
            signal = taken.view(*batch.shape, -1)  # (clients, batch, features)
            losses.append(stack.step(signal, y[batch], rule.lr, rule.mu))
    # By client: the mean of a column of a table is summed in another order than that of a list.
    means = [float(np.mean(own)) for own in zip(*losses, strict=True)]
    return stack.parameters, [Trained(rule.weight(size), mean) for mean in means]


def _gradient(
    forward: Forward, model: nn.Module, x: Tensor, y: Tensor
) -> tuple[float, Sequence[Tensor]]:
    """Return the mean loss and its gradient in each parameter."""
    loss = cross_entropy(forward(x), y)
    return loss.item(), torch.autograd.grad(loss, list(model.parameters()))


def _descend(
    model: nn.Module, gradients: Sequence[Tensor], rule: StepRule, anchor: list[Tensor] | None
) -> None:
    """Take one step in place."""
    with torch.no_grad():
        for i, (parameter, gradient) in enumerate(zip(model.parameters(), gradients, strict=True)):
            if anchor is not None:  # the proximal term's gradient, mu (w - w_global)
                gradient = gradient + rule.mu * (parameter - anchor[i])
            parameter.sub_(gradient, alpha=rule.lr)


def _check(*, epochs: int = 1, batch_size: int, lr: float) -> None:
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, got {epochs}")
    if batch_size < 0:
        raise ValueError(f"batch_size must be at least 1, or 0 for all examples, got {batch_size}")
    if not 0 < lr < float("inf"):
        raise ValueError(f"lr must be in (0, inf), got {lr}")
