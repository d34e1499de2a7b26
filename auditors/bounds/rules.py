"""Rules that choose an attack's threshold, and the error rates that may then be claimed.

A rule that looks at the scores pays for it with wider limits, or with scores that it sets aside.
Thresholds are distinct scores and a score at the threshold counts as "in", so ties are never split.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from leakmeter.auditors._types import Floats, within
from leakmeter.auditors.bounds.band import (
    MAX_EXACT,
    Counts,
    Limit,
    band_level,
    limit_table,
    spread_counts,
    upper_limit,
)
from leakmeter.auditors.rng import stream

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
        outs = np.empty(0) if scores_out is None else _checked_scores("scores_out", scores_out)
        return cls(_checked_scores("scores_in", scores_in), outs, null_logsf)

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

    def __call__(self, counts: Counts, num_samples: int) -> Floats:
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

    def _at_some_counts(self, counts: Counts, num_samples: int, num_counts: int) -> Floats:
        """Return limits that are exact at some counts; other counts use the next larger one."""
        # Limits grow with the count, so the limit of the next larger chosen count is valid. Beyond
        # the last one only the trivial limit 1 is left.
        chosen = spread_counts(num_samples, num_counts)
        limits = upper_limit(chosen, num_samples, self.level / chosen.size, self.limit)
        return np.append(limits, 1.0)[np.searchsorted(chosen, counts)]


def _checked_scores(name: str, scores: ArrayLike) -> Floats:
    """Return sorted scores, or raise; infinite scores are allowed, NaN cannot be ordered."""
    array = np.asarray(scores, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must be one row of at least 1 score, got shape {array.shape}")
    if np.isnan(array).any():
        raise ValueError(f"{name} must be in [-inf, inf], got nan")
    return np.sort(array)


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
