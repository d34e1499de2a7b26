"""The error rates of a test at all thresholds at once, and the epsilons that they prove.

A curve of upper limits for (FPR, FNR) is an upper bound on the trade-off function of the
mechanism, and at each delta a lower bound on its epsilon: Ngo, Östman, Durisi, Graell i Amat
(2024), Secure Aggregation is Not Private Against Membership Inference Attacks, arXiv:2403.17775,
eq. 8. Ours differs: the limits hold for all thresholds together, so the best one may be used. Every
score must come from a separate trial.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leakmeter.auditors import details
from leakmeter.auditors._types import Floats
from leakmeter.auditors._validate import within
from leakmeter.auditors.bounds.lower_bound import proven_epsilons
from leakmeter.auditors.bounds.rules import (
    BandAndFixed,
    Bonferroni,
    Limits,
    Scores,
    SimultaneousBand,
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
        fresh = _frontier(self.fpr, self.fnr)
        some = fresh[np.unique(np.linspace(0, fresh.size - 1, most).round().astype(np.int64))]
        return {"fpr": self.fpr[some].tolist(), "fnr": self.fnr[some].tolist()}


def drawn(
    scores_in: Floats,
    scores_out: Floats,
    *,
    confidence: float,
    server_round: int | None = None,
    rule: CurveRule = SimultaneousBand(),  # noqa: B008 - a frozen value
) -> details.ErrorCurve:
    """Return the data of a report's figures: proven epsilons, caps, limits, observed rates.

    With the rule of a finding, the curve agrees with the finding at its δ.
    """
    curve = ErrorCurve.of(scores_in, scores_out, confidence=confidence, rule=rule)
    limits, observed = curve.thinned(), _observed(scores_in, scores_out)
    return details.ErrorCurve(
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


def _observed(scores_in: Floats, scores_out: Floats) -> dict[str, list[float]]:
    """Return some of the observed error rates, without confidence limits."""
    thresholds = np.unique(np.concatenate([scores_in, scores_out]))
    fpr = 1 - np.searchsorted(np.sort(scores_out), thresholds, side="left") / scores_out.size
    fnr = np.searchsorted(np.sort(scores_in), thresholds, side="left") / scores_in.size
    fresh = _frontier(fpr, fnr)
    some = fresh[np.unique(np.linspace(0, fresh.size - 1, _OBSERVED).round().astype(np.int64))]
    return {"fpr": fpr[some].tolist(), "fnr": fnr[some].tolist()}


def _frontier(fpr: Floats, fnr: Floats) -> NDArray[np.intp]:
    """Return the indices of the Pareto frontier of both rates, by ascending FPR."""
    order = np.lexsort((fnr, fpr))  # by FPR, then by FNR: a point is kept if its FNR is a new low
    best = np.minimum.accumulate(fnr[order])
    return order[np.flatnonzero(np.diff(best, prepend=np.inf) < 0)]
