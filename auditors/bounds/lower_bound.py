"""Scores in, lower bounds out: how much privacy loss an attack's scores prove.

An attack says "in" where a score reaches a threshold. Upper limits on its false positive and
false negative rate prove epsilon >= ln((1 - delta - FNR)/FPR) and ln((1 - delta - FPR)/FNR):
Kairouz, Oh and Viswanath 2015, The Composition Theorem for Differential Privacy
(arXiv:1311.0776), Theorem 2.1; as an audit Jagielski, Ullman and Oprea 2020, Auditing
Differentially Private Machine Learning (arXiv:2006.07709). Ours differs:

1. The best threshold on the tested scores breaks the confidence, so the threshold comes from a
   `Rule`, which widens the limits for the freedom that it takes.
2. With a known null the false positive rate is exact and stays a logarithm, and the false
   negative rate gets the whole failure probability: only this can show a large epsilon.
3. A bound states the largest value that it could have reached, and its assumptions.

`ErrorCurve` has the error rates at all thresholds at once. A curve of upper limits for (FPR, FNR)
is an upper bound on the trade-off function of the mechanism, and at each delta a lower bound on its
epsilon: Ngo, Östman, Durisi, Graell i Amat (2024), Secure Aggregation is Not Private Against
Membership Inference Attacks, arXiv:2403.17775, eq. 8. Ours differs: the limits hold for all
thresholds together, so the best one may be used. Every score must come from a separate trial.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, ndtri_exp

from leakmeter.auditors import finding
from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.bounds.rules import (
    MAX_EXACT,
    BandAndFixed,
    Bonferroni,
    Fixed,
    Limit,
    Limits,
    NullLogsf,
    PilotSplit,
    Rule,
    Scores,
    SimultaneousBand,
)
from leakmeter.auditors.finding import Bound
from leakmeter.auditors.values import Floats, within

Family = Literal["any", "gaussian"]
# Maps upper limits of ln FPR and FNR to the epsilon or mu that each pair proves.
Proof = Callable[[Floats, Floats], Floats]


def epsilon_lower_bound(
    scores_in: ArrayLike,
    scores_out: ArrayLike | None = None,
    *,
    null_logsf: NullLogsf | None = None,
    delta: float,
    confidence: float = 0.95,
    rule: Rule = SimultaneousBand(),  # noqa: B008 - a frozen value
    limit: Limit = "clopper-pearson",
    family: Family = "any",
    same_run: bool = False,
) -> Bound:
    """Return the largest epsilon that the scores refute, with confidence.

    Args:
        scores_in: Scores of samples that were in; a larger score means more likely in.
        scores_out: Scores of samples that were out.
        null_logsf: Instead of `scores_out`: maps thresholds t to ln P(score >= t) of a sample
            that was out, exactly.
        delta: The delta that epsilon belongs to, in [0, 1).
        confidence: Probability in (0, 1) that the true epsilon is no smaller.
        rule: Where the threshold comes from.
        limit: "clopper-pearson", or "jeffreys": credible only, so the result is an estimate.
        family: "any" mechanism, or "gaussian" if it is mu-GDP for some mu. One point then fixes
            the whole trade-off curve (Nasr et al. 2023, Tight Auditing of Differentially Private
            Machine Learning, arXiv:2302.07956): far tighter, and void for other mechanisms.
        same_run: Whether scores share a run and its noise; their independence is then assumed.

    Returns:
        The bound, with the cap that a test without errors would have reached. A known null has no
        cap.

    >>> bound = epsilon_lower_bound([3.0, 4.0] * 50, [1.0, 2.0] * 50, delta=1e-5)
    >>> round(bound.value, 3), bound.saturated
    (2.651, True)
    """
    within("delta", delta, lowest=0.0, below=1.0)
    within("confidence", confidence, above=0.0, below=1.0)
    if limit not in (allowed := get_args(Limit)):
        raise ValueError(f"limit must be one of {allowed}, got {limit!r}")
    if family not in (allowed := get_args(Family)):
        raise ValueError(f"family must be one of {allowed}, got {family!r}")
    scores = Scores.of(scores_in, scores_out, null_logsf)
    proof = _separations if family == "gaussian" else partial(proven_epsilons, delta=delta)
    pilot, sizes = None, {}
    if isinstance(rule, PilotSplit):
        pilot, scores = scores.split(rule)
        sizes = {f"pilot {name}": size for name, size in pilot.sizes().items()}
    value, cap = 0.0, None
    parts = Limits.of(rule, (1 - confidence) / (1 if null_logsf else 2), limit)
    for part in parts:
        at = scores.thresholds(part) if pilot is None else _best_threshold(pilot, part, proof)
        value = max(value, _as_epsilon(proof(*scores.rates(at, part)), family, delta))
    if null_logsf is None:
        cap = max(_as_epsilon(proof(*scores.errorless(part)), family, delta) for part in parts)
    return Bound(
        value=value,
        kind="estimate" if limit == "jeffreys" else "lower_bound",
        rule=_words(rule, limit, confidence, null_logsf is not None),
        delta=delta,
        confidence=None if limit == "jeffreys" else confidence,
        sample_sizes=scores.sizes() | sizes,
        cap=cap,
        saturated=cap is not None and value >= cap,
        assumptions=_assumptions(rule, family, same_run, null_logsf is not None),
    )


def proven_epsilons(log_fpr: Floats, fnr: Floats, *, delta: float | Floats) -> Floats:
    """Return the epsilon that each pair of error rates proves; negative if it proves nothing."""
    # Both directions of (epsilon, delta)-DP: P(S) <= e^epsilon·Q(S) + delta for the event "in",
    # and for the event "out". FPR stays a logarithm, since exp(-800) would underflow.
    hits, rejections = 1 - delta - fnr, 1 - delta - np.exp(log_fpr)
    with np.errstate(divide="ignore", invalid="ignore"):
        from_hits = np.where(hits > 0, np.log(hits) - log_fpr, -math.inf)
        from_rejections = np.where(rejections > 0, np.log(rejections) - np.log(fnr), -math.inf)
    return np.maximum(from_hits, from_rejections)


def _separations(log_fpr: Floats, fnr: Floats) -> Floats:
    """Return the mu that each pair of error rates proves, -Phi^-1(FPR) - Phi^-1(FNR)."""
    useful = (log_fpr < 0) & (fnr < 1)  # a rate of 1 proves nothing, whatever the other
    mu = -ndtri_exp(np.where(useful, log_fpr, -1.0)) - ndtri(np.where(useful, fnr, 0.5))
    return np.where(useful, mu, -math.inf)


def _as_epsilon(proven: Floats, family: Family, delta: float) -> float:
    """Return the largest proven value as an epsilon, at least 0."""
    best = max(0.0, float(proven.max()))
    if family == "any" or math.isinf(best):
        return best
    return epsilon_gaussian(delta, best)


def _best_threshold(pilot: Scores, limits: Limits, proof: Proof) -> Floats:
    """Return the pilot's best threshold; infinity, which proves nothing, if the pilot is empty."""
    if 0 in pilot.sizes().values():
        return np.array([math.inf])
    candidates = pilot.distinct()
    # Under the band: plain limits would favour an extreme score that looks good by luck.
    banded = replace(limits, rule=SimultaneousBand())
    best = int(proof(*pilot.rates(candidates, banded)).argmax())
    return candidates[best : best + 1]


