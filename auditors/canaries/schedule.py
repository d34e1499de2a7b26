"""Checks the settings, and plans how many canaries play and which one in which round."""

from __future__ import annotations

import numpy as np

from leakmeter.auditors.auditor import UnableError
from leakmeter.auditors.rng import stream


def check_settings(
    seats: int,
    canaries: int | None,
    repetitions: int,
    include: str,
    excluded: str,
) -> None:
    """Raise for a setting of `OneShotCanaries` that no project can have."""
    if seats < 1:
        raise ValueError(f"seats must be at least 1, got {seats}")
    if canaries is not None and canaries < 2:
        raise ValueError(f"canaries must be at least 2, or None for all seats, got {canaries}")
    if repetitions < 1:
        raise ValueError(f"repetitions must be at least 1, got {repetitions}")
    if include not in ("coin", "all"):
        raise ValueError(f"include must be 'coin' or 'all', got {include!r}")
    if excluded not in ("zero", "honest"):
        raise ValueError(f"excluded must be 'zero' or 'honest', got {excluded!r}")


def affordable(
    canaries: int | None, repetitions: int, seats: int, rounds: int, *, is_late: bool
) -> int:
    """Return how many canaries play in the given rounds.

    Args:
        canaries: The user's setting; None for as many as there are seats.
        repetitions: In how many rounds each plays.
        seats: Seats per round.
        rounds: Number of rounds that may have canaries.
        is_late: Whether round 1 may have none.

    Raises:
        UnableError: The project has too few rounds.
        ValueError: The user asks for more canaries than that many rounds allow.
    """
    slots = seats * rounds
    spent = ", after round 1, which shows what clients send (sends='models' saves it)"
    spent = spent if is_late else ""
    # Fewer than two seats in all come from the project, not from what the user typed.
    least = 2 if canaries is not None else 2 * repetitions
    if slots < least or repetitions > rounds:
        raise UnableError(
            f"canaries need at least {least} seats x rounds and {repetitions} rounds, got {seats} "
            f"seats and {rounds} rounds{spent}"
        )
    k = slots // repetitions if canaries is None else canaries
    if k < 2 or k * repetitions > slots:
        raise ValueError(
            f"canaries x repetitions must be at most seats x rounds = {slots} with at least "
            f"2 canaries, got {k} x {repetitions}{spent}"
        )
    return k


def schedule(k: int, repetitions: int, num_rounds: int, seed: int) -> dict[int, list[int]]:
    """Return the canaries of each round: each plays `repetitions` times, at most once a round.

    A round takes those with most repetitions left, so that the rest stays playable; ties are
    broken at random.
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
