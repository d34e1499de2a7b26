"""Which canary plays in which round."""

from __future__ import annotations

import numpy as np

from leakmeter.auditors.rng import stream


def schedule(k: int, repetitions: int, num_rounds: int, seed: int) -> dict[int, list[int]]:
    """Return round to canaries: each plays `repetitions` times, never twice in a round.

    Always taking those with most repetitions left keeps the rest playable; ties are drawn.
    """
    left = np.full(k, repetitions)
    total = k * repetitions
    plan = {}
    for server_round in range(1, num_rounds + 1):
        take = total * server_round // num_rounds - total * (server_round - 1) // num_rounds
        order = stream(seed, "schedule", server_round).permutation(k)
        ids = order[np.argsort(-left[order], kind="stable")][:take]
        left[ids] -= 1
        plan[server_round] = ids.tolist()
    assert not left.any()
    return plan