def _words(rule: Rule, limit: Limit, confidence: float, null_is_known: bool) -> str:
    """Return in words how the bound was computed."""
    band = f"best threshold under a simultaneous band (exact up to {MAX_EXACT} samples)"
    match rule:
        case Fixed(threshold):
            words = f"threshold {threshold:g} fixed beforehand"
        case PilotSplit(fraction, seed):
            words = f"threshold chosen on a pilot share of {fraction:g} (seed {seed})"
        case SimultaneousBand():
            words = band
        case BandAndFixed(_, share):
            words = f"larger of two: a threshold fixed beforehand ({100 * share:g} % of the "
            words += f"allowed failures) and the {band}"
        case Bonferroni(num_counts):
            words = f"best threshold, Bonferroni over up to {num_counts} counts"
    kind = "Clopper-Pearson limits"
    if limit == "jeffreys":
        kind = f"Jeffreys limits (credible {confidence:.4g}, not a confidence bound)"
    return f"{words}; {kind}; {'known null' if null_is_known else 'sampled null'}"


def _assumptions(
    rule: Rule, family: Family, same_run: bool, null_is_known: bool
) -> tuple[str, ...]:
    """Return what must be true for the bound to deserve its kind."""
    return (
        Assumption.INDEPENDENT_SCORES if same_run else Assumption.SEPARATE_TRIALS,
        *([Assumption.FIXED_THRESHOLD] * isinstance(rule, Fixed | BandAndFixed)),
        *([Assumption.KNOWN_NULL] * null_is_known),
        *([Assumption.GAUSSIAN_MECHANISM] * (family == "gaussian")),
    )


CurveRule = SimultaneousBand | Bonferroni | BandAndFixed

# Deltas at which a report lists the curve of lower bounds.
DELTAS = tuple(float(d) for d in np.logspace(-6, math.log10(0.5), 20))
_OBSERVED = 25  # points of the observed error rates in a report


