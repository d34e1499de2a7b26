"""The network that the clients train, and the weights with which a server sets traps in it.

One hidden layer of rectified units, cross-entropy, one step of gradient descent. Crafted weights:
Pasquini et al. 2022 (arXiv:2111.07380) for a layer that is dead, so that its gradient is zero;
Fowl et al. 2022 (arXiv:2110.13057) and Boenisch et al. 2023 (arXiv:2112.02918) for units that each
light up above another brightness, so that differences of their gradients are single images.
Written in numpy: thousands of steps on a handful of images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from leakmeter.auditors._types import Vector
from leakmeter.auditors.rng import stream

Images = NDArray[np.float32]
Labels = NDArray[np.int64]
Weights = Mapping[str, NDArray[np.floating[Any]]]

CLASSES = 10  # as many as the last bias has entries
_NAMES = ("w1", "b1", "w2", "b2")  # in the order of a flat vector
_ARRAY = "weights"
_DEAD = -1e3  # a bias that no image can lift above zero
# Below this share of the largest bias gradient a bin has no image, only float32 rounding.
_FAINT = 3e-3


@dataclass(frozen=True)
class Batch:
    """Images of one client, (batch, pixels) from 0 to 1, and their labels."""

    images: Images
    labels: Labels


def initial(pixels: int, hidden: int, seed: int) -> Weights:
    """Return the weights that an honest server starts from."""
    rng = stream(seed, "perceptron")
    return _weights(
        rng.normal(0, pixels**-0.5, (hidden, pixels)),
        np.zeros(hidden),
        rng.normal(0, hidden**-0.5, (CLASSES, hidden)),
        np.zeros(CLASSES),
    )


def dead(weights: Weights) -> Weights:
    """Return the weights with a hidden layer that is zero for every image.

    Then the gradient of everything is zero, except that of the last bias.
    """
    return _weights(weights["w1"], np.full_like(weights["b1"], _DEAD), weights["w2"], weights["b2"])


def trap(weights: Weights, brightness: Vector) -> Weights:
    """Return weights whose hidden units light up above rising levels of brightness.

    All units feed the scores alike, so an image has the same error signal in each unit that it
    lights up, and the units' gradients differ only by the images between their levels.

    Args:
        weights: Give the shapes, and how the first unit feeds the scores.
        brightness: Mean pixel of images that the server has itself; the levels are its quantiles.
    """
    hidden, pixels = weights["w1"].shape
    levels = np.quantile(brightness, np.linspace(0, 1, hidden, endpoint=False))
    levels[0] = 0.0  # an image darker than all the server's own is in the first bin
    return _weights(
        np.full((hidden, pixels), 1 / pixels),
        -levels,
        np.repeat(weights["w2"][:, :1] / hidden, hidden, axis=1),
        weights["b2"],
    )


def trapped(update: Vector, weights: Weights) -> NDArray[np.float64]:
    """Return the images that `trap` has separated, from an update or a sum, (images, pixels).

    A bin with one image gives that image. One with several gives a mixture of them.
    """
    parts = split(update, weights)
    rows = np.column_stack([parts["w1"], parts["b1"]])
    bins = rows - np.vstack([rows[1:], np.zeros_like(rows[:1])])  # each unit less the next
    signal = np.abs(bins[:, -1])
    lit = bins[signal > _FAINT * signal.max()]
    found: NDArray[np.float64] = np.clip(lit[:, :-1] / lit[:, -1:], 0.0, 1.0)
    return found


def step(weights: Weights, batch: Batch, lr: float) -> Weights:
    """Return the weights after one step on the mean cross-entropy of a batch, as float32."""
    w1, b1, w2, b2 = (weights[name].astype(np.float64) for name in _NAMES)
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
    return _weights(*(weight - lr * slope for weight, slope in pairs))


def flat(weights: Weights) -> Vector:
    """Return all weights as one vector."""
    return np.concatenate([weights[name].ravel() for name in _NAMES]).astype(np.float64)


def split(vector: NDArray[Any], weights: Weights) -> dict[str, NDArray[Any]]:
    """Return the parts of a flat vector, in the shapes of the weights."""
    ends = np.cumsum([weights[name].size for name in _NAMES])[:-1]
    parts = np.split(vector, ends)
    return {n: part.reshape(weights[n].shape) for n, part in zip(_NAMES, parts, strict=True)}


def to_record(weights: Weights) -> ArrayRecord:
    """Return the weights as Flower sends them: in one array, since each costs Flower a while."""
    return ArrayRecord({_ARRAY: Array(flat(weights).astype(np.float32))})


def from_record(record: ArrayRecord, shapes: Weights) -> Weights:
    """Return the weights in a record, in the shapes of others."""
    return split(record[_ARRAY].numpy(), shapes)


def _weights(*arrays: NDArray[np.floating[Any]]) -> Weights:
    return {name: a.astype(np.float32) for name, a in zip(_NAMES, arrays, strict=True)}
