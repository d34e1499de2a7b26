"""Noise that comes again is no mod that scales every update to one norm."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from leakmeter.auditors.canaries.single_update import Lean, Seat
from leakmeter.auditors.rng import stream
from tests.helpers.numbers import few_or_many

ROUNDS, CLIENTS, DIM = 10, 12, 200

Source = Callable[[int, int, int], np.random.Generator]


def watched(source: Source, nudge: float, seed: int) -> Lean:
    """Return what a run shows in which half of the clients play canaries that are out."""
    lean = Lean()
    for server_round in range(1, ROUNDS + 1):
        for client in range(CLIENTS):
            update = source(seed, server_round, client).standard_normal(DIM)
            update[0] += nudge
            length = float(np.linalg.norm(update))
            lean.add(Seat(client, update, length, None), is_in=client % 2 == 0)
    return lean


@pytest.mark.parametrize("runs", few_or_many(20, 300))
@pytest.mark.parametrize(
    "source",
    [
        lambda seed, server_round, client: stream(seed, server_round, client),
        lambda seed, _, client: stream(seed, client),
        lambda seed, server_round, _: stream(seed, server_round),
        lambda seed, *_: stream(seed),
    ],
    ids=["fresh", "same in each round", "same for all clients", "same everywhere"],
)
def test_noise_is_not_taken_for_a_nudge_even_if_it_comes_again(source: Source, runs: int) -> None:
    # Five standard deviations: 300 runs fail with a chance of 1e-4. If each reply counted, 6 % of
    # the runs with repeated noise would fail.
    assert not any(watched(source, 0.0, seed).is_along(DIM) for seed in range(runs))
    assert watched(source, 30.0, 0).is_along(DIM)
