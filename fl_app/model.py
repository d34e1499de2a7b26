"""Makes torch's layers of a row of the table of models.

Weights start as torch's own layers would draw them, but from the run's seed and never from the
global generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import nn

from leakmeter.auditors.rng import derive
from leakmeter.fl_app.config.errors import unknown_name
from leakmeter.fl_app.config.models import MODELS, Layers


def build(name: str, input_shape: Sequence[int], num_classes: int, seed: int) -> nn.Module:
    """Return the model `name`, from (batch, *input_shape) to logits (batch, num_classes).

    Args:
        name: One of `fl_app.config.models.MODELS`.
        input_shape: Shape of one record.
        num_classes: Number of logits.
        seed: The run's seed; the same seed gives the same initial parameters.

    Raises:
        ConfigError: The name is unknown or the model cannot fit such data.
    """
    if name not in MODELS:
        raise unknown_name("--model", name, MODELS)
    row = MODELS[name]
    widths = row.widths(name, input_shape, num_classes)
    # torch wants at most 64 bits; the sign bit stays clear.
    generator = torch.Generator().manual_seed(derive(seed, "model") % 2**63)
    layers = _convolutions(row, input_shape, generator) if row.channels else []
    layers.append(nn.Flatten())
    for fan_in, fan_out in pairwise(widths):
        layers += [_drawn(partial(nn.Linear, fan_in, fan_out), fan_in, generator), nn.ReLU()]
    if not row.ends_in_relu:
        layers.pop()
    return nn.Sequential(*layers)


def _convolutions(
    row: Layers, input_shape: Sequence[int], generator: torch.Generator
) -> list[nn.Module]:
    """Return the layers up to the last pool."""
    layers: list[nn.Module] = []
    if len(input_shape) == 2:
        layers.append(nn.Unflatten(1, (1, input_shape[0])))  # grey images have no channel axis
    for place, (fan_in, fan_out) in enumerate(pairwise(row.filters(input_shape))):
        convolution = partial(nn.Conv2d, fan_in, fan_out, 3, padding=1)
        layers += [_drawn(convolution, 9 * fan_in, generator), nn.ReLU()]
        if place in row.pooled:
            layers.append(nn.MaxPool2d(3, stride=2))
    return layers


def _drawn(make: Callable[[], nn.Module], fan_in: int, generator: torch.Generator) -> nn.Module:
    """Return a layer initialised as torch does, uniform on ±1/√fan_in, from `generator`."""
    # A layer draws from the global generator as it is made; the device "meta" would prevent it,
    # but takes a second of imports.
    with torch.random.fork_rng(devices=[]):
        layer = make()
    bound = 1 / math.sqrt(fan_in)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    return layer
