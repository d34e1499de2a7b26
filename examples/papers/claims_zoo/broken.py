"""Twelve mechanisms that do not keep what is claimed of them, each after a public report.

What a mechanism delivers is exact, for the parameters here: by the formula of Gaussian noise (Balle
and Wang 2018, arXiv:1805.06530, Theorem 8) where its noise is Gaussian and independent. Infinite
means that no finite ε holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping
from scipy.special import ndtr

from leakmeter.auditors import Claim, epsilon_gaussian
from leakmeter.auditors.rng import stream
from leakmeter.clients.protection.noise_mod import clip
from leakmeter.papers.claims_zoo.audit import (
    CLIP_NORM,
    DELTA,
    App,
    Federation,
    Mechanism,
    averaging,
)
from leakmeter.papers.claims_zoo.noise import (
    MeanForSum,
    NoisyMod,
    RunawayClip,
    Stepping,
    per_layer,
    per_parameter,
    total,
)
from leakmeter.papers.gaussian import classical_sigma_unsafe_above_epsilon_1, gaussian_sigma

_EPSILON: Final = 8.0  # claimed, unless stated
_STD: Final = gaussian_sigma(_EPSILON, DELTA, CLIP_NORM)  # noise that would deliver it
# Weights of 2,048 to 4,096 in single precision are this far apart; shares of the noise are a ninth
# of it, and a hundred parameters with eighty shares leave updates large enough to be rounded up.
_WEIGHT: Final = 3072.0
_SPACING: Final = float(np.spacing(np.float32(_WEIGHT)))
_SHARE: Final = _SPACING / 9
_SHARES: Final = 80


def fresh(seed: int, server_round: int, client: int) -> np.random.Generator:
    """Return a generator of its own for each round and client: the right source."""
    return stream(seed, "noise", server_round, client)


def same_each_round(seed: int, _: int, client: int) -> np.random.Generator:
    """Return the same generator in each round, as a seed that is fixed in the code gives."""
    return stream(seed, "noise", client)


def same_for_all(seed: int, server_round: int, _: int) -> np.random.Generator:
    """Return the same generator for all clients, as a seed that the server sends gives."""
    return stream(seed, "noise", server_round)


def swallowed_epsilon(norm: float, share: float, spacing: float, shares: int) -> float:
    """Return what noise delivers at least that each client rounds to a coarse grid.

    The worst update has as many coordinates just above half a step as its norm allows, and each is
    rounded to a whole step. With P(k) the chance that the rounded shares of a coordinate sum up to
    k steps, the sum with this update in it is one step in each of them with probability P(0)^m, and
    without it with P(1)^m: ε ≥ ln((P(0)^m − δ)/P(1)^m).

    Args:
        norm: Of the clipped update.
        share: Standard deviation of each client's noise.
        spacing: Step of the grid.
        shares: Number of clients.
    """
    moved = math.floor((2 * norm / spacing) ** 2)
    edges = (np.arange(-3, 5) - 0.5) * spacing / share
    one = np.diff(ndtr(edges))  # of -3 to 3 steps
    sums = one
    for _ in range(shares - 1):
        sums = np.convolve(sums, one)
    still, step = np.log(sums[len(sums) // 2 :][:2])
    return float(moved * (still - step) + math.log1p(-DELTA * math.exp(-moved * still)))


def _claim(epsilon: float, delivered: float, **other: Any) -> Claim:
    """Return a claim about each round against the server, unless it says otherwise."""
    about = {"per": "round", "clip_norm": CLIP_NORM, **other}
    return Claim(epsilon, DELTA, delivered=delivered, **about)


def _delivered(separation: float) -> float:
    return float(epsilon_gaussian(DELTA, separation))


def _noisy(
    size: Federation = Federation(),  # noqa: B008 - a frozen value
    source: Callable[[int, int, int], np.random.Generator] = fresh,
    **mod: Any,
) -> Callable[[int], App]:
    """Return apps whose clients clip and noise, right unless something else is said."""
    how = {"clip": partial(clip, norm=CLIP_NORM), "std": _STD, **mod}

    def app(seed: int) -> App:
        return App(averaging(size.clients), (NoisyMod(source=partial(source, seed), **how),))

    return app


def _of_flower(sensitivity: float, epsilon: float) -> Callable[[int], App]:
    """Return apps whose clients list Flower's local noise."""
    mod = LocalDpMod(CLIP_NORM, sensitivity, epsilon, DELTA)
    return lambda _: App(averaging(Federation.clients), (mod,))


def _classical(sensitivity: float, epsilon: float) -> float:
    """Return what the noise of Flower's mod delivers for updates of the clip norm."""
    std = classical_sigma_unsafe_above_epsilon_1(epsilon, DELTA, sensitivity)
    return _delivered(CLIP_NORM / std)


def _wrong_sensitivity() -> Mechanism:
    sensitivity, epsilon = 1e-4, 10.0
    return Mechanism(
        "sensitivity far below the clip norm",
        "londonaicentre/FLIP #833",
        _claim(epsilon, _classical(sensitivity, epsilon)),
        _of_flower(sensitivity, epsilon),
    )


