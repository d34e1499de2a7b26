"""Critics T(x, z) that tell pairs from strangers, many at once, and how they climb.

Belghazi et al. 2018, Mutual Information Neural Estimation (arXiv:1801.04062); Nguyen, Wainwright
and Jordan 2010 (arXiv:0809.0853) for NWJ. Ours differs from a plain implementation:
1. Weights carry a leading axis of models, (models, in, out), so all critics train in one product.
2. A critic starts at the log density ratio of Gaussians: a network alone needs thousands of pairs
   before it finds the little that one client leaves in a sum.

Torch is imported on use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

_BETAS = 0.9, 0.999  # of Adam's two moments


@dataclass(frozen=True)
class GuidedCritic:
    """A network on x and z, added to a quadratic form that starts at the ratio of Gaussians.

    Its gradient is written out: for networks this small, autograd costs more than the products.

    Attributes:
        flat: All weights, (models, any): one step of Adam moves them together.
        parts: The same by name, as views of `flat`: those of the network of the paper, whose last
            layer starts at 0; then those of x_i z_j, (models, width, width), and of x_i² and z_i²,
            (models, 1, width) each.
        most: Scores are clipped to ±most: nobody can show more than ln K from K pairs.
    """

    flat: Tensor
    parts: tuple[Tensor, ...]
    most: float

    @classmethod
    def drawn(
        cls,
        correlations: NDArray[np.float64],
        hidden: int,
        most: float,
        rngs: Sequence[np.random.Generator],
    ) -> GuidedCritic:
        """Return one critic per generator.

        Args:
            correlations: Of each coordinate of x with that of z, (models, width), in [0, 1).
            hidden: Width of both hidden layers.
            most: Where scores are clipped.
            rngs: One per model, for its weights.
        """
        import torch

        width = correlations.shape[1]
        first, second = (2 * width, (width, width, 1)), (hidden, (hidden, 1, 1))
        network = [
            normal((inputs, hidden), fan_in, rngs).detach()
            for fan_in, layer in (first, second)
            for inputs in layer
        ]
        rho = torch.from_numpy(correlations.astype(np.float32))
        # Of standard normals with correlation ρ the log density ratio is, up to a constant,
        # (ρ x z - ρ² (x² + z²) / 2) / (1 - ρ²).
        slope = rho / (1 - rho**2)
        square = (-rho * slope / 2)[:, None]
        drawn = [*network[:-1], 0 * network[-1], torch.diag_embed(slope), square, square]
        flat = torch.cat([weight.flatten(1) for weight in drawn], dim=1)
        cut = torch.split(flat, [weight[0].numel() for weight in drawn], dim=1)
        views = (own.view(w.shape) for own, w in zip(cut, drawn, strict=True))
        return cls(flat, tuple(views), most)

    @property
    def weights(self) -> list[Tensor]:
        """All that is trained."""
        return [self.flat]

    def matched(self, x: Tensor, z: Tensor, strangers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of x with z, and of the same x with the strangers in place of z."""
        import torch

        scores = self._layers(x, torch.cat([z, strangers], dim=1))[2]
        scores = scores.clamp_(-self.most, self.most)
        return scores[:, : x.shape[1]], scores[:, x.shape[1] :]

    def gradient(self, x: Tensor, z: Tensor, strangers: Tensor) -> Tensor:
        """Return the gradient of each model's Donsker-Varadhan value, (models, any) as `flat`."""
        import torch

        pairs, both = x.shape[1], torch.cat([z, strangers], dim=1)
        first, second, scores = self._layers(x, both)
        slope = torch.full_like(scores, 1 / pairs)  # of the value along each score
        slope[:, pairs:] = -scores[:, pairs:].clamp(-self.most, self.most).softmax(1)
        slope *= scores.abs() <= self.most
        _, _, _, w_second, _, w_last, *_ = self.parts
        row = slope[:, None]  # (models, 1, rows)
        # A layer after its ReLU is 0 or more; its sign is the ReLU's slope, without a bool.
        to_second = (slope[:, :, None] * w_last).mul_(second.sign())  # (models, rows, hidden)
        to_first = (to_second @ w_second.mT).mul_(first.sign())
        to_x = to_first[:, :pairs] + to_first[:, pairs:]  # both scores of a pair have the same x
        met = slope[:, :, None] * both
        found = (
            x.mT @ to_x,
            both.mT @ to_first,
            to_x.sum(1, keepdim=True),
            first.mT @ to_second,
            to_second.sum(1, keepdim=True),
            row @ second,
            x.mT @ (met[:, :pairs] + met[:, pairs:]),
            (row[:, :, :pairs] + row[:, :, pairs:]) @ x.square(),
            row @ both.square(),
        )
        return torch.cat([part.flatten(1) for part in found], dim=1)

    def _layers(self, x: Tensor, both: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return two hidden layers, (models, rows, hidden), and scores, (models, rows), unclipped.

        Rows are those of `both`: the z, then the strangers of the same x.
        """
        import torch

        w_x, w_z, b_first, w_second, b_second, w_last, product, x_square, z_square = self.parts
        twice = (len(x), 2, x.shape[1], -1)
        first = both @ w_z
        first.view(twice).add_((x @ w_x).add_(b_first)[:, None])
        second = torch.baddbmm(b_second, first.relu_(), w_second).relu_()
        # x_square·x² + z·(product x + z_square z), and the network's last layer
        inner = both * z_square
        inner.view(twice).add_((x @ product)[:, None])
        scores = (second * w_last).sum(-1).add_(inner.mul_(both).sum(-1))
        scores.view(twice[:-1]).add_((x.square() * x_square).sum(-1)[:, None])
        return first, second, scores


class Trainable(Protocol):
    """Critics whose weights have a leading axis of models."""

    @property
    def weights(self) -> list[Tensor]:
        """All that is trained."""


class Adam:
    """Ascent by Adam (Kingma and Ba 2015, arXiv:1412.6980, Algorithm 1).

    The same numbers as torch's, which imports its compiler with the first step: three seconds.

    Args:
        rates: The weights, and how far each may move in a step.
    """

    def __init__(self, rates: Sequence[tuple[Tensor, float]]) -> None:
        self._rates, self._steps = rates, 0
        self._moments = [(w.detach().mul(0.0), w.detach().mul(0.0)) for w, _ in rates]

    def step(self) -> None:
        """Move the weights along their gradients, and forget these."""
        import torch

        self._steps += 1
        # Corrections of the moments' start at 0 (Algorithm 1, last lines).
        first, second = (1 - beta**self._steps for beta in _BETAS)
        with torch.no_grad():
            for (weight, rate), (mean, square) in zip(self._rates, self._moments, strict=True):
                assert weight.grad is not None
                mean.lerp_(weight.grad, 1 - _BETAS[0])
                square.mul_(_BETAS[1]).addcmul_(weight.grad, weight.grad, value=1 - _BETAS[1])
                size = (square.sqrt() / second**0.5).add_(1e-8)
                weight.addcdiv_(mean, size, value=rate / first)
                weight.grad = None


class Best:
    """The weights of each model at its best look at the validation samples."""

    def __init__(self, critic: Trainable) -> None:
        import torch

        self.weights = [weight.detach().clone() for weight in critic.weights]
        models = self.weights[0].shape[0]
        self.value = torch.full((models,), -torch.inf)
        self.step = torch.zeros(models)

    def put_back(self, critic: Trainable) -> None:
        """Give the critic its best weights again."""
        import torch

        with torch.no_grad():
            for weight, kept in zip(critic.weights, self.weights, strict=True):
                weight.copy_(kept)

    def look(self, critic: Trainable, value: Tensor, step: int) -> None:
        """Keep the weights of the models that have improved."""
        better = value > self.value  # never so for a value that is not a number
        self.value[better] = value[better]
        self.step[better] = step
        for kept, weight in zip(self.weights, critic.weights, strict=True):
            kept[better] = weight.detach()[better]


def nwj(joint: Tensor, strangers: Tensor, offset: Tensor) -> Tensor:
    """Return E_P[T - c] - E_Q[e^(T - c)] + 1 per model.

    Its expectation is at most the information for any T and c that do not depend on the samples:
    take the offset c from others.
    """
    return joint.mean(1) - offset - (strangers - offset[:, None]).exp().mean(1) + 1


def log_mean_exp(scores: Tensor) -> Tensor:
    """Return ln of the mean of e^score per model."""
    return scores.logsumexp(1) - math.log(scores.shape[1])


def normal(shape: tuple[int, int], fan_in: int, rngs: Sequence[np.random.Generator]) -> Tensor:
    """Return weights with the variance of torch's `Linear`, 1 / (3 fan_in)."""
    import torch

    drawn = [rng.standard_normal(shape, dtype=np.float32) for rng in rngs]
    return torch.from_numpy(np.stack(drawn) / np.float32(math.sqrt(3 * fan_in))).requires_grad_()
