"""Bets against (ε, δ)-DP: what each pays, for many ε and stakes at once.

A gambler who bets against a true ε gains nothing on average. Wealth that grows therefore refutes ε
(Shafer 2021, Testing by Betting, doi:10.1111/rssa.12647; Waudby-Smith and Ramdas 2024, Estimating
Means of Bounded Random Variables by Betting, arXiv:2010.09686). The bets themselves are ours:

1. Canaries with coins and exact p-values: one bet covers the coin and the p-value.
2. Guesses of coins, at the odds of Steinke et al. 2023 (arXiv:2305.08846).
3. Trials that show one draw in both worlds, with δ inside the odds.

Every kind has several bets, one for each threshold and stake. Wealth is spread over them once, as
in Cover's universal portfolio, so nobody has to know the right one beforehand.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from leakmeter.auditors._types import Floats, Indices

# Scores −ln p above ε that count as hits, and the share of included canaries that hit.
ABOVE: Final = np.array([0.5, 1.0, 2.0, 3.0, 4.5, 6.5, 9.0])
_HITS: Final = np.array([0.95, 0.7, 0.5, 0.35, 0.2, 0.1, 0.05, 0.02])
# Share of the wealth that a wrong guess or trial loses. All of it would end every bet at once.
_STAKES: Final = np.array([0.98, 0.7, 0.4, 0.2, 0.1, 0.05, 0.02])
# Log-likelihood ratios from which on a trial counts as decided.
_DECIDED: Final = np.array([0.0, 0.5, 1.0, 2.0, 3.0, 4.5, 6.5])
_TINY: Final = 1e-12


def canary_bets(epsilons: Floats) -> Floats:
    """Return ln of what bets on canaries pay, (ε, thresholds, shares, [hit, miss, out]).

    A canary *hits* if its coin said in and −ln p reaches ε + u. It *misses* if it is in without
    that, and it may be *out*. Let x and m be the probabilities of hit and miss, given the release
    and relative to out. DP, and an exact p-value of canaries that are out, allow
    x ≤ e^−u and m ≥ e^−ε·(1 − e^−(ε+u)). The bet is the ratio of a case with fair coins, in which a
    share h of the included hit, to the most similar case that DP allows.
    """
    # The most similar case has the largest x. The ratio m/out is its own to choose above the
    # smallest m; at m = (1 − h)(1 + x)/(1 + h) a miss pays 1, so only hit and out are bet on.
    x = np.exp(-ABOVE)[:, None]  # (thresholds, 1)
    epsilon = epsilons[:, None, None]
    least = np.exp(-epsilon) * -np.expm1(-epsilon - ABOVE[:, None])  # (ε, thresholds, 1)
    miss = np.maximum((1 - _HITS) * (1 + x) / (1 + _HITS), least)
    total = 1 + x + miss
    pays = np.stack(
        [_HITS / 2 * total / x, (1 - _HITS) / 2 * total / miss, total / 2], axis=-1
    )  # (ε, thresholds, shares, 3)
    # Where a hit would pay less than the stake, the worst case for the bet has fewer hits.
    return np.where(pays[..., :1] > 1, np.log(pays), 0.0)


def count_canaries(epsilons: Floats, scores: Floats, num_out: int) -> Indices:
    """Return how many canaries hit, miss and are out, (ε, thresholds, 3).

    Args:
        epsilons: Candidates.
        scores: −ln p of the canaries that are in.
        num_out: How many are out.
    """
    below = np.searchsorted(np.sort(scores), epsilons[:, None] + ABOVE, side="left")
    return np.stack([scores.size - below, below, np.full_like(below, num_out)], axis=-1)


def guess_bets(epsilons: Floats) -> Floats:
    """Return ln of what bets on guesses of coins pay, (ε, 1, stakes, [right, wrong]).

    Under ε-DP a guess is right with probability at most e^ε/(1 + e^ε).
    """
    right = np.log1p(_STAKES * np.exp(-epsilons)[:, None])
    return np.stack([right, np.broadcast_to(np.log1p(-_STAKES), right.shape)], axis=-1)[:, None]


def trial_bets(epsilons: Floats, delta: float) -> Floats:
    """Return ln of what bets on trials pay, (ε, thresholds, stakes, [both, one, none, wrong]).

    At a threshold a the attacker says "in" if its log-likelihood ratio is at least a, and "out" if
    it is below −a. For both answers P(right) ≤ e^ε·P(wrong) + δ. One trial shows the same draw in
    both worlds, so it has up to two right answers, or a wrong one beside a right one.
    """
    gain = np.array([2.0, 1.0, 0.0, 1.0]) - 2 * delta
    loss = np.zeros((len(epsilons), 4))
    loss[:, 3] = np.exp(epsilons)
    # With this stake the worst outcome leaves 1 − stake.
    unit = _STAKES / np.maximum(np.expm1(epsilons) + 2 * delta, _TINY)[:, None]
    pays = np.log1p(unit[:, :, None] * (gain - loss)[:, None, :])  # (ε, stakes, 4)
    return np.broadcast_to(pays[:, None], (len(epsilons), _DECIDED.size, *pays.shape[1:]))


def count_trials(inside: Floats, outside: Floats) -> Indices:
    """Return how many trials have both answers right, one, none, or one wrong.

    Args:
        inside: Log-likelihood ratio of each trial in the world "in", (..., trials).
        outside: The same draw in the world "out"; no larger.

    Returns:
        Counts, (..., thresholds, 4).
    """
    at, inside, outside = _DECIDED[:, None], inside[..., None, :], outside[..., None, :]
    wrong = (outside >= at) | (inside < -at)
    right = (inside >= at).astype(np.int64) + (outside < -at)
    kinds = np.where(wrong, 3, 2 - right)  # (..., thresholds, trials)
    return np.stack([(kinds == kind).sum(axis=-1) for kind in range(4)], axis=-1)


def log_wealth(bets: Floats, counts: Indices) -> Floats:
    """Return ln of the wealth after all bets, spread evenly over thresholds and stakes.

    Args:
        bets: ln of what each outcome pays, (..., thresholds, stakes, outcomes).
        counts: How often each outcome came, (..., thresholds, outcomes).
    """
    each = (bets * counts[..., None, :]).sum(axis=-1)
    each = each.reshape(*each.shape[:-2], -1)
    most = each.max(axis=-1)  # so that no exponential overflows
    return np.asarray(most + np.log(np.exp(each - most[..., None]).mean(axis=-1)))
