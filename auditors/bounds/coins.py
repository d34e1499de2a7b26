"""Lower bounds from p-values of canaries: what coins, or mere shares, prove about one run.

All canaries of a run share its noise, so their scores are dependent. Both bounds hold nevertheless.
`coin_bound` uses that a fair coin decided about each canary; `share_bound` needs no coins. Exact
p-values of canaries that are out let them show an ε far above ln(samples).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from leakmeter.auditors._types import Floats
from leakmeter.auditors._validate import within
from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.bounds.rules import Limits, SimultaneousBand
from leakmeter.auditors.finding import Bound

# Shares of the canaries at which `share_bound` looks, fixed beforehand; they share the failures.
SHARES = (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32)


def coin_bound(
    log_p: ArrayLike, included: ArrayLike, *, delta: float, confidence: float = 0.95
) -> Bound:
    """Return the ε that the p-values of canaries refute, whatever the mechanism.

    Under (ε, δ)-DP, given the transcript and the earlier canaries, a canary is in *and* has
    p ≤ e^−c with a chance of at most q = e^(ε−c) / (1 + e^(ε−c)), except for failures of δ/2 on
    average. So the scores, −ln p of canaries that are in and −∞ of those out, are dominated by
    independent ones with the tail q(c), and a simultaneous lower limit q_lo of that tail proves
    ε ≥ c + ln(q_lo / (1 − q_lo)).

    Args:
        log_p: ln of each canary's p-value if it is out, or an upper limit on it, (k,). Values of
            canaries that are out are not used.
        included: Whose coin said in, also where the seat failed to deliver, (k,).
        delta: In [0, 1). The bound is 0 where k·δ/2 uses up all failures.
        confidence: In (0, 1).

    >>> log_p = np.full(100, -50.0)
    >>> round(coin_bound(log_p, np.arange(100) < 50, delta=1e-6).value, 2)
    49.41
    """
    scores, is_in = _checked(log_p, included)
    within("delta", delta, lowest=0.0, below=1.0)
    within("confidence", confidence, above=0.0, below=1.0)
    k = scores.size
    level = 1 - confidence - k * delta / 2
    value = 0.0
    if level > 0 and is_in.any():
        thresholds = np.sort(scores[is_in])[::-1]
        # Ties are never split: a threshold counts every score that reaches it.
        reached = np.searchsorted(-thresholds, -thresholds, side="right")
        missed = Limits(SimultaneousBand(), level, "clopper-pearson")(k - reached, k)
        with np.errstate(divide="ignore"):
            proven = thresholds + np.log1p(-missed) - np.log(missed)
        value = max(0.0, float(proven.max()))
    return Bound(
        value=value,
        kind="lower_bound",
        rule="p-values of canaries with fair coins, under a simultaneous band",
        delta=delta,
        confidence=confidence,
        sample_sizes={"canaries": k, "in": int(is_in.sum())},
        assumptions=(Assumption.FAIR_COINS, Assumption.UNIFORM_CANARIES, Assumption.KNOWN_NULL),
    )


def share_bound(scores: ArrayLike, *, delta: float, confidence: float = 0.95) -> Bound:
    """Return the ε that the scores of included canaries refute, without coins.

    If more than a share f of n canaries score s or more with a chance above α_f, then some canary
    does so with a chance above α_f·f, and one that is out with e^−s only: ε ≥ s + ln(α_f·f − δ). It
    holds for any dependence, and is useful above ε ≈ 5.

    Args:
        scores: −ln p of the canaries that took part, (n,).
        delta: In [0, 1).
        confidence: In (0, 1); the five shares that are looked at split what is left of it.

    >>> round(share_bound(np.full(64, 50.0), delta=1e-6).value, 2)
    44.7
    """
    values = _row("scores", scores)
    within("delta", delta, lowest=0.0, below=1.0)
    within("confidence", confidence, above=0.0, below=1.0)
    n, level = values.size, (1 - confidence) / len(SHARES)
    largest = np.sort(values)[::-1]
    best = 0.0
    for share in SHARES:
        j = math.ceil(share * n)
        if (chance := level * j / n - delta) > 0:
            best = max(best, float(largest[j - 1]) + math.log(chance))
    return Bound(
        value=best,
        kind="lower_bound",
        rule=f"score that a share of the canaries reaches, best of {len(SHARES)} shares",
        delta=delta,
        confidence=confidence,
        sample_sizes={"in": n},
        assumptions=(Assumption.UNIFORM_CANARIES, Assumption.KNOWN_NULL),
    )


def _checked(log_p: ArrayLike, included: ArrayLike) -> tuple[Floats, np.ndarray]:
    """Return scores and coins, or raise."""
    scores, is_in = -_row("log_p", log_p), np.asarray(included)
    if is_in.dtype != np.bool_ or is_in.shape != scores.shape:
        raise ValueError(
            f"included must be {scores.size} truth values, one for each of log_p, got "
            f"{is_in.dtype} of shape {is_in.shape}"
        )
    if (scores < 0).any():
        raise ValueError(f"log_p must be in [-inf, 0], got {-scores.min()}")
    return scores, is_in


def _row(name: str, values: ArrayLike) -> Floats:
    row = np.asarray(values, dtype=np.float64)
    if row.ndim != 1 or row.size == 0:
        raise ValueError(f"{name} must be one row of at least 1 number, got shape {row.shape}")
    if np.isnan(row).any():
        raise ValueError(f"{name} must be numbers, got nan")
    return row
