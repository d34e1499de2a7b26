"""Lower bounds from one run with many canaries: guesses in, bounds out.

Each canary is in or out by its own fair coin, and an attacker guesses some of the coins. Sources:
Steinke, Nasr and Jagielski 2023, Privacy Auditing with One (1) Training Run (arXiv:2305.08846),
Theorem 5.2, which assumes nothing about the mechanism, not even independent guesses; Mahloujifar,
Melis and Chaudhuri 2024, Auditing f-Differential Privacy in One Run (arXiv:2410.22235),
Algorithm 3, for a trade-off curve of a known family. Ours differs: the second searches the
family's own parameter, which does not depend on delta, and converts it to epsilon afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc, expit, gammaln, log_expit, ndtr, ndtri

from leakmeter.auditors._validate import within
from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.finding import Bound
from leakmeter.auditors.gaussian.pair import epsilon_gaussian

_ASSUMPTIONS = (Assumption.FAIR_COINS, Assumption.FIXED_GUESSES)


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
    level = _level(num_canaries, num_guesses, num_correct, delta, confidence)

    def refuted(correct: int) -> float:
        return _last_positive(
            lambda epsilon: level - _p_value(epsilon, num_canaries, num_guesses, correct, delta)
        )

    return Bound(
        value=refuted(num_correct),
        kind="lower_bound",
        rule="one run, right guesses against randomised response, with the delta term",
        delta=delta,
        confidence=confidence,
        sample_sizes={"canaries": num_canaries, "guesses": num_guesses, "correct": num_correct},
        cap=refuted(num_guesses),
        saturated=num_correct == num_guesses,
        assumptions=_ASSUMPTIONS,
    )


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
    level = _level(num_canaries, num_guesses, num_correct, delta, confidence)

    def refuted(correct: int) -> float:
        mu = _last_positive(lambda mu: _excess_mass(mu, num_canaries, num_guesses, correct, level))
        return epsilon_gaussian(delta, mu)

    return Bound(
        value=refuted(num_correct),
        kind="lower_bound",
        rule="one run, right guesses against a Gaussian trade-off curve",
        delta=delta,
        confidence=confidence,
        sample_sizes={"canaries": num_canaries, "guesses": num_guesses, "correct": num_correct},
        cap=refuted(num_guesses),
        saturated=num_correct == num_guesses,
        assumptions=(*_ASSUMPTIONS, Assumption.GAUSSIAN_MECHANISM),
    )


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
    from scipy.optimize import brentq  # a fifth of a second, and few ask

    if gap(0.0) <= 0:
        return 0.0
    low, high = 0.0, 1.0  # doubled until the sign changes, then solved by Brent's method
    while gap(high) > 0:
        low, high = high, 2 * high
    return float(brentq(gap, low, high, xtol=1e-14, rtol=1e-14))


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
        raise ValueError("scores_in and scores_out must be in [-inf, inf], got nan")
    within("num_guesses", num_guesses, lowest=0, highest=scores.size)
    is_in = np.arange(scores.size) < ins.size
    # The second key breaks ties in favour of the scores that would be guessed wrong.
    from_top = is_in[np.lexsort((is_in, -scores))]
    from_bottom = ~is_in[np.lexsort((~is_in, scores))]
    num_bottom = num_guesses // 2
    return int(from_top[: num_guesses - num_bottom].sum() + from_bottom[:num_bottom].sum())


def _level(
    num_canaries: int, num_guesses: int, num_correct: int, delta: float, confidence: float
) -> float:
    """Return the allowed failure probability; raise if an argument is out of range."""
    within("num_canaries", num_canaries, lowest=1)
    within("num_guesses", num_guesses, lowest=0, highest=num_canaries)
    within("num_correct", num_correct, lowest=0, highest=num_guesses)
    within("delta", delta, lowest=0.0, below=1.0)
    within("confidence", confidence, above=0.0, below=1.0)
    return 1 - confidence
