"""Gradients of single examples, each clipped by its joint norm.

Chains of linear layers and convolutions take one pass forward and one back for all examples; the
gradients stay factored (`clients.protection.gradient_matrix`). Other models go through
`torch.func.vmap`, some examples at a time, into a matrix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import cross_entropy

from leakmeter.auditors.values import Floats, require
from leakmeter.clients.protection.gradient_matrix import (
    DenseGradients,
    FactoredGradients,
    Gradients,
    Layer,
    Part,
    can_factor,
    convolution_part,
)

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
    if not clip_norm > 0:
        raise ValueError(f"clip_norm must be above 0, got {clip_norm}")
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
) -> FactoredGradients | None:
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
            else Layer(_double(a), _double(slope), layer.bias is not None)
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
    return FactoredGradients(made, float(losses.detach().mean()))


def _by_vmap(
    model: nn.Module, x: Tensor, y: Tensor, clip_norm: float, chunk: int
) -> DenseGradients:
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
    return DenseGradients(matrix.numpy(), float(np.concatenate(losses).mean()))


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
