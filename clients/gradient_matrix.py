"""Matrices of single examples' gradients: as factors of linear layers, or as they are.

G is the matrix whose rows are gradients over all parameters, in the order of `model.parameters()`.
In a chain of linear layers the gradient of example j is δ_j a_jᵀ for a layer's weight and δ_j for
its bias, so that G is known from a (the layer's inputs) and δ (the loss's slope at its outputs):
Goodfellow 2015, Efficient Per-Example Gradient Computations (arXiv:1510.01799). Its Gram matrix is
Σ_layers (a aᵀ + 1) ∘ (δ δᵀ).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_COLUMNS = 4096  # columns of a float32 matrix that are in double precision at a time


class Gradients(Protocol):
    """The clipped gradients G of some examples, (count, dim), however they are kept."""

    @property
    def count(self) -> int:
        """Number of examples."""
        ...

    @property
    def dim(self) -> int:
        """Number of parameters."""
        ...

    @property
    def loss(self) -> float:
        """Mean loss of the examples."""
        ...

    def gram(self) -> Floats:
        """Return G Gᵀ, (count, count)."""
        ...

    def combined(self, weights: Floats) -> Floats:
        """Return Gᵀ w, (dim,)."""
        ...

    def products(self, vector: Floats) -> Floats:
        """Return G v, (count,)."""
        ...

    def columns(self, start: int, stop: int) -> Floats:
        """Return these columns of G, (count, stop - start)."""
        ...


@dataclass(frozen=True)
class Layer:
    """One linear layer's part of G: example j has δ_j a_jᵀ, and δ_j if there is a bias."""

    inputs: Floats  # a, (count, fan_in)
    slopes: Floats  # δ after clipping, (count, fan_out)
    has_bias: bool

    @property
    def num_weights(self) -> int:
        """Parameters without the bias."""
        return int(self.slopes.shape[1] * self.inputs.shape[1])

    @property
    def dim(self) -> int:
        """Parameters."""
        return self.num_weights + int(self.has_bias * self.slopes.shape[1])

    def columns(self, start: int, stop: int) -> Floats:
        """Return columns of this layer's part."""
        cut, fan_in = self.num_weights, self.inputs.shape[1]
        row, column = np.divmod(np.arange(start, min(stop, cut)), fan_in)
        weight = self.slopes[:, row] * self.inputs[:, column]
        return np.hstack([weight, self.slopes[:, max(start - cut, 0) : max(stop - cut, 0)]])


@dataclass(frozen=True)
class FactoredGradients:
    """G of a chain of linear layers; never formed."""

    layers: tuple[Layer, ...]
    loss: float

    @property
    def count(self) -> int:
        """Number of examples."""
        return len(self.layers[0].inputs)

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return sum(layer.dim for layer in self.layers)

    def gram(self) -> Floats:
        """Return G Gᵀ."""
        total = np.zeros((self.count, self.count))
        for layer in self.layers:
            inner = layer.inputs @ layer.inputs.T
            if layer.has_bias:
                inner += 1
            inner *= layer.slopes @ layer.slopes.T
            total += inner
        return total

    def combined(self, weights: Floats) -> Floats:
        """Return Gᵀ w."""
        parts = []
        for layer in self.layers:
            slopes = layer.slopes * weights[:, None]
            parts.append((slopes.T @ layer.inputs).ravel())
            if layer.has_bias:
                parts.append(slopes.sum(axis=0))
        return np.concatenate(parts)

    def products(self, vector: Floats) -> Floats:
        """Return G v."""
        total = np.zeros(self.count)
        for layer, (start, stop) in zip(self.layers, self._spans(), strict=True):
            part = vector[start:stop]
            weight = part[: layer.num_weights].reshape(layer.slopes.shape[1], -1)
            inner = layer.inputs @ weight.T
            if layer.has_bias:
                inner += part[layer.num_weights :]
            total += np.einsum("jo,jo->j", inner, layer.slopes)
        return total

    def columns(self, start: int, stop: int) -> Floats:
        """Return some columns of G."""
        parts = [
            layer.columns(max(start - first, 0), min(stop, last) - first)
            for layer, (first, last) in zip(self.layers, self._spans(), strict=True)
            if start < last and stop > first
        ]
        return np.hstack(parts) if parts else np.zeros((self.count, 0))

    def _spans(self) -> Iterator[tuple[int, int]]:
        """Yield where each layer's parameters stand."""
        start = 0
        for layer in self.layers:
            yield start, start + layer.dim
            start += layer.dim


@dataclass(frozen=True)
class DenseGradients:
    """G as a matrix, in the model's own precision; products are in double."""

    matrix: NDArray[np.floating]
    loss: float = math.nan

    @property
    def count(self) -> int:
        """Number of examples."""
        return int(self.matrix.shape[0])

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return int(self.matrix.shape[1])

    def gram(self) -> Floats:
        """Return G Gᵀ."""
        total = np.zeros((self.count, self.count))
        for _, part in self._parts():
            total += part @ part.T
        return total

    def combined(self, weights: Floats) -> Floats:
        """Return Gᵀ w."""
        return np.concatenate([weights @ part for _, part in self._parts()])

    def products(self, vector: Floats) -> Floats:
        """Return G v."""
        total = np.zeros(self.count)
        for start, part in self._parts():
            total += part @ vector[start : start + part.shape[1]]
        return total

    def columns(self, start: int, stop: int) -> Floats:
        """Return some columns of G."""
        return self.matrix[:, start:stop].astype(np.float64)

    def _parts(self) -> Iterator[tuple[int, Floats]]:
        for start in range(0, self.dim, _COLUMNS):
            part = self.matrix[:, start : start + _COLUMNS]
            yield start, part.astype(np.float64, copy=False)
