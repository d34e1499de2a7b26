"""Lower bounds from one run with many canaries: guesses or p-values in, bounds out.

Each canary is in or out by its own fair coin, and an attacker guesses some of the coins. Sources:
Steinke, Nasr and Jagielski 2023, Privacy Auditing with One (1) Training Run (arXiv:2305.08846),
Theorem 5.2, which assumes nothing about the mechanism, not even independent guesses; Mahloujifar,
Melis and Chaudhuri 2024, Auditing f-Differential Privacy in One Run (arXiv:2410.22235),
Algorithm 3, for a trade-off curve of a known family. Ours differs: the second searches the
family's own parameter, which does not depend on delta, and converts it to epsilon afterwards.

Bounds from p-values: all canaries of a run share its noise, so their scores are dependent. Both
bounds hold for any dependence. `coin_bound` uses that a fair coin decided whether each canary takes
part; `share_bound` needs no coins. The p-values of excluded canaries are exact, so both can show an
ε far above ln(samples). `headline` chooses between them, and `detectable_epsilon` says beforehand
how far it can see: what a mechanism must leak for a claim to be refuted.

`coin_bound` is one test from the evidence of all canaries, at its full level. Each canary gives
*evidence* x against an ε. If the ε is true, then given everything before, P(x ≥ a) ≤ 1/(1 + e^a)
for every a. Most canaries may be seen a little, or a few of them clearly. So the statistic is a
mixture of likelihood ratios, as in Cover's universal portfolio, with one part for each way of being
seen:

    T = mean over l of Π_i f_l(x_i), where f_l rises, and its mean is 1 if P(x ≥ a) = 1/(1 + e^a)

1. T rises with every x. So T ≥ t is most likely for independent x with exactly that tail, whatever
   noise the canaries share.
2. That probability is simulated by draws that have the density T, so that each of them counts 1/T
   (importance sampling): small levels need no more draws than large ones. Three standard errors
   are added to it, so the level is kept for the draws that are used and not just on average.
3. No f_l depends on ε, and x falls as ε grows. So data that refute an ε refute every smaller one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, expit, gammaln, log_expit, ndtr, ndtri, ndtri_exp, stdtrit

from leakmeter.auditors.bounds.gaussian import brent_root, epsilon_gaussian
from leakmeter.auditors.bounds.lower_bound import checked_row
from leakmeter.auditors.canary_draws import MAX_SCORE, SEED_BITS
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Bound
from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Floats, Indices, within
from leakmeter.auditors.wording import Assumption

# Mean scores of visible canaries, in standard deviations of the null.
_MEANS: Final = 2.0 ** (np.arange(-2, 8) / 2)
# Evidence is counted in bins of 0.1, from −3 on. In k canaries, more than ln k + 6 is rare: bins of
# 1 beyond it serve small levels.
_LOWEST, _FINE, _RARE, _COARSE, _HIGHEST = -3.0, 0.1, 6.0, 1.0, 26.0
_NATS: Final = 6.0  # information of all canaries in the weakest case that a part is made for
_DRAWS: Final = 8000
_MIN_DRAWS: Final = 50  # draws behind a standard error
_ERRORS: Final = 3.0  # standard errors that are paid for
_TIE: Final = 1e-9


def shares(num_canaries: int) -> Floats:
    """Return which shares of the included canaries may be visible, (shares,).

    1, 1/4, 1/16 and so on, as long as at least one visible canary is expected.
    """
    return np.asarray(0.25 ** np.arange(max(int(math.log(num_canaries / 2, 4)), 0) + 1))


@dataclass(frozen=True, eq=False)
class MixtureTest:
    """The statistic for a number of canaries, and its distribution in the worst case.

    Attributes:
        edges: Evidence at which the next bin begins, ascending, (bins - 1,).
        log_ratios: ln f of every bin, (bins, parts).
        drawn: ln T of draws, descending; those where a standard error means something.
        chances: Upper limit on P(T ≥ t) at each of these, ascending.
    """

    edges: Floats
    log_ratios: Floats
    drawn: Floats
    chances: Floats

    def log_statistic(self, reached: NDArray[Any], num_canaries: int) -> Floats:
        """Return ln T from how many canaries reach each edge, (..., bins - 1)."""
        ends = np.zeros((*reached.shape[:-1], 1))
        counts = -np.diff(reached, axis=-1, prepend=ends + num_canaries, append=ends)
        return log_mean(counts @ self.log_ratios)

    def threshold(self, level: float) -> float:
        """Return a ln t that T exceeds with probability at most `level` if ε is true."""
        # The mean of T is 1, so P(T ≥ t) ≤ 1/t without any draw. A tie with a draw, up to rounding,
        # exceeds nothing.
        kept = int(np.searchsorted(self.chances, level, side="right"))
        from_draws = float(self.drawn[kept - 1]) + _TIE if kept else math.inf
        return min(from_draws, -math.log(level))


@functools.lru_cache(maxsize=64)
def mixture_test(num_canaries: int) -> MixtureTest:
    """Return the statistic for so many canaries: 40 ms for a hundred, 80 ms for a thousand."""
    rare = math.log(num_canaries) + _RARE
    edges = np.append(
        np.arange(_LOWEST, rare, _FINE), rare + np.arange(0, _HIGHEST - _RARE, _COARSE)
    )
    null = -np.diff(expit(-edges), prepend=1.0, append=0.0)  # (bins,)
    ratios = _parts(num_canaries, edges, null)
    log_ratios, num_parts = np.log(ratios.T), len(ratios)
    rng = stream(0, "combination", num_canaries)
    numbers = rng.multinomial(_DRAWS, np.full(num_parts, 1 / num_parts))
    drawn = np.empty(0)
    for part, number in zip(ratios * null, numbers, strict=True):
        counts = rng.multinomial(num_canaries, part / part.sum(), number)
        drawn = np.append(drawn, log_mean(counts @ log_ratios))
    drawn = np.sort(drawn)[::-1]
    weight = np.exp(-drawn)
    mean, square = np.cumsum(weight) / _DRAWS, np.cumsum(weight**2) / _DRAWS
    chances = mean + _ERRORS * np.sqrt((square - mean**2) / _DRAWS)
    kept = slice(_MIN_DRAWS - 1, None)
    return MixtureTest(edges, log_ratios, drawn[kept], np.maximum.accumulate(chances[kept]))


def _parts(num_canaries: int, edges: Floats, null: Floats) -> Floats:
    """Return f of every part and bin, (parts, bins).

    A share of the included canaries is visible: with Gaussian scores of one of `_MEANS`, or, in the
    last rows, with equal scores. The ε of a part is where such canaries begin to refute it.
    """
    some, tails = shares(num_canaries), expit(-edges)
    mean = np.repeat(_MEANS, some.size)[:, None]
    share = np.tile(some, _MEANS.size + 1)[:, None]

    def ratios(at: Floats) -> Floats:
        # Evidence a against a large ε needs the score ε + a. Equal scores are equal evidence; the
        # nearest rising density is uniform from there on.
        gaussian, equal = np.split(at, [mean.size])
        z = -ndtri_exp(-np.maximum(gaussian + edges, 0.0))
        visible = np.concatenate([ndtr(mean - z), np.minimum(tails / expit(equal), 1.0)])
        reached = share / 2 * visible  # coins are fair, (parts, bins - 1)
        # The nearest rising density has one value below some edge: that edge where the mean of all
        # below is smallest. Canaries that are out are in the lowest bin.
        raw = -np.diff(reached, prepend=1.0, append=0.0) / null
        below = (1 - np.append(reached, np.zeros_like(share), axis=1)) / np.cumsum(null)
        edge = below.argmin(axis=1)[:, None]
        pooled = np.where(np.arange(null.size) <= edge, below.min(axis=1, keepdims=True), raw)
        rising = np.minimum.accumulate(pooled[:, ::-1], axis=1)[:, ::-1]  # whatever rounding does
        return np.asarray(rising / (rising @ null)[:, None])

    low = np.repeat([0.0, -20.0], [mean.size, some.size])[:, None]
    high = np.full_like(low, 200.0)
    for _ in range(18):
        middle = (low + high) / 2
        found = ratios(middle)
        is_much = num_canaries * (found * null * np.log(found)).sum(axis=1, keepdims=True) > _NATS
        low, high = np.where(is_much, middle, low), np.where(is_much, high, middle)
    return ratios(low)


def log_mean(logs: NDArray[Any]) -> Floats:
    """Return ln of the mean of e^logs along the last axis."""
    most = logs.max(axis=-1, keepdims=True)  # so that no exponential overflows
    return np.asarray(most[..., 0] + np.log(np.exp(logs - most).mean(axis=-1)))


def one_run_epsilon(
    num_canaries: int, num_guesses: int, num_correct: int, delta: float, confidence: float = 0.95
) -> Bound:
    """Return the epsilon that one run's guesses refute, whatever the mechanism.

    Args:
        num_canaries: Number of canaries with a coin.
        num_guesses: Number of coins that were guessed; the attacker abstained on the others.
        num_correct: Number of correct guesses.
        delta: In [0, 1).
        confidence: In (0, 1).

    >>> round(one_run_epsilon(1000, 250, 214, 1e-5).value, 10)
    1.4766695287
    """

    def refuted(correct: int, level: float) -> float:
        return _last_positive(
            lambda epsilon: level - _p_value(epsilon, num_canaries, num_guesses, correct, delta)
        )

    rule = "one run, right guesses against randomised response, with the delta term"
    counts = num_canaries, num_guesses, num_correct
    return _from_guesses(refuted, rule, counts, delta, confidence)


def _p_value(epsilon: float, canaries: int, guesses: int, correct: int, delta: float) -> float:
    """Return an upper bound on P(at least `correct` right) under (epsilon, delta)-DP.

    Steinke et al. 2023, Theorem 5.2: P(W >= v) + 2 m delta max_i P(v > W >= v - i) / i for
    W ~ Binomial(guesses, 1 / (1 + e^-epsilon)).
    """
    if correct == 0:
        return 1.0
    tail = float(betainc(correct, guesses - correct + 1, expit(epsilon)))
    if delta == 0:
        return tail
    below = np.arange(correct - 1, -1, -1)  # W = v - 1, v - 2, …, 0
    log_pmf = (  # of the binomial, in logs, since e^-epsilon to the power of guesses underflows
        math.lgamma(guesses + 1)
        - gammaln(below + 1)
        - gammaln(guesses - below + 1)
        + below * log_expit(epsilon)
        + (guesses - below) * log_expit(-epsilon)
    )
    # The i-th cumulative sum is P(v > W >= v - i).
    worst = (np.cumsum(np.exp(log_pmf)) / np.arange(1, correct + 1)).max()
    return min(1.0, tail + 2 * canaries * delta * float(worst))


def one_run_gaussian_epsilon(
    num_canaries: int, num_guesses: int, num_correct: int, delta: float, confidence: float = 0.95
) -> Bound:
    """Return the epsilon that one run's guesses refute *if* the mechanism is mu-GDP.

    Arguments as in `one_run_epsilon`. Much tighter, and invalid for mechanisms outside this family.

    >>> round(one_run_gaussian_epsilon(1000, 250, 214, 1e-5).value, 4)
    2.4168
    """

    def refuted(correct: int, level: float) -> float:
        mu = _last_positive(lambda mu: _excess_mass(mu, num_canaries, num_guesses, correct, level))
        return epsilon_gaussian(delta, mu)

    rule = "one run, right guesses against a Gaussian trade-off curve"
    counts = num_canaries, num_guesses, num_correct
    return _from_guesses(refuted, rule, counts, delta, confidence, Assumption.GAUSSIAN_MECHANISM)


def _excess_mass(mu: float, canaries: int, guesses: int, correct: int, level: float) -> float:
    """Return by how much mu-GDP contradicts P(at least `correct` right) >= level; > 0 refutes.

    Mahloujifar et al. 2024, Algorithm 3: going down from `correct`, `right` and `wrong` are the
    least masses, per canary, of right and wrong guesses in runs with more than i right ones.
    They contradict mu-GDP if their sum exceeds the total mass, guesses / canaries.
    """
    # Runs with at least `correct` right guesses have probability `level` and so these masses.
    right = level * correct / canaries
    wrong = level * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
        # The trade-off curve of mu-GDP: mass `right` of one hypothesis forces at least this mass
        # of the other, that is of wrong guesses.
        more = max(wrong, float(ndtr(ndtri(right) - mu)))
        if more == wrong:  # a fixed point: further steps change nothing
            break
        right = min(1.0, right + (more - wrong) * i / (guesses - i))
        wrong = more
    return right + wrong - guesses / canaries


def _last_positive(gap: Callable[[float], float]) -> float:
    """Return the largest x >= 0 at which a decreasing function is still positive, 0 if nowhere."""
    if gap(0.0) <= 0:
        return 0.0
    low, high = _bracket(lambda x: gap(x) > 0)
    return brent_root(gap, low, high, xtol=1e-14, rtol=1e-14)


def _bracket(holds: Callable[[float], bool], halvings: int = 0) -> tuple[float, float]:
    """Return two points between which a condition, true at 0, ends to hold; from 0, 1, 2, 4, …"""
    low, high = 0.0, 1.0
    while holds(high):
        low, high = high, 2 * high
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def guess_by_rank(scores_in: ArrayLike, scores_out: ArrayLike, num_guesses: int) -> int:
    """Return how many guesses are right if the highest scores are guessed in, the lowest out.

    Half of the guesses go to each end. A choice between tied scores counts as wrong, because a
    guess must not depend on the truth.

    >>> guess_by_rank([2.0, 3.0, 9.0], [1.0, 2.5, 4.0], 4)
    2
    """
    ins, outs = np.asarray(scores_in, np.float64), np.asarray(scores_out, np.float64)
    scores = np.concatenate([ins, outs])
    if np.isnan(scores).any():
        raise BadValueError("scores_in and scores_out", "in [-inf, inf]", math.nan)
    within("num_guesses", num_guesses, lowest=0, highest=scores.size)
    is_in = np.arange(scores.size) < ins.size
    # The second key breaks ties in favour of the scores that would be guessed wrong.
    from_top = is_in[np.lexsort((is_in, -scores))]
    from_bottom = ~is_in[np.lexsort((~is_in, scores))]
    num_bottom = num_guesses // 2
    return int(from_top[: num_guesses - num_bottom].sum() + from_bottom[:num_bottom].sum())


def _from_guesses(
    refuted: Callable[[int, float], float],
    rule: str,
    counts: tuple[int, int, int],
    delta: float,
    confidence: float,
    *more: Assumption,
) -> Bound:
    """Return what right guesses refute; all of them right would give the cap."""
    canaries, guesses, correct = counts
    within("num_canaries", canaries, lowest=1)
    within("num_guesses", guesses, lowest=0, highest=canaries)
    within("num_correct", correct, lowest=0, highest=guesses)
    within("delta", delta, lowest=0.0, below=1.0)
    within("confidence", confidence, above=0.0, below=1.0)
    level = 1 - confidence
    return Bound(
        value=refuted(correct, level),
        kind="lower_bound",
        rule=rule,
        delta=delta,
        confidence=confidence,
        sample_sizes={"canaries": canaries, "guesses": guesses, "correct": correct},
        cap=refuted(guesses, level),
        saturated=correct == guesses,
        assumptions=(Assumption.FAIR_COINS, Assumption.FIXED_GUESSES, *more),
    )


# Shares that `share_bound` tests, fixed beforehand; they split the allowed failure probability.
SHARES: Final = (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32)
FEW: Final = 10  # of fewer canaries, shares that ask for the same count are paid for once
_ROUNDING: Final = 1e-12  # a level below this is a difference of equal numbers
_SLACK: Final = 1e-9  # rounding may put ln p this far above 0


def coin_bound(
    log_p: ArrayLike, included: ArrayLike, *, delta: float, confidence: float = 0.95
) -> Bound:
    """Return the ε that the p-values of canaries refute, whatever the mechanism.

    Under (ε, δ)-DP, given the transcript and the earlier canaries, the probability that a canary is
    in *and* has p ≤ e^−c is at most q(c) = e^(ε−c) / (1 + e^(ε−c) + e^−ε·(1 − e^−c)), apart from a
    part that is at most (1 + e^−ε)·δ/2 on average. Canaries that are out score −∞. Except with
    probability at most (1 + e^−ε)·k·δ/2, independent scores with the tail q(c) dominate these
    scores. So they dominate every statistic that rises with the scores; `mixture_test` is one that
    adapts to how many canaries are seen, and how clearly.

    Args:
        log_p: ln of each canary's p-value under "out", or an upper limit on it, in [-inf, 0],
            (k,). Values of canaries that are out are not used.
        included: Whether the coin said in, also where the seat failed to deliver, (k,).
        delta: In [0, 1). The bound is 0 if k·δ is above 99 % of 1 − confidence.
        confidence: In (0, 1).

    >>> log_p = np.full(100, -50.0)
    >>> round(coin_bound(log_p, np.arange(100) < 50, delta=1e-6).value, 1)
    49.3
    """
    # Proof of that probability. For one canary v and transcript t let Q1(v, t) and Q0(v, t) be the
    # joint densities if it is in and if it is out, and r = Q1/Q0. Out, v is independent of t, so
    # the set A = {p ≤ e^−c} has Q0(A, t) ≤ e^−c·Q0(t). The coin is fair, so given t
    #     P(in and A) = R(A) / (1 + R(A) + R(not A)),  R(B) = ∫_B r dQ0 / Q0(t).
    # With δ = 0, r is from e^−ε to e^ε. The probability rises with R(A) and falls with R(not A), so
    # it is largest for R(A) = e^(ε−c) and R(not A) = e^−ε·(1 − e^−c): that is q(c). With a smaller
    # Q0(A, t) it is smaller.
    # With δ > 0 clip r to that range. This changes the distribution of coin and canary given t in
    # total variation by at most (G1 + e^−ε·G0) / (Q1 + Q0), where G1 = ∫ (Q1 − e^ε·Q0)₊ dv, and G0
    # is the same the other way round. DP bounds the integrals of both over t by δ, so the mean
    # change is at most (1 + e^−ε)·δ/2. Averaging Q1 and Q0 over later canaries and their coins
    # keeps (ε, δ)-DP; so all this holds given the earlier canaries, one after the other.
    scores, is_in = checked_p_values(log_p, included)
    within("delta", delta, lowest=0.0, below=1.0)
    within("confidence", confidence, above=0.0, below=1.0)
    k = scores.size
    test, own = mixture_test(k), np.sort(scores[is_in])

    def is_refuted(epsilon: float, needed: float) -> bool:
        reached = own.size - np.searchsorted(own, scores_at(test.edges, epsilon))
        return bool(test.log_statistic(reached, k) > needed)

    value, level = 0.0, 1 - confidence - k * delta
    for _ in range(3):
        if has_level(k, delta, confidence) and value < math.inf:
            value = _largest(functools.partial(is_refuted, needed=test.threshold(level)))
            # δ costs less at a larger ε. All up to `value` are refuted at a level that is smaller
            # than their own, so the next step leaves no gap below.
            level = 1 - confidence - (1 + math.exp(-value)) * k * delta / 2
    return Bound(
        value=value,
        kind="lower_bound",
        rule="p-values of canaries with fair coins, mixture of likelihood ratios",
        delta=delta,
        confidence=confidence,
        sample_sizes={"canaries": k, "in": int(is_in.sum())},
        assumptions=(Assumption.FAIR_COINS, Assumption.UNIFORM_CANARIES, Assumption.KNOWN_NULL),
    )


def has_level(num_canaries: int, delta: float, confidence: float) -> bool:
    """Return whether δ leaves `coin_bound` a hundredth of the failures, at ε = 0; else it is 0."""
    return num_canaries * delta <= 0.99 * (1 - confidence)


def _largest(holds: Callable[[float], bool]) -> float:
    """Return the largest x ≥ 0 up to which a condition holds, from below; 0 if it never does."""
    if not holds(0.0):
        return 0.0
    return math.inf if holds(math.inf) else _bracket(holds, 48)[0]


def scores_at(evidence: ArrayLike, epsilon: float) -> Floats:
    """Return the score c at which q(c) of `coin_bound` is 1/(1 + e^evidence)."""
    x = np.asarray(evidence, dtype=np.float64)
    # 1/q − 1 = e^(c−ε)·(1 + e^−ε) − e^−2ε
    return np.asarray(epsilon + np.logaddexp(x, -2 * epsilon) - math.log1p(math.exp(-epsilon)))


def share_bound(scores: ArrayLike, *, delta: float, confidence: float = 0.95) -> Bound:
    """Return the ε that the scores of included canaries refute, without coins.

    Under (ε, δ)-DP each canary scores s or more with probability at most e^(ε−s) + δ. If this is
    α_f·j/n, then j of n canaries do so with probability at most α_f (Markov's inequality). So the
    j-th largest score s_(j), j = ⌈f·n⌉, proves ε ≥ s_(j) + ln(α_f·j/n − δ). This holds for any
    dependence, and is useful only above ε ≈ 5.

    Args:
        scores: −ln p of the included canaries, in [0, inf], (n,).
        delta: In [0, 1). A share proves nothing where α_f·j/n ≤ δ.
        confidence: In (0, 1); the shares f = 1/2 … 1/32 split the allowed failure equally. Of fewer
            than ten canaries, several shares are the same j: these count once.

    >>> round(share_bound(np.full(64, 50.0), delta=1e-6).value, 2)
    44.7
    """
    values = checked_row("scores", scores)
    if (values < -_SLACK).any():
        raise BadValueError("scores", "-ln p, in [0, inf]", values.min())
    within("delta", delta, lowest=0.0, below=1.0)
    within("confidence", confidence, above=0.0, below=1.0)
    n = values.size
    asked, log_chances = asked_shares(n, delta, confidence)
    useful = np.isfinite(log_chances)  # otherwise an infinite score would be added to ln 0
    proven = np.sort(values)[n - asked[useful]] + log_chances[useful]
    return Bound(
        value=float(proven.max(initial=0.0)),
        kind="lower_bound",
        rule=f"score that a share of the canaries reaches, best of {asked.size} shares",
        delta=delta,
        confidence=confidence,
        sample_sizes={"in": n},
        assumptions=(Assumption.UNIFORM_CANARIES, Assumption.KNOWN_NULL),
    )


def asked_shares(num_in: int, delta: float, confidence: float) -> tuple[Indices, Floats]:
    """Return the counts j that `share_bound` asks for, descending, and ln(α_f·j/n − δ)."""
    asked = np.ceil(np.array(SHARES) * num_in).astype(np.int64)
    asked = np.unique(asked)[::-1] if num_in < FEW else asked
    chances = (1 - confidence) / asked.size * asked / num_in - delta
    return asked, np.array([math.log(c) if c > _ROUNDING else -math.inf for c in chances])


def checked_p_values(log_p: ArrayLike, included: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    """Return scores −ln p and coins, or raise."""
    scores, is_in = -checked_row("log_p", log_p), np.asarray(included)
    if is_in.shape != scores.shape or not np.isin(is_in, (0, 1)).all():
        allowed = f"{scores.size} truth values, one for each of log_p"
        raise BadValueError("included", allowed, is_in.tolist())
    if (scores < -_SLACK).any():
        raise BadValueError("log_p", "in [-inf, 0]", -scores.min())
    return np.maximum(scores, 0.0), is_in.astype(np.bool_)


def headline(
    scores: Floats,
    is_in: NDArray[np.bool_],
    log_p: Floats,
    *,
    delta: float,
    confidence: float,
    guesses: int | None,
    spent: float = 0.0,
    most: float = MAX_SCORE,
) -> tuple[Bound, dict[str, float]]:
    """Return the bound that does not need independent scores, and how many canaries made it.

    With fair coins it is `coin_bound`. Without them, or where k·δ takes nearly all of the failure
    probability, it is `share_bound`.

    Args:
        scores: Scores of all canaries; larger means more likely in.
        is_in: Whether the coin said in, also if the seat failed to deliver.
        log_p: ln of each score's p-value if the canary is out, or upper limits on it.
        delta: The delta of ε.
        confidence: Of the bound.
        guesses: None for canaries that were not included by fair coins.
        spent: Probability that any of `log_p` is too small, which the bound pays for.
        most: The largest −ln p that the null can show: the cap of the bound follows from it.

    Returns:
        The bound, and as facts `threshold`, a score −ln p, `share_at_threshold`, the share of
        included canaries that reach it, and `median_score` of the included ones. The threshold is
        the lowest at which this share is at least e^(ε − threshold): from 50:50, an attacker who
        says "in" there is right with odds of e^ε. Without a positive bound there is only the last.
    """
    shown = surprise(log_p)
    takes_coins = guesses is not None and has_level(scores.size, delta, confidence + spent)

    def from_scores(s: Floats) -> Bound:
        if takes_coins:
            return coin_bound(-s, is_in, delta=delta, confidence=confidence + spent)
        return share_bound(s[is_in], delta=delta, confidence=confidence + spent)

    bound = with_cap(shown, from_scores, most)
    own = np.sort(shown[is_in])
    facts = {"median_score": float(np.median(own))}
    if bound.value > 0:
        reach = 1 - np.searchsorted(own, own) / own.size  # the share that reaches each score
        made = own + np.log(reach) >= bound.value
        threshold = own[made.argmax()] if made.any() else own[-1]
        share = float((own >= threshold).mean())
        facts |= {"threshold": float(threshold), "share_at_threshold": share}
    return replace(bound, confidence=confidence, rule=bound.rule + p_value_note(spent, most)), facts


def surprise(log_p: Floats) -> Floats:
    """Return −ln p, at most 128·ln 2: canaries from seeds of 128 bits show no smaller p-value."""
    return np.minimum(-log_p, MAX_SCORE)


def with_cap(shown: Floats, bound_of: Callable[[Floats], Bound], most: float = MAX_SCORE) -> Bound:
    """Return a bound with its cap: its value if every score were the largest possible."""
    bound, cap = bound_of(shown), bound_of(np.full_like(shown, most)).value
    return replace(bound, cap=cap, saturated=bound.value >= cap)


def p_value_note(spent: float = 0.0, most: float = MAX_SCORE) -> str:
    """Return in words what was done to the p-values."""
    if most < MAX_SCORE:
        return f" (null from decoys, at a chance of {spent:.2g} to fail: scores up to {most:.1f})"
    simulated = f"null simulated, at a chance of {spent:.2g} to fail, " if spent else ""
    return f" ({simulated}scores capped at {MAX_SCORE:.1f}, seeds of {SEED_BITS} bits)"


_POWER: Final = 0.8  # share of runs that refute a claim
_RUNS: Final = 1000
_TINY: Final = 1e-9


@functools.lru_cache(maxsize=256)
def detectable_epsilon(
    epsilon: float,
    *,
    canaries: int,
    dim: int,
    delta: float,
    confidence: float,
    directions: int = 1,
    tail_factor: float = 1.0,
    has_coins: bool = True,
) -> float:
    """Return the ε at which a Gaussian mechanism is refuted in four of five runs.

    The claim of `epsilon` is refuted if the headline bound of canaries exceeds it: `coin_bound`
    with fair coins, else `share_bound`. Each canary is scored by its cosine with itself in Gaussian
    noise; other canaries do not hide it. The answer is simulated with 1,000 runs in less than half
    a second, and always the same.

    Args:
        epsilon: The claim.
        canaries: Number of canaries; with coins, half of them take part.
        dim: Length of the vectors.
        delta: In [0, 1), of the claim and of what is returned.
        confidence: In (0, 1), of the bound.
        directions: Each p-value is the smallest of so many, times their number.
        tail_factor: Each p-value is so many times that of a canary on the sphere.
        has_coins: Whether a fair coin decides about each canary; otherwise all take part.

    Returns:
        The smallest such ε at `delta`; infinity if no mechanism would be refuted so often.

    >>> found = detectable_epsilon(8.0, canaries=100, dim=10**6, delta=1e-5, confidence=0.95)
    >>> 15 < found < 20
    True
    """
    within("epsilon", epsilon, lowest=0.0, below=math.inf)
    within("canaries", canaries, lowest=1)
    within("dim", dim, lowest=2)
    within("delta", delta, lowest=0.0, below=1.0)
    within("confidence", confidence, above=0.0, below=1.0)
    within("directions", directions, lowest=1)
    within("tail_factor", tail_factor, lowest=1.0, below=math.inf)
    if has_coins and has_level(canaries, delta, confidence):
        number, chance, test = canaries, 0.5, mixture_test(canaries)
        level = 1 - confidence - (1 + math.exp(-epsilon)) * canaries * delta / 2
        needed, scores = test.threshold(level), scores_at(test.edges, epsilon)

        def refuted(reached: Indices) -> NDArray[np.bool_]:
            return np.asarray(test.log_statistic(reached, canaries) > needed)
    else:
        number, chance = max(canaries // 2, 1) if has_coins else canaries, 1.0
        asked, log_chances = asked_shares(number, delta, confidence)
        scores = epsilon - log_chances

        def refuted(reached: Indices) -> NDArray[np.bool_]:
            return np.asarray((reached >= asked).any(axis=-1))

    reach = _reach(scores, dim, directions * tail_factor)

    def is_too_little(mean: float) -> bool:
        bins = -np.diff(chance * reach(mean), prepend=1.0, append=0.0)
        counts = stream(0, "detectable").multinomial(number, bins, _RUNS)
        return bool(refuted(number - counts.cumsum(axis=1)[:, :-1]).mean() < _POWER)

    if is_too_little(math.inf):
        return math.inf
    return epsilon_gaussian(delta, _bracket(is_too_little, 10)[1])


def _reach(scores: Floats, dim: int, times: float) -> Callable[[float], Floats]:
    """Return how likely a canary in Gaussian noise has each score or more, given its mean.

    A p-value is so many `times` that of a cosine.

    From its cosine t follows t·√(d − 1)/√(1 − t²): Student's t with d − 1 degrees of freedom if the
    canary is out, the noncentral t if it is in.
    """
    # The tail of the noncentral t by Johnson and Welch 1940, as if the length of the noise were
    # normal. A score of at least 0 needs no evidence; a p-value of exactly 1 would be at −∞.
    freedom = dim - 1
    p = np.exp(-np.clip(scores, _TINY, MAX_SCORE)) / times
    at = -stdtrit(freedom, p)
    scale = np.sqrt(1 + at**2 / (2 * freedom))

    def tails(mean: float) -> Floats:
        visible = ndtr((mean - at * (1 - 1 / (4 * freedom))) / scale)
        visible = np.select([scores <= 0, scores > MAX_SCORE], [1.0, 0.0], visible)
        return np.minimum.accumulate(visible)

    return tails
