"""The models: linear classifier, single-layer perceptron, MLP, and an AlexNet-like CNN.

As in Elkordy et al. (2023), "How Much Privacy Does Federated Learning with Secure Aggregation
Guarantee?" (arXiv:2208.02304), Table 1. The paper gives the CNN's size, 82,554 for CIFAR-10, and
that it is made from AlexNet (Krizhevsky, Sutskever and Hinton 2012), no more; ours has AlexNet's
order of layers and its overlapping pools in the one width of which the count comes out. AlexNet's
dropout is left out: a client's update should be a function of its batches.

Weights start as torch's own layers would draw them, but from the run's seed and never from the
global generator. Importing this imports torch; the names alone are in `fl_app.config.names`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import nn

from leakmeter.auditors.rng import derive
from leakmeter.fl_app.config.errors import ConfigError, out_of_range, unknown_name
from leakmeter.fl_app.config.names import MODELS

# Widths of the hidden layers after the flattening.
_HIDDEN: dict[str, tuple[int, ...]] = {
    "linear": (),
    "slp": (),
    "mlp": (100, 100),
    "cnn": (80, 64),
}
# Channels of the CNN's convolutions, all 3×3 with a border of zeros, and which of them are pooled.
_CHANNELS = (16, 32, 48, 48, 32)
_POOLED = (0, 1, 4)
_SMALLEST = 15  # what three pools leave a pixel of


def build(name: str, input_shape: Sequence[int], num_classes: int, seed: int) -> nn.Module:
    """Return the model `name`, from (batch, *input_shape) to logits (batch, num_classes).

    Args:
        name: One of `fl_app.config.names.MODELS`. The "slp" ends in a ReLU: its logits are not
            negative, and a class whose logit is 0 has no gradient.
        input_shape: Shape of one record. It is flattened, save by the CNN, which takes images
            (channels, height, width) or (height, width).
        num_classes: Number of logits.
        seed: The run's seed; the same seed gives the same initial parameters.

    Raises:
        ConfigError: The name is unknown or the model cannot fit such data.
    """
    widths = _widths(name, input_shape, num_classes)
    # torch wants at most 64 bits; the sign bit stays clear.
    generator = torch.Generator().manual_seed(derive(seed, "model") % 2**63)
    layers = _convolutions(input_shape, generator) if name == "cnn" else []
    layers.append(nn.Flatten())
    for fan_in, fan_out in pairwise(widths):
        layers += [_drawn(partial(nn.Linear, fan_in, fan_out), fan_in, generator), nn.ReLU()]
    if name != "slp":
        layers.pop()  # no ReLU after the logits
    return nn.Sequential(*layers)


def _widths(name: str, input_shape: Sequence[int], num_classes: int) -> tuple[int, ...]:
    """Return the dense layers' widths up to the logits; raise if the model cannot be built."""
    if name not in MODELS:
        raise unknown_name("--model", name, MODELS)
    if not input_shape or min(input_shape) < 1:
        allowed = f"one or more positive sizes for --model {name}"
        raise out_of_range("input_shape", allowed, tuple(input_shape))
    if num_classes < 2:
        raise out_of_range("num_classes", f"at least 2 for --model {name}", num_classes)
    flat = _pooled(input_shape) if name == "cnn" else math.prod(input_shape)
    return (flat, *_HIDDEN[name], num_classes)


def _pooled(input_shape: Sequence[int]) -> int:
    """Return the number of values that the CNN's last pooling layer makes of an image."""
    sides = input_shape[-2:]
    if len(input_shape) not in (2, 3) or min(sides) < _SMALLEST:
        size = "×".join(str(side) for side in input_shape)
        raise ConfigError(
            f"--model cnn needs images of at least {_SMALLEST}×{_SMALLEST}, got records of size "
            f"{size}. Try --model mlp or --dataset mnist."
        )
    for _ in _POOLED:
        sides = [(side - 3) // 2 + 1 for side in sides]
    return _CHANNELS[-1] * math.prod(sides)


def _channels(input_shape: Sequence[int]) -> int:
    return input_shape[0] if len(input_shape) == 3 else 1


def _convolutions(input_shape: Sequence[int], generator: torch.Generator) -> list[nn.Module]:
    """Return the CNN's layers up to the last pool."""
    layers: list[nn.Module] = []
    if len(input_shape) == 2:
        layers.append(nn.Unflatten(1, (1, input_shape[0])))  # grey images have no channel axis
    for place, (fan_in, fan_out) in enumerate(pairwise((_channels(input_shape), *_CHANNELS))):
        convolution = partial(nn.Conv2d, fan_in, fan_out, 3, padding=1)
        layers += [_drawn(convolution, 9 * fan_in, generator), nn.ReLU()]
        if place in _POOLED:
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
