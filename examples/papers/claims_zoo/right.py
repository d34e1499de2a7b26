"""Six mechanisms that keep what is claimed of them: ours as they are, and Flower's central noise.

Each claim is about one round, as an accountant prices it: exactly for Gaussian noise, by Rényi
divergences for noise over integers. The bound of an audit may exceed it in 5 % of the runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

from leakmeter.auditors import Claim
from leakmeter.auditors.finding import Observer
from leakmeter.clients import MaskMod, NoiseMod
from leakmeter.papers.claims_zoo.audit import (
    CLIP_NORM,
    DELTA,
    App,
    Federation,
    Mechanism,
    Sees,
    averaging,
)
from leakmeter.papers.gaussian import gaussian_sigma
from leakmeter.strategies import Central, Distributed, Local, Masked, Noised
from leakmeter.strategies.accounting.assurance import Guarantees
from leakmeter.strategies.protection.mechanism import FixedClip
from leakmeter.strategies.protection.mechanism import Mechanism as Noise

_MULTIPLIER: Final = gaussian_sigma(8.0, DELTA)  # ε = 8 if the noise is Gaussian
_SMALL: Final = 1.0  # ε of Flower's wrapper
_SIZE: Final = Federation(clients=24, rounds=5, seats=20)
_ALL: Final = range(_SIZE.clients)
_SUM: Final[dict[str, Any]] = {"clip_range": CLIP_NORM, "max_weight": 1.0}


def _noised(noise: Noise, seed: int) -> Noised:
    return Noised(
        averaging(_SIZE.clients),
        noise=noise,
        clipping=FixedClip(CLIP_NORM),
        expected_clients=_SIZE.clients,
        delta=DELTA,
        seed=seed,
    )


def _open(name: str, noise: Noise, against: Observer, sees: Sees) -> Mechanism:
    """Return a mechanism of ours whose server gets each reply."""
    planned = _noised(noise, 0).planned([_ALL], lambda _: None, dim=_SIZE.dim)

    def app(seed: int) -> App:
        return App(_noised(noise, seed), (NoiseMod(seed=seed),))

    return _ours(name, planned, against, app, sees)


def _hidden(name: str, distribution: str) -> Mechanism:
    """Return noise of ours that all clients of a secure sum add together."""
    noise = Distributed(_MULTIPLIER, _SIZE.clients, colluders=0, distribution=distribution)
    inner = _noised(noise, 0)
    masked = Masked(inner, **_SUM)
    planned = inner.planned([_ALL], masked.bearable, step=masked.step, dim=_SIZE.dim)

    def app(seed: int) -> App:
        return App(Masked(_noised(noise, seed), **_SUM), (MaskMod(), NoiseMod(seed=seed)))

    return _ours(name, planned, "server", app, "models")


def _ours(
    name: str,
    planned: Guarantees | None,
    against: Observer,
    app: Callable[[int], App],
    sees: Sees,
) -> Mechanism:
    """Return a mechanism whose claim is what our accountant guarantees for one round."""
    assert planned is not None
    [epsilon] = (
        found.value
        for found in planned.findings(DELTA)
        if (found.threat_model.observer, found.adjacency) == (against, "zero-out")
    )
    return Mechanism(name, "ours", _claim(epsilon, against), app, sees, _SIZE)


def _claim(epsilon: float, against: Observer) -> Claim:
    return Claim(epsilon, DELTA, against, "round", clip_norm=CLIP_NORM, delivered=epsilon)


def _of_flower() -> Mechanism:
    """Return Flower's central noise with equal weights."""
    multiplier = gaussian_sigma(_SMALL, DELTA)

    def app(_: int) -> App:
        inner, clients = averaging(_SIZE.clients), _SIZE.clients
        return App(
            DifferentialPrivacyServerSideFixedClipping(inner, multiplier, CLIP_NORM, clients)
        )

    claim = _claim(_SMALL, "outsider")
    return Mechanism("Flower's fixed clipping", "flwrlabs/flower", claim, app, "models", _SIZE)


def mechanisms() -> tuple[Mechanism, ...]:
    """Return all six."""
    return (
        _open("central Gaussian", Central(_MULTIPLIER), "outsider", "models"),
        _hidden("distributed Gaussian", "gaussian"),
        _open("local Gaussian", Local(_MULTIPLIER), "server", "updates"),
        _hidden("distributed Skellam", "skellam"),
        _open(
            "central discrete Gaussian",
            Central(_MULTIPLIER, "discrete-gaussian"),
            "outsider",
            "models",
        ),
        _of_flower(),
    )
