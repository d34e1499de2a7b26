"""The models: a linear classifier, and an MLP with two hidden layers of 100.

Both as in Elkordy et al. (2023), "How Much Privacy Does Federated Learning with Secure Aggregation
Guarantee?" (arXiv:2208.02304), Table 1. Weights start as torch's own `Linear` would draw them, but
from the run's seed and never from the global generator. Importing this imports torch; the names
alone are in `fl_app.names`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from auditors.rng import derive
from fl_app.errors import out_of_range, unknown_name
from fl_app.names import MODELS

# Widths of the hidden layers.
_HIDDEN: dict[str, tuple[int, ...]] = {"linear": (), "mlp": (100, 100)}


def build(name: str, input_shape: Sequence[int], num_classes: int, seed: int) -> nn.Module:
    """Return the model `name` for inputs (batch, *input_shape), with logits (batch, num_classes).

    Args:
        name: One of `fl_app.names.MODELS`.
        input_shape: Shape of one record; it is flattened.
        num_classes: Number of logits.
        seed: The run's seed; the same seed gives the same initial parameters.

    Raises:
        ConfigError: The name is unknown or the model cannot fit such data.
    """
    widths = _widths(name, input_shape, num_classes)
    # torch wants at most 64 bits; the sign bit stays clear.
    generator = torch.Generator().manual_seed(derive(seed, "model") % 2**63)
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(widths):
        layers += [_linear(fan_in, fan_out, generator), nn.ReLU()]
    return nn.Sequential(*layers[:-1])  # no ReLU after the logits


def num_parameters(name: str, input_shape: Sequence[int], num_classes: int) -> int:
    """Return the number of parameters d, without building the model.

    >>> num_parameters("linear", (28, 28), 10), num_parameters("mlp", (28, 28), 10)
    (7850, 89610)
    """
    widths = _widths(name, input_shape, num_classes)
    return sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(widths))


def _widths(name: str, input_shape: Sequence[int], num_classes: int) -> tuple[int, ...]:
    """Return the layer widths from input to logits, after checking that there can be such."""
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    if not input_shape or min(input_shape) < 1:
        allowed = f"one or more positive sizes for the model {name}"
        raise out_of_range("input_shape", allowed, tuple(input_shape))
    if num_classes < 2:
        raise out_of_range("num_classes", f"at least 2 for the model {name}", num_classes)
    return (math.prod(input_shape), *_HIDDEN[name], num_classes)


def _linear(fan_in: int, fan_out: int, generator: torch.Generator) -> nn.Linear:
    """Return a layer initialised like `nn.Linear`, uniform on ±1/√fan_in, from `generator`."""
    # Made without memory, because nn.Linear would otherwise draw from the global generator.
    layer = nn.Linear(fan_in, fan_out, device="meta").to_empty(device="cpu")
    bound = 1 / math.sqrt(fan_in)
    with torch.no_grad():
        for parameter in (layer.weight, layer.bias):
            parameter.uniform_(-bound, bound, generator=generator)
    return layer
