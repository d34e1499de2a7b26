"""What the scores of canaries show: Gaussian estimates without a confidence, and lower bounds.

Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar (2024), One-shot Empirical Privacy Estimation
for Federated Learning, arXiv:2302.03098, Algorithms 1-3. Ours differs: for a bound, a canary is
scored by −ln of its p-value given the transcript, so that one null, e^−s, fits every transcript.
The uncertainty of simulated p-values is part of the failure probability.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from leakmeter.auditors.audited_round import Claims
from leakmeter.auditors.bounds.gaussian import anderson_darling, epsilon_between_gaussians
from leakmeter.auditors.bounds.lower_bound import Bonferroni, RateLimits, epsilon_lower_bound
from leakmeter.auditors.bounds.one_run import (
    capped,
    guess_by_rank,
    one_run_gaussian_epsilon,
    paid,
    surprise,
)
from leakmeter.auditors.canary_draws import cosine_logsf
from leakmeter.auditors.codec import Kept, Resumable
from leakmeter.auditors.finding import Bound, Finding, Histogram
from leakmeter.auditors.values import Vector
from leakmeter.auditors.wording import Assumption

Scores = NDArray[np.float64]
Std = Literal["known", "fitted"]

_log = logging.getLogger("flwr")

LEAST_FITTED: Final = 30  # canaries behind a fitted std; with fewer ε̂ is far too large
_MUCH = 0.01  # interference above this is worth a warning
_LEAST_TESTED = 8  # samples behind a test for normality
_REJECTED = 1e-3  # a p-value below which samples are not Gaussian
# Facts of a bound that is above an estimate, by what the estimate assumes.
_REFUTED: Final[Mapping[str, str]] = {
    Assumption.GAUSSIAN_COSINES_NULL_STD: "refuted_known_std",
    Assumption.GAUSSIAN_COSINES: "refuted_fitted_std",
    Assumption.GAUSSIAN_MAXIMA: "refuted_largest_cosines",
}


@dataclass(frozen=True, eq=False)
class CanaryScores:
    """Cosines of canaries with what one attacker sees.

    Attributes:
        included: Those of the canaries that took part.
        excluded: Those of the canaries that did not.
        null: Draws from the distribution of the latter; None where it is that of one cosine.
    """

    included: Scores
    excluded: Scores
    null: Scores | None = None


@dataclass(frozen=True, eq=False)
class Largest:
    """The largest cosine of each canary over several rounds.

    Attributes:
        cosines: These, (canaries,).
        log_p: Upper limits on ln of their p-values.
        directions: Among how many rounds the largest was taken.
        null: Draws from their null; None where there are none.
        spent: Probability that any of the limits fails.
    """

    cosines: Scores
    log_p: Scores
    directions: int
    null: Scores | None = None
    spent: float = 0.0


def one_fit(z: Scores, std: Std, delta: float) -> Scores:
    """Return ε between N(0, 1) and a Gaussian fitted to each row of standardised cosines.

    The algorithm as printed fits mean and std; the paper's table keeps the null's std, 1/√d.
    """
    spread = np.ones(len(z)) if std == "known" else z.std(axis=1)
    return np.asarray(epsilon_between_gaussians(0.0, 1.0, z.mean(axis=1), spread, delta))


def two_fits(inside: Scores, outside: Scores, delta: float) -> Scores:
    """Return ε between Gaussians fitted to each row of both groups."""
    fits = (outside.mean(axis=1), outside.std(axis=1), inside.mean(axis=1), inside.std(axis=1))
    return np.asarray(epsilon_between_gaussians(*fits, delta))


def band(null: Scores) -> tuple[float, float]:
    """Return the 90 % band of what a method says when nothing leaks: 5 % and 95 % quantile."""
    low, high = np.quantile(null, [0.05, 0.95])
    return float(low), float(high)


def histogram(scores: CanaryScores, dim: int) -> Histogram:
    """Return counts of cosines in units of the null's std, 1/√dim, for the report."""
    # At least from -3 to 3, so that the null is visible even if all cosines are far away.
    scaled = [np.sqrt(dim) * scores.included, np.sqrt(dim) * scores.excluded]
    both = np.concatenate(scaled)
    edges = np.linspace(min(both.min(), -3.0), max(both.max(), 3.0), 31)
    counts = [np.histogram(s, edges)[0].tolist() for s in scaled]
    null = np.diff(ndtr(edges))
    if scores.null is not None:
        null = np.histogram(np.sqrt(dim) * scores.null, edges)[0] / scores.null.size
    return Histogram(
        edges=tuple(edges.round(4).tolist()),
        included=tuple(counts[0]),
        excluded=tuple(counts[1]),
        null=tuple(null.round(6).tolist()),
        is_exact=scores.null is None,
    )


