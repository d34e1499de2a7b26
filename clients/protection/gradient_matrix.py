"""Matrices of single examples' gradients: as factors of layers, or as they are.

G is the matrix whose rows are gradients over all parameters, in the order of `model.parameters()`.
In a chain of linear layers the gradient of example j is δ_j a_jᵀ for a layer's weight and δ_j for
its bias. So G follows from a (the layer's inputs) and δ (the gradient of the loss at its outputs):
Goodfellow 2015, Efficient Per-Example Gradient Computations (arXiv:1510.01799). Its Gram matrix is
Σ_layers (a aᵀ + 1) ∘ (δ δᵀ).

Of a convolution, let U_j be the patches of example j's input, one column for each position of the
kernel, and S_j the gradient of the loss at the outputs of these positions. The gradient of the
weight is S_j U_jᵀ, a sum of outer products over positions (Rochette, Manoel, Tramel 2019, Efficient
Per-Example Gradient Computations in Convolutional Neural Networks, arXiv:1912.06015). Ours differs:
the rows of a layer are kept if they need little memory. Otherwise only inputs and slopes are kept,
and patches are extracted again for some examples at a time. Gᵀw is then one product of patches and
weighted slopes, as in a backward pass. Only the Gram matrix forms a layer's rows, and drops them
afterwards. (From the factors it would be a sum over pairs of positions, which takes far longer.)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import unfold

from leakmeter.auditors.values import Floats

_COLUMNS = 4096  # columns of a float32 matrix that are converted to double at a time
_CHUNK = 64  # examples whose patches are in memory at a time
_ROOM = 2**26  # bytes of a layer's rows that are kept


class Gradients(ABC):
    """Rows of gradients G, (count, dim), however they are stored."""

    loss: float = math.nan  # mean of the examples, where the rows are over all parameters

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of examples."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Number of parameters."""

    @abstractmethod
    def gram(self) -> Floats:
        """Return G Gᵀ, (count, count)."""

    @abstractmethod
    def combined(self, weights: Floats) -> Floats:
        """Return Gᵀ w, (dim,)."""

    @abstractmethod
    def products(self, vector: Floats) -> Floats:
        """Return G v, (count,)."""

    @abstractmethod
    def columns(self, start: int, stop: int) -> Floats:
        """Return these columns of G, (count, stop - start)."""


class Part(Gradients):
    """One layer's columns of G, (count, layer's parameters), stored as rows or as factors."""

    @abstractmethod
    def squares(self) -> Floats:
        """Return the squared norm of every row, (count,)."""

    @abstractmethod
    def scaled(self, factors: Floats) -> Part:
        """Return the part with every row times its factor."""


class _Factors(Part):
    """One layer's part of G as inputs and slopes of each example, the bias last."""

    inputs: Any  # (count, fan_in, ...)
    slopes: Any  # (count, fan_out, ...)
    has_bias: bool

    @property
    def count(self) -> int:
        return len(self.inputs)

    @property
    def num_weights(self) -> int:
        """Parameters without the bias."""
        return int(self.slopes.shape[1] * self.inputs.shape[1])

    @property
    def dim(self) -> int:
        return self.num_weights + int(self.has_bias * self.slopes.shape[1])


@dataclass(frozen=True, eq=False)
class Layer(_Factors):
    """One linear layer's part of G: example j has δ_j a_jᵀ, and δ_j if there is a bias."""

    inputs: Floats  # a, (count, fan_in)
    slopes: Floats  # δ, (count, fan_out)
    has_bias: bool

    def squares(self) -> Floats:
        # ‖δ aᵀ‖² + ‖δ‖² = (‖a‖² + 1) ‖δ‖²
        inputs = np.einsum("ji,ji->j", self.inputs, self.inputs) + self.has_bias
        return np.asarray(inputs * np.einsum("jo,jo->j", self.slopes, self.slopes))

    def scaled(self, factors: Floats) -> Layer:
        return replace(self, slopes=self.slopes * factors[:, None])

    def gram(self) -> Floats:
        """Return (a aᵀ + 1) ∘ (δ δᵀ)."""
        inner = self.inputs @ self.inputs.T
        if self.has_bias:
            inner += 1
        inner *= self.slopes @ self.slopes.T
        return np.asarray(inner)

    def combined(self, weights: Floats) -> Floats:
        slopes = self.slopes * weights[:, None]
        weight = (slopes.T @ self.inputs).ravel()
        return np.concatenate([weight, slopes.sum(axis=0)]) if self.has_bias else weight

    def products(self, vector: Floats) -> Floats:
        # ⟨δ aᵀ, V⟩ = δᵀ V a for every example, without forming the outer product.
        weight = vector[: self.num_weights].reshape(self.slopes.shape[1], -1)  # V, (out, in)
        inner = self.inputs @ weight.T  # (count, out)
        if self.has_bias:
            inner += vector[self.num_weights :]
        return np.asarray(np.einsum("jo,jo->j", inner, self.slopes))

    def columns(self, start: int, stop: int) -> Floats:
        # Weights come row by row, then the bias: flat index k is entry (k // fan_in, k % fan_in).
        cut, fan_in = self.num_weights, self.inputs.shape[1]
        row, column = np.divmod(np.arange(start, min(stop, cut)), fan_in)
        weight = self.slopes[:, row] * self.inputs[:, column]
        return np.hstack([weight, self.slopes[:, max(start - cut, 0) : max(stop - cut, 0)]])


