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

Every kind has several bets, one for each way of being seen, or for each threshold and stake. Wealth
is spread over them once, as in Cover's universal portfolio, so nobody has to know the right one
beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, ndtr, ndtri_exp

from leakmeter.auditors.bounds.one_run import checked_p_values, log_mean, shares
from leakmeter.auditors.canary_draws import MAX_SCORE
from leakmeter.auditors.codec import CodecError, Kept, Resumable
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Bound
from leakmeter.auditors.values import Floats, Indices, within
from leakmeter.auditors.wording import Assumption

_MAX_VISIBLE: Final = (
    0.98  # share of visible canaries: at 1, one that failed to deliver would end a bet
)
# Means of visible canaries in standard deviations of the null, relative to √(2ε + ½). Around 1 they
# score about ε. Where many canaries are seen, the highest scores of smaller means reach it.
_MEANS: Final = np.array([0.5, 0.65, 0.8, 0.95, 1.15])
_ABOVE: Final = np.array([1.0, 3.0, 6.0])  # scores above ε that visible canaries reach for certain
_CERTAIN: Final = 1 / 3  # of the wealth, for bets on these
# Share of the wealth that a wrong trial loses. All of it would end every bet at once.
STAKES: Final = np.array([0.98, 0.7, 0.4, 0.2, 0.1, 0.05, 0.02])
# Log-likelihood ratios from which on a trial counts as decided.
_DECIDED: Final = np.array([0.0, 0.5, 1.0, 2.0, 3.0, 4.5, 6.5])
_TINY: Final = 1e-12


class CanaryBets:
    """Bets on canaries: each against one ε, and for one way in which canaries may be seen.

    Let r₁ be the density of the p-value of a canary that is in, relative to one that is out, in
    such a case: a share of the canaries is visible, with Gaussian scores of a certain mean, or with
    scores that all reach a value above ε. DP allows densities r from e^−ε to e^ε; nearest to r₁ is
    r* = clip(κ·r₁, e^−ε, e^ε) with κ = (1 + ∫r*)/2. The bet is the likelihood ratio of the two: it
    pays κ·r₁/r* if the canary is in, and κ if it is out.

    Args:
        epsilons: Candidates, (ε,).
        planned: Most canaries that will be bet on; it decides how small a share may be visible.
    """

    # It gains nothing: whatever r is given the release, the mean payment is at most 1, that is
    # ∫ r·(κ·r₁/r* − 1) ≤ 1 − κ. What is in brackets is positive only where r* = e^ε, and negative
    # only where r* = e^−ε. So the left side is largest for r = r*, where it is
    # κ·∫r₁ − ∫r* = κ − (2κ − 1). A p-value that is too large lowers it, as r₁ falls with p.

    def __init__(self, epsilons: Floats, planned: int) -> None:
        some = _MAX_VISIBLE * shares(planned)
        self._epsilons = epsilons[:, None]
        scale, self._share = (part.ravel() for part in np.meshgrid(_MEANS, some, indexing="ij"))
        above, certain = (part.ravel() for part in np.meshgrid(_ABOVE, some, indexing="ij"))
        self._mean = scale * np.sqrt(2 * self._epsilons + 0.5)  # (ε, Gaussian bets)
        self._reaches = self._epsilons + above  # (ε, certain bets)
        # ln r₁ of canaries that reach this, and of the others.
        self._hit = self._reaches + np.log(certain + (1 - certain) * np.exp(-self._reaches))
        self._miss = np.log1p(-certain)
        # Relative to equal weights. Each share has half the weight of the next larger one.
        weights = np.concatenate(
            [
                np.tile(0.5 ** np.arange(some.size), kinds.size) * part / kinds.size
                for kinds, part in ((_MEANS, 1 - _CERTAIN), (_ABOVE, _CERTAIN))
            ]
        )
        self._log_weights = np.log(weights / weights.mean())
        self.log_out = self._log_kappas()  # ln of what a canary that is out pays, (ε, bets)

    def log_in(self, scores: ArrayLike) -> Floats:
        """Return ln of what a canary that is in pays, given its −ln p, (..., ε, bets)."""
        score = np.asarray(scores, dtype=np.float64)[..., None, None]
        odds = np.log(self._share) + self._mean * -ndtri_exp(-score) - self._mean**2 / 2
        gaussian = np.logaddexp(np.log1p(-self._share), odds)
        certain = np.where(score >= self._reaches, self._hit, self._miss)
        both = self.log_out + np.concatenate([gaussian, certain], axis=-1)  # ln κ·r₁
        return np.asarray(both - np.clip(both, -self._epsilons, self._epsilons))

    def log_wealth(self, log_paid: Floats) -> Floats:
        """Return ln of the wealth from ln of what each bet has paid, (..., bets)."""
        return log_mean(log_paid + self._log_weights)

    def _log_kappas(self) -> Floats:
        """Return ln κ of every bet by bisection, from below: a smaller κ gains no more."""
        low = np.full((len(self._hit), self._share.size + self._hit.shape[1]), 0.5)
        high = np.full_like(low, 2.0)
        for _ in range(30):
            middle = (low + high) / 2
            is_low = 2 * middle < 1 + self._mass(middle)
            low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
        return np.asarray(np.log(low))

    def _mass(self, kappa: Floats) -> Floats:
        """Return ∫r* for some κ, (ε, bets)."""
        epsilon, mean, share = self._epsilons, self._mean, self._share
        gaussian, certain = np.split(kappa, [share.size], axis=1)

        def crossing(limit: Floats) -> Floats:
            """Return the normal quantile z from which on κ·r₁ is above e^limit."""
            odds = (np.exp(limit) / gaussian - 1 + share) / share
            with np.errstate(divide="ignore"):
                return np.asarray((np.log(np.maximum(odds, 0.0)) + mean**2 / 2) / mean)

        high, low = crossing(epsilon), crossing(-epsilon)
        between = (1 - share) * (ndtr(-low) - ndtr(-high))
        between += share * (ndtr(mean - low) - ndtr(mean - high))
        ends = np.exp(epsilon + log_ndtr(-high)) + np.exp(log_ndtr(low) - epsilon)
        reached = np.exp(-self._reaches)
        hit, miss = (
            np.exp(np.clip(np.log(certain) + part, -epsilon, epsilon))
            for part in (self._hit, self._miss)
        )
        both = ends + gaussian * between, reached * hit + (1 - reached) * miss
        return np.concatenate(both, axis=1)


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
    return log_mean(each.reshape(*each.shape[:-2], -1))