@dataclass(frozen=True)
class ErrorCurve:
    """Simultaneous upper limits of both error rates at each threshold.

    Attributes:
        thresholds: Distinct scores, ascending, and one fixed beforehand if the rule has one; a
            score at the threshold counts as "in".
        fpr: Upper limits of the false positive rate.
        fnr: Upper limits of the false negative rate.
        least: For each part of the rule, the limits of both rates if no error had occurred.
        confidence: Probability that all limits hold.
    """

    thresholds: Floats
    fpr: Floats
    fnr: Floats
    least: tuple[tuple[float, float], ...]
    confidence: float

    @classmethod
    def of(
        cls,
        scores_in: ArrayLike,
        scores_out: ArrayLike,
        *,
        confidence: float = 0.95,
        rule: CurveRule = SimultaneousBand(),  # noqa: B008 - a frozen value
    ) -> ErrorCurve:
        """Return the curve of a test that says "in" where a score reaches the threshold.

        Args:
            scores_in: Scores of trials in which the first candidate was in the sum.
            scores_out: Scores of trials in which the second was.
            confidence: In (0, 1); each error rate gets half of the allowed failure probability.
            rule: How the limits are widened so that all hold together.
        """
        within("confidence", confidence, above=0.0, below=1.0)
        scores = Scores.of(scores_in, scores_out, None)
        points, least = [], []  # (3, thresholds) of each part of the rule, and a pair
        for limits in Limits.of(rule, (1 - confidence) / 2, "clopper-pearson"):
            thresholds = scores.thresholds(limits)
            log_fpr, fnr = scores.rates(thresholds, limits)
            points.append(np.stack([thresholds, np.exp(log_fpr), fnr]))
            least_fpr, least_fnr = scores.errorless(limits)
            least.append((float(np.exp(least_fpr[0])), float(least_fnr[0])))
        together = np.concatenate(points, axis=1)
        thresholds, fpr, fnr = together[:, np.argsort(together[0], kind="stable")]
        return cls(thresholds, fpr, fnr, tuple(least), confidence)

    def epsilons(self, deltas: ArrayLike) -> Floats:
        """Return the largest epsilon that the curve refutes at each delta.

        >>> curve = ErrorCurve.of([3.0, 4.0] * 50, [1.0, 2.0] * 50)
        >>> curve.epsilons([1e-5, 0.1]).round(3).tolist()
        [2.651, 2.538]
        """
        return self._proven(self.fpr, self.fnr, deltas)

    def caps(self, deltas: ArrayLike) -> Floats:
        """Return the epsilon that a test without any error would have shown at each delta."""
        fpr, fnr = np.array(self.least).T
        return self._proven(fpr, fnr, deltas)

    @staticmethod
    def _proven(fpr: Floats, fnr: Floats, deltas: ArrayLike) -> Floats:
        delta = within("deltas", deltas, lowest=0.0, below=1.0)
        fresh = _frontier(fpr, fnr)  # larger rates prove less, whatever delta
        # (points, 1) against (deltas,): one row per point, one column per delta.
        proven = proven_epsilons(np.log(fpr[fresh])[:, None], fnr[fresh][:, None], delta=delta)
        return np.asarray(np.maximum(proven.max(axis=0), 0.0))

    def balanced(self) -> float:
        """Return the smallest rate that both errors stay below at one threshold."""
        return float(np.maximum(self.fpr, self.fnr).min())

    def thinned(self, most: int = 100) -> dict[str, list[float]]:
        """Return at most `most` points of the curve, for a report."""
        return _thinned(self.fpr, self.fnr, most)


def drawn(
    scores_in: Floats,
    scores_out: Floats,
    *,
    confidence: float,
    server_round: int | None = None,
    rule: CurveRule = SimultaneousBand(),  # noqa: B008 - a frozen value
) -> finding.ErrorCurve:
    """Return the data of a report's figures: proven epsilons, caps, limits, observed rates.

    With the rule of a finding, the curve agrees with the finding at its δ.
    """
    curve = ErrorCurve.of(scores_in, scores_out, confidence=confidence, rule=rule)
    thresholds = np.unique(np.concatenate([scores_in, scores_out]))
    below_in, below_out = (np.searchsorted(np.sort(s), thresholds) for s in (scores_in, scores_out))
    # Observed rates have no confidence limits.
    rates = 1 - below_out / scores_out.size, below_in / scores_in.size
    limits, observed = curve.thinned(), _thinned(*rates, _OBSERVED)
    return finding.ErrorCurve(
        deltas=DELTAS,
        epsilons=tuple(curve.epsilons(DELTAS).tolist()),
        caps=tuple(curve.caps(DELTAS).tolist()),
        fpr=tuple(limits["fpr"]),
        fnr=tuple(limits["fnr"]),
        observed_fpr=tuple(observed["fpr"]),
        observed_fnr=tuple(observed["fnr"]),
        balanced_error=curve.balanced(),
        server_round=server_round,
    )


def _thinned(fpr: Floats, fnr: Floats, most: int) -> dict[str, list[float]]:
    """Return at most `most` points of the frontier of both rates, for a report."""
    fresh = _frontier(fpr, fnr)
    some = fresh[np.unique(np.linspace(0, fresh.size - 1, most).round().astype(np.int64))]
    return {"fpr": fpr[some].tolist(), "fnr": fnr[some].tolist()}


def _frontier(fpr: Floats, fnr: Floats) -> NDArray[np.intp]:
    """Return the indices of the Pareto frontier of both rates, by ascending FPR."""
    order = np.lexsort((fnr, fpr))  # by FPR, then by FNR: a point is kept if its FNR is a new low
    best = np.minimum.accumulate(fnr[order])
    return order[np.flatnonzero(np.diff(best, prepend=np.inf) < 0)]
