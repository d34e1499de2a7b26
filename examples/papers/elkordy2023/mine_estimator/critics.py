"""Critics of the paper and of others, many at once, and what their scores are worth.

Sources: Belghazi et al. 2018, Mutual Information Neural Estimation (arXiv:1801.04062); van den Oord
et al. 2018 (arXiv:1807.03748) for InfoNCE; Song and Ermon 2020 (arXiv:1910.06222) for SMILE. The
critic that audits a round is in `auditors.information.neural`.

How ours differs from a plain implementation:
1. Weights carry a leading axis of models, (models, in, out), so all seeds train in one product.
2. W[x; z] = W_x x + W_z z. Strangers are the same x and z in another order, so the first layer, by
   far the largest, is computed once for both.
3. First-layer weights are normal, not uniform, so their distribution does not change when the
   inputs are rotated (see `estimator.rotated`).

Torch is imported on use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from leakmeter.auditors.information.neural import log_mean_exp, normal

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
                normal((inputs[0], hidden), fan_in, rngs),
                normal((inputs[1], hidden), fan_in, rngs),
                normal((1, hidden), fan_in, rngs),
            ),
            (normal((hidden, hidden), hidden, rngs), normal((1, hidden), hidden, rngs)),
            normal((1, hidden), hidden, rngs),
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
                normal(shape, fan, rngs)
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


Critic = JointCritic | SeparableCritic


def donsker_varadhan(joint: Tensor, strangers: Tensor) -> Tensor:
    """Return E_P[T] - ln E_Q[e^T] per model: (37). On few samples it is biased upwards."""
    return joint.mean(1) - log_mean_exp(strangers)


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
