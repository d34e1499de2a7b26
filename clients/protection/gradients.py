"""Gradients of single examples, each clipped by its joint norm: as factors, or as a matrix.

G is the matrix whose rows are gradients over all parameters, in the order of `model.parameters()`.
Chains of linear layers and convolutions take one pass forward and one back for all examples; the
gradients stay factored. Other models go through `torch.func.vmap`, some examples at a time, into a
matrix.

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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import cross_entropy, unfold

from leakmeter.auditors.values import Floats, require

_COLUMNS = 4096  # columns of a float32 matrix that are converted to double at a time
_CHUNK = 64  # examples whose patches are in memory at a time
_ROOM = 2**26  # bytes of a layer's rows that are kept


class Part(ABC):
    """Some columns of G, (count, dim), such as those of a layer, as rows or as factors."""

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of examples."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Number of columns."""

    @abstractmethod
    def gram(self) -> Floats:
        """Return the product with its transpose, (count, count)."""

    @abstractmethod
    def combined(self, weights: Floats) -> Floats:
        """Return the sum of the rows times these weights, (dim,)."""

    @abstractmethod
    def products(self, vector: Floats) -> Floats:
        """Return the product of every row with a vector, (count,)."""

    @abstractmethod
    def columns(self, start: int, stop: int) -> Floats:
        """Return some of the columns, (count, stop - start)."""

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
class LayerFactors(_Factors):
    """One linear layer's part of G: example j has δ_j a_jᵀ, and δ_j if there is a bias."""

    inputs: Floats  # a, (count, fan_in)
    slopes: Floats  # δ, (count, fan_out)
    has_bias: bool

    def squares(self) -> Floats:
        # ‖δ aᵀ‖² + ‖δ‖² = (‖a‖² + 1) ‖δ‖²
        inputs = np.einsum("ji,ji->j", self.inputs, self.inputs) + self.has_bias
        return np.asarray(inputs * np.einsum("jo,jo->j", self.slopes, self.slopes))

    def scaled(self, factors: Floats) -> LayerFactors:
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
    """Columns of G as they are, in the model's own precision; products are in double."""

    matrix: NDArray[np.floating]

    @property
    def count(self) -> int:
        return len(self.matrix)

    @property
    def dim(self) -> int:
        return int(self.matrix.shape[1])

    @property
    def _doubles(self) -> Floats:
        return self.matrix.astype(np.float64, copy=False)

    def squares(self) -> Floats:
        doubles = self._doubles
        return np.asarray(np.einsum("ji,ji->j", doubles, doubles))

    def scaled(self, factors: Floats) -> Rows:
        return Rows(self.matrix * factors[:, None])

    def gram(self) -> Floats:
        doubles = self._doubles
        return np.asarray(doubles @ doubles.T)

    def combined(self, weights: Floats) -> Floats:
        return np.asarray(weights @ self._doubles)

    def products(self, vector: Floats) -> Floats:
        return np.asarray(self._doubles @ vector)

    def columns(self, start: int, stop: int) -> Floats:
        return self.matrix[:, start:stop].astype(np.float64, copy=False)


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
class Gradients:
    """Rows of gradients G, (count, dim), part by part; those of layers are never one matrix.

    Attributes:
        parts: The columns from left to right, such as those of each layer.
        loss: Mean of the examples, where the rows are over all parameters.
    """

    parts: tuple[Part, ...]
    loss: float = math.nan

    @classmethod
    def of(cls, matrix: NDArray[np.floating], loss: float = math.nan) -> Self:
        """Return the gradients in a matrix, of which few columns at a time are made doubles."""
        starts = range(0, max(matrix.shape[1], 1), _COLUMNS)
        return cls(tuple(Rows(matrix[:, i : i + _COLUMNS]) for i in starts), loss)

    @property
    def count(self) -> int:
        """Number of examples."""
        return self.parts[0].count

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return sum(part.dim for part in self.parts)

    def gram(self) -> Floats:
        """Return G Gᵀ, (count, count)."""
        first, *others = self.parts
        total = first.gram().astype(np.float64, copy=False)
        for part in others:
            total += part.gram()
        return total

    def combined(self, weights: Floats) -> Floats:
        """Return Gᵀ w, (dim,)."""
        return np.concatenate([part.combined(weights) for part in self.parts])

    def products(self, vector: Floats) -> Floats:
        """Return G v, (count,)."""
        total = np.zeros(self.count)
        for part, (start, stop) in zip(self.parts, self._spans(), strict=True):
            total += part.products(vector[start:stop])
        return total

    def columns(self, start: int, stop: int) -> Floats:
        """Return these columns of G, (count, stop - start)."""
        found = [
            part.columns(max(start - first, 0), min(stop, last) - first)
            for part, (first, last) in zip(self.parts, self._spans(), strict=True)
            if start < last and stop > first
        ]
        return np.hstack(found) if found else np.zeros((self.count, 0))

    def _spans(self) -> Iterator[tuple[int, int]]:
        """Yield the range of each part's parameters in a flat vector."""
        start = 0
        for part in self.parts:
            yield start, start + part.dim
            start += part.dim


