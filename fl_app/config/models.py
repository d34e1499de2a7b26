"""The table of models: the layers of each, and how many parameters they have.

As in Elkordy et al. (2023), "How Much Privacy Does Federated Learning with Secure Aggregation
Guarantee?" (arXiv:2208.02304), Table 1. The paper gives the CNN's size, 82,554 for CIFAR-10, and
that it is made from AlexNet (Krizhevsky, Sutskever and Hinton 2012), no more; ours has AlexNet's
order of layers and its overlapping pools in the one width of which the count comes out. AlexNet's
dropout is left out: a client's update should be a function of its batches.

`build_model` in `fl_app.task` makes torch's layers of a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from leakmeter.fl_app.config.errors import ConfigError, out_of_range


@dataclass(frozen=True)
class Layers:
    """The layers of a model, from a record to the logits.

    Attributes:
        hidden: Widths of the dense layers before the logits, each followed by a ReLU.
        channels: Of convolutions before them, all 3×3 with a border of zeros, each followed by a
            ReLU. Such a model takes images (channels, height, width) or (height, width); others
            flatten any record.
        pooled: Which of the convolutions are followed by a pool, of 3×3 every 2 pixels.
        ends_in_relu: Whether logits below 0 become 0.
    """

    hidden: tuple[int, ...] = ()
    channels: tuple[int, ...] = ()
    pooled: tuple[int, ...] = ()
    ends_in_relu: bool = False

    @property
    def smallest(self) -> int:
        """The smallest side of an image of which the pools leave a pixel."""
        return (2 << len(self.pooled)) - 1

    def filters(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the channels of an image and of all convolutions."""
        return (shape[0] if len(shape) == 3 else 1, *self.channels)

    def widths(self, name: str, shape: Sequence[int], classes: int) -> tuple[int, ...]:
        """Return the widths of the dense layers, from the flat record to the logits.

        Args:
            name: The model's name, for an error.
            shape: Shape of one record.
            classes: Number of logits.

        Raises:
            ConfigError: The model cannot fit such data.
        """
        if not shape or min(shape) < 1:
            allowed = f"one or more positive sizes for --model {name}"
            raise out_of_range("input_shape", allowed, tuple(shape))
        if classes < 2:
            raise out_of_range("num_classes", f"at least 2 for --model {name}", classes)
        flat = self._last_pool(name, shape) if self.channels else math.prod(shape)
        return (flat, *self.hidden, classes)

    def _last_pool(self, name: str, shape: Sequence[int]) -> int:
        """Return how many values the convolutions make of an image."""
        sides = list(shape[-2:])
        if len(shape) not in (2, 3) or min(sides) < self.smallest:
            raise ConfigError(
                f"--model {name} needs images of at least {self.smallest}×{self.smallest}, got "
                f"records of size {'×'.join(map(str, shape))}. Try --model mlp or --dataset mnist."
            )
        for _ in self.pooled:
            sides = [(side - 3) // 2 + 1 for side in sides]
        return self.channels[-1] * math.prod(sides)

    def parameters(self, name: str, shape: Sequence[int], classes: int) -> int:
        """Return the size of the model.

        >>> MODELS["linear"].parameters("linear", (20,), 10)
        210
        >>> MODELS["cnn"].parameters("cnn", (3, 32, 32), 10)
        82554
        """
        widths = self.widths(name, shape, classes)
        dense = sum((fan_in + 1) * out for fan_in, out in pairwise(widths))
        if not self.channels:
            return dense
        return dense + sum((9 * fan_in + 1) * out for fan_in, out in pairwise(self.filters(shape)))


MODELS: Final[Mapping[str, Layers]] = {
    "linear": Layers(),
    # Its logits are not negative, and a class whose logit is 0 has no gradient.
    "slp": Layers(ends_in_relu=True),
    "mlp": Layers(hidden=(100, 100)),
    "cnn": Layers(hidden=(80, 64), channels=(16, 32, 48, 48, 32), pooled=(0, 1, 4)),
}