@dataclass(frozen=True, eq=False)
class Rows(Part):
    """One layer's part of G as it is."""

    matrix: Floats

    @property
    def count(self) -> int:
        return len(self.matrix)

    @property
    def dim(self) -> int:
        return int(self.matrix.shape[1])

    def squares(self) -> Floats:
        return np.asarray(np.einsum("ji,ji->j", self.matrix, self.matrix))

    def scaled(self, factors: Floats) -> Rows:
        return Rows(self.matrix * factors[:, None])

    def gram(self) -> Floats:
        return np.asarray(self.matrix @ self.matrix.T)

    def combined(self, weights: Floats) -> Floats:
        return np.asarray(weights @ self.matrix)

    def products(self, vector: Floats) -> Floats:
        return np.asarray(self.matrix @ vector)

    def columns(self, start: int, stop: int) -> Floats:
        return self.matrix[:, start:stop]


@dataclass(frozen=True, eq=False)
class Convolution(_Factors):
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
    def num_weights(self) -> int:
        return super().num_weights * self.kernel[0] * self.kernel[1]

    def squares(self) -> Floats:
        norms = [torch.linalg.vector_norm(rows, dim=1) for rows in self._rows()]
        return (torch.cat(norms) ** 2).numpy()

    def scaled(self, factors: Floats) -> Self:
        return replace(self, slopes=self.slopes * torch.from_numpy(factors)[:, None, None])

    def gram(self) -> Floats:
        rows = self._matrix().numpy()
        return np.asarray(rows @ rows.T)

    def combined(self, weights: Floats) -> Floats:
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
        whole = torch.from_numpy(vector)
        weight = whole[: self.num_weights].view(self.slopes.shape[1], -1)
        bias = whole[self.num_weights :, None] if self.has_bias else 0.0
        found = [
            ((weight @ patches + bias) * slopes).sum((1, 2)) for slopes, patches in self._pieces()
        ]
        return torch.cat(found).numpy()

    def columns(self, start: int, stop: int) -> Floats:
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


@dataclass(frozen=True)
class FactoredGradients(Gradients):
    """G of a chain of layers, layer by layer; never formed as a whole."""

    layers: tuple[Part, ...]
    loss: float

    @property
    def count(self) -> int:
        return self.layers[0].count

    @property
    def dim(self) -> int:
        return sum(layer.dim for layer in self.layers)

    def gram(self) -> Floats:
        first, *others = self.layers
        total = first.gram().astype(np.float64, copy=False)
        for layer in others:
            total += layer.gram()
        return total

    def combined(self, weights: Floats) -> Floats:
        return np.concatenate([layer.combined(weights) for layer in self.layers])

    def products(self, vector: Floats) -> Floats:
        total = np.zeros(self.count)
        for layer, (start, stop) in zip(self.layers, self._spans(), strict=True):
            total += layer.products(vector[start:stop])
        return total

    def columns(self, start: int, stop: int) -> Floats:
        parts = [
            layer.columns(max(start - first, 0), min(stop, last) - first)
            for layer, (first, last) in zip(self.layers, self._spans(), strict=True)
            if start < last and stop > first
        ]
        return np.hstack(parts) if parts else np.zeros((self.count, 0))

    def _spans(self) -> Iterator[tuple[int, int]]:
        """Yield the range of each layer's parameters in a flat vector."""
        start = 0
        for layer in self.layers:
            yield start, start + layer.dim
            start += layer.dim


@dataclass(frozen=True)
class DenseGradients(Gradients):
    """G as a matrix, in the model's own precision; products are in double."""

    matrix: NDArray[np.floating]
    loss: float = math.nan

    @property
    def count(self) -> int:
        return int(self.matrix.shape[0])

    @property
    def dim(self) -> int:
        return int(self.matrix.shape[1])

    def gram(self) -> Floats:
        total = np.zeros((self.count, self.count))
        for _, part in self._parts():
            total += part @ part.T
        return total

    def combined(self, weights: Floats) -> Floats:
        return np.concatenate([weights @ part for _, part in self._parts()])

    def products(self, vector: Floats) -> Floats:
        total = np.zeros(self.count)
        for start, part in self._parts():
            total += part @ vector[start : start + part.shape[1]]
        return total

    def columns(self, start: int, stop: int) -> Floats:
        return self.matrix[:, start:stop].astype(np.float64)

    def _parts(self) -> Iterator[tuple[int, Floats]]:
        for start in range(0, self.dim, _COLUMNS):
            part = self.matrix[:, start : start + _COLUMNS]
            yield start, part.astype(np.float64, copy=False)