CHUNK = 64  # examples that one call of vmap takes
# These treat each example separately, and have no parameters.
_SHAPES = (nn.Flatten, nn.Unflatten, nn.Identity, nn.MaxPool2d, nn.AvgPool2d)
_PLAIN = (*_SHAPES, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU, nn.SiLU)


def per_example_gradients(
    model: nn.Module, x: Tensor, y: Tensor, clip_norm: float, *, chunk: int = CHUNK
) -> Gradients:
    """Return the gradient of every example, each scaled to a joint norm of at most `clip_norm`.

    A gradient that is not finite counts as zero, unless none is finite.

    Args:
        model: Any module that does not mix the examples of a batch.
        x: Inputs, (count, ...).
        y: Labels, (count,).
        clip_norm: Largest L2 norm over all parameters together; infinity clips nothing.
        chunk: Examples at a time, where gradients are computed one by one.
    """
    require("(0, inf]", clip_norm=clip_norm)
    require("at least 1", chunk=chunk)
    if not len(y):
        raise ValueError("y must contain at least one example, got 0")
    _refuse_mixing(model)
    layers = _chain(model)
    factored = None if layers is None else _by_factors(layers, x, y, clip_norm)
    return factored or _by_vmap(model, x, y, clip_norm, chunk)


def _refuse_mixing(model: nn.Module) -> None:
    """Refuse batch normalisation by the batch's own moments; fixed moments are fine."""
    for name, module in model.named_modules():
        if not isinstance(module, nn.modules.batchnorm._BatchNorm):
            continue
        if module.training or module.running_mean is None:
            raise ValueError(
                f"model must treat examples separately, got {type(module).__name__} at {name!r}: "
                "it mixes the batch, so no gradient belongs to one example"
            )


def _chain(model: nn.Module) -> Sequence[nn.Module] | None:
    """Return the layers of a chain whose gradients have factors, or None for other models."""
    layers = list(model) if type(model) is nn.Sequential else [model]
    trained = [layer for layer in layers if type(layer) is nn.Linear or can_factor(layer)]
    known = all(layer in trained or (type(layer) in _PLAIN and _keeps(layer)) for layer in layers)
    # A layer or weight that is used twice adds up its gradients, which has no factors.
    parameters = [p for layer in trained for p in layer.parameters()]
    is_once = len({id(p) for p in parameters}) == len(parameters)
    return layers if known and trained and is_once else None


def _keeps(layer: nn.Module) -> bool:
    """Whether a layer does not modify its input and keeps the first axis for the examples."""
    axis = getattr(layer, "dim", getattr(layer, "start_dim", 1))
    return not getattr(layer, "inplace", False) and axis == 1


