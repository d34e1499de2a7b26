"""Mechanisms at exactly (ε, δ), round by round, and whether bets ever refute the true ε."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_ndtr, logsumexp
from scipy.stats import laplace, norm

from leakmeter.auditors.bounds import AnytimeBound
from leakmeter.auditors.gaussian.pair import gaussian_sigma

Rng = np.random.Generator
Floats = NDArray[np.float64]
Coins = NDArray[np.bool_]

ALLOWED: Final = 0.05
ROUNDS: Final = 10
COINS: Final = 6  # per round
TRIALS: Final = 100  # per round
_STAKES: Final = np.array([0.98, 0.7, 0.4, 0.2, 0.1, 0.05, 0.02])


@dataclass(frozen=True)
class Case:
    """A mechanism and how it is bet against.

    Attributes:
        key: Of its cell.
        name: What it does.
        epsilon: Its exact ε.
        delta: At this δ.
        crosses: Whether the true ε is ever refuted in one stream.
        is_sound: Whether the bets are ours; else they show what goes wrong without care.
    """

    key: str
    name: str
    epsilon: float
    delta: float
    crosses: Callable[[Rng], bool]
    is_sound: bool = True


def cases() -> list[Case]:
    """Return all mechanisms."""
    return [*_canaries(), *_guesses(), *_trials(), *_wrong()]


def _canaries() -> list[Case]:
    """Return mechanisms whose canaries have coins and exact p-values."""
    made = [
        ("no-leak", "no leak", 0.0, 0.0, _uniform),
        ("response", "randomised response about each p-value", 1.0, 0.0, _response),
        ("laplace", "Laplace noise on each canary", 1.0, 0.0, _laplace),
        ("gaussian-1", "Gaussian noise on each canary", 1.0, 1e-4, _gaussian),
        ("gaussian-8", "Gaussian noise on each canary", 8.0, 1e-4, _gaussian),
        ("one-flag", "dependent rounds: one flag makes all of them leak, or none", 1.0, 0.0, _flag),
        ("reacts", "dependent rounds: leaks more after every lost bet", 1.0, 0.0, _reacts),
        ("revealed-all", "response; with chance δ all canaries are shown", 1.0, 5e-4, _all_shown),
        ("revealed-each", "response; with chance δ each one is shown", 1.0, 5e-4, _each_shown),
    ]
    return [Case(key, name, e, d, partial(play, e, d)) for key, name, e, d, play in made]


def _guesses() -> list[Case]:
    """Return mechanisms whose coins are guessed."""
    made = [
        ("guesses", "coins by randomised response", 1.0, 0.0, _each_coin),
        ("parity", "shared coins: randomised response about the parity of two", 1.0, 0.0, _parity),
        ("sum", "shared coins: Laplace noise on the sum of a round", 1.0, 0.0, _noised_sum),
        ("guessed-all", "response; with chance δ all coins are shown", 1.0, 5e-4, _known_coins),
    ]
    return [Case(key, name, e, d, partial(play, e, d)) for key, name, e, d, play in made]


def _trials() -> list[Case]:
    """Return mechanisms that are played in trials of both worlds."""
    made = [
        ("trials-none", "trials, no leak", 0.0, 0.0, _same_worlds),
        ("trials-response", "trials, randomised response with chance δ shown", 1.0, 1e-3, _pairs),
        ("trials-laplace", "trials, Laplace noise", 1.0, 0.0, _laplace_pairs),
        ("trials-gaussian", "trials, Gaussian noise", 1.0, 1e-3, _gaussian_pairs),
    ]
    return [Case(key, name, e, d, partial(play, e, d)) for key, name, e, d, play in made]


def _wrong() -> list[Case]:
    """Return bets that pay δ in the odds of each guess, which is not enough."""
    name = "δ paid in the odds of each guess; with chance δ all coins are shown"
    return [
        Case(f"per-guess-{d:g}", name, 1.0, d, partial(_paid_per_guess, 1.0, d), is_sound=False)
        for d in (0.05, 0.1, 0.2)
    ]


# Canaries. A release of a round is drawn as P(in and p-value), with r the density of p-values of
# included canaries relative to excluded ones: the largest freedom that a mechanism has.

Draw = Callable[[Rng], tuple[Floats, Coins]]


def _bets(epsilon: float, delta: float) -> AnytimeBound:
    planned = ROUNDS * COINS
    return AnytimeBound(delta=delta, confidence=1 - ALLOWED, planned=planned, candidates=[epsilon])


def _refutes(bound: AnytimeBound) -> bool:
    return bool(bound.state()["refuted"][0])


def _watched(epsilon: float, delta: float, rng: Rng, draw: Draw) -> bool:
    """Bet on the canaries of every round; return whether the truth is ever refuted."""
    bound = _bets(epsilon, delta)
    for _ in range(ROUNDS):
        p, is_in = draw(rng)
        with np.errstate(divide="ignore"):
            bound.add_canaries(np.log(p), is_in)
    return _refutes(bound)


def _coins(rng: Rng) -> Coins:
    return rng.random(COINS) < 0.5


def _uniform(epsilon: float, delta: float, rng: Rng) -> bool:
    return _watched(epsilon, delta, rng, lambda rng: (rng.random(COINS), _coins(rng)))


def _responses(epsilon: float, rng: Rng) -> tuple[Floats, Coins]:
    """Return p-values that are e^ε times as likely below 1/(1 + e^ε), and e^−ε times above."""
    is_in, edge = _coins(rng), expit(-epsilon)
    below = rng.random(COINS) < edge * math.exp(epsilon)
    shown = np.where(below, edge * rng.random(COINS), edge + (1 - edge) * rng.random(COINS))
    return np.where(is_in, shown, rng.random(COINS)), is_in


def _response(epsilon: float, delta: float, rng: Rng) -> bool:
    return _watched(epsilon, delta, rng, partial(_responses, epsilon))


def _laplace(epsilon: float, delta: float, rng: Rng) -> bool:
    def draw(rng: Rng) -> tuple[Floats, Coins]:
        is_in = _coins(rng)
        return laplace.sf(is_in + rng.laplace(0, 1 / epsilon, COINS), scale=1 / epsilon), is_in

    return _watched(epsilon, delta, rng, draw)


def _gaussian(epsilon: float, delta: float, rng: Rng) -> bool:
    separation = 1 / gaussian_sigma(epsilon, delta)

    def draw(rng: Rng) -> tuple[Floats, Coins]:
        is_in = _coins(rng)
        return np.exp(log_ndtr(-rng.standard_normal(COINS) - separation * is_in)), is_in

    return _watched(epsilon, delta, rng, draw)


def _flag(epsilon: float, delta: float, rng: Rng) -> bool:
    if rng.random() < 0.5:
        return _response(epsilon, delta, rng)
    return _uniform(epsilon, delta, rng)


def _reacts(epsilon: float, delta: float, rng: Rng) -> bool:
    """Play the worst case of one threshold, and a higher threshold the more was lost.

    Release a has the largest r above the threshold and the smallest below. Release b, with r = e^ε
    everywhere, makes the coin fair over both.
    """
    bound, odds = _bets(epsilon, delta), math.exp(epsilon)
    for _ in range(ROUNDS * COINS // 2):
        lost = max(-float(bound.log_wealth()[0]), 0.0)
        above = min(0.5 + 2 * lost, 6.0)
        edge = math.exp(-epsilon - above)
        hit, miss = edge * odds, (1 - edge) / odds
        chance_a = (odds - 1) / (odds - hit - miss)  # of release a if the canary is out
        is_in = bool(rng.random() < 0.5)
        is_a = rng.random() < chance_a * (hit + miss if is_in else 1)
        p = rng.random()
        if is_a and is_in:
            is_hit = rng.random() < hit / (hit + miss)
            p = edge * p if is_hit else edge + (1 - edge) * p
        bound.add_canaries([math.log(p)], [is_in])
    return _refutes(bound)


def _all_shown(epsilon: float, delta: float, rng: Rng) -> bool:
    is_shown = rng.random() < delta

    def draw(rng: Rng) -> tuple[Floats, Coins]:
        p, is_in = _responses(epsilon, rng)
        return np.where(is_in & is_shown, 1e-30, p), is_in

    return _watched(epsilon, delta, rng, draw)


def _each_shown(epsilon: float, delta: float, rng: Rng) -> bool:
    def draw(rng: Rng) -> tuple[Floats, Coins]:
        p, is_in = _responses(epsilon, rng)
        return np.where(is_in & (rng.random(COINS) < delta), 1e-30, p), is_in

    return _watched(epsilon, delta, rng, draw)


# Guesses of coins.


def _guessed(epsilon: float, delta: float, rng: Rng, draw: Callable[[Rng], Coins]) -> bool:
    bound = _bets(epsilon, delta)
    for _ in range(ROUNDS):
        bound.add_guesses(draw(rng))
    return _refutes(bound)


def _each_coin(epsilon: float, delta: float, rng: Rng) -> bool:
    return _guessed(epsilon, delta, rng, lambda rng: rng.random(COINS) < expit(epsilon))


def _parity(epsilon: float, delta: float, rng: Rng) -> bool:
    """Guess the first coin of a pair at random, and the second by the first and the parity."""

    def draw(rng: Rng) -> Coins:
        return np.asarray(rng.random(COINS) < np.where(np.arange(COINS) % 2, expit(epsilon), 0.5))

    return _guessed(epsilon, delta, rng, draw)


def _noised_sum(epsilon: float, delta: float, rng: Rng) -> bool:
    """Guess each coin by the noised sum and the coins before it."""

    def draw(rng: Rng) -> Coins:
        coins = _coins(rng).astype(np.int64)
        seen = coins.sum() + rng.laplace(0, 1 / epsilon)
        return np.array([_likely(coins[:i], seen, epsilon) == coins[i] for i in range(COINS)])

    return _guessed(epsilon, delta, rng, draw)


def _likely(known: NDArray[np.int64], seen: float, epsilon: float) -> int:
    """Return the likelier value of the next coin, given a noised sum and the coins before it."""
    left = COINS - len(known) - 1
    others = np.arange(left + 1)
    ways = np.array([math.comb(left, int(n)) for n in others])
    chances = [
        float(ways @ np.exp(-epsilon * np.abs(seen - known.sum() - coin - others)))
        for coin in (0, 1)
    ]
    return int(chances[1] > chances[0])


def _known_coins(epsilon: float, delta: float, rng: Rng) -> bool:
    chance = 1.0 if rng.random() < delta else float(expit(epsilon))
    return _guessed(epsilon, delta, rng, lambda rng: rng.random(COINS) < chance)


def _paid_per_guess(epsilon: float, delta: float, rng: Rng) -> bool:
    """Bet at odds that include δ, and refute at 1/α."""
    odds = math.exp(epsilon)
    chance = (odds + delta) / (1 + odds)
    shown = 1.0 if rng.random() < delta else float(expit(epsilon))
    is_right = rng.random(ROUNDS * COINS) < shown
    pays = np.where(is_right[:, None], 1 + _STAKES * (1 - chance) / chance, 1 - _STAKES)
    wealth = logsumexp(np.log(pays).cumsum(axis=0), axis=1) - math.log(_STAKES.size)
    return bool(wealth.max() >= -math.log(ALLOWED))


# Trials. One number draws both worlds, so that the score in the world "in" is never smaller.


def _tried(
    epsilon: float, delta: float, rng: Rng, draw: Callable[[Floats], tuple[Floats, Floats]]
) -> bool:
    bound = AnytimeBound(delta=delta, confidence=1 - ALLOWED, candidates=[epsilon])
    for _ in range(ROUNDS):
        bound.add_trials(*draw(rng.random(TRIALS)))
    return _refutes(bound)


def _same_worlds(epsilon: float, delta: float, rng: Rng) -> bool:
    return _tried(epsilon, delta, rng, lambda u: (norm.ppf(u), norm.ppf(u)))


def _pairs(epsilon: float, delta: float, rng: Rng) -> bool:
    """Randomised response that shows the world with chance δ: scores ±∞ and ±ε."""
    right = (1 - delta) * expit(epsilon)

    def draw(u: Floats) -> tuple[Floats, Floats]:
        inside = np.select([u >= 1 - delta, u >= 1 - delta - right], [np.inf, epsilon], -epsilon)
        outside = np.select([u < delta, u < delta + right], [-np.inf, -epsilon], epsilon)
        return inside, outside

    return _tried(epsilon, delta, rng, draw)


def _laplace_pairs(epsilon: float, delta: float, rng: Rng) -> bool:
    def ratio(x: Floats) -> Floats:
        return epsilon * (np.abs(x) - np.abs(x - 1))

    def draw(u: Floats) -> tuple[Floats, Floats]:
        noise = laplace.ppf(u, scale=1 / epsilon)
        outside = ratio(noise)
        return np.maximum(ratio(1 + noise), outside), outside  # up to rounding

    return _tried(epsilon, delta, rng, draw)


def _gaussian_pairs(epsilon: float, delta: float, rng: Rng) -> bool:
    separation = 1 / gaussian_sigma(epsilon, delta)

    def draw(u: Floats) -> tuple[Floats, Floats]:
        outside = separation * norm.ppf(u) - separation**2 / 2
        return outside + separation**2, outside

    return _tried(epsilon, delta, rng, draw)
