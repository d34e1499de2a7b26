"""The sum of a round as auditors need it: who resamples it, what noise is on it, who put in what.

Sums are in the sampler's units: a client's row is its update times weight over `scale`.
"""

from __future__ import annotations

import math

import numpy as np

from leakmeter.auditors._types import Vector
from leakmeter.auditors.auditor import RoundFacts, RoundView
from leakmeter.auditors.finding import Observer
from leakmeter.auditors.sampler import UpdateSampler


def check_sampler(sampler: object) -> None:
    """Raise if an auditor was given something else, such as the function that `PerRound` wraps."""
    if not isinstance(sampler, UpdateSampler):
        raise TypeError(
            f"sampler must be an UpdateSampler, got {type(sampler).__name__}; wrap a function of "
            "the round in PerRound"
        )


def fitting_sampler(sampler: UpdateSampler, view: RoundView) -> UpdateSampler:
    """Return the round's sampler, or raise if it does not fit the mechanism.

    Raises:
        ValueError: Rows would carry noise that auditors add to the sum themselves, or other
            weights than those of the round.
    """
    found = sampler.for_round(view)
    if found.has_noise:
        raise ValueError(
            "sampler must leave the clients' noise out, which is added to the sum: inside an "
            "update it would count as signal; got one that adds it"
        )
    if view.facts.divisor is not None and found.scale != 1:
        raise ValueError(
            "sampler must weigh all clients 1 where sums are divided by a fixed number "
            f"(weighted=False), got a scale of {found.scale:g}"
        )
    return found


def noise_on_sum(
    facts: RoundFacts, observer: Observer, scale: float, *, colluding: int = 0
) -> float:
    """Return the mechanism's noise on each coordinate of the sum that the observer sees.

    Args:
        facts: Of the round.
        observer: The server sees the sum before its own noise, an outsider after it.
        scale: Of the sampler.
        colluding: Clients that show the server their share of the noise.
    """
    if observer == "outsider":
        return (facts.noise_std or 0.0) * (facts.divisor or facts.total_weight) / scale
    shares = max(facts.num_clients - colluding, 0)
    return (facts.share_std or 0.0) * math.sqrt(shares) / scale


def rounding_on_sum(facts: RoundFacts, scale: float) -> float:
    """Return the spread of the secure sum's rounding errors, per coordinate.

    Each of n clients rounds to a grid of step s, up or down at random: n·s²/6 on average over
    where its numbers are between two points. The quantum is n·s over the total weight.
    """
    largest = (facts.quantum or 0.0) * facts.total_weight / scale
    return largest / math.sqrt(6 * max(facts.num_clients, 1))


def contribution(view: RoundView, client: int, scale: float) -> Vector | None:
    """Return what a client has put into the sum before noise; None where that is not known."""
    weight = view.truth_weights.get(client) if view.facts.divisor is None else 1.0
    update = view.truth.get(client)
    if update is None or weight is None:
        return None
    norm = float(np.linalg.norm(update))
    # The tap is inside the mod that clips.
    clipped = min(view.facts.clip_norm / norm, 1.0) if view.facts.clip_norm and norm > 0 else 1.0
    return update * (clipped * weight / scale)


def seen_sum(view: RoundView, observer: Observer, scale: float) -> Vector | None:
    """Return the sum that the observer saw, without what canary seats have put in."""
    facts = view.facts
    if observer == "outsider" and facts.noised is not None:
        seen = facts.noised * ((facts.divisor or facts.total_weight) / scale)
    elif facts.aggregate is not None:
        seen = facts.aggregate * (facts.total_weight / scale)
    else:
        return None
    for client in sorted(view.instructed):
        own = contribution(view, client, scale)
        if own is None:
            return None
        seen = seen - own
    return seen
