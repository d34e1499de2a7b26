"""What a client does to an update between training and the secure sum, for samplers of updates.

A finish takes updates (k, dim), their weights (k,) and a generator for each, and returns the
updates as they enter the weighted mean. An audit that samples through it includes the mechanism.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors._validate import within
from leakmeter.clients.noise.clipping import clip, gaussian
from leakmeter.clients.secure_sum.quantise import Quantiser

Rows = NDArray[np.float64]


class Finish(Protocol):
    """Changes updates as a client does before it sends them."""

    @property
    def has_noise(self) -> bool:
        """Whether it adds noise that is meant to hide the client."""
        ...

    def __call__(self, updates: Rows, weights: Rows, rngs: Sequence[np.random.Generator]) -> Rows:
        """Return what enters the weighted mean; all randomness of row i comes from `rngs[i]`."""
        ...


@dataclass(frozen=True)
class Clip:
    """Clips each update to one joint L2 norm.

    Attributes:
        norm: Largest length of an update.
    """

    norm: float
    has_noise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        within("norm", self.norm, above=0.0)

    def __call__(self, updates: Rows, weights: Rows, rngs: Sequence[np.random.Generator]) -> Rows:
        return np.stack([clip(update, self.norm) for update in updates])


@dataclass(frozen=True)
class ClipAndNoise:
    """Clips, then adds Gaussian noise, as `clients.NoiseMod` does.

    Attributes:
        norm: Largest length of an update before noise.
        std: Noise of each coordinate.
    """

    norm: float
    std: float
    has_noise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        within("norm", self.norm, above=0.0)
        within("std", self.std, lowest=0.0)

    def __call__(self, updates: Rows, weights: Rows, rngs: Sequence[np.random.Generator]) -> Rows:
        return np.stack(
            [
                clip(update, self.norm) + gaussian(update.size, self.std, rng)
                for update, rng in zip(updates, rngs, strict=True)
            ]
        )


@dataclass(frozen=True)
class Rounded:
    """Clips and rounds coordinates as the secure sum does.

    Attributes:
        quantiser: The grid; its metrics play no part here.
    """

    quantiser: Quantiser
    has_noise: ClassVar[bool] = False

    def __call__(self, updates: Rows, weights: Rows, rngs: Sequence[np.random.Generator]) -> Rows:
        grid = replace(self.quantiser, metrics={})
        return np.stack(
            [
                grid.decode(grid.encode(update, weight, {}, rng)).mean
                for update, weight, rng in zip(updates, weights, rngs, strict=True)
            ]
        )


@dataclass(frozen=True)
class InTurn:
    """One finish after the other.

    Attributes:
        steps: From training to the wire, such as `(ClipAndNoise(...), Rounded(...))`.
    """

    steps: tuple[Finish, ...]

    @property
    def has_noise(self) -> bool:
        return any(step.has_noise for step in self.steps)

    def __call__(self, updates: Rows, weights: Rows, rngs: Sequence[np.random.Generator]) -> Rows:
        for step in self.steps:
            updates = step(updates, weights, rngs)
        return updates
