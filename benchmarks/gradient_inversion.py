"""How long does one search for a batch of 32 MNIST digits take, and what comes back?

iDLG from the mean gradient of N clients with 32 digits each, at an untrained model, as in
Elkordy et al. 2023 (arXiv:2208.02304), Figure 15; PSNR of the target client's digits. MNIST is
read from the folder that LEAKMETER_DATA names.

Linear model, L-BFGS, 200 steps: 0.1 to 0.2 s a restart; 13.2 dB at N = 1, then 12.3, 11.9, 11.7
and 11.7 at N = 2, 5, 10, 20. MLP, Adam with a smoothness prior, 300 steps: 1.2 to 1.5 s; 14.8,
13.0, 12.7, 12.5, 12.5 dB. The mean digit, which knows nothing of the target, has 12.1 dB: beyond
a few clients nothing of the target's own comes back. Processor time on two busy cores, by the
clock up to four times as much, 2026-11-16.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from auditors.inversion import Attack, invert, psnr
from fl_app.data import load
from fl_app.model import build

BATCH, USERS, SHAPE = 32, (1, 2, 5, 10, 20), (1, 28, 28)


def gradient(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> NDArray[np.float32]:
    """Return the mean gradient of a batch, flat."""
    loss = nn.functional.cross_entropy(model(x), y)
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    return np.concatenate([slope.reshape(-1).numpy() for slope in slopes])


def main() -> None:
    """Attack each model at each number of clients and print seconds and PSNR."""
    torch.set_num_threads(1)
    mnist = load("mnist")
    x = torch.from_numpy(np.asarray(mnist.train_x[: BATCH * max(USERS)], dtype=np.float32))
    x, y = x.reshape(-1, *SHAPE), torch.from_numpy(np.asarray(mnist.train_y[: len(x)]))
    digits = x[:BATCH].numpy()
    grey = np.broadcast_to(x.mean(0).numpy(), digits.shape)
    print(
        f"mean digit {psnr(digits, grey).mean():.1f} dB, black {psnr(digits, 0 * grey).mean():.1f}"
    )
    for name, attack in (
        ("linear", Attack(steps=200)),
        ("mlp", Attack(steps=300, optimizer="adam", rate=0.02, smoothness=1e-2)),
    ):
        model = build(name, SHAPE, 10, seed=0)
        for users in USERS:
            size = BATCH * users
            observed = gradient(model, x[:size], y[:size].long())
            start, busy = time.perf_counter(), time.process_time()
            found = invert(model, observed, shape=SHAPE, batch=BATCH, seed=0, attack=attack)
            busy, start = time.process_time() - busy, time.perf_counter() - start
            reached = psnr(digits, found.images)
            print(
                f"{name}, N = {users}: {busy:.1f} s a restart ({start:.1f} s by the clock), "
                f"PSNR {reached.mean():.1f} dB ({reached.min():.1f} to {reached.max():.1f}), "
                f"mismatch {found.mismatch:.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
