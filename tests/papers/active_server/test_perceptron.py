"""The clients' network and the traps in it, against torch and against what must come out."""

from __future__ import annotations

import numpy as np
import torch

from leakmeter.auditors.reconstruction.attack import psnr
from leakmeter.auditors.rng import stream
from leakmeter.papers.active_server.perceptron import Batch, Perceptron

NETWORK = Perceptron(pixels=16, hidden=6)
TRAP = Perceptron(pixels=16, hidden=4)
LEVELS = (0.1, 0.2, 0.3, 0.4)


def batch(size: int) -> Batch:
    rng = stream(1, "test")
    return Batch(rng.random((size, NETWORK.pixels), dtype=np.float32), rng.integers(0, 10, size))


def moved(network: Perceptron, weights: np.ndarray, data: Batch) -> np.ndarray:
    return network.step(weights, data, 0.1).astype(np.float64) - weights


def test_a_step_is_that_of_torch() -> None:
    weights, data = NETWORK.initial(3), batch(5)
    parts = NETWORK.parts(weights.astype(np.float64))
    w1, b1, w2, b2 = tensors = [torch.tensor(part, requires_grad=True) for part in parts]
    images = torch.tensor(data.images, dtype=torch.float64)
    scores = (images @ w1.T + b1).relu() @ w2.T + b2
    torch.nn.functional.cross_entropy(scores, torch.tensor(data.labels)).backward()
    expected = -0.1 * np.concatenate([t.grad.ravel().numpy() for t in tensors])
    assert np.allclose(moved(NETWORK, weights, data), expected, atol=1e-7)


def test_dead_units_leave_the_last_bias_alone_to_move() -> None:
    weights = NETWORK.dead(NETWORK.initial(3))
    *others, b2 = NETWORK.parts(moved(NETWORK, weights, batch(5)))
    assert not any(part.any() for part in others)
    assert b2.all()


def caught(*brightness: float) -> tuple[np.ndarray, np.ndarray]:
    """Return images of these levels of brightness, and what a trap makes of them."""
    images, labels = batch(len(brightness))
    scale = np.array(brightness)[:, None] / images.mean(axis=1, keepdims=True)
    data = Batch((images * scale).astype(np.float32), labels)
    weights = TRAP.trap(TRAP.initial(3), np.repeat(LEVELS, 100))
    return data.images, TRAP.trapped(moved(TRAP, weights, data))


def test_a_trap_gives_back_images_of_different_brightness_one_by_one() -> None:
    images, found = caught(0.15, 0.25, 0.35)
    assert len(found) == 3
    assert (psnr(images, found) > 50).all()


def test_two_images_in_one_bin_come_back_mixed() -> None:
    images, found = caught(0.25, 0.26)
    assert len(found) == 1
    assert (psnr(images, np.repeat(found, 2, axis=0)) < 30).all()
