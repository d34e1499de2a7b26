"""A lower bound on ε that holds at all times together, so that watching longer costs nothing.

For each candidate ε, bets against (ε, δ)-DP are placed one after the other. If ε is true, their
wealth is a test supermartingale: it ever reaches 1/α with probability at most α (Ville's
inequality). The bound is the largest candidate that was ever refuted together with every smaller
one. Sequential audits with other bets: González et al. 2025, Sequentially Auditing Differential
Privacy (arXiv:2509.07055); Kutta et al. 2026, Sequential Auditing for f-Differential Privacy
(arXiv:2602.06518). Ours differs:

1. It bounds ε, where these test one ε or one trade-off curve.
2. Canaries of one run share its noise. Their bets need fair coins, not independent scores.
3. δ is paid once for all coins. Paid in the odds of each bet, it would cover a mechanism that
   reveals one coin with probability δ, but not one that reveals all coins at once.

A gambler who bets against a true ε gains nothing on average. Wealth that grows therefore refutes ε
(Shafer 2021, Testing by Betting, doi:10.1111/rssa.12647; Waudby-Smith and Ramdas 2024, Estimating
Means of Bounded Random Variables by Betting, arXiv:2010.09686). The bets themselves are ours:

1. Canaries with coins and exact p-values: one bet covers the coin and the p-value.
2. Trials that show one draw in both worlds, with δ inside the odds.

Every kind has several bets, one for each threshold and stake. Wealth is spread over them once, as
in Cover's universal portfolio, so nobody has to know the right one beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leakmeter.auditors._types import Floats, Indices, within
from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.bounds.one_run import checked_p_values
from leakmeter.auditors.codec import Kept, Resumable
from leakmeter.auditors.finding import Bound

# Scores −ln p above ε that count as hits, and the share of included canaries that hit.
ABOVE: Final = np.array([0.5, 1.0, 2.0, 3.0, 4.5, 6.5, 9.0])
_HITS: Final = np.array([0.95, 0.7, 0.5, 0.35, 0.2, 0.1, 0.05, 0.02])
# Share of the wealth that a wrong trial loses. All of it would end every bet at once.
STAKES: Final = np.array([0.98, 0.7, 0.4, 0.2, 0.1, 0.05, 0.02])
# Log-likelihood ratios from which on a trial counts as decided.
_DECIDED: Final = np.array([0.0, 0.5, 1.0, 2.0, 3.0, 4.5, 6.5])
_TINY: Final = 1e-12


def canary_bets(epsilons: Floats) -> Floats:
    """Return ln of what bets on canaries pay, (ε, thresholds, shares, [hit, miss, out]).

    A canary *hits* if its coin said in and −ln p reaches ε + u. It *misses* if it is in without
    that, and it may be *out*. Let x and m be the probabilities of hit and miss, given the release
    and relative to out. DP, and an exact p-value of canaries that are out, allow
    x ≤ e^−u and m ≥ e^−ε·(1 − e^−(ε+u)). The bet is the ratio of a case with fair coins, in which a
    share h of the included hit, to the most similar case that DP allows.
    """
    # The most similar case has the largest x. The ratio m/out is its own to choose above the
    # smallest m; at m = (1 − h)(1 + x)/(1 + h) a miss pays 1, so only hit and out are bet on.
    x = np.exp(-ABOVE)[:, None]  # (thresholds, 1)
    epsilon = epsilons[:, None, None]
    least = np.exp(-epsilon) * -np.expm1(-epsilon - ABOVE[:, None])  # (ε, thresholds, 1)
    miss = np.maximum((1 - _HITS) * (1 + x) / (1 + _HITS), least)
    total = 1 + x + miss
    pays = np.stack(
        [_HITS / 2 * total / x, (1 - _HITS) / 2 * total / miss, total / 2], axis=-1
    )  # (ε, thresholds, shares, 3)
    # Where a hit would pay less than the stake, the worst case for the bet has fewer hits.
    return np.where(pays[..., :1] > 1, np.log(pays), 0.0)


def count_canaries(epsilons: Floats, scores: Floats, num_out: int) -> Indices:
    """Return how many canaries hit, miss and are out, (ε, thresholds, 3).

    Args:
        epsilons: Candidates.
        scores: −ln p of the canaries that are in.
        num_out: How many are out.
    """
    below = np.searchsorted(np.sort(scores), epsilons[:, None] + ABOVE, side="left")
    return np.stack([scores.size - below, below, np.full_like(below, num_out)], axis=-1)


def trial_bets(epsilons: Floats, delta: float) -> Floats:
    """Return ln of what bets on trials pay, (ε, thresholds, stakes, [both, one, none, wrong]).

    At a threshold a the attacker says "in" if its log-likelihood ratio is at least a, and "out" if
    it is below −a. For both answers P(right) ≤ e^ε·P(wrong) + δ. One trial shows the same draw in
    both worlds, so it has up to two right answers, or a wrong one beside a right one.
    """
    gain = np.array([2.0, 1.0, 0.0, 1.0]) - 2 * delta
    loss = np.zeros((len(epsilons), 4))
    loss[:, 3] = np.exp(epsilons)
    # With this stake the worst outcome leaves 1 − stake.
    unit = STAKES / np.maximum(np.expm1(epsilons) + 2 * delta, _TINY)[:, None]
    pays = np.log1p(unit[:, :, None] * (gain - loss)[:, None, :])  # (ε, stakes, 4)
    return np.broadcast_to(pays[:, None], (len(epsilons), _DECIDED.size, *pays.shape[1:]))


def count_trials(inside: Floats, outside: Floats) -> Indices:
    """Return how many trials have both answers right, one, none, or one wrong.

    Args:
        inside: Log-likelihood ratio of each trial in the world "in", (..., trials).
        outside: The same draw in the world "out"; no larger.

    Returns:
        Counts, (..., thresholds, 4).
    """
    at, inside, outside = _DECIDED[:, None], inside[..., None, :], outside[..., None, :]
    wrong = (outside >= at) | (inside < -at)
    right = (inside >= at).astype(np.int64) + (outside < -at)
    kinds = np.where(wrong, 3, 2 - right)  # (..., thresholds, trials)
    return np.stack([(kinds == kind).sum(axis=-1) for kind in range(4)], axis=-1)


def log_wealth(bets: Floats, counts: Indices) -> Floats:
    """Return ln of the wealth after all bets, spread evenly over thresholds and stakes.

    Args:
        bets: ln of what each outcome pays, (..., thresholds, stakes, outcomes).
        counts: How often each outcome came, (..., thresholds, outcomes).
    """
    each = (bets * counts[..., None, :]).sum(axis=-1)
    each = each.reshape(*each.shape[:-2], -1)
    most = each.max(axis=-1)  # so that no exponential overflows
    return np.asarray(most + np.log(np.exp(each - most[..., None]).mean(axis=-1)))


# Every 0.05 up to 20, where an attacker is practically certain. Then every 0.5, up to what p-values
# from seeds of 128 bits can show.
_CANDIDATES: Final = np.concatenate([np.arange(400) / 20, np.arange(40, 177) / 2])
_ROUNDING: Final = 1e-12  # a level below this is a difference of equal numbers
_ASSUMED: Final = {
    "canaries": (Assumption.FAIR_COINS, Assumption.UNIFORM_CANARIES, Assumption.KNOWN_NULL),
    "trials": (Assumption.SEPARATE_TRIALS, Assumption.FIXED_THRESHOLD),
}
_Evidence = Literal["canaries", "trials"]
_WHAT: Final = {"canaries": "coins and p-values of canaries", "trials": "trials"}


@dataclass(frozen=True)
class Anytime:
    """The confidence of bounds that are made after every round and hold together.

    Give it to an auditor as its `confidence`.

    >>> Anytime(0.95)
    Anytime(confidence=0.95)
    """

    confidence: float = 0.95

    def __post_init__(self) -> None:
        within("confidence", self.confidence, above=0.0, below=1.0)

    @staticmethod
    def level(confidence: float | Anytime) -> float:
        """Return the confidence as a number in (0, 1), whichever way it was given."""
        number = confidence.confidence if isinstance(confidence, Anytime) else confidence
        return float(within("confidence", number, above=0.0, below=1.0))


class AnytimeBound(Resumable):
    """Bets against every ε, and the largest ε that has lost.

    Add evidence whenever it arrives; `value` never falls, and all its values hold together with the
    stated confidence. What is added, and when to stop, may depend on everything seen before.

    Args:
        delta: In [0, 1).
        confidence: In (0, 1).
        planned: Most coins that will be bet on. Their δ is paid once:
            nothing is refuted if planned·δ reaches the allowed failure, 1 − confidence.
        candidates: The ε to bet against, ascending; None for every 0.05 up to 20 and every 0.5
            up to 88.

    >>> bound = AnytimeBound(delta=1e-6, planned=100)
    >>> round(bound.add_canaries(np.full(100, -50.0), np.arange(100) < 50), 2)
    49.0
    """

    _counts: Kept[dict[_Evidence, Indices]]
    _sizes: Kept[dict[str, int]]
    _refuted: Kept[NDArray[np.bool_]]

    def __init__(
        self,
        *,
        delta: float,
        confidence: float = 0.95,
        planned: int = 0,
        candidates: ArrayLike | None = None,
    ) -> None:
        within("delta", delta, lowest=0.0, below=1.0)
        within("confidence", confidence, above=0.0, below=1.0)
        within("planned", planned, lowest=0)
        self._epsilons = _CANDIDATES if candidates is None else _ascending(candidates)
        self._delta, self._confidence, self._planned = delta, confidence, planned
        level = 1 - confidence - planned * delta
        self._needed = -math.log(level) if level > _ROUNDING else math.inf
        self._bets: dict[str, Floats] = {}
        self._counts = {}
        self._sizes = {}
        self._refuted = np.zeros(self._epsilons.size, dtype=bool)

    @property
    def value(self) -> float:
        """The largest candidate refuted so far together with every smaller one, 0 if none is."""
        return self._largest(self._refuted)

    def add_canaries(self, log_p: ArrayLike, included: ArrayLike) -> float:
        """Bet on canaries that have played for the last time, and return the bound.

        Under (ε, δ)-DP, given the release and the earlier canaries, the probability of each outcome
        is that of a mechanism that the bets allow for, except with a probability f that is at most
        δ on average. So bets gain as under ε-DP, except with probability at most planned·δ.

        Args:
            log_p: ln of each canary's p-value under "out", given the release so far, or an upper
                limit on it. Values of canaries that are out are not used, (n,).
            included: Whether the coin said in, also where the seat failed to deliver, (n,).
        """
        # Proof. With Q1 and Q0 as in `coin_bound`, r = Q1/Q0 in one release and its clipping r̃ to
        # [e^−ε, e^ε], the distributions of (coin, canary) under r and r̃ differ in total variation
        # by at most max(∫(r − r̃)₊, ∫(r̃ − r)₊) / (1 + ∫r) ≤ (G1 + e^−ε·G0) / (Q1 + Q0), where G1
        # and G0 are the excesses in both directions. Its mean is at most (δ + e^−ε·δ) / 2 ≤ δ.
        if not np.size(log_p):
            return self.value
        scores, is_in = checked_p_values(log_p, included)
        num_in = int(is_in.sum())
        if (total := self._sizes.get("canaries", 0) + scores.size) > self._planned:
            raise ValueError(
                f"planned must be at least the number of coins bet on, {total}, got {self._planned}"
            )
        self._sizes |= {"canaries": total, "in": self._sizes.get("in", 0) + num_in}
        counts = count_canaries(self._epsilons, scores[is_in], scores.size - num_in)
        return self._bet("canaries", counts)

    def add_trials(self, inside: ArrayLike, outside: ArrayLike) -> float:
        """Bet on independent trials, each played in both worlds, and return the bound.

        Args:
            inside: Log-likelihood ratio of each trial in the world "in", up to a scale and an
                offset that were fixed before the trials, (n,).
            outside: Of the same draws in the world "out"; none may be larger than `inside`, (n,).
        """
        ins, outs = (np.asarray(row, dtype=np.float64) for row in (inside, outside))
        if ins.shape != outs.shape or ins.ndim != 1 or not (ins >= outs).all():
            raise ValueError(
                "inside must be as long as outside and nowhere smaller: both show the same draws; "
                f"got shapes {ins.shape} and {outs.shape}"
            )
        self._sizes["trials"] = self._sizes.get("trials", 0) + ins.size
        return self._bet("trials", count_trials(ins, outs))

    def bound(self) -> Bound:
        """Return the bound so far."""
        kinds = list(self._counts)
        return Bound(
            value=self.value,
            kind="lower_bound",
            rule=f"wealth of bets on {' and '.join(_WHAT[kind] for kind in kinds) or 'nothing'}",
            delta=self._delta,
            confidence=self._confidence,
            sample_sizes=dict(self._sizes),
            cap=(cap := self._cap()),
            saturated=self.value >= cap,
            assumptions=(
                *dict.fromkeys(name for kind in kinds for name in _ASSUMED[kind]),
                Assumption.ALL_ROUNDS_TOGETHER,
            ),
        )

    def log_wealth(self) -> Floats:
        """Return ln of the wealth against each candidate, (candidates,)."""
        return self._wealth(self._counts)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned."""
        super().restore(state)
        self.log_wealth()  # raises if the counts are not those of such bets

    def _bet(self, kind: _Evidence, counts: Indices) -> float:
        """Add what came of some bets and note what is refuted now."""
        self._counts[kind] = counts + self._counts.get(kind, 0)
        self._refuted |= self.log_wealth() >= self._needed
        return self.value

    def _wealth(self, counts: Mapping[_Evidence, Indices]) -> Floats:
        """Return ln of the wealth if these had been the outcomes."""
        total = np.zeros(self._epsilons.size)
        for kind, outcomes in counts.items():
            total += log_wealth(self._table(kind), outcomes)
        return total

    def _table(self, kind: str) -> Floats:
        """Return what the bets of a kind pay, computed once."""
        if kind not in self._bets:
            is_coin = kind == "canaries"
            self._bets[kind] = (
                canary_bets(self._epsilons) if is_coin else trial_bets(self._epsilons, self._delta)
            )
        return self._bets[kind]

    def _cap(self) -> float:
        """Return the bound if every included canary had hit, and every trial had been right."""
        best = {}
        for kind, counts in self._counts.items():
            kept = counts[..., 2:].copy() if kind == "canaries" else counts[..., :0]
            lost = counts[..., : counts.shape[-1] - kept.shape[-1]]
            won = np.zeros_like(lost)
            won[..., 0] = lost.sum(axis=-1)
            best[kind] = np.concatenate([won, kept], axis=-1)
        return self._largest((self._wealth(best) >= self._needed) | self._refuted)

    def _largest(self, refuted: NDArray[np.bool_]) -> float:
        """Return the largest candidate that is refuted together with every smaller one."""
        first_left = refuted.size if refuted.all() else int(refuted.argmin())
        return float(self._epsilons[first_left - 1]) if first_left else 0.0


def _ascending(candidates: ArrayLike) -> Floats:
    """Return the candidates, or raise."""
    row = within("candidates", candidates, lowest=0.0, below=math.inf)
    if row.ndim != 1 or not row.size or not (np.diff(row) > 0).all():
        raise ValueError(f"candidates must be one ascending row, got shape {row.shape}")
    return row