class Interference(Resumable):
    """How much other updates in the noised means hide a canary, as a share of the noise.

    Cosines shrink to 1/√(σ² + k/d + ‖X‖²/d), in units of the clip norm, with k canaries and X the
    sum of the honest updates: (k + ‖X‖²)/(d·σ²) is the squared norm of the noised mean beyond its
    noise, relative to the noise. The norm of the noise itself is random, which gives the share a
    standard deviation of √(2/d). Honest updates are correlated between rounds and noise is not, so
    the share grows in the sum of all rounds.
    """

    rounds: Kept[list[float]]
    _variance: Kept[float]
    _total: Kept[Vector]

    def __init__(self) -> None:
        self.rounds, self._variance, self._total = [], 0.0, np.empty(0)

    def add(self, noised: Vector, std: float) -> None:
        """Add the noised mean of a round, with the noise per coordinate on it."""
        self.rounds.append(_beyond(noised, std**2))
        if self._total.size == 0:
            self._total = np.zeros(noised.size)
        self._total += noised
        self._variance += std**2

    def of_the_run(self) -> float:
        """Return the share in the sum of all rounds."""
        return _beyond(self._total, self._variance)

    def unsure(self) -> float:
        """Return one standard deviation of any share."""
        return math.sqrt(2 / self._total.size)


def _beyond(vector: Vector, variance: float) -> float:
    """Return ‖vector‖² / (d·variance) - 1, at least 0: the expected ratio of pure noise is 1."""
    return max(float(vector @ vector) / (vector.size * variance) - 1, 0.0)


def normality(claims: Claims, sizes: Mapping[str, int], *groups: Scores) -> Finding | None:
    """Return whether the scores look Gaussian; of several groups, the least Gaussian one.

    Args:
        claims: Makes the finding.
        sizes: How many canaries are behind the scores.
        groups: Scores that Gaussians are fitted to. Those too few or all equal are not tested.
    """
    enough = (s for s in groups if len(s) >= _LEAST_TESTED and np.ptp(s) > 0)
    tested = [anderson_darling(scores) for scores in enough]
    if not tested:
        return None
    statistic, p = min(tested, key=lambda both: both[1])
    is_rejected = p < _REJECTED
    then = ", so a Gaussian fit estimates nothing" if is_rejected else ""
    rule = f"Anderson-Darling test of the cosines, p = {p:.2g}{then}"
    bound = Bound(statistic, "diagnostic", rule, sample_sizes=sizes)
    return claims.finding(bound, {"p_value": p, "rejected": is_rejected}, quantity="normality")


def without_refuted(found: Sequence[Finding]) -> list[Finding]:
    """Return findings on one attacker without the estimates that a lower bound refutes.

    A bound that exceeds an estimate names its value as a fact. The estimate uses the mean of the
    cosines, which says little where a few canaries are seen clearly and most are not.
    """
    bounds = [f for f in found if f.kind == "lower_bound"]
    estimates = [f for f in found if f.kind == "estimate"]
    kept = []
    for f in found:
        if f.kind == "lower_bound":
            below = {_REFUTED[e.assumptions[0]]: e.value for e in estimates if e.value < f.value}
            kept.append(replace(f, facts={**f.facts, **below}))
        elif f.kind != "estimate" or all(b.value <= f.value for b in bounds):
            kept.append(f)
    return kept


def interfered(seen: Interference, claims: Claims, sizes: Mapping[str, int]) -> list[Finding]:
    """Return how much other updates hide canaries, where the noise of a round is known."""
    if not seen.rounds:
        return []
    share, unsure = seen.of_the_run(), seen.unsure()
    if share > _MUCH + 2 * unsure:
        _log.warning(
            "canaries and clients add %.0f %% to the noise: the estimate of ε is too low",
            100 * share,
        )
    rule = "length of the noised means beyond their noise, squared, as a share of the noise"
    bound = Bound(share, "diagnostic", rule, sample_sizes=sizes)
    return [claims.finding(bound, {"standard_deviation": unsure}, quantity="interference")]


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
    drawn = np.log(RateLimits(Bonferroni(), level, "clopper-pearson")(larger, pool.size))
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
    """Return every conditional bound that the scores of one run allow, the known null first.

    Each assumes independent scores or a Gaussian mechanism; `bounds.headline` assumes neither.

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
    known = capped(
        surprise(log_p[is_in]),
        lambda s: epsilon_lower_bound(
            s, null_logsf=np.negative, delta=delta, confidence=confidence + spent, same_run=True
        ),
    )
    assumed = (known.assumptions[0], Assumption.UNIFORM_CANARIES)
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
