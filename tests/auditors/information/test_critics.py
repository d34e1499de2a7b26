"""Critics: the gradient that is written out is that of autograd."""

from __future__ import annotations

import math

import numpy as np
import torch

from leakmeter.auditors.information.neural import GuidedCritic, log_mean_exp
from leakmeter.auditors.rng import stream

MODELS, PAIRS, WIDTH, HIDDEN = 3, 16, 5, 7


def critic(most: float) -> GuidedCritic:
    """Return critics with all weights away from 0."""
    rho = np.linspace(0.1, 0.8, MODELS * WIDTH).reshape(MODELS, WIDTH)
    made = GuidedCritic.drawn(rho, HIDDEN, most, [stream(0, i) for i in range(MODELS)])
    noise = stream(0, "weights").standard_normal(made.flat.shape, dtype=np.float32)
    made.flat.add_(torch.from_numpy(noise), alpha=0.3)
    return made


def samples() -> list[torch.Tensor]:
    """Return x, z and strangers."""
    rows = stream(0, "rows").standard_normal((3, MODELS, PAIRS, WIDTH), dtype=np.float32)
    return list(torch.from_numpy(rows))


def plain(parts: list[torch.Tensor], x: torch.Tensor, z: torch.Tensor, most: float) -> torch.Tensor:
    """Return scores (models, pairs) as the formula has them, in a form that autograd follows."""
    w_x, w_z, b_first, w_second, b_second, last, product, x_square, z_square = parts
    first = (x @ w_x + z @ w_z + b_first).relu()
    network = ((first @ w_second + b_second).relu() * last).sum(-1)
    crossed = ((x @ product) * z).sum(-1)
    squared = (x_square * x**2 + z_square * z**2).sum(-1)
    return (network + crossed + squared).clamp(-most, most)


def test_the_gradient_is_that_of_autograd_with_and_without_clipped_scores() -> None:
    x, z, strangers = samples()
    for most in (math.inf, 1.0):
        ours = critic(most)
        parts = [part.detach().clone().requires_grad_() for part in ours.parts]
        joint, others = (plain(parts, x, one, most) for one in (z, strangers))
        for found, expected in zip(ours.matched(x, z, strangers), (joint, others), strict=True):
            np.testing.assert_allclose(found, expected.detach(), rtol=1e-5, atol=1e-5)
        assert bool((others.abs() == most).any()) == (most == 1.0)  # the clip is put to the test
        (joint.mean(1) - log_mean_exp(others)).sum().backward()  # Donsker-Varadhan
        expected = torch.cat([part.grad.flatten(1) for part in parts], dim=1)
        np.testing.assert_allclose(ours.gradient(x, z, strangers), expected, rtol=1e-4, atol=1e-5)


def test_parts_are_views_of_all_weights_and_the_network_starts_at_nothing() -> None:
    rho = np.full((MODELS, WIDTH), 0.5)
    ours = GuidedCritic.drawn(rho, HIDDEN, 9.0, [stream(0, i) for i in range(MODELS)])
    assert not ours.parts[5].any()
    x, z, _ = samples()
    # Of standard normals with correlation ρ: (ρ x z - ρ² (x² + z²) / 2) / (1 - ρ²).
    ratio = ((0.5 * x * z - 0.125 * (x**2 + z**2)) / 0.75).sum(-1)
    found = ours.matched(x, z, z)[0]
    np.testing.assert_allclose(found, ratio.clamp(-9, 9), rtol=1e-5, atol=1e-5)
    ours.flat.zero_()
    assert not any(part.any() for part in ours.parts)
