"""The network that the clients train, and the weights with which a server sets traps in it.

One hidden layer of rectified units, cross-entropy, one step of gradient descent. Crafted weights:
Pasquini et al. 2022 (arXiv:2111.07380) for a layer that is dead, so that its gradient is zero;
Fowl et al. 2022 (arXiv:2110.13057) and Boenisch et al. 2023 (arXiv:2112.02918) for units that each
light up above another brightness, so that differences of their gradients are single images.
Written in numpy: thousands of steps on a handful of images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Vector

Weights = NDArray[np.float32]  # all of a network, flat: one array costs Flower less than four

CLASSES = 10  # as many as the last bias has entries
_DEAD = -1e3  # a bias that no image can lift above zero
# Below this share of the largest bias gradient a bin has no image, only float32 rounding.
_FAINT = 3e-3


class Batch(NamedTuple):
    """Images of one client, (batch, pixels) from 0 to 1, and their labels."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Perceptron:
    """The shapes of a network."""

    pixels: int
    hidden: int

    def initial(self, seed: int) -> Weights:
        """Return the weights that an honest server starts from."""
        rng = stream(seed, "perceptron")
        first = rng.normal(0, self.pixels**-0.5, (self.hidden, self.pixels))
        second = rng.normal(0, self.hidden**-0.5, (CLASSES, self.hidden))
        return _flat(first, np.zeros(self.hidden), second, np.zeros(CLASSES))

    def parts(self, vector: NDArray[Any]) -> list[NDArray[Any]]:
        """Return w1, b1, w2 and b2 of weights or of an update."""
        shapes = [(self.hidden, self.pixels), (self.hidden,), (CLASSES, self.hidden), (CLASSES,)]
        ends = np.cumsum([np.prod(shape) for shape in shapes])[:-1]
        return [p.reshape(shape) for p, shape in zip(np.split(vector, ends), shapes, strict=True)]

    def dead(self, weights: Weights) -> Weights:
        """Return the weights with a hidden layer that is zero for every image.

        Then the gradient of everything is zero, except that of the last bias.
        """
        w1, b1, w2, b2 = self.parts(weights)
        return _flat(w1, np.full_like(b1, _DEAD), w2, b2)

    def trap(self, weights: Weights, brightness: Vector) -> Weights:
        """Return weights whose hidden units light up above rising levels of brightness.

        All units feed the scores alike, so an image has the same error signal in each unit that it
        lights up, and the units' gradients differ only by the images between their levels.

        Args:
            weights: Say how the first unit feeds the scores.
            brightness: Mean pixel of images that the server has itself; the levels are its
                quantiles.
        """
        w1, _, w2, b2 = self.parts(weights)
        levels = np.quantile(brightness, np.linspace(0, 1, self.hidden, endpoint=False))
        levels[0] = 0.0  # an image darker than all the server's own is in the first bin
        fed = np.repeat(w2[:, :1] / self.hidden, self.hidden, axis=1)
        return _flat(np.full(w1.shape, 1 / self.pixels), -levels, fed, b2)

    def trapped(self, update: Vector) -> NDArray[np.float64]:
        """Return the images that `trap` has separated, from an update or a sum, (images, pixels).

        A bin with one image gives that image. One with several gives a mixture of them.
        """
        rows = np.column_stack(self.parts(update)[:2])
        bins = rows - np.vstack([rows[1:], np.zeros_like(rows[:1])])  # each unit less the next
        signal = np.abs(bins[:, -1])
        lit = bins[signal > _FAINT * signal.max()]
        found: NDArray[np.float64] = np.clip(lit[:, :-1] / lit[:, -1:], 0.0, 1.0)
        return found

    def step(self, weights: Weights, batch: Batch, lr: float) -> Weights:
        """Return the weights after one step on the mean cross-entropy of a batch."""
        w1, b1, w2, b2 = self.parts(weights.astype(np.float64))
        before = batch.images @ w1.T + b1  # (batch, hidden)
        active = np.maximum(before, 0.0)
        scores = active @ w2.T + b2  # (batch, classes)
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        errors = odds / odds.sum(axis=1, keepdims=True)
        errors[np.arange(len(batch.labels)), batch.labels] -= 1.0
        errors /= len(batch.labels)
        signals = (errors @ w2) * (before > 0)  # (batch, hidden)
        slopes = (signals.T @ batch.images, signals.sum(0), errors.T @ active, errors.sum(0))
        pairs = zip((w1, b1, w2, b2), slopes, strict=True)
        return _flat(*(weight - lr * slope for weight, slope in pairs))


def _flat(*parts: NDArray[Any]) -> Weights:
    return np.concatenate([part.ravel() for part in parts]).astype(np.float32)
