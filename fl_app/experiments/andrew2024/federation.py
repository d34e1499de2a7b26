"""Runs of this project with random canaries.

Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar (2024), One-shot Empirical Privacy Estimation for
Federated Learning, arXiv:2302.03098, Algorithms 2 and 3. Ours differs in three points:
1. A canary takes the seat of a client, so that seats and not canaries are drawn from the clients.
   The clients go through shuffled epochs; a canary plays in as many rounds as the paper's.
2. The clip norm is fixed, and the noise with it.
3. Algorithm 2 divides a round's sum by clients and canaries. Here canaries are many: the server's
   step is that much longer, so that the model moves as with the clients alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from leakmeter.auditors.canaries.estimates import CanaryScores
from leakmeter.auditors.finding import Finding, Sees
from leakmeter.auditors.gaussian.pair import epsilon_gaussian
from leakmeter.auditors.rng import derive
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.experiments.base import audited_run

SEED: Final = 2302
DELTA: Final = 1e-5

# MNIST's writers in 49 rounds, an epoch of 11 honest clients per round.
WRITERS: Final = Config(
    dataset="mnist",
    model="linear",
    partition="natural",
    clients=539,
    sample=11,
    rounds=49,
    participation="epochs",
    server="fedavgm",
    server_lr=1.0,
    server_momentum=0.0,
    secagg="off",
    epochs=1,
    batch_size=20,
    lr=0.1,
    noise="central",
    noise_multiplier=0.0,
    clip_norm=0.5,
    auditors="none",
    delta=DELTA,
)
# The same in seconds.
DIGITS: Final = replace(
    WRITERS,
    dataset="digits",
    model="mlp",
    partition="iid",
    clients=60,
    sample=5,
    rounds=12,
    batch_size=8,
    lr=0.3,
)


def with_canaries(config: Config, canaries: int, repetitions: int = 1) -> Config:
    """Return a federation with seats for so many canaries beside its honest clients."""
    seats = math.ceil(canaries * repetitions / config.rounds)
    return replace(
        config,
        auditors="one-shot",
        canary_seats=seats,
        canaries=canaries,
        canary_repetitions=repetitions,
        server_lr=config.server_lr * (config.sample + seats) / config.sample,
    )


def seeded(config: Config, noise: float, *path: str | int) -> Config:
    """Return a federation with this noise multiplier and the seed of that name."""
    return replace(config, noise_multiplier=noise, seed=derive(SEED, *path) % 2**31)


def accountant(config: Config) -> float:
    """Return the ε of somebody who takes part as often as a canary, in rounds that are known."""
    if not config.noise_multiplier:
        return math.inf
    times = math.sqrt(config.canary_repetitions)
    return float(epsilon_gaussian(config.delta, times / config.noise_multiplier))


@dataclass(frozen=True, eq=False)
class Played:
    """What a run left behind."""

    accuracy: float  # of the final model
    dim: int  # length of the model
    findings: Sequence[Finding]  # of the whole run
    scores: Mapping[Sees, CanaryScores]  # cosines, by what an attacker sees; none without canaries


def play(config: Config, include: Literal["coin", "all"] = "all") -> Played:
    """Return one run, in which all canaries play, as in the paper, or those that a coin includes.

    Raises:
        RuntimeError: The canaries could not be audited.
    """
    from leakmeter.fl_app.build.audit import one_shot
    from leakmeter.fl_app.task import load_task

    canaries = [one_shot(config, include=include)] if config.seats else []
    outcome, report = audited_run(config, canaries)
    findings = [finding for finding in outcome.findings if finding.server_round is None]
    scores = canaries[0].scores if canaries else {}
    return Played(report["rounds"][-1]["accuracy"], load_task(config).dim, findings, scores)
