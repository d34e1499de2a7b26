"""The first bound of canaries for an attacker: from their p-values, for any dependence of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors._types import Floats
from leakmeter.auditors.bounds.one_run import coin_bound, has_level, share_bound
from leakmeter.auditors.canary_draws.kind import MAX_SCORE, SEED_BITS
from leakmeter.auditors.finding import Bound


def headline(
    scores: Floats,
    is_in: NDArray[np.bool_],
    log_p: Floats,
    *,
    delta: float,
    confidence: float,
    guesses: int | None,
    spent: float = 0.0,
    most: float = MAX_SCORE,
) -> tuple[Bound, dict[str, float]]:
    """Return the bound that does not need independent scores, and how many canaries made it.

    With fair coins it is `coin_bound`. Without them, or where k·δ takes nearly all of the failure
    probability, it is `share_bound`.

    Args:
        scores: Scores of all canaries; larger means more likely in.
        is_in: Whether the coin said in, also if the seat failed to deliver.
        log_p: ln of each score's p-value if the canary is out, or upper limits on it.
        delta: The delta of ε.
        confidence: Of the bound.
        guesses: None for canaries that were not included by fair coins.
        spent: Probability that any of `log_p` is too small, which the bound pays for.
        most: The largest −ln p that the null can show: the cap of the bound follows from it.

    Returns:
        The bound, and as facts `threshold`, a score −ln p, `share_at_threshold`, the share of
        included canaries that reach it, and `median_score` of the included ones. The threshold is
        the lowest at which this share is at least e^(ε − threshold): from 50:50, an attacker who
        says "in" there is right with odds of e^ε. Without a positive bound there is only the last.
    """
    shown = surprise(log_p)
    takes_coins = guesses is not None and has_level(scores.size, delta, confidence + spent)

    def from_scores(s: Floats) -> Bound:
        if takes_coins:
            return coin_bound(-s, is_in, delta=delta, confidence=confidence + spent)
        return share_bound(s[is_in], delta=delta, confidence=confidence + spent)

    bound = capped(shown, from_scores, most)
    own = np.sort(shown[is_in])
    facts = {"median_score": float(np.median(own))}
    if bound.value > 0:
        reach = 1 - np.searchsorted(own, own) / own.size  # the share that reaches each score
        made = own + np.log(reach) >= bound.value
        threshold = own[made.argmax()] if made.any() else own[-1]
        share = float((own >= threshold).mean())
        facts |= {"threshold": float(threshold), "share_at_threshold": share}
    return replace(bound, confidence=confidence, rule=bound.rule + paid(spent, most)), facts


def surprise(log_p: Floats) -> Floats:
    """Return −ln p, at most 128·ln 2: canaries from seeds of 128 bits show no smaller p-value."""
    return np.minimum(-log_p, MAX_SCORE)


def capped(shown: Floats, bound_of: Callable[[Floats], Bound], most: float = MAX_SCORE) -> Bound:
    """Return a bound with its cap: its value if every score were the largest possible."""
    bound, cap = bound_of(shown), bound_of(np.full_like(shown, most)).value
    return replace(bound, cap=cap, saturated=bound.value >= cap)


def paid(spent: float = 0.0, most: float = MAX_SCORE) -> str:
    """Return in words what was done to the p-values."""
    if most < MAX_SCORE:
        return f" (null from decoys, at a chance of {spent:.2g} to fail: scores up to {most:.1f})"
    simulated = f"null simulated, at a chance of {spent:.2g} to fail, " if spent else ""
    return f" ({simulated}scores capped at {MAX_SCORE:.1f}, seeds of {SEED_BITS} bits)"
