"""What the scores of canaries prove: p-values of known nulls, and every bound that one run allows.

Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar (2024), One-shot Empirical Privacy Estimation
for Federated Learning, arXiv:2302.03098, Proposition 3.1, for the null of a cosine. Ours differs:
a canary is scored by −ln of its p-value given the transcript, so that one null, e^−s, serves every
transcript, and what a simulation leaves unsure of a p-value is paid for.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincc, gammaln

from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.bounds.lower_bound import epsilon_lower_bound
from leakmeter.auditors.bounds.one_run import (
    guess_by_rank,
    one_run_epsilon,
    one_run_gaussian_epsilon,
)
from leakmeter.auditors.bounds.rules import Bonferroni, Limits
from leakmeter.auditors.finding import Bound

Scores = NDArray[np.float64]

_DEEP = 1e-290  # below this the incomplete beta function loses digits, then vanishes
_NODES, _WEIGHTS = np.polynomial.laguerre.laggauss(24)
_EXACT = Assumption.UNIFORM_CANARIES


def cosine_logsf(cosine: ArrayLike, dim: int) -> Scores:
    """Return ln P(cosine of a canary with a vector that it is no part of ≥ t).

    Andrew et al. (2024), Proposition 3.1: for t ≥ 0 it is ½·I_{1−t²}(a, ½), a = (d−1)/2. Deep in
    the tail, where that underflows, 1 − u² = (1 − t²)·e^(−w/a) in its integral leaves
    (1−t²)^a / (2a·B(a, ½)) times the mean of 1/u over an exponential w, which is smooth.

    >>> round(float(cosine_logsf(0.5, 1000)), 6)
    -147.379589
    """
    t = np.clip(np.asarray(cosine, dtype=np.float64), -1.0, 1.0)
    a = (dim - 1) / 2
    square = t**2
    tail = betaincc(0.5, a, square) / 2  # in t², which keeps its digits near 0
    with np.errstate(divide="ignore"):
        inner = 1 - square[..., None]
        u = np.sqrt(square[..., None] - inner * np.expm1(-_NODES / a))
        front = a * np.log1p(-square) - math.log(2 * a) - _log_beta(a)
        upper = np.where(tail < _DEEP, front + np.log((_WEIGHTS / u).sum(axis=-1)), np.log(tail))
    return np.asarray(np.where(t >= 0, upper, np.log1p(-tail)))


def _log_beta(a: float) -> float:
    """Return ln B(a, ½); for large a by a series, as the difference of two large logs is blunt."""
    if a < 40:
        return float(gammaln(a) + gammaln(0.5) - gammaln(a + 0.5))
    ratio = 0.5 * math.log(a) - 1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5)
    return 0.5 * math.log(math.pi) - ratio


def largest_cosine_log_p(
    maxima: Scores, pool: Scores, dim: int, rounds: int, level: float
) -> Scores:
    """Return upper limits on ln P(largest cosine over rounds ≥ each value), for canaries left out.

    The smaller of two: the union bound, `rounds` times the tail of one cosine, which needs no
    simulation and has no floor; and a limit from draws of the exact null (`null_maxima`), which is
    sharper where rounds move alike. A plain share of the draws would not do: all canaries are
    compared with the same draws, and where these fall short by chance, they do so for every canary.

    Args:
        maxima: Largest cosines.
        pool: Draws from their null, given the transcript.
        dim: Length of the vectors.
        rounds: Rounds that the maxima are over.
        level: Chance that any limit from the pool fails.
    """
    larger = pool.size - np.searchsorted(np.sort(pool), maxima, side="left")
    drawn = np.log(Limits(Bonferroni(), level, "clopper-pearson")(larger, pool.size))
    union = cosine_logsf(maxima, dim) + math.log(rounds)
    return np.minimum(np.minimum(drawn, union), 0.0)


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
    """Return every bound on ε that the scores of one run allow, the one with known null first.

    Args:
        scores: Of all canaries, larger meaning more likely in.
        is_in: Whose coin said in, also if their seat failed to deliver: that weakens a bound, but
            to drop them would let the run choose its samples.
        log_p: ln of each score's p-value if the canary is out, or upper limits on it.
        delta: The delta of every ε.
        confidence: Of each bound by itself.
        guesses: How many canaries the one-run bounds guess, fixed beforehand; None leaves these
            bounds out, for canaries that were not included by fair coins.
        spent: Chance that any of `log_p` is too small; taken from the known null's failures.
    """
    if not is_in.any():
        return []
    inside, outside = scores[is_in], scores[~is_in]
    # Limits on p-values only lower the scores, and so the bound: where they hold, −ln of the true
    # p-values passes every threshold at least as often, and these have the null e^−s.
    known = epsilon_lower_bound(
        -log_p[is_in],
        null_logsf=np.negative,
        delta=delta,
        confidence=confidence + spent,
        same_run=True,
    )
    rule = known.rule + (f" (simulated, at {spent:.2g} of the failures)" if spent else "")
    assumed = (known.assumptions[0], _EXACT)
    found = [replace(known, confidence=confidence, rule=rule, assumptions=assumed)]
    if outside.size:
        found.append(
            epsilon_lower_bound(inside, outside, delta=delta, confidence=confidence, same_run=True)
        )
    if guesses:
        correct = guess_by_rank(inside, outside, guesses)
        counts = (scores.size, guesses, correct, delta, confidence)
        found += [one_run_epsilon(*counts), one_run_gaussian_epsilon(*counts)]
    return found
