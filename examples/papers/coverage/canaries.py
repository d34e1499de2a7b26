"""Mechanisms whose ε is known, and every bound that an audit of one run of them gives.

Each mechanism is simulated exactly, through matrices as small as the number of canaries. Some break
what a conditional bound assumes: scores that depend on one coin, releases of low rank, mechanisms
that are not Gaussian. Bounds without a condition must keep their confidence for all of them.

Andrew et al. (2024), arXiv:2302.03098, section 5: the published ε_lo takes the best threshold on
the very scores that are counted; it is beside ours where all canaries are in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import beta

from leakmeter.auditors.bounds.lower_bound import Scores, epsilon_lower_bound
from leakmeter.auditors.bounds.one_run import (
    coin_bound,
    guess_by_rank,
    headline,
    one_run_epsilon,
    share_bound,
)
from leakmeter.auditors.canaries.canary_auditor import one_fit
from leakmeter.auditors.canaries.one_shot import prove
from leakmeter.auditors.canaries.transcript import log_p_of_largest, null_maxima
from leakmeter.auditors.canary_draws import cosine_logsf
from leakmeter.auditors.finding import Bound
from leakmeter.auditors.values import Floats
from leakmeter.papers.andrew2024 import audit
from leakmeter.papers.andrew2024.gaussian_sum import simulate_cosines, simulate_rounds
from leakmeter.papers.coverage.case import CONFIDENCE, Case, Coins, Rng, no_bound
from leakmeter.papers.gaussian import delta_gaussian, gaussian_sigma

CANARIES, GUESSES = 200, 40  # coins of a run, and how many of them the one-run bounds guess
_DELTA, _SMALL_DELTA = 1e-5, 1e-6  # with coins, and where all canaries are in
_ROUNDS, _REPETITIONS = 8, 2
_POOL = 5000  # draws of the null of the largest cosine
_SPENT = 0.1 * (1 - CONFIDENCE)  # of the failures, for limits from these draws
_SHOWN = 20.0  # −ln p of a canary that is shown


@dataclass(frozen=True)
class Run:
    """What one run shows of all canaries."""

    log_p: Floats  # ln of p-values under "out", or upper limits on them
    is_in: Coins
    cosines: Floats | None = None  # what guesses rank; None for the p-values
    spent: float = 0.0  # chance that any of `log_p` is too small


def published_cases() -> tuple[Case, ...]:
    """Return the Gaussian sum of canaries that are all in, as Andrew et al. audit it."""
    return tuple(
        Case(f"all in, ε = {e:g}", _SMALL_DELTA, e, partial(_all_in, e))
        for e in (0.0, 1.0, 3.0, 10.0)
    )


def cases() -> tuple[Case, ...]:
    """Return every mechanism whose canaries have fair coins."""
    gaussian = [("", 10**6, e) for e in (1.0, 3.0, 10.0, 50.0)]
    gaussian += [(" d = 100,", 100, e) for e in (0.0, 3.0, 10.0)]
    low_rank = ((5, "rank-5 updates"), (1, "one-coordinate updates"))
    coins = (0.06, 0.2, 0.5, 0.8)
    return (
        _case("no leak", 0.0, lambda rng: Run(_uniform(rng), _coins(rng))),
        *(
            _case(f"Gaussian sum,{words} ε = {e:g}", e, partial(_gaussian, dim, e))
            for words, dim, e in gaussian
        ),
        *(_case(f"all rounds, ε = {e:g}", e, partial(_all_rounds, e)) for e in (0.0, 3.0, 10.0)),
        *(
            _case(f"{name}, ε = {e:g}", e, partial(_low_rank, rank, e))
            for rank, name in low_rank
            for e in (0.0, 10.0)
        ),
        _case("Laplace noise", 1.0, partial(_laplace, 1.0)),
        _case("randomised response", 1.0, partial(_response, 1.0)),
        *(_shared_coin(p, _DELTA) for p in coins),
        *(_shared_coin(p, 0.75 * p) for p in coins),
        *(
            _case("all revealed at once", 0.0, partial(_reveal, chance, 1), chance)
            for chance in (2e-4, 0.05, 0.1, 0.2)
        ),
        _case("each revealed by itself", 0.0, partial(_reveal, 2e-4, CANARIES), 2e-4),
    )


def _case(name: str, epsilon: float, play: Callable[[Rng], Run], delta: float = _DELTA) -> Case:
    """Return a mechanism whose run, `play`, shows something of each canary."""
    return Case(name, delta, epsilon, lambda rng: bounds_of(play(rng), delta))


def bounds_of(run: Run, delta: float) -> dict[str, Bound]:
    """Return every bound from one run with coins, those without a condition first."""
    scores, level = -run.log_p if run.cosines is None else run.cosines, CONFIDENCE + run.spent
    seen = (scores, run.is_in, run.log_p)
    settings: dict[str, Any] = {"delta": delta, "confidence": CONFIDENCE, "guesses": GUESSES}
    settings["spent"] = run.spent
    known, sampled, gaussian = prove(*seen, **settings)
    correct = guess_by_rank(scores[run.is_in], scores[~run.is_in], GUESSES)
    return {
        "headline": headline(*seen, **settings)[0],
        "coins": coin_bound(run.log_p, run.is_in, delta=delta, confidence=level),
        "one run": one_run_epsilon(scores.size, GUESSES, correct, delta, CONFIDENCE),
        "shares": share_bound(-run.log_p[run.is_in], delta=delta, confidence=level),
        "known null": known,
        "sampled null": sampled,
        "one run, Gaussian": gaussian,
    }


def _coins(rng: Rng) -> Coins:
    return rng.random(CANARIES) < 0.5


def _uniform(rng: Rng) -> Floats:
    """Return ln p of canaries that nothing shows anything of."""
    return -rng.standard_exponential(CANARIES)


def _laplace(epsilon: float, rng: Rng) -> Run:
    """Release each coin times ε with Laplace noise of scale 1."""
    is_in = _coins(rng)
    t = rng.laplace(size=CANARIES) + epsilon * is_in
    tail = np.exp(-np.abs(t)) / 2
    return Run(np.where(t > 0, np.log(tail), np.log1p(-tail)), is_in)


def _response(epsilon: float, rng: Rng) -> Run:
    """Release each coin, or with chance 1/(1 + e^ε) its opposite; a uniform breaks ties."""
    is_in = _coins(rng)
    lie = 1 / (1 + math.exp(epsilon))
    says_in = is_in ^ (rng.random(CANARIES) < lie)
    u = rng.random(CANARIES)
    return Run(np.log(np.where(says_in, lie * u, lie + (1 - lie) * u)), is_in)


def _reveal(chance: float, draws: int, rng: Rng) -> Run:
    """Show canaries that are in with some chance: by one draw for all, or by one for each."""
    is_in = _coins(rng)
    shown = is_in & (rng.random(draws) < chance)
    return Run(np.where(shown, -_SHOWN, _uniform(rng)), is_in)


def _shared_coin(p: float, delta: float) -> Case:
    """Return a mechanism whose one coin, of chance p, shows all canaries that are in.

    Other canaries' scores show the coin. Given it, a canary that is in is always where one that is
    out is with chance e^−t: p·(1 − e^(ε−t)) = δ.
    """
    name, epsilon = f"one coin shows all, p = {p:g}", _SHOWN + math.log1p(-delta / p)
    return _case(name, epsilon, partial(_reveal, p, 1), delta)


# Nothing leaks of canaries that are never sent: an ε of 0 sends them with a weight of 0.


@lru_cache
def _sigma(epsilon: float, repetitions: int) -> float:
    return gaussian_sigma(epsilon, _DELTA, math.sqrt(repetitions)) if epsilon else 1.0


def _gaussian(dim: int, epsilon: float, rng: Rng) -> Run:
    """Release the sum of all canaries that are in, with Gaussian noise (Algorithm 1)."""
    is_in, sigma = _coins(rng), _sigma(epsilon, 1)
    plays = (is_in[None] * float(epsilon > 0)).astype(np.float64)
    products, gram = simulate_rounds(dim, plays, np.zeros((1, 0)), sigma, rng)
    cosines = products[0] / math.sqrt(gram[0, 0])
    return Run(cosine_logsf(cosines, dim), is_in, cosines)


def _all_rounds(epsilon: float, rng: Rng, dim: int = 2000) -> Run:
    """Release all models of a run in which the honest clients keep moving the same way.

    Every canary that is in plays two of eight rounds: μ = √2/σ.
    """
    is_in, sigma = _coins(rng), _sigma(epsilon, _REPETITIONS)
    drift = np.full((_ROUNDS, 1), 0.5 * sigma * math.sqrt(dim))  # half as long as the noise
    products, gram = simulate_rounds(dim, _plays(is_in, epsilon, rng), drift, sigma, rng)
    return _largest(products, gram, dim, is_in, rng)


def _low_rank(rank: int, epsilon: float, rng: Rng, dim: int = 100) -> Run:
    """Release a few coordinates of all models of a run; the others never change.

    With one coordinate, the cosines of a canary differ in their sign only.
    """
    is_in = _coins(rng)
    seen = rng.standard_normal((CANARIES, rank))
    rest = rng.chisquare(dim - rank, (CANARIES, 1))
    seen /= np.sqrt((seen**2).sum(axis=1, keepdims=True) + rest)
    noise = low_rank_sigma(rank, epsilon, dim) * rng.standard_normal((_ROUNDS, rank))
    released = _plays(is_in, epsilon, rng) @ seen + noise  # (rounds, rank)
    return _largest(released @ seen.T, released @ released.T, dim, is_in, rng)


@lru_cache
def low_rank_sigma(rank: int, epsilon: float, dim: int) -> float:
    """Return the noise for which low-rank updates have this ε; 1 where nothing is sent.

    A canary has a random length a, a² ~ Beta(rank/2, (dim − rank)/2), so δ(ε) is the mean of that
    of a Gaussian pair √2·a/σ apart.
    """
    if not epsilon:
        return 1.0
    lengths = (np.arange(4000) + 0.5) / 4000
    density = 2 * lengths * beta.pdf(lengths**2, rank / 2, (dim - rank) / 2) / lengths.size

    def gap(log_sigma: float) -> float:
        apart = math.sqrt(_REPETITIONS) * lengths / math.exp(log_sigma)
        leaks = np.asarray(delta_gaussian(np.full(lengths.size, epsilon), apart))
        return float(density @ leaks) - _DELTA

    return math.exp(float(brentq(gap, math.log(1e-3), math.log(10.0))))


def _plays(is_in: Coins, epsilon: float, rng: Rng) -> Floats:
    """Return who plays when (rounds, canaries): two rounds each."""
    order = rng.random((_ROUNDS, CANARIES)).argsort(axis=0)
    return np.asarray((order < _REPETITIONS) * is_in * float(epsilon > 0))


def _largest(products: Floats, gram: Floats, dim: int, is_in: Coins, rng: Rng) -> Run:
    """Return the run whose scores are largest cosines over rounds."""
    largest = (products / np.sqrt(np.diag(gram))[:, None]).max(axis=0)
    pool = null_maxima(gram, dim, _POOL, rng)
    log_p = log_p_of_largest(largest, pool, dim, _ROUNDS, _SPENT)
    return Run(log_p, is_in, largest, _SPENT)


def _all_in(epsilon: float, rng: Rng, dim: int = 10**6, canaries: int = 1000) -> dict[str, Bound]:
    """Audit a sum with all canaries in it; with ε = 0 canaries that nobody sent."""
    delta = _SMALL_DELTA
    # Cosines with a vector that canaries are no part of, each drawn exactly.
    alone = [(rng.standard_normal(canaries), rng.chisquare(dim - 1, canaries)) for _ in range(2)]
    out, inside = (along / np.sqrt(along**2 + beside) for along, beside in alone)
    if epsilon:
        inside = simulate_cosines(dim, canaries, gaussian_sigma(epsilon, delta), rng)
    ours = partial(epsilon_lower_bound, delta=delta, confidence=CONFIDENCE, same_run=True)
    z = math.sqrt(dim) * inside[None]
    known, sampled = Scores.of(z[0], None, audit.normal_logsf), Scores.of(inside, out, None)
    without = {
        "published, known null": audit.published(known, delta),
        "published, sampled null": audit.published(sampled, delta),
        "estimate, known std": float(one_fit(z, "known", delta)[0]),
        "estimate as printed": float(one_fit(z, "fitted", delta)[0]),
    }
    return {
        **{name: no_bound(value, name) for name, value in without.items()},
        "known null": ours(-cosine_logsf(inside, dim), null_logsf=np.negative),
        "sampled null": ours(inside, out),
    }
