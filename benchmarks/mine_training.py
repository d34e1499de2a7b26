"""How much faster is our MINE than one that concatenates x and z?

Five critics of 2 × 100 on K = 1,000 pairs, 600 of the pairs in training. The peer is the usual
loop, a critic at a time: the rows [x; z] and [x; shuffled z] through one Sequential, Adam, the same
objective. It is timed over a few steps and scaled up, since its whole run would take hours; ours is
timed as a user calls it, rotation, validation and held-out values included, but with 100 steps
where a user takes 1,000, so that rotation and validation weigh more than they should. The long
scale takes 1,000, once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measure import Row, Scale, compare, timer
from leakmeter.auditors.rng import stream
from leakmeter.papers.elkordy2023.mine_estimator.estimator import estimate
from leakmeter.papers.elkordy2023.mine_estimator.training import Training

PAIRS, FITTED, CRITICS = 1000, 600, 5
PEER_STEPS = {300: 2, 7_850: 5, 89_610: 1}  # steps of the peer that are timed, by dimension


def plain_seconds(x: Tensor, z: Tensor, *, timed: int, steps: int) -> float:
    """Return what the plain loop needs for all critics, from a few timed steps of one."""
    width = x.shape[1] + z.shape[1]
    critic = nn.Sequential(
        nn.Linear(width, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 1)
    )
    adam = torch.optim.Adam(critic.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    average, start = torch.tensor(1.0), 0.0
    for step in range(timed + 1):
        if step == 1:  # the first one allocates
            start = time.process_time()
        order = torch.randperm(len(z), generator=generator)
        joint = critic(torch.cat([x, z], dim=1))
        strangers = critic(torch.cat([x, z[order]], dim=1)).exp().mean()
        average = 0.9 * average + 0.1 * strangers.detach()
        loss = strangers / average - joint.mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    return (time.process_time() - start) / timed * CRITICS * steps


def measure(scale: Scale) -> Iterator[Row]:
    """Yield a row a dimension."""
    dims: tuple[int, ...] = (300,) if scale == "quick" else (7_850, 89_610)
    steps, repetitions = {"quick": (10, 1), "full": (100, 5), "long": (1000, 1)}[scale]
    for dim in dims:
        x = stream(0, "x", dim).standard_normal((PAIRS, dim), dtype=np.float32)
        z = x + stream(0, "y", dim).standard_normal((PAIRS, dim), dtype=np.float32)
        ours = partial(estimate, x, z, seed=0, training=Training(steps=steps), seeds=3, nulls=2)
        fitted = torch.from_numpy(x[:FITTED]), torch.from_numpy(z[:FITTED])
        timed = PEER_STEPS[dim]
        yield compare(
            f"d = {dim:,}, {steps:,} steps",
            timer(ours),
            partial(plain_seconds, *fitted, timed=timed, steps=steps),
            peer=f"a loop, scaled up from {timed} of {CRITICS * steps:,} steps",
            repetitions=repetitions,
            warm_up=False,
        )
