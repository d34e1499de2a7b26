"""A convolution's part of the matrix of single examples' gradients, from its factors.

Let U_j be the patches of example j's input, one column for each position of the kernel, and S_j the
gradient of the loss at the outputs of these positions. The gradient of the weight is S_j U_jᵀ, a
sum of outer products over positions (Rochette, Manoel, Tramel 2019, Efficient Per-Example Gradient
Computations in Convolutional Neural Networks, arXiv:1912.06015). Ours differs: the rows of a layer
are kept if they need little memory. Otherwise only inputs and slopes are kept, and patches are
extracted again for some examples at a time. Gᵀw is then one product of patches and weighted slopes,
as in a backward pass. Only the Gram matrix forms a layer's rows, and drops them afterwards. (From
the factors it would be a sum over pairs of positions, which takes far longer.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import unfold

from leakmeter.auditors._types import Floats
from leakmeter.clients.protection.gradient_matrix import Part, Rows

_CHUNK = 64  # examples whose patches are in memory at a time
_ROOM = 2**26  # bytes of a layer's rows that are kept


@dataclass(frozen=True, eq=False)
class Convolution:
    """One convolution's part of G, as factors."""

    inputs: Tensor  # (count, channels, height, width)
    slopes: Tensor  # (count, out, positions), of the same precision
    has_bias: bool
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @classmethod
    def of(cls, layer: nn.Conv2d, inputs: Tensor, slopes: Tensor) -> Self:
        """Return the part of a layer that `can_factor`, in the precision of the model."""
        assert isinstance(layer.padding, tuple)
        return cls(
            inputs.detach().cpu(),
            slopes.detach().cpu().flatten(2),
            layer.bias is not None,
            layer.kernel_size,
            layer.stride,
            layer.padding,
            layer.dilation,
        )

    @property
    def count(self) -> int:
        """Number of examples."""
        return len(self.inputs)

    @property
    def num_weights(self) -> int:
        """Parameters without the bias."""
        return int(self.slopes.shape[1] * self.inputs.shape[1] * self.kernel[0] * self.kernel[1])

    @property
    def dim(self) -> int:
        """Parameters."""
        return self.num_weights + int(self.has_bias * self.slopes.shape[1])

    def squares(self) -> Floats:
        """Return the squared norm of every row."""
        norms = [torch.linalg.vector_norm(rows, dim=1) for rows in self._rows()]
        return (torch.cat(norms) ** 2).numpy()

    def scaled(self, factors: Floats) -> Self:
        """Return the part with every row times its factor."""
        return replace(self, slopes=self.slopes * torch.from_numpy(factors)[:, None, None])

    def gram(self) -> Floats:
        """Return this part's share of G Gᵀ."""
        rows = self._matrix().numpy()
        return np.asarray(rows @ rows.T)

    def combined(self, weights: Floats) -> Floats:
        """Return this part of Gᵀ w."""
        weighted = self.scaled(weights)
        out = self.slopes.shape[1]
        total = torch.zeros(out, self.num_weights // out, dtype=torch.float64)
        for slopes, patches in weighted._pieces():
            # (out, some · positions) @ (some · positions, fan_in): sums over examples too.
            total += slopes.transpose(0, 1).flatten(1) @ patches.transpose(1, 2).flatten(0, 1)
        if not self.has_bias:
            return total.flatten().numpy()
        return torch.cat([total.flatten(), weighted.slopes.sum(dim=(0, 2))]).numpy()

    def products(self, vector: Floats) -> Floats:
        """Return this part's share of G v."""
        whole = torch.from_numpy(vector)
        weight = whole[: self.num_weights].view(self.slopes.shape[1], -1)
        bias = whole[self.num_weights :, None] if self.has_bias else 0.0
        found = [
            ((weight @ patches + bias) * slopes).sum((1, 2)) for slopes, patches in self._pieces()
        ]
        return torch.cat(found).numpy()

    def columns(self, start: int, stop: int) -> Floats:
        """Return some columns of this part."""
        return self._matrix()[:, start:stop].numpy()

    def _pieces(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield slopes, (some, out, positions), and patches, (some, fan_in, positions)."""
        for start in range(0, self.count, _CHUNK):
            some = slice(start, start + _CHUNK)
            patches = unfold(
                self.inputs[some], self.kernel, self.dilation, self.padding, self.stride
            )
            yield self.slopes[some], patches

    def _rows(self) -> Iterator[Tensor]:
        """Yield the rows of some examples at a time, (some, dim)."""
        for slopes, patches in self._pieces():
            weight = (slopes @ patches.transpose(1, 2)).flatten(1)
            yield torch.cat([weight, slopes.sum(dim=2)], dim=1) if self.has_bias else weight

    def _matrix(self) -> Tensor:
        """Return this part as a matrix."""
        matrix = torch.empty(self.count, self.dim, dtype=torch.float64)
        start = 0
        for rows in self._rows():
            matrix[start : start + len(rows)] = rows
            start += len(rows)
        return matrix


def convolution_part(layer: nn.Conv2d, inputs: Tensor, slopes: Tensor) -> Part:
    """Return a layer's part of G, as rows if they fit, else as factors in double precision."""
    factors = Convolution.of(layer, inputs, slopes)
    if 8 * factors.count * factors.dim <= _ROOM:
        return Rows(factors._matrix().numpy())
    return replace(factors, inputs=factors.inputs.double(), slopes=factors.slopes.double())


def can_factor(layer: nn.Module) -> bool:
    """Whether `Convolution` supports this layer: one group of channels, padding with zeros."""
    return (
        type(layer) is nn.Conv2d
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and isinstance(layer.padding, tuple)
    )