def _by_factors(
    layers: Sequence[nn.Module], x: Tensor, y: Tensor, clip_norm: float
) -> Gradients | None:
    """Return the factors from one pass forward and one back; None if an input has more axes."""
    seen: list[tuple[nn.Linear | nn.Conv2d, Tensor, Tensor]] = []
    for layer in layers:
        before, x = x, layer(x)
        if isinstance(layer, nn.Linear | nn.Conv2d):
            if before.ndim != (2 if isinstance(layer, nn.Linear) else 4):
                return None
            seen.append((layer, before, x))
    losses = cross_entropy(x, y, reduction="none")  # (count,)
    # Examples do not mix, so row i of the gradient of the summed loss is that of example i alone.
    slopes = torch.autograd.grad(losses.sum(), [after for _, _, after in seen])

    def measured(factors: Iterable[tuple[nn.Module, Tensor, Tensor]]) -> tuple[list[Part], Floats]:
        parts: list[Part] = [
            convolution_part(layer, a, slope)
            if isinstance(layer, nn.Conv2d)
            else LayerFactors(_double(a), _double(slope), layer.bias is not None)
            for layer, a, slope in factors
        ]
        # The joint norm over all layers, (count,): clipping layer by layer would need another C.
        return parts, np.sqrt(np.sum([part.squares() for part in parts], axis=0))

    factors = [(layer, a, slope) for (layer, a, _), slope in zip(seen, slopes, strict=True)]
    parts, norms = measured(factors)
    if (kept := _usable(norms)) is not None:
        parts, norms = measured((one, _rows(a, kept), _rows(s, kept)) for one, a, s in factors)
    scale = _shrink(norms, clip_norm)
    made = tuple(part.scaled(scale) for part in parts)
    return Gradients(made, float(losses.detach().mean()))


def _by_vmap(model: nn.Module, x: Tensor, y: Tensor, clip_norm: float, chunk: int) -> Gradients:
    """Return the matrix, some examples at a time."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def loss(parameters: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(model, (parameters, buffers), (one[None],))
        return cross_entropy(logits, label[None])

    # One model for all, one example each; buffers are shared, so nothing may write to them.
    single = vmap(grad_and_value(loss), in_dims=(None, 0, 0))
    dim = sum(p.numel() for p in parameters.values())
    dtype = next(iter(parameters.values())).dtype
    room = 1 - 2 * torch.finfo(dtype).eps
    matrix = torch.empty(len(y), dim, dtype=dtype)
    losses, lengths = [], []
    for start in range(0, len(y), chunk):
        some = slice(start, start + chunk)
        gradients, values = single(parameters, x[some], y[some])
        # (chunk, dim), in the order of the parameters, which is that of the flat update
        each = [gradients[name].reshape(len(values), -1) for name in parameters]
        rows = torch.cat(each, dim=1).cpu()
        norms = _double(torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64))
        lengths.append(norms)
        # Rounding may lengthen the scaled row by half a unit in the last place.
        scale = torch.from_numpy(_shrink(norms, clip_norm * room)).to(dtype)
        matrix[some] = _rows(rows, np.isfinite(norms)) * scale[:, None]
        losses.append(_double(values))
    _usable(np.concatenate(lengths))
    return Gradients.of(matrix.numpy(), float(np.concatenate(losses).mean()))


def _usable(norms: Floats) -> NDArray[np.bool_] | None:
    """Return which gradients are finite, as the others count as zero; None if all are."""
    # If one record could end the training, it would decide about the gradients of all.
    finite = np.isfinite(norms)
    if finite.all():
        return None
    if not finite.any():
        raise ValueError("gradients must be finite, got NaN or infinity in all of them")
    return finite


def _rows(values: Tensor, kept: NDArray[np.bool_]) -> Tensor:
    """Return the values of some examples, and zeros for the others."""
    place = torch.from_numpy(kept).to(values.device).view(-1, *[1] * (values.ndim - 1))
    return torch.where(place, values, torch.zeros_like(values))


def _shrink(norms: Floats, clip_norm: float) -> Floats:
    """Return the factors that bring norms within `clip_norm`; a gradient of zero stays."""
    finite = np.where(np.isfinite(norms), norms, 0.0)
    return np.minimum(1.0, clip_norm / np.maximum(finite, np.finfo(np.float64).tiny))


def _double(tensor: Tensor) -> Floats:
    return tensor.detach().cpu().double().numpy()  # moved first: not every device has doubles