# Every 0.05 up to 20, where an attacker is practically certain. Then every 0.5, up to what p-values
# from seeds of 128 bits can show.
_CANDIDATES: Final = np.concatenate([np.arange(400) / 20, np.arange(40, 177) / 2])
_ROUNDING: Final = 1e-12  # a level below this is a difference of equal numbers
# What bets are on, in words, and what they assume.
_EVIDENCE: Final = {
    "canaries": (
        "coins and p-values of canaries",
        (Assumption.FAIR_COINS, Assumption.UNIFORM_CANARIES, Assumption.KNOWN_NULL),
    ),
    "trials": ("trials", (Assumption.SEPARATE_TRIALS, Assumption.FIXED_THRESHOLD)),
}


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

    _scores: Kept[list[float]]  # of the included canaries
    _counts: Kept[Indices]  # of the trials
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
        level = 1 - confidence - (1 + np.exp(-self._epsilons)) / 2 * planned * delta
        self._needed = np.where(level > _ROUNDING, -np.log(np.maximum(level, _ROUNDING)), np.inf)
        self._scores, self._paid = [], np.zeros(1)
        self._counts = np.zeros((_DECIDED.size, 4), dtype=np.int64)
        self._sizes = {}
        self._refuted = np.zeros(self._epsilons.size, dtype=bool)

    @property
    def value(self) -> float:
        """The largest candidate refuted so far together with every smaller one, 0 if none is."""
        return self._largest(self._refuted)

    def add_canaries(self, log_p: ArrayLike, included: ArrayLike) -> float:
        """Bet on canaries that have played for the last time, and return the bound.

        Under (ε, δ)-DP, given the release and the earlier canaries, the probability of each outcome
        is that of a mechanism that the bets allow for, apart from a part that is at most
        (1 + e^−ε)·δ/2 on average, as in `coin_bound`. So bets gain as under ε-DP, except with
        probability at most (1 + e^−ε)·planned·δ/2.

        Args:
            log_p: ln of each canary's p-value under "out", given the release so far, or an upper
                limit on it; below 2^-128 it counts as 2^-128. Values of canaries that are out are
                not used, (n,).
            included: Whether the coin said in, also where the seat failed to deliver, (n,).
        """
        if not np.size(log_p):
            return self.value
        scores, is_in = checked_p_values(log_p, included)
        num_in = int(is_in.sum())
        if (total := self._sizes.get("canaries", 0) + scores.size) > self._planned:
            raise BadValueError(
                "planned", f"at least the number of coins bet on, {total}", self._planned
            )
        self._sizes |= {"canaries": total, "in": self._sizes.get("in", 0) + num_in}
        self._add(np.minimum(scores[is_in], MAX_SCORE).tolist())
        return self._look()

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
        self._counts = self._counts + count_trials(ins, outs)
        return self._look()

    def bound(self) -> Bound:
        """Return the bound so far."""
        kinds = [_EVIDENCE[kind] for kind in _EVIDENCE if kind in self._sizes]
        return Bound(
            value=self.value,
            kind="lower_bound",
            rule=f"wealth of bets on {' and '.join(words for words, _ in kinds) or 'nothing'}",
            delta=self._delta,
            confidence=self._confidence,
            sample_sizes=dict(self._sizes),
            cap=(cap := self._cap()),
            saturated=self.value >= cap,
            assumptions=(
                *dict.fromkeys(name for _, assumed in kinds for name in assumed),
                Assumption.ALL_ROUNDS_TOGETHER,
            ),
        )

    def log_wealth(self) -> Floats:
        """Return ln of the wealth against each candidate, (candidates,)."""
        return self._wealth(self._paid, self._counts)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned."""
        super().restore(state)
        scores, self._scores, self._paid = self._scores, [], np.zeros(1)
        if len(scores) != self._sizes.get("in", 0) or not all(score >= 0 for score in scores):
            raise CodecError(f"scores must be those of {self._sizes.get('in', 0)} canaries")
        self._add(scores)

    @cached_property
    def _canary_bets(self) -> CanaryBets:
        return CanaryBets(self._epsilons, self._planned)

    @cached_property
    def _trial_bets(self) -> Floats:
        return trial_bets(self._epsilons, self._delta)

    def _add(self, scores: list[float]) -> None:
        """Bet on included canaries, one after the other: in any portions the sum is the same."""
        self._scores = self._scores + scores
        for score in scores:
            self._paid = self._paid + self._canary_bets.log_in(score)

    def _look(self) -> float:
        """Note what is refuted now and return the bound."""
        self._refuted |= self.log_wealth() >= self._needed
        return self.value

    def _wealth(self, paid: Floats, counts: Indices) -> Floats:
        """Return ln of the wealth if included canaries had paid this, and trials gone this way."""
        total = np.zeros(self._epsilons.size)
        if "canaries" in self._sizes:
            num_out = self._sizes["canaries"] - self._sizes["in"]
            total += self._canary_bets.log_wealth(paid + num_out * self._canary_bets.log_out)
        if "trials" in self._sizes:
            total += log_wealth(self._trial_bets, counts)
        return total

    def _cap(self) -> float:
        """Return the bound if every included canary were seen as clearly as seeds allow.

        All trials are then right.
        """
        paid, won = self._paid, np.zeros_like(self._counts)
        if "canaries" in self._sizes:
            paid = len(self._scores) * self._canary_bets.log_in(MAX_SCORE)
        won[:, 0] = self._counts.sum(axis=-1)
        return self._largest((self._wealth(paid, won) >= self._needed) | self._refuted)

    def _largest(self, refuted: NDArray[np.bool_]) -> float:
        """Return the largest candidate that is refuted together with every smaller one."""
        first_left = refuted.size if refuted.all() else int(refuted.argmin())
        return float(self._epsilons[first_left - 1]) if first_left else 0.0


def _ascending(candidates: ArrayLike) -> Floats:
    """Return the candidates, or raise."""
    row = within("candidates", candidates, lowest=0.0, below=math.inf)
    if row.ndim != 1 or not row.size or not (np.diff(row) > 0).all():
        raise BadValueError("candidates", "one ascending row", row.shape)
    return row
