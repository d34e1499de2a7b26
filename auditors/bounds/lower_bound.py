"""Scores in, lower bounds out: how much privacy loss an attack's scores prove.

An attack says "in" where a score reaches a threshold. Upper limits on its false positive and
false negative rate prove epsilon >= ln((1 - delta - FNR)/FPR) and ln((1 - delta - FPR)/FNR):
Kairouz, Oh and Viswanath 2015, The Composition Theorem for Differential Privacy
(arXiv:1311.0776), Theorem 2.1; as an audit Jagielski, Ullman and Oprea 2020, Auditing
Differentially Private Machine Learning (arXiv:2006.07709). Ours differs:

1. The best threshold on the tested scores breaks the confidence, so the threshold comes from a
   `Rule`, which pays for looking at the scores with wider limits, or with scores that it sets
   aside. Thresholds are distinct scores and a score at the threshold counts as "in", so ties are
   never split.
2. With a known null the false positive rate is exact and stays a logarithm, and the false
   negative rate gets the whole failure probability: only this can show a large epsilon.
3. A bound states the largest value that it could have reached, and its assumptions.

`TradeoffBound` has the error rates at all thresholds at once. A curve of upper limits for (FPR,
FNR) is an upper bound on the trade-off function of the mechanism, and at each delta a lower bound
on its epsilon: Ngo, Östman, Durisi, Graell i Amat (2024), Secure Aggregation is Not Private Against
Membership Inference Attacks, arXiv:2403.17775, eq. 8. Ours differs: the limits hold for all
thresholds together, so the best one may be used. Every score must come from a separate trial.

Limits of the rate behind one count: Clopper and Pearson 1934 (exact), or Jeffreys (a credible
limit). Of all counts at once: the same limits at a smaller level, the one-sided statistic of Berk
and Jones 1979. Its null distribution follows exactly from a boundary-crossing recursion over a
Poisson process (Khmaladze and Shinjikashvili 2001; Moscovich and Nadler 2017, arXiv:1503.04363).
Ours differs in three ways:

1. We sum the probability of crossing, not one minus that of staying inside, so that small levels
   keep all their digits.
2. One-sided paths stay within a few standard deviations of the line: a moving window makes the
   work n^1.5 instead of n^2 log n, without a Fourier transform and its rounding.
3. We work with counts, not order statistics, so that ties are handled correctly.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainccinv, gammaln, ndtri, ndtri_exp, xlogy

from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Bound, ErrorCurve
from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Floats, Indices, require_one_of, within
from leakmeter.auditors.wording import Assumption

Limit = Literal["clopper-pearson", "jeffreys"]

MAX_EXACT = 5000  # the level of a simultaneous band is computed exactly up to this many samples
_NUM_DEVIATIONS = 7.0  # paths further out hardly ever come back to a limit
# Maps thresholds t to ln P(score >= t) of a sample that was out.
NullLogsf = Callable[[Floats], ArrayLike]


@dataclass(frozen=True)
class Fixed:
    """One threshold, chosen before the scores were seen."""

    threshold: float

    def __post_init__(self) -> None:
        if math.isnan(self.threshold):
            raise BadValueError("threshold", "in [-inf, inf]", self.threshold)


@dataclass(frozen=True)
class PilotSplit:
    """Choose the threshold on a random share of the scores and test it on the others.

    The split depends on the seed and on the scores, not on their order.
    """

    fraction: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        within("fraction", self.fraction, above=0.0, below=1.0)


@dataclass(frozen=True)
class SimultaneousBand:
    """All thresholds at once: limits that hold together, exact up to 5000 samples.

    With more samples the limits of `Bonferroni()` are used.
    """


@dataclass(frozen=True)
class Bonferroni:
    """All thresholds at once: a few counts, fixed beforehand, split the failure probability.

    Attributes:
        num_counts: Largest number of counts, log-spaced from both ends; a count between two of
            them uses the limit of the larger.
    """

    num_counts: int = 200

    def __post_init__(self) -> None:
        within("num_counts", self.num_counts, lowest=2)


@dataclass(frozen=True)
class BandAndFixed:
    """The larger of two bounds: one threshold fixed beforehand, and all thresholds at once.

    The band pays for covering all thresholds. A threshold that is good for a known reason, such as
    0 for a log-likelihood ratio, shows more if it makes hardly any error.

    Attributes:
        threshold: Chosen before the scores were seen.
        share: Share of the failure probability for this threshold; the band gets the rest.
    """

    threshold: float = 0.0
    share: float = 0.8

    def __post_init__(self) -> None:
        Fixed(self.threshold)
        within("share", self.share, above=0.0, below=1.0)


# Rules that give the whole failure probability to one kind of limit, and all rules.
Single = Fixed | PilotSplit | SimultaneousBand | Bonferroni
Rule = Single | BandAndFixed


@dataclass(frozen=True)
class Scores:
    """Sorted scores of samples in and out; an exact null may replace the scores of those out."""

    ins: Floats
    outs: Floats
    null_logsf: NullLogsf | None = None

    @classmethod
    def of(
        cls, scores_in: ArrayLike, scores_out: ArrayLike | None, null_logsf: NullLogsf | None
    ) -> Scores:
        """Return the checked and sorted scores."""
        if (scores_out is None) == (null_logsf is None):
            given = "neither" if scores_out is None else "both"
            raise ValueError(f"give one of scores_out and null_logsf, got {given}")
        outs = np.empty(0) if scores_out is None else np.sort(checked_row("scores_out", scores_out))
        return cls(np.sort(checked_row("scores_in", scores_in)), outs, null_logsf)

    def distinct(self) -> Floats:
        """Return all distinct scores."""
        return np.unique(np.concatenate([self.ins, self.outs]))

    def thresholds(self, limits: RateLimits) -> Floats:
        """Return the threshold that was fixed beforehand, or all where the rates change."""
        if isinstance(limits.rule, Fixed):
            return np.array([limits.rule.threshold])
        return self.distinct()

    def sizes(self) -> dict[str, int]:
        """Return how many scores of each kind there are."""
        return {"in": self.ins.size} | ({} if self.null_logsf else {"out": self.outs.size})

    def split(self, rule: PilotSplit) -> tuple[Scores, Scores]:
        """Return a random pilot and the scores that remain for the test, at least one of each."""
        parts = []
        for name, values in (("in", self.ins), ("out", self.outs)):
            # Scores are sorted here, so a permutation from the seed alone would always take the
            # same ranks and make the test depend on the pilot. The scores' own digits prevent that.
            digits = hashlib.sha256(values.tobytes()).hexdigest()
            order = stream(rule.seed, "pilot split", name, digits).permutation(values.size)
            num_pilot = min(int(rule.fraction * values.size), max(values.size - 1, 0))
            parts.append((np.sort(values[order[:num_pilot]]), np.sort(values[order[num_pilot:]])))
        (pilot_in, test_in), (pilot_out, test_out) = parts
        pilot = Scores(pilot_in, pilot_out, self.null_logsf)
        return pilot, Scores(test_in, test_out, self.null_logsf)

    def rates(self, thresholds: Floats, limits: RateLimits) -> tuple[Floats, Floats]:
        """Return upper limits of ln FPR and of FNR at each threshold."""
        # side="left" counts scores below a threshold: one at the threshold counts as "in".
        missed = np.searchsorted(self.ins, thresholds, side="left")
        fnr = limits(missed, self.ins.size)
        if self.null_logsf is not None:
            return _checked_logsf(self.null_logsf, thresholds), fnr
        passed = self.outs.size - np.searchsorted(self.outs, thresholds, side="left")
        return np.log(limits(passed, self.outs.size)), fnr

    def errorless(self, limits: RateLimits) -> tuple[Floats, Floats]:
        """Return the limits of the rates if no error had occurred."""
        none = np.zeros(1, dtype=np.int64)
        return np.log(limits(none, self.outs.size)), limits(none, self.ins.size)


@dataclass(frozen=True)
class RateLimits:
    """Upper limits of a rate from a count, as wide as the rule requires.

    Attributes:
        rule: Which counts are used.
        level: Probability that any limit in use fails.
        limit: Which kind of limit.
    """

    rule: Single
    level: float
    limit: Limit

    @classmethod
    def of(cls, rule: Rule, level: float, limit: Limit) -> list[RateLimits]:
        """Return the limits of each part of a rule; all of them hold together at `level`."""
        if not isinstance(rule, BandAndFixed):
            return [cls(rule, level, limit)]
        # A union bound: each part fails at most as often as its share of the level.
        return [
            cls(Fixed(rule.threshold), rule.share * level, limit),
            cls(SimultaneousBand(), (1 - rule.share) * level, limit),
        ]

    def __call__(self, counts: Indices, num_samples: int) -> Floats:
        match self.rule:
            case SimultaneousBand() if num_samples <= MAX_EXACT:
                level = band_level(num_samples, self.level)
                return limit_table(num_samples, level, self.limit)[counts]
            case SimultaneousBand():
                return self._at_some_counts(counts, num_samples, Bonferroni().num_counts)
            case Bonferroni(num_counts):
                return self._at_some_counts(counts, num_samples, num_counts)
            case Fixed() | PilotSplit() if counts.size >= num_samples:  # a kept table costs less
                return limit_table(num_samples, self.level, self.limit)[counts]
            case Fixed() | PilotSplit():
                return upper_limit(counts, num_samples, self.level, self.limit)

    def _at_some_counts(self, counts: Indices, num_samples: int, num_counts: int) -> Floats:
        """Return limits that are exact at some counts; other counts use the next larger one."""
        # Limits grow with the count, so the limit of the next larger chosen count is valid. Beyond
        # the last one only the trivial limit 1 is left.
        chosen = spread_counts(num_samples, num_counts)
        limits = upper_limit(chosen, num_samples, self.level / chosen.size, self.limit)
        return np.append(limits, 1.0)[np.searchsorted(chosen, counts)]


def checked_row(name: str, values: ArrayLike) -> Floats:
    """Return one row of numbers, or raise; infinities are allowed, NaN cannot be ordered."""
    row = np.asarray(values, dtype=np.float64)
    if row.ndim != 1 or row.size == 0:
        raise BadValueError(name, "one row of at least 1 number", row.shape)
    if np.isnan(row).any():
        raise BadValueError(name, "in [-inf, inf]", math.nan)
    return row


def _checked_logsf(null_logsf: NullLogsf, thresholds: Floats) -> Floats:
    """Return ln FPR from the known null, or raise if it is not the log of a probability."""
    log_fpr = np.asarray(null_logsf(thresholds), dtype=np.float64)
    if log_fpr.shape != thresholds.shape:
        raise BadValueError("null_logsf", f"of shape {thresholds.shape}", log_fpr.shape)
    if not (log_fpr <= 1e-9).all():
        raise BadValueError("null_logsf", "in [-inf, 0]", log_fpr.max())
    return np.minimum(log_fpr, 0.0)


def upper_limit(
    count: Indices | int, num_samples: int, level: float, limit: Limit = "clopper-pearson"
) -> Floats:
    """Return the upper limits at `level` for the rates behind `count` hits in `num_samples`.

    >>> round(float(upper_limit(0, 1000, 0.025)), 12)
    0.003682083897
    """
    hits = np.asarray(count, dtype=np.float64)
    if limit == "jeffreys":
        return np.asarray(betainccinv(hits + 0.5, num_samples - hits + 0.5, level))
    # Clopper-Pearson is a Beta(hits + 1, misses) quantile, which does not exist for no misses.
    everything = hits >= num_samples
    misses = np.where(everything, 1.0, num_samples - hits)
    return np.where(everything, 1.0, betainccinv(hits + 1, misses, level))


@functools.lru_cache(maxsize=64)
def limit_table(num_samples: int, level: float, limit: Limit = "clopper-pearson") -> Floats:
    """Return `upper_limit` of every count from 0 to `num_samples`, cached and read-only."""
    table = upper_limit(np.arange(num_samples + 1), num_samples, level, limit)
    table.flags.writeable = False
    return table


@functools.lru_cache(maxsize=256)
def band_level(num_samples: int, level: float) -> float:
    """Return the level per count at which all Clopper-Pearson limits hold at once.

    Args:
        num_samples: At least 1; time grows as its power 1.5: 25 ms at 1000, 0.15 s at 5000.
        level: Probability in (0, 1) that any of the limits may fail.
    """
    # Secant search in logs. The start is a fit to the solution; ln(miss) is nearly linear in
    # ln(level), with slope 0.86.
    fit = 1.53 * math.log(num_samples) ** 1.7 * (0.05 / level) ** 0.18
    x, slope = math.log(level / max(1.0, fit)), 0.86
    gap = math.log(miss_rate(num_samples, math.exp(x)) / level)
    for _ in range(30):
        new_x = min(x - gap / slope, -1e-9)
        if abs(gap) < 1e-6:  # the error after the last step is of the order of its square
            return math.exp(new_x)
        new_gap = math.log(miss_rate(num_samples, math.exp(new_x)) / level)
        slope = (new_gap - gap) / (new_x - x) if new_gap != gap else slope
        x, gap = new_x, new_gap
    return math.exp(x)


def miss_rate(num_samples: int, level: float) -> float:
    """Return the probability that any of the Clopper-Pearson limits at `level` fails.

    The limit for count i - 1 fails if fewer than i of n uniforms are below it. Given that it has n
    points in [0, 1], a Poisson process of rate n places them like n uniforms. If limit i is the
    first to fail, exactly i - 1 points are below it.
    """
    n = num_samples
    rank = np.arange(1, n + 1)
    limits = betainccinv(rank, n - rank + 1, level)  # (n,), ascending
    # Row i: distribution of the number of points between limit i - 1 and limit i.
    kernels, lengths = _jumps(n * np.diff(limits, prepend=0.0))
    # The window cuts off paths so far above the line that they will not come back to it.
    spread = _NUM_DEVIATIONS * np.sqrt(n * limits * (1 - limits)) + 20
    widths = (np.minimum(n, np.ceil(n * limits + spread)) - rank + 1).astype(np.int64)
    # After a failure at i, n - i + 1 points must follow. Dividing by P(n points in all) conditions
    # the process on n points.
    left = n * (1 - limits)
    to_go = n - rank + 1
    log_finish = xlogy(to_go, left) - left - gammaln(to_go + 1.0)
    finish = np.exp(log_finish - (n * math.log(n) - n - math.lgamma(n + 1)))
    # inside[j]: probability that no limit has failed and j points more than needed are there.
    inside, missed = np.ones(1), 0.0
    for i in range(n):
        after = np.convolve(inside, kernels[i, : lengths[i]])
        missed += after[0] * finish[i]  # one point too few: limit i fails here first
        inside = after[1 : widths[i] + 1]
    return float(missed)


def _jumps(rates: Floats) -> tuple[Floats, Indices]:
    """Return Poisson probabilities, one row per rate, and how many of each row matter."""
    lengths = np.ceil(rates + _NUM_DEVIATIONS * np.sqrt(rates) + 10).astype(np.int64)
    jumps = np.arange(lengths.max())
    return np.exp(xlogy(jumps, rates[:, None]) - rates[:, None] - gammaln(jumps + 1.0)), lengths


def spread_counts(num_samples: int, num_counts: int) -> Indices:
    """Return at most `num_counts` counts in [0, num_samples), log-spaced from both ends.

    Small counts matter where errors are rare, counts near the end where successes are rare.
    """
    half = np.geomspace(1, max(1.0, num_samples / 2), max(1, num_counts // 2)).round() - 1
    return np.unique(np.concatenate([half, num_samples - 1 - half])).astype(np.int64)


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
    rule: Rule = SimultaneousBand(),
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
    require_one_of(get_args(Limit), limit=limit)
    require_one_of(get_args(Family), family=family)
    scores = Scores.of(scores_in, scores_out, null_logsf)
    proof = _separations if family == "gaussian" else partial(proven_epsilons, delta=delta)
    pilot, sizes = None, {}
    if isinstance(rule, PilotSplit):
        pilot, scores = scores.split(rule)
        sizes = {f"pilot {name}": size for name, size in pilot.sizes().items()}
    value, cap = 0.0, None
    parts = RateLimits.of(rule, (1 - confidence) / (1 if null_logsf else 2), limit)
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


def _best_threshold(pilot: Scores, limits: RateLimits, proof: Proof) -> Floats:
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
class TradeoffBound:
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
        rule: CurveRule = SimultaneousBand(),
    ) -> TradeoffBound:
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
        for limits in RateLimits.of(rule, (1 - confidence) / 2, "clopper-pearson"):
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

        >>> curve = TradeoffBound.of([3.0, 4.0] * 50, [1.0, 2.0] * 50)
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

    def points(self, most: int = 100) -> dict[str, list[float]]:
        """Return at most `most` points of the curve, for a report."""
        return _some_points(self.fpr, self.fnr, most)


def error_curve(
    scores_in: Floats,
    scores_out: Floats,
    *,
    confidence: float,
    server_round: int | None = None,
    rule: CurveRule = SimultaneousBand(),
) -> ErrorCurve:
    """Return the data of a report's figures: proven epsilons, caps, limits, observed rates.

    With the rule of a finding, the curve agrees with the finding at its δ.
    """
    curve = TradeoffBound.of(scores_in, scores_out, confidence=confidence, rule=rule)
    thresholds = np.unique(np.concatenate([scores_in, scores_out]))
    below_in, below_out = (np.searchsorted(np.sort(s), thresholds) for s in (scores_in, scores_out))
    # Observed rates have no confidence limits.
    rates = 1 - below_out / scores_out.size, below_in / scores_in.size
    limits, observed = curve.points(), _some_points(*rates, _OBSERVED)
    return ErrorCurve(
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


def _some_points(fpr: Floats, fnr: Floats, most: int) -> dict[str, list[float]]:
    """Return at most `most` points of the frontier of both rates, for a report."""
    fresh = _frontier(fpr, fnr)
    some = fresh[np.unique(np.linspace(0, fresh.size - 1, most).round().astype(np.int64))]
    return {"fpr": fpr[some].tolist(), "fnr": fnr[some].tolist()}


def _frontier(fpr: Floats, fnr: Floats) -> NDArray[np.intp]:
    """Return the indices of the Pareto frontier of both rates, by ascending FPR."""
    order = np.lexsort((fnr, fpr))  # by FPR, then by FNR: a point is kept if its FNR is a new low
    best = np.minimum.accumulate(fnr[order])
    return order[np.flatnonzero(np.diff(best, prepend=np.inf) < 0)]