def _noise_per_layer() -> Mechanism:
    layers = 16
    size = Federation(layers=(64,) * layers)
    return Mechanism(
        "each layer clipped and noised by itself",
        "fedbiomed/fedbiomed #1443",
        _claim(_EPSILON, _delivered(math.sqrt(layers) * CLIP_NORM / _STD)),
        _noisy(clip=partial(per_layer, norm=CLIP_NORM, layers=layers)),
        federation=size,
    )


def _clip_per_parameter() -> Mechanism:
    most = math.sqrt(Federation().dim) * CLIP_NORM
    return Mechanism(
        "each parameter clipped by itself",
        "KanishJebaMathewM/Truxify #3844",
        _claim(_EPSILON, _delivered(most / _STD)),
        _noisy(clip=partial(per_parameter, norm=CLIP_NORM)),
    )


def _mean_for_sum() -> Mechanism:
    size = Federation(clients=20)

    def app(seed: int) -> App:
        step = MeanForSum(CLIP_NORM, _STD, stream(seed, "server noise"))
        return App(Stepping(step, size.clients))

    return Mechanism(
        "noise of the mean added to the sum",
        "flwrlabs/flower #1892",
        _claim(_EPSILON, _delivered(size.clients * CLIP_NORM / _STD), against="outsider"),
        app,
        "models",
        size,
    )


def _fixed_seed() -> Mechanism:
    size = Federation()
    std = math.sqrt(size.rounds) * _STD  # enough for all rounds, if only it were independent
    return Mechanism(
        "same noise in each round",
        "flwrlabs/flower #7225",
        _claim(_EPSILON, math.inf, per="run"),
        _noisy(source=same_each_round, std=std),
    )


def _common_noise() -> Mechanism:
    return Mechanism(
        "same noise for all clients",
        "google-deepmind/optax #148",
        _claim(_EPSILON, math.inf),
        _noisy(source=same_for_all),
    )


def _clip_after_noise() -> Mechanism:
    return Mechanism(
        "clipped after the noise",
        "NVIDIA/NVFlare #462, illidanlab/dpgan #4",
        _claim(_EPSILON, math.inf),
        _noisy(clips_last=True),
    )


def _swallowed() -> Mechanism:
    epsilon = 20.0
    size = Federation(_SHARES, 25, 2, layers=(100,), start=_WEIGHT, dtype="float32")
    norm = math.sqrt(_SHARES) * _SHARE / gaussian_sigma(epsilon, DELTA)

    def app(seed: int) -> App:
        source = partial(fresh, seed)
        mod = NoisyMod(partial(clip, norm=norm), _SHARE, source, in_float32=True)
        return App(Stepping(total, size.clients), (mod,))

    truth = swallowed_epsilon(norm, _SHARE, _SPACING, _SHARES)
    return Mechanism(
        "noise lost in float32",
        "google/differential-privacy #127",
        _claim(epsilon, truth, against="outsider", clip_norm=norm),
        app,
        "models",
        size,
        is_least=True,
    )


def _classical_formula() -> Mechanism:
    epsilon = 50.0
    return Mechanism(
        "classical formula at ε = 50",
        "opendp/smartnoise-sdk #462, flwrlabs/flower #2959",
        _claim(epsilon, _classical(CLIP_NORM, epsilon)),
        _of_flower(CLIP_NORM, epsilon),
    )


def _runaway() -> Mechanism:
    size = Federation(clients=20, rounds=30)

    def app(seed: int) -> App:
        return App(Stepping(RunawayClip(CLIP_NORM, _STD, stream(seed, "server noise")), 20))

    return Mechanism(
        "adaptive clip that runs away",
        "flwrlabs/flower #5905",
        _claim(_EPSILON, math.inf, against="outsider"),
        app,
        "models",
        size,
    )


def _one_round_for_all() -> Mechanism:
    epsilon = 2.0
    size = Federation(clients=50, rounds=30, seats=50, repetitions=30)
    std = gaussian_sigma(epsilon, DELTA, CLIP_NORM)
    return Mechanism(
        "budget of one round stated for the run",
        "maziyarpanahi/openmed #2826",
        _claim(epsilon, _delivered(math.sqrt(size.rounds) * CLIP_NORM / std), per="run"),
        _noisy(size, std=std),
        federation=size,
    )


def _weights() -> Mechanism:
    size = Federation(clients=20, rounds=25, heavy=4, weight=100)
    share = size.weight / sum(map(size.examples, range(size.clients)))

    def app(_: int) -> App:
        inner = averaging(size.clients)
        return App(DifferentialPrivacyServerSideFixedClipping(inner, _STD, CLIP_NORM, size.clients))

    return Mechanism(
        "weights that undo the clip",
        "flwrlabs/flower #2798",
        _claim(_EPSILON, _delivered(size.clients * share / _STD), against="outsider"),
        app,
        "models",
        size,
    )


def mechanisms() -> tuple[Mechanism, ...]:
    """Return all twelve."""
    return (
        _wrong_sensitivity(),
        _noise_per_layer(),
        _clip_per_parameter(),
        _mean_for_sum(),
        _fixed_seed(),
        _common_noise(),
        _clip_after_noise(),
        _swallowed(),
        _classical_formula(),
        _runaway(),
        _one_round_for_all(),
        _weights(),
    )
