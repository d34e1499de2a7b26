"""Mechanisms at exactly (ε, δ), round by round, and whether bets ever refute the true ε.

Many streams are drawn at once, each with all its rounds. What they pay follows from the bets of
`AnytimeBound` and their mixture; a test compares streams with the class itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_ndtr, ndtri
from scipy.stats import laplace

from leakmeter.auditors.bounds import anytime
from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Floats
from leakmeter.papers.coverage.case import ALLOWED, Coins, Rng
from leakmeter.papers.gaussian import gaussian_sigma

Counts = NDArray[np.int64]
Shape = tuple[int, ...]  # streams, rounds, coins or trials
# Given ε and δ: draws p-values and coins; draws whether guesses are right; turns uniform numbers
# into log-likelihood ratios in both worlds.
Canaries = Callable[[float, float, Rng, Shape], tuple[Floats, Coins]]
Guesses = Callable[[float, float, Rng, Shape], Coins]
Trials = Callable[[float, float, Floats], tuple[Floats, Floats]]

_SEED: Final = 0
_AT_ONCE: Final = 500  # streams, so that all of them fit into memory
ROUNDS: Final = 20
COINS: Final = 6  # per round
TRIALS: Final = 100  # per round
_SHOWN: Final = 1e-30  # the p-value of a canary that is shown
_STAKE: Final = 0.6  # of the wrong bets


@dataclass(frozen=True)
class Watched:
    """A mechanism and how it is bet against."""

    key: str  # of its cell
    name: str  # what it does
    epsilon: float  # the exact one
    delta: float
    bet: Callable[[float, float, Rng, int], Coins]  # given ε, δ and the number of streams
    is_sound: bool = True  # whether the bets are ours; else they show what goes wrong without care

    def crosses(self, rng: Rng, streams: int) -> Coins:
        """Return whether the true ε is ever refuted, in each of so many streams."""
        return self.bet(self.epsilon, self.delta, rng, streams)

    def cell(self, streams: int) -> dict[str, Any]:
        """Return the share of so many streams in which the truth is ever refuted."""
        size = min(streams, _AT_ONCE)
        rngs = [stream(_SEED, "anytime", self.key, i) for i in range(-(-streams // size))]
        crossed = np.concatenate([self.crosses(rng, size) for rng in rngs])[:streams]
        name, kind = ("bets", "lower_bound") if self.is_sound else ("wrong bets", "estimate")
        found = {"kind": kind, "conditions": [], "above": float(np.mean(crossed))}
        about = {"name": self.name, "epsilon": self.epsilon, "delta": self.delta, "runs": streams}
        return {**about, "bounds": {name: found}}


def cases() -> list[Watched]:
    """Return all mechanisms."""
    canaries: list[tuple[str, str, float, float, Canaries]] = [
        ("no-leak", "no leak", 0.0, 0.0, _uniform),
        ("response", "randomised response about each p-value", 1.0, 0.0, _response),
        ("laplace", "Laplace noise on each canary", 1.0, 0.0, _laplace),
        ("gaussian-1", "Gaussian noise on each canary", 1.0, 1e-4, _gaussian),
        ("gaussian-8", "Gaussian noise on each canary", 8.0, 1e-4, _gaussian),
        ("one-flag", "dependent rounds: one flag makes all of them leak, or none", 1.0, 0.0, _flag),
        ("revealed-all", "response; with chance δ all canaries are shown", 1.0, 2e-4, _all_shown),
        ("revealed-each", "response; with chance δ each one is shown", 1.0, 2e-4, _each_shown),
    ]
    guesses: list[tuple[str, str, float, float, Guesses]] = [
        ("guesses", "coins by randomised response", 1.0, 0.0, _each_coin),
        ("parity", "shared coins: randomised response about the parity of two", 1.0, 0.0, _parity),
        ("sum", "shared coins: Laplace noise on the sum of a round", 1.0, 0.0, _noised_sum),
        ("guessed-all", "response; with chance δ all coins are shown", 1.0, 2e-4, _known_coins),
    ]
    trials: list[tuple[str, str, float, float, Trials]] = [
        ("trials-none", "trials, no leak", 0.0, 0.0, _same_worlds),
        ("trials-response", "trials, randomised response with chance δ shown", 1.0, 1e-3, _pairs),
        ("trials-laplace", "trials, Laplace noise", 1.0, 0.0, _laplace_pairs),
        ("trials-gaussian", "trials, Gaussian noise", 1.0, 1e-3, _gaussian_pairs),
    ]
    reacting = "dependent rounds: leaks more after every lost bet"
    wrong = "δ paid in the odds of each guess; with chance δ all coins are shown"
    return [
        *(Watched(k, n, e, d, partial(_canaries, draw)) for k, n, e, d, draw in canaries),
        Watched("reacts", reacting, 1.0, 0.0, _reacts),
        *(Watched(k, n, e, d, partial(_guesses, draw)) for k, n, e, d, draw in guesses),
        *(Watched(k, n, e, d, partial(_trials, draw)) for k, n, e, d, draw in trials),
        *(Watched(f"per-guess-{d:g}", wrong, 1.0, d, _per_guess, False) for d in (0.05, 0.1, 0.2)),
    ]


def _ever(against: Floats, counts: Counts, level: float) -> Coins:
    """Return whether the wealth ever reaches 1/level.

    Args:
        against: Bets against one ε, (thresholds, stakes, outcomes).
        counts: Outcomes of each round, (streams, rounds, thresholds, outcomes).
        level: Allowed failures that are left after δ is paid.
    """
    wealth = anytime.log_wealth(against, counts.cumsum(axis=1))  # (streams, rounds)
    return np.asarray(wealth.max(axis=1) >= -math.log(level))


# Canaries. A mechanism chooses the density r of the p-values of included canaries, relative to
# excluded ones, between e^−ε and e^ε.


def _canaries(draw: Canaries, epsilon: float, delta: float, rng: Rng, streams: int) -> Coins:
    p, is_in = draw(epsilon, delta, rng, (streams, ROUNDS, COINS))
    paid = (1 + math.exp(-epsilon)) / 2 * ROUNDS * COINS * delta
    wealth = canary_wealth(epsilon, p, is_in)
    return np.asarray(wealth.max(axis=1) >= -math.log(ALLOWED - paid))


def canary_wealth(epsilon: float, p: Floats, is_in: Coins) -> Floats:
    """Return ln of the wealth after each round, (streams, rounds)."""
    bets = anytime.CanaryBets(np.array([epsilon]), ROUNDS * COINS)
    log_paid = _log_paid(bets, p, is_in).sum(axis=2).cumsum(axis=1)  # (streams, rounds, bets)
    return bets.log_wealth(log_paid)


def _log_paid(bets: anytime.CanaryBets, p: Floats, is_in: Coins) -> Floats:
    """Return ln of what each bet against the only candidate pays, (..., bets)."""
    inside = bets.log_in(-np.log(p))[..., 0, :]
    return np.where(is_in[..., None], inside, bets.log_out[0])


def _coins(rng: Rng, shape: Shape) -> Coins:
    return np.asarray(rng.random(shape) < 0.5)


def _uniform(_e: float, _d: float, rng: Rng, shape: Shape) -> tuple[Floats, Coins]:
    return rng.random(shape), _coins(rng, shape)


def _response(epsilon: float, _d: float, rng: Rng, shape: Shape) -> tuple[Floats, Coins]:
    """Draw p-values that are e^ε times as likely below 1/(1 + e^ε), and e^−ε times above."""
    is_in, edge = _coins(rng, shape), float(expit(-epsilon))
    below = rng.random(shape) < edge * math.exp(epsilon)
    u = rng.random(shape)
    shown = np.where(below, edge * u, edge + (1 - edge) * u)
    return np.where(is_in, shown, rng.random(shape)), is_in


def _laplace(epsilon: float, _d: float, rng: Rng, shape: Shape) -> tuple[Floats, Coins]:
    is_in = _coins(rng, shape)
    seen = is_in + rng.laplace(0, 1 / epsilon, shape)
    return np.asarray(laplace.sf(seen, scale=1 / epsilon)), is_in


def _gaussian(epsilon: float, delta: float, rng: Rng, shape: Shape) -> tuple[Floats, Coins]:
    is_in = _coins(rng, shape)
    seen = rng.standard_normal(shape) + is_in / gaussian_sigma(epsilon, delta)
    return np.exp(log_ndtr(-seen)), is_in


def _flag(epsilon: float, delta: float, rng: Rng, shape: Shape) -> tuple[Floats, Coins]:
    p, is_in = _response(epsilon, delta, rng, shape)
    leaks = rng.random((shape[0], 1, 1)) < 0.5
    return np.where(leaks, p, rng.random(shape)), is_in


def _all_shown(epsilon: float, delta: float, rng: Rng, shape: Shape) -> tuple[Floats, Coins]:
    p, is_in = _response(epsilon, delta, rng, shape)
    return np.where(is_in & (rng.random((shape[0], 1, 1)) < delta), _SHOWN, p), is_in


def _each_shown(epsilon: float, delta: float, rng: Rng, shape: Shape) -> tuple[Floats, Coins]:
    p, is_in = _response(epsilon, delta, rng, shape)
    return np.where(is_in & (rng.random(shape) < delta), _SHOWN, p), is_in


def _reacts(epsilon: float, _d: float, rng: Rng, streams: int) -> Coins:
    """Play the worst case of one threshold, and a higher threshold the more was lost.

    Release a has the largest r above the threshold and the smallest below. Release b, with r = e^ε
    everywhere, makes the coin fair over both.
    """
    bets, odds = anytime.CanaryBets(np.array([epsilon]), ROUNDS * COINS), math.exp(epsilon)
    paid = np.zeros((streams, bets.log_out.shape[1]))
    ever = np.zeros(streams, dtype=bool)
    for _ in range(ROUNDS * COINS):
        edge = np.exp(-epsilon - np.clip(0.5 - 2 * bets.log_wealth(paid), 0.5, 6.0))
        hit, miss = edge * odds, (1 - edge) / odds
        chance_a = (odds - 1) / (odds - hit - miss)  # of release a if the canary is out
        is_in = _coins(rng, (streams,))
        is_a = rng.random(streams) < chance_a * np.where(is_in, hit + miss, 1.0)
        is_hit = rng.random(streams) < hit / (hit + miss)
        u = rng.random(streams)
        shown = np.where(is_hit, edge * u, edge + (1 - edge) * u)
        p = np.where(is_a & is_in, shown, u)
        paid += _log_paid(bets, p, is_in)
        ever |= bets.log_wealth(paid) >= -math.log(ALLOWED)
    return ever


# Guesses of coins.


def guess_bets(epsilons: Floats) -> Floats:
    """Return ln of what bets on guesses of coins pay, (ε, 1, stakes, [right, wrong]).

    At the odds of Steinke et al. 2023 (arXiv:2305.08846): under ε-DP a guess is right with
    probability at most e^ε/(1 + e^ε).
    """
    right = np.log1p(anytime.STAKES * np.exp(-epsilons)[:, None])
    wrong = np.broadcast_to(np.log1p(-anytime.STAKES), right.shape)
    return np.stack([right, wrong], axis=-1)[:, None]


def _guesses(draw: Guesses, epsilon: float, delta: float, rng: Rng, streams: int) -> Coins:
    is_right = draw(epsilon, delta, rng, (streams, ROUNDS, COINS))
    against = guess_bets(np.array([epsilon]))[0]
    return _ever(against, _guess_counts(is_right), ALLOWED - ROUNDS * COINS * delta)


def _guess_counts(is_right: Coins) -> Counts:
    """Return how many guesses of a round are right and wrong, (streams, rounds, 1, 2)."""
    right = is_right.sum(axis=-1)
    return np.stack([right, COINS - right], axis=-1)[..., None, :]


def _each_coin(epsilon: float, _d: float, rng: Rng, shape: Shape) -> Coins:
    return np.asarray(rng.random(shape) < expit(epsilon))


def _parity(epsilon: float, _d: float, rng: Rng, shape: Shape) -> Coins:
    """Guess the first coin of a pair at random, and the second by the first and the parity."""
    return np.asarray(rng.random(shape) < np.where(np.arange(COINS) % 2, expit(epsilon), 0.5))


def _noised_sum(epsilon: float, _d: float, rng: Rng, shape: Shape) -> Coins:
    """Guess each coin by the noised sum of its round and the coins before it."""
    coins = _coins(rng, shape)
    left = coins.sum(axis=-1) + rng.laplace(0, 1 / epsilon, shape[:-1])  # without known coins
    right = np.empty(shape, dtype=bool)
    for i in range(COINS):
        later = np.arange(COINS - i)
        ways = np.array([math.comb(COINS - i - 1, int(n)) for n in later])
        chances = [
            (ways * np.exp(-epsilon * np.abs(left[..., None] - coin - later))).sum(axis=-1)
            for coin in (0, 1)
        ]
        right[..., i] = (chances[1] > chances[0]) == coins[..., i]
        left = left - coins[..., i]
    return right


def _known_coins(epsilon: float, delta: float, rng: Rng, shape: Shape) -> Coins:
    is_shown = rng.random((shape[0], 1, 1)) < delta
    return np.asarray(rng.random(shape) < np.where(is_shown, 1.0, expit(epsilon)))


def _per_guess(epsilon: float, delta: float, rng: Rng, streams: int) -> Coins:
    """Bet at odds that include δ, and refute at 1/α."""
    odds = math.exp(epsilon)
    chance = (odds + delta) / (1 + odds)
    is_right = _known_coins(epsilon, delta, rng, (streams, ROUNDS, COINS))
    # One threshold, one stake, two outcomes.
    against = np.array([[[math.log1p(_STAKE * (1 - chance) / chance), math.log1p(-_STAKE)]]])
    return _ever(against, _guess_counts(is_right), ALLOWED)


# Trials. One number draws both worlds, so that the score in the world "in" is never smaller.


def _trials(draw: Trials, epsilon: float, delta: float, rng: Rng, streams: int) -> Coins:
    inside, outside = draw(epsilon, delta, rng.random((streams, ROUNDS, TRIALS)))
    against = anytime.trial_bets(np.array([epsilon]), delta)[0]
    return _ever(against, anytime.count_trials(inside, outside), ALLOWED)


def _same_worlds(_e: float, _d: float, u: Floats) -> tuple[Floats, Floats]:
    return ndtri(u), ndtri(u)


def _pairs(epsilon: float, delta: float, u: Floats) -> tuple[Floats, Floats]:
    """Return scores of randomised response that shows the world with chance δ: ±∞ and ±ε."""
    right = (1 - delta) * expit(epsilon)
    inside = np.select([u >= 1 - delta, u >= 1 - delta - right], [np.inf, epsilon], -epsilon)
    outside = np.select([u < delta, u < delta + right], [-np.inf, -epsilon], epsilon)
    return inside, outside


def _laplace_pairs(epsilon: float, _d: float, u: Floats) -> tuple[Floats, Floats]:
    noise = np.asarray(laplace.ppf(u, scale=1 / epsilon))
    inside, outside = (epsilon * (np.abs(x) - np.abs(x - 1)) for x in (1 + noise, noise))
    return np.maximum(inside, outside), outside  # up to rounding


def _gaussian_pairs(epsilon: float, delta: float, u: Floats) -> tuple[Floats, Floats]:
    separation = 1 / gaussian_sigma(epsilon, delta)
    outside = separation * ndtri(u) - separation**2 / 2
    return outside + separation**2, outside
