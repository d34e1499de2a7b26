"""Critics T(x, z) that tell pairs from strangers, many at once, and what their scores are worth.

Sources: Belghazi et al. 2018, Mutual Information Neural Estimation (arXiv:1801.04062); Nguyen,
Wainwright and Jordan 2010 (arXiv:0809.0853) for NWJ; van den Oord et al. 2018 (arXiv:1807.03748)
for InfoNCE; Song and Ermon 2020 (arXiv:1910.06222) for SMILE.

How ours differs from a plain implementation:
1. Weights carry a leading axis of models, (models, in, out), so all seeds train in one product.
2. W[x; z] = W_x x + W_z z. Strangers are the same x and z in another order, so the first layer, by
   far the largest, is computed once for both.
3. First-layer weights are normal, not uniform, so their law does not change when the inputs are
   rotated (see `auditors.information.mine.estimator.rotated`).
4. `GuidedCritic` starts at the log density ratio of Gaussians: a network alone needs thousands of
   pairs before it finds the little that one client leaves in a sum.

Torch is imported on use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

_ROWS = 4  # of the table of all pairs at a time: what stays in the cache


@dataclass(frozen=True)
class JointCritic:
    """Two hidden layers on x and z together: the network of the paper.

    Attributes:
        first: Weights on x and on z, (models, in, hidden) each, and bias (models, 1, hidden).
        second: Weights (models, hidden, hidden) and bias.
        last: Weights (models, 1, hidden). A bias would cancel in every objective.
    """

    first: tuple[Tensor, Tensor, Tensor]
    second: tuple[Tensor, Tensor]
    last: Tensor

    @classmethod
    def drawn(
        cls, inputs: tuple[int, int], hidden: int, fan_in: int, rngs: Sequence[np.random.Generator]
    ) -> JointCritic:
        """Return one critic per generator; `fan_in` counts inputs before any rotation."""
        return cls(
            (
                _normal((inputs[0], hidden), fan_in, rngs),
                _normal((inputs[1], hidden), fan_in, rngs),
                _normal((1, hidden), fan_in, rngs),
            ),
            (_normal((hidden, hidden), hidden, rngs), _normal((1, hidden), hidden, rngs)),
            _normal((1, hidden), hidden, rngs),
        )

    @property
    def weights(self) -> list[Tensor]:
        """All that is trained; the first two are those on x and on z."""
        return [*self.first, *self.second, self.last]

    def halves(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return what x and what z add to the first layer, (models, rows, hidden) each."""
        w_x, w_z, bias = self.first
        return (x @ w_x).add_(bias), z @ w_z

    def head(self, added: Tensor) -> Tensor:
        """Return scores (models, rows) from the first layer's sums."""
        weight, bias = self.second
        hidden = (added.relu() @ weight).add_(bias).relu()
        return (hidden * self.last).sum(-1)  # a product with one column would be slower

    def pairs(self, x: Tensor, z: Tensor, strangers: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the scores of the pairs, and of x with z in each of the given orders."""
        import torch

        from_x, from_z = self.halves(x, z)
        others = [from_x + from_z.gather(1, row_index(order, from_z)) for order in strangers]
        scores = self.head(torch.cat([from_x + from_z, *others], dim=1))
        return scores[:, : x.shape[1]], scores[:, x.shape[1] :]

    def table(self, x: Tensor, z: Tensor) -> Tensor:
        """Return the scores of every x with every z, (models, rows, rows)."""
        import torch

        from_x, from_z = self.halves(x, z)
        models, rows, hidden = from_x.shape
        parts = [
            self.head((some[:, :, None] + from_z[:, None]).reshape(models, -1, hidden)).reshape(
                models, -1, rows
            )
            for some in torch.split(from_x, _ROWS, dim=1)
        ]
        return torch.cat(parts, dim=1)


@dataclass(frozen=True)
class SeparableCritic:
    """T(x, z) = f(x)·g(z), each with two hidden layers: cheap for all pairs at once.

    Attributes:
        f: Weights and biases of three layers, (models, in, out) and (models, 1, out) in turns.
        g: The same for z.
    """

    f: tuple[Tensor, ...]
    g: tuple[Tensor, ...]

    @classmethod
    def drawn(
        cls, inputs: tuple[int, int], hidden: int, fan_in: int, rngs: Sequence[np.random.Generator]
    ) -> SeparableCritic:
        """Return one critic per generator; `fan_in` counts inputs before any rotation."""

        def tower(width: int) -> tuple[Tensor, ...]:
            sizes = [(width, hidden, fan_in), *[(hidden, hidden, hidden)] * 2]
            return tuple(
                _normal(shape, fan, rngs)
                for into, out, fan in sizes
                for shape in ((into, out), (1, out))
            )

        return cls(tower(inputs[0]), tower(inputs[1]))

    @property
    def weights(self) -> list[Tensor]:
        """All that is trained; the first two are those on x and on z."""
        return [self.f[0], self.g[0], *self.f[1:], *self.g[1:]]

    def table(self, x: Tensor, z: Tensor) -> Tensor:
        """Return the scores of every x with every z, (models, rows, rows)."""
        return _climb(self.f, x) @ _climb(self.g, z).mT


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
        network = JointCritic.drawn((width, width), hidden, 2 * width, rngs)
        rho = torch.from_numpy(correlations.astype(np.float32))
        # Of standard normals with correlation ρ the log density ratio is, up to a constant,
        # (ρ x z - ρ² (x² + z²) / 2) / (1 - ρ²).
        slope = rho / (1 - rho**2)
        square = (-rho * slope / 2)[:, None]
        drawn = [w.detach() for w in network.weights]
        drawn = [*drawn[:-1], 0 * drawn[-1], torch.diag_embed(slope), square, square]
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


Critic = JointCritic | SeparableCritic


def donsker_varadhan(joint: Tensor, strangers: Tensor) -> Tensor:
    """Return E_P[T] - ln E_Q[e^T] per model: (37). On few samples it is biased upwards."""
    return joint.mean(1) - log_mean_exp(strangers)


def nwj(joint: Tensor, strangers: Tensor, offset: Tensor) -> Tensor:
    """Return E_P[T - c] - E_Q[e^(T - c)] + 1 per model.

    Its expectation is at most the information for any T and c that do not depend on the samples:
    take the offset c from others.
    """
    return joint.mean(1) - offset - (strangers - offset[:, None]).exp().mean(1) + 1


def info_nce(table: Tensor) -> Tensor:
    """Return the mean log probability of finding the partner among n, plus ln n; at most ln n.

    Averaged over finding z for x and x for z: one way alone leaves T free up to any function of x,
    and the other values of such a T mean nothing.
    """
    pairs = table.diagonal(dim1=1, dim2=2)
    found = pairs - (table.logsumexp(1) + table.logsumexp(2)) / 2
    return found.mean(1) + math.log(table.shape[1])


def smile(joint: Tensor, strangers: Tensor, clip: float) -> Tensor:
    """Return Donsker-Varadhan with the density ratio of strangers clipped to e^±clip."""
    return donsker_varadhan(joint, strangers.clamp(-clip, clip))


def jensen_shannon(joint: Tensor, strangers: Tensor) -> Tensor:
    """Return the objective that SMILE's critic is trained on; it peaks at the log ratio."""
    from torch.nn.functional import softplus

    return -softplus(-joint).mean(1) - softplus(strangers).mean(1)


def log_mean_exp(scores: Tensor) -> Tensor:
    """Return ln of the mean of e^score per model."""
    return scores.logsumexp(1) - math.log(scores.shape[1])


def split_table(table: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scores of pairs (the diagonal) and of strangers (all else) per model."""
    models, rows, _ = table.shape
    # Without its first entry, a square matrix read in rows of one more has its diagonal last.
    others = table.reshape(models, -1)[:, 1:].reshape(models, rows - 1, rows + 1)[:, :, :-1]
    return table.diagonal(dim1=1, dim2=2), others.reshape(models, -1)


def row_index(chosen: Tensor, rows: Tensor) -> Tensor:
    """Return row numbers (models, chosen) as an index into rows (models, any, width)."""
    return chosen[:, :, None].expand(-1, -1, rows.shape[2])


def _climb(tower: tuple[Tensor, ...], rows: Tensor) -> Tensor:
    for weight, bias in zip(tower[:-2:2], tower[1:-2:2], strict=True):
        rows = (rows @ weight).add_(bias).relu()
    return (rows @ tower[-2]).add_(tower[-1])


def _normal(shape: tuple[int, int], fan_in: int, rngs: Sequence[np.random.Generator]) -> Tensor:
    """Return weights with the variance of torch's `Linear`, 1 / (3 fan_in)."""
    import torch

    drawn = [rng.standard_normal(shape, dtype=np.float32) for rng in rngs]
    return torch.from_numpy(np.stack(drawn) / np.float32(math.sqrt(3 * fan_in))).requires_grad_()
