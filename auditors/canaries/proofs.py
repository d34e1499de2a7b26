"""Lower bounds from the scores of canaries: p-values under known nulls, one-run bounds.

Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar (2024), One-shot Empirical Privacy Estimation
for Federated Learning, arXiv:2302.03098, Proposition 3.1, for the null of a cosine. Ours differs:
a canary is scored by −ln of its p-value given the transcript, so that one null, e^−s, fits every
transcript. The uncertainty of simulated p-values is part of the failure probability.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincc, gammaln

from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.bounds.lower_bound import epsilon_lower_bound
from leakmeter.auditors.bounds.one_run import (
    coin_bound,
    guess_by_rank,
    one_run_epsilon,
    one_run_gaussian_epsilon,
    share_bound,
)
from leakmeter.auditors.bounds.rules import Bonferroni, Limits
from leakmeter.auditors.canary import SEED_BITS
from leakmeter.auditors.finding import Bound

Scores = NDArray[np.float64]

MOST_SCORE: Final = SEED_BITS * math.log(2)  # −ln of the smallest p-value that seeds can show
_DEEP = 1e-290  # below this the incomplete beta function loses digits, then underflows
_NODES, _WEIGHTS = np.polynomial.laguerre.laggauss(24)
_EXACT = Assumption.UNIFORM_CANARIES


def cosine_logsf(cosine: ArrayLike, dim: int) -> Scores:
    """Return ln P(cosine of a canary with a vector that does not contain it ≥ t).

    Andrew et al. (2024), Proposition 3.1: for t ≥ 0 it is ½·I_{1−t²}(a, ½), a = (d−1)/2. Deep in
    the tail this underflows. Substituting 1 − u² = (1 − t²)·e^(−w/a) in its integral leaves
    (1−t²)^a / (2a·B(a, ½)) times the mean of 1/u over an exponential w, which is smooth.

    >>> round(float(cosine_logsf(0.5, 1000)), 6)
    -147.379589
    """
    t = np.clip(np.asarray(cosine, dtype=np.float64), -1.0, 1.0)
    a = (dim - 1) / 2
    square = t**2
    tail = betaincc(0.5, a, square) / 2  # in t², which keeps its digits near 0
    with np.errstate(divide="ignore"):
        # Gauss-Laguerre quadrature in w: nodes along the last axis, (..., nodes).
        inner = 1 - square[..., None]
        u = np.sqrt(square[..., None] - inner * np.expm1(-_NODES / a))
        front = a * np.log1p(-square) - math.log(2 * a) - _log_beta(a)
        upper = np.where(tail < _DEEP, front + np.log((_WEIGHTS / u).sum(axis=-1)), np.log(tail))
    return np.asarray(np.where(t >= 0, upper, np.log1p(-tail)))


def _log_beta(a: float) -> float:
    """Return ln B(a, ½); for large a by a series, since two large logs would cancel."""
    if a < 40:
        return float(gammaln(a) + gammaln(0.5) - gammaln(a + 0.5))
    ratio = 0.5 * math.log(a) - 1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5)
    return 0.5 * math.log(math.pi) - ratio


def largest_cosine_log_p(
    maxima: Scores, pool: Scores, dim: int, rounds: int, level: float
) -> Scores:
    """Return upper limits on ln P(largest cosine over rounds ≥ value) of canaries left out.

    The smaller of two: the union bound, `rounds` times the tail of one cosine, which needs no
    simulation and has no floor; and a limit from draws of the exact null (`null_maxima`), which is
    sharper where the changes of rounds are correlated. The plain share of draws above a value is
    not enough: all canaries are compared with the same draws, and if these are too small by chance,
    they are so for every canary.

    Args:
        maxima: Largest cosines.
        pool: Draws from their null, given the transcript.
        dim: Length of the vectors.
        rounds: Rounds that the maxima are over.
        level: Probability that any limit from the pool fails.
    """
    larger = pool.size - np.searchsorted(np.sort(pool), maxima, side="left")
    # Bonferroni limits hold for all canaries at once, whichever counts they reach.
    drawn = np.log(Limits(Bonferroni(), level, "clopper-pearson")(larger, pool.size))
    union = cosine_logsf(maxima, dim) + math.log(rounds)
    return np.minimum(np.minimum(drawn, union), 0.0)


def headline(
    scores: Scores,
    is_in: NDArray[np.bool_],
    log_p: Scores,
    *,
    delta: float,
    confidence: float,
    guesses: int | None,
    spent: float = 0.0,
) -> tuple[Bound, dict[str, float]]:
    """Return the bound that does not need independent scores, and how many canaries made it.

    With fair coins it is the larger of `coin_bound` and of the one-run bound of Steinke et al.
    2023, at half of the failure probability each; otherwise `share_bound`. Arguments are those of
    `prove`.

    Returns:
        The bound, and as facts `threshold`, the score −ln p that made it, `share_at_threshold`,
        the share of included canaries that reach it, and `median_score` of the included ones.
        Without a positive bound there is only the last.
    """
    shown, level = surprise(log_p), 1 - confidence
    if scores.size * delta >= level / 2:  # δ alone would use up the level of both coin bounds
        guesses = None

    def from_scores(s: Scores) -> Bound:
        if guesses is None:
            return share_bound(s[is_in], delta=delta, confidence=confidence + spent)
        return coin_bound(-s, is_in, delta=delta, confidence=1 - level / 2 + spent)

    bound = _capped(shown, from_scores)
    threshold = _threshold(shown, from_scores)
    reaches = shown[is_in] >= threshold
    if guesses is not None:
        inside, outside = scores[is_in], scores[~is_in]
        correct = guess_by_rank(inside, outside, guesses)
        guessed = one_run_epsilon(scores.size, guesses, correct, delta, 1 - level / 2)
        if guessed.value > bound.value:
            called_in = guesses - guesses // 2  # the highest scores, guessed in
            threshold = float(np.sort(shown)[-called_in])
            reaches = inside >= np.sort(scores)[-called_in]
        bound = _larger(bound, guessed)
    facts = {"median_score": float(np.median(shown[is_in]))}
    if bound.value > 0:
        facts |= {"threshold": threshold, "share_at_threshold": float(reaches.mean())}
    return replace(bound, confidence=confidence, rule=bound.rule + paid(spent)), facts


def surprise(log_p: Scores) -> Scores:
    """Return −ln p, at most 128·ln 2: canaries from seeds of 128 bits show no smaller p-value."""
    return np.minimum(-log_p, MOST_SCORE)


def _capped(shown: Scores, bound_of: Callable[[Scores], Bound]) -> Bound:
    """Return a bound with its cap: its value if every score were the largest possible."""
    bound, cap = bound_of(shown), bound_of(np.full_like(shown, MOST_SCORE)).value
    return replace(bound, cap=cap, saturated=bound.value >= cap)


def _threshold(shown: Scores, bound_of: Callable[[Scores], Bound]) -> float:
    """Return the score that made a bound.

    It is the lowest value at which all larger scores can be cut off without lowering the bound.
    """
    # The bound grows with the cut, so a bisection over the distinct scores finds it.
    levels = np.unique(shown)
    value = bound_of(shown).value
    made = bisect_left(levels, value, key=lambda s: bound_of(np.minimum(shown, s)).value)
    return float(levels[made])


def _larger(one: Bound, other: Bound) -> Bound:
    """Return the larger of two bounds that split the failures; it assumes what either assumes."""
    best = one if one.value >= other.value else other
    caps = [bound.cap for bound in (one, other) if bound.cap is not None]
    return replace(
        best,
        rule=f"{best.rule}: the larger of two bounds with half of the failures each",
        sample_sizes={**one.sample_sizes, **other.sample_sizes},
        cap=max(caps),
        saturated=best.value >= max(caps),
        assumptions=tuple(dict.fromkeys((*one.assumptions, *other.assumptions))),
    )


def paid(spent: float = 0.0) -> str:
    """Return in words what was done to the p-values."""
    simulated = f"null simulated, at a chance of {spent:.2g} to fail, " if spent else ""
    return f" ({simulated}scores capped at {MOST_SCORE:.1f}, seeds of {SEED_BITS} bits)"


def prove(
    scores: Scores,
    is_in: NDArray[np.bool_],
    log_p: Scores,
    *,
    delta: float,
    confidence: float,
    guesses: int | None,
    spent: float = 0.0,
) -> list[Bound]:
    """Return every conditional bound that the scores of one run allow, the known null first.

    Each assumes independent scores or a Gaussian mechanism; `headline` assumes neither.

    Args:
        scores: Scores of all canaries; larger means more likely in.
        is_in: Whether the coin said in, also if the seat failed to deliver. That weakens a bound,
            but dropping such canaries would let the run choose its samples.
        log_p: ln of each score's p-value if the canary is out, or upper limits on it.
        delta: The delta of every ε.
        confidence: Confidence of each single bound.
        guesses: How many canaries the one-run bound guesses, fixed beforehand; None leaves this
            bound out, for canaries that were not included by fair coins.
        spent: Probability that any of `log_p` is too small; subtracted from the level of the bound
            with the known null.
    """
    if not is_in.any():
        return []
    inside, outside = scores[is_in], scores[~is_in]
    # Upper limits on p-values only lower the scores, and so the bound: if they hold, −ln of the
    # true p-values reaches every threshold at least as often, and these have the null e^−s.
    known = _capped(
        surprise(log_p[is_in]),
        lambda s: epsilon_lower_bound(
            s, null_logsf=np.negative, delta=delta, confidence=confidence + spent, same_run=True
        ),
    )
    assumed = (known.assumptions[0], _EXACT)
    rule = known.rule + paid(spent)
    found = [replace(known, confidence=confidence, rule=rule, assumptions=assumed)]
    if outside.size:
        found.append(
            epsilon_lower_bound(inside, outside, delta=delta, confidence=confidence, same_run=True)
        )
    if guesses:
        correct = guess_by_rank(inside, outside, guesses)
        found.append(one_run_gaussian_epsilon(scores.size, guesses, correct, delta, confidence))
    return found
