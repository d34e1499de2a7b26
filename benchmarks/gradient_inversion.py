"""How long does one search for a batch of 32 MNIST digits take, and what comes back?

iDLG from the mean gradient of N clients with 32 digits each, at an untrained model, as in
Elkordy et al. 2023 (arXiv:2208.02304), Figure 15; PSNR of the target client's digits. MNIST is
read from the folder that LEAKMETER_DATA names. Linear model: L-BFGS, 200 steps; MLP: Adam with a
smoothness prior, 300 steps. There is no peer: the mean digit, which knows nothing of the target,
is what a search has to beat. Beyond a few clients nothing of the target's own comes back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.measure import Row, Scale, seconds
from benchmarks.mnist import SHAPE, digits
from leakmeter.auditors.reconstruction.attack import Attack, Reconstruction, invert, psnr
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.task import build_model

BATCH = 32
ATTACKS = {
    "linear": Attack(steps=200),
    "mlp": Attack(steps=300, optimizer="adam", rate=0.02, smoothness=1e-2),
}


def gradient(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> NDArray[np.float32]:
    """Return the mean gradient of a batch, flat."""
    loss = nn.functional.cross_entropy(model(x), y)
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    return np.concatenate([slope.reshape(-1).numpy() for slope in slopes])


def measure(scale: Scale) -> Iterator[Row]:
    """Yield a row a model and number of clients."""
    sizes, repetitions = ((1,), 1) if scale == "quick" else ((1, 2, 5, 20), 5)
    try:
        x, y = digits(BATCH * max(sizes))
    except ConfigError as error:
        yield Row("digits of MNIST", [], note=f"not measured: {error}")
        return
    target = x[:BATCH].numpy()
    grey = np.broadcast_to(x.mean(0).numpy(), target.shape)
    for name, attack in ATTACKS.items():
        steps = replace(attack, steps=20) if scale == "quick" else attack
        for users in sizes:
            yield searched(name, steps, users, x, y, repetitions, psnr(target, grey).mean())


def searched(
    name: str, attack: Attack, users: int, x: torch.Tensor, y: torch.Tensor, times: int, mean: float
) -> Row:
    """Return the row of one search."""
    model, size = build_model(name, SHAPE, 10, seed=0), BATCH * users
    observed, found = gradient(model, x[:size], y[:size]), list[Reconstruction]()

    def search() -> None:
        found.append(invert(model, observed, shape=SHAPE, batch=BATCH, seed=0, attack=attack))

    spent = [seconds(search) for _ in range(times)]
    reached = psnr(x[:BATCH].numpy(), found[-1].images)
    note = f"PSNR {reached.mean():.1f} dB ({reached.min():.1f} to {reached.max():.1f}); "
    return Row(f"{name}, N = {users}", spent, note=f"{note}the mean digit has {mean:.1f} dB")
