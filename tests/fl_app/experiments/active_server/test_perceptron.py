"""The clients' network and the traps in it, against torch and against what must come out."""

from __future__ import annotations

import numpy as np
import torch

from leakmeter.auditors.reconstruction import psnr
from leakmeter.auditors.rng import stream
from leakmeter.fl_app.experiments.active_server.perceptron import (
    Batch,
    Weights,
    dead,
    flat,
    initial,
    split,
    step,
    trap,
    trapped,
)

PIXELS, HIDDEN = 16, 6


def batch(size: int, seed: int = 1) -> Batch:
    rng = stream(seed, "test")
    return Batch(rng.random((size, PIXELS), dtype=np.float32), rng.integers(0, 10, size))


def moved(weights: Weights, data: Batch, lr: float = 0.1) -> np.ndarray:
    return flat(step(weights, data, lr)) - flat(weights)


def test_a_step_is_that_of_torch() -> None:
    weights, data = initial(PIXELS, HIDDEN, 3), batch(5)
    tensors = {
        n: torch.tensor(a, dtype=torch.float64, requires_grad=True) for n, a in weights.items()
    }
    images = torch.tensor(data.images, dtype=torch.float64)
    hidden = (images @ tensors["w1"].T + tensors["b1"]).relu()
    scores = hidden @ tensors["w2"].T + tensors["b2"]
    torch.nn.functional.cross_entropy(scores, torch.tensor(data.labels)).backward()
    expected = -0.1 * np.concatenate([t.grad.ravel().numpy() for t in tensors.values()])
    assert np.allclose(moved(weights, data), expected, atol=1e-7)


def test_dead_units_leave_the_last_bias_alone_to_move() -> None:
    weights = dead(initial(PIXELS, HIDDEN, 3))
    parts = split(moved(weights, batch(5)), weights)
    assert not any(parts[name].any() for name in ("w1", "b1", "w2"))
    assert parts["b2"].all()


def of_brightness(*levels: float) -> Batch:
    data = batch(len(levels))
    scale = np.array(levels)[:, None] / data.images.mean(axis=1, keepdims=True)
    return Batch((data.images * scale).astype(np.float32), data.labels)


def trap_at(*levels: float) -> Weights:
    return trap(initial(PIXELS, len(levels), 3), np.repeat(levels, 100))


def test_a_trap_gives_back_images_of_different_brightness_one_by_one() -> None:
    weights, data = trap_at(0.1, 0.2, 0.3, 0.4), of_brightness(0.15, 0.25, 0.35)
    found = trapped(moved(weights, data), weights)
    assert len(found) == 3
    assert (psnr(data.images, found) > 50).all()


def test_two_images_in_one_bin_come_back_mixed() -> None:
    weights, data = trap_at(0.1, 0.2, 0.3, 0.4), of_brightness(0.25, 0.26)
    found = trapped(moved(weights, data), weights)
    assert len(found) == 1
    assert (psnr(data.images, np.repeat(found, 2, axis=0)) < 30).all()
