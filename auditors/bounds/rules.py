"""Rules that choose an attack's threshold, and the error rates that may then be claimed.

A rule that looks at the scores pays for it with wider limits, or with scores that it sets aside.
Thresholds are distinct scores and a score at the threshold counts as "in", so ties are never split.

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
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainccinv, gammaln, xlogy

from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Floats, Indices, within

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
            raise ValueError(f"threshold must be in [-inf, inf], got {self.threshold}")


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

    def thresholds(self, limits: Limits) -> Floats:
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

    def rates(self, thresholds: Floats, limits: Limits) -> tuple[Floats, Floats]:
        """Return upper limits of ln FPR and of FNR at each threshold."""
        # side="left" counts scores below a threshold: one at the threshold counts as "in".
        missed = np.searchsorted(self.ins, thresholds, side="left")
        fnr = limits(missed, self.ins.size)
        if self.null_logsf is not None:
            return _checked_logsf(self.null_logsf, thresholds), fnr
        passed = self.outs.size - np.searchsorted(self.outs, thresholds, side="left")
        return np.log(limits(passed, self.outs.size)), fnr

    def errorless(self, limits: Limits) -> tuple[Floats, Floats]:
        """Return the limits of the rates if no error had occurred."""
        none = np.zeros(1, dtype=np.int64)
        return np.log(limits(none, self.outs.size)), limits(none, self.ins.size)


@dataclass(frozen=True)
class Limits:
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
    def of(cls, rule: Rule, level: float, limit: Limit) -> list[Limits]:
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
        raise ValueError(f"{name} must be one row of at least 1 number, got shape {row.shape}")
    if np.isnan(row).any():
        raise ValueError(f"{name} must be in [-inf, inf], got nan")
    return row


def _checked_logsf(null_logsf: NullLogsf, thresholds: Floats) -> Floats:
    """Return ln FPR from the known null, or raise if it is not the log of a probability."""
    log_fpr = np.asarray(null_logsf(thresholds), dtype=np.float64)
    if log_fpr.shape != thresholds.shape:
        raise ValueError(
            f"null_logsf must return shape {thresholds.shape}, got shape {log_fpr.shape}"
        )
    if not (log_fpr <= 1e-9).all():
        raise ValueError(f"null_logsf must return values in [-inf, 0], got {log_fpr.max()}")
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
