"""Lower bounds on ε from the p-values of the canaries of one run.

All canaries of a run share its noise, so their scores are dependent. Both bounds hold for any
dependence. `coin_bound` uses that a fair coin decided whether each canary takes part; `share_bound`
needs no coins. The p-values of excluded canaries are exact, so both can show an ε far above
ln(samples).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leakmeter.auditors._types import Floats
from leakmeter.auditors._validate import within
from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.bounds.rules import Limits, SimultaneousBand
from leakmeter.auditors.finding import Bound

# Shares that `share_bound` tests, fixed beforehand; they split the allowed failure probability.
SHARES: Final = (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32)
_ROUNDING: Final = 1e-12  # a level below this is a difference of equal numbers
_SLACK: Final = 1e-9  # rounding may put ln p this far above 0


def coin_bound(
    log_p: ArrayLike, included: ArrayLike, *, delta: float, confidence: float = 0.95
) -> Bound:
    """Return the ε that the p-values of canaries refute, whatever the mechanism.

    Under (ε, δ)-DP, given the transcript and the earlier canaries, the probability that a canary is
    in *and* has p ≤ e^−c is at most q + (1 − q)·f, where q = e^(ε−c) / (1 + e^(ε−c)) and f is at
    most δ/2 on average. Canaries that are out score −∞. Except with probability at most k·δ/2,
    independent scores with the tail q(c) dominate these scores. So a simultaneous lower limit q_lo
    of the tail proves ε ≥ c + ln(q_lo / (1 − q_lo)).

    Args:
        log_p: ln of each canary's p-value under "out", or an upper limit on it, in [-inf, 0],
            (k,). Values of canaries that are out are not used.
        included: Whether the coin said in, also where the seat failed to deliver, (k,).
        delta: In [0, 1). The bound is 0 if k·δ/2 reaches the allowed failure, 1 − confidence.
        confidence: In (0, 1).

    >>> log_p = np.full(100, -50.0)
    >>> round(coin_bound(log_p, np.arange(100) < 50, delta=1e-6).value, 2)
    49.41
    """
    # Proof of that probability. For one canary v and transcript t let Q1(v, t) and Q0(v, t) be the
    # joint densities if it is in and if it is out. Out, v is independent of t, so the set
    # A = {p ≤ e^−c} has Q0(A, t) ≤ e^−c·Q0(t). DP bounds the excess G(t) = ∫ (Q1 − e^ε·Q0)₊ dv by
    # ∫ G ≤ δ. The coin is fair: P(in and A | t) = Q1(A, t) / S with S = Q1(t) + Q0(t). Split
    # Q1(A, t) = a + g with a ≤ e^(ε−c)·Q0(t) and g ≤ G(t). As S ≥ a + g + Q0(t), and as
    # a·(1 − q) ≤ q·Q0(t), it is at most q + (1 − q)·g/S. So f = G/S serves every c at once, and
    # E f = ∫ G/S · S/2 ≤ δ/2. Averaging Q1 and Q0 over later canaries and their coins keeps
    # (ε, δ)-DP; so the bound holds given the earlier canaries, one after the other.
    scores, is_in = checked_p_values(log_p, included)
    within("delta", delta, lowest=0.0, below=1.0)
    within("confidence", confidence, above=0.0, below=1.0)
    k = scores.size
    level = 1 - confidence - k * delta / 2
    value = 0.0
    if level > _ROUNDING and is_in.any():
        thresholds = np.sort(scores[is_in])[::-1]
        # Ties are never split: a threshold counts every score that reaches it.
        reached = np.searchsorted(-thresholds, -thresholds, side="right")
        missed = Limits(SimultaneousBand(), level, "clopper-pearson")(k - reached, k)
        useful = missed < 1  # otherwise an infinite score would be added to ln 0
        proven = thresholds[useful] + np.log1p(-missed[useful]) - np.log(missed[useful])
        value = float(proven.max(initial=0.0))
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

    Under (ε, δ)-DP each canary scores s or more with probability at most e^(ε−s) + δ. If this is
    α_f·j/n, then j of n canaries do so with probability at most α_f (Markov's inequality). So the
    j-th largest score s_(j), j = ⌈f·n⌉, proves ε ≥ s_(j) + ln(α_f·j/n − δ). This holds for any
    dependence, and is useful only above ε ≈ 5.

    Args:
        scores: −ln p of the included canaries, in [0, inf], (n,).
        delta: In [0, 1). A share proves nothing where α_f·j/n ≤ δ.
        confidence: In (0, 1); the shares f = 1/2 … 1/32 split the allowed failure equally.

    >>> round(share_bound(np.full(64, 50.0), delta=1e-6).value, 2)
    44.7
    """
    values = _row("scores", scores)
    if (values < -_SLACK).any():
        raise ValueError(f"scores must be -ln p, in [0, inf], got {values.min()}")
    within("delta", delta, lowest=0.0, below=1.0)
    within("confidence", confidence, above=0.0, below=1.0)
    n, level = values.size, (1 - confidence) / len(SHARES)
    largest = np.sort(values)[::-1]
    best = 0.0
    for share in SHARES:
        j = math.ceil(share * n)
        if (chance := level * j / n - delta) > _ROUNDING:
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


def checked_p_values(log_p: ArrayLike, included: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    """Return scores −ln p and coins, or raise."""
    scores, is_in = -_row("log_p", log_p), np.asarray(included)
    if is_in.shape != scores.shape or not np.isin(is_in, (0, 1)).all():
        raise ValueError(
            f"included must be {scores.size} truth values, one for each of log_p, got "
            f"{is_in.dtype} of shape {is_in.shape}"
        )
    if (scores < -_SLACK).any():
        raise ValueError(f"log_p must be in [-inf, 0], got {-scores.min()}")
    return np.maximum(scores, 0.0), is_in.astype(np.bool_)


def _row(name: str, values: ArrayLike) -> Floats:
    """Return one row of numbers, or raise; infinities are allowed."""
    row = np.asarray(values, dtype=np.float64)
    if row.ndim != 1 or row.size == 0:
        raise ValueError(f"{name} must be one row of at least 1 number, got shape {row.shape}")
    if np.isnan(row).any():
        raise ValueError(f"{name} must be in [-inf, inf], got nan")
    return row
