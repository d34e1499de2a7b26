"""What a client does to an update between training and the secure sum, for samplers of updates.

A `Postprocess` takes updates (k, dim), their weights (k,) and a generator for each, and returns the
updates as they enter the weighted mean. An audit that samples through it includes the mechanism.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors._validate import within
from leakmeter.clients.protection.clipping import clip

Rows = NDArray[np.float64]


class Postprocess(Protocol):
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
