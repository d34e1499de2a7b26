"""Runs of this project with random canaries, and what the canaries of one run say.

Andrew et al. (2024), arXiv:2302.03098, Algorithms 1 to 3 and section 5. Ours differs:
1. A canary takes the seat of a client, so that seats and not canaries are drawn from the clients.
   The clients go through shuffled epochs; a canary plays in as many rounds as the paper's.
2. The clip norm is fixed, and the noise with it.
3. Algorithm 2 divides a round's sum by clients and canaries. Here canaries are many: the server's
   step is that much longer, so that the model moves as with the clients alone.
4. The published bounds take the best threshold on the very scores that are counted, with Jeffreys
   limits at the full level for each rate: they carry no confidence, and are shown to be compared.
5. The auditor leaves an estimate out where cosines are clearly not Gaussian, or where a bound
   refutes it. The paper's tables have all of them, so they are computed from its cosines here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from scipy.special import log_ndtr

from leakmeter.auditors import OneShotCanaries
from leakmeter.auditors.bounds.gaussian import anderson_darling, epsilon_gaussian
from leakmeter.auditors.bounds.lower_bound import Fixed, Limit, RateLimits, Scores, proven_epsilons
from leakmeter.auditors.canaries.canary_auditor import CanaryScores, Std, band, one_fit
from leakmeter.auditors.canaries.one_shot import two_fits
from leakmeter.auditors.finding import Finding, Sees
from leakmeter.auditors.rng import derive, stream
from leakmeter.auditors.values import Floats
from leakmeter.auditors.verdict.claim import covers
from leakmeter.auditors.wording import Assumption
from leakmeter.fl_app.config.audits import OneShotSettings
from leakmeter.fl_app.config.config import Config
from leakmeter.papers.base import audited_run, median_range

Runs: TypeAlias = Sequence[Mapping[str, Any]]  # with the same settings

_ALPHA = 1 - 0.95
_NULL_RUNS = 400  # simulated runs without a leak behind a null band
STDS: Final[tuple[Std, ...]] = ("known", "fitted")

# What the columns of a run mean, for the notes of every table that has them.
COLUMNS_NOTE: Final = (
    "Median (smallest to largest) over runs; rows without brackets are of one run, for the sake of "
    "time, and show no spread. The accountant's ε is a guarantee against an outsider who sees "
    "every model and knows in which rounds the unit takes part: the Gaussian mechanism, as often, "
    "without amplification. ε ≥: lower bounds with 95 % confidence each against the same outsider, "
    "who also holds the unit's update. The first holds for any mechanism, the second if the scores "
    "of one run are independent. Published ε_lo: best threshold on the scores that are counted, "
    "Jeffreys limits; it carries no confidence. Estimates are no bounds. An asterisk: the auditor "
    "leaves this estimate out of its report in some of the runs, because the cosines are clearly "
    "not Gaussian or a bound refutes it. No leak: 90 % band of what the method says of canaries "
    "that nobody sent, first run. The estimate from all models fits Gaussians to largest cosines "
    "over rounds, whose spread is narrower than that of a cosine: it may exceed what the noise "
    "guarantees."
)

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
    canary_repetitions=1,
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
    times = math.sqrt(OneShotSettings.repetitions(config))
    return float(epsilon_gaussian(config.delta, times / config.noise_multiplier))


@dataclass(frozen=True, eq=False)
class Played:
    """What a run left behind."""

    accuracy: float  # of the final model
    dim: int  # length of the model
    findings: Sequence[Finding]  # of the whole run
    scores: Mapping[Sees, CanaryScores]  # cosines, by what an attacker sees; none without canaries


def one_shot(config: Config, include: Literal["coin", "all"]) -> OneShotCanaries:
    """Return the canaries of a run alone; a fair coin decides which of them play, or all do."""
    return OneShotCanaries(
        seats=config.canary_seats,
        canaries=config.canaries or None,
        repetitions=OneShotSettings.repetitions(config),
        delta=config.delta,
        confidence=config.confidence,
        include=include,
        seed=config.seed,
    )


def play(config: Config, include: Literal["coin", "all"] = "all") -> Played:
    """Return one run, in which all canaries play, as in the paper, or those that a coin includes.

    Raises:
        RuntimeError: The canaries could not be audited.
    """
    from leakmeter.fl_app.task import load_task

    canaries = [one_shot(config, include=include)] if config.seats else []
    outcome, report = audited_run(config, canaries)
    findings = [finding for finding in outcome.findings if finding.server_round is None]
    scores = canaries[0].scores if canaries else {}
    return Played(report["rounds"][-1]["accuracy"], load_task(config).dim, findings, scores)


def published(
    scores: Scores, delta: float, level: float = _ALPHA, limit: Limit = "jeffreys"
) -> float:
    """Return ε_lo as published: limits that hold at one threshold, taken at the best of all."""
    rates = scores.rates(scores.distinct(), RateLimits(Fixed(0.0), level, limit))
    return max(0.0, float(proven_epsilons(*rates, delta=delta).max()))


def normal_logsf(z: Floats) -> Floats:
    """Return ln P(Z >= z) of a standard normal."""
    return np.asarray(log_ndtr(-z))


def final_model(played: Played) -> dict[str, Any]:
    """Return what the final model says (Algorithm 2)."""
    z = math.sqrt(played.dim) * played.scores["final model"].included
    null = stream(SEED, "null", z.size).standard_normal((_NULL_RUNS, z.size))
    statistic, p = anderson_darling(played.scores["final model"].included)
    return {
        **_said(played.findings, "final model", Assumption.GAUSSIAN_COSINES_NULL_STD),
        "published": published(Scores.of(z, None, normal_logsf), DELTA),
        **{std: float(one_fit(z[None], std, DELTA)[0]) for std in STDS},
        "null": band(one_fit(null, "known", DELTA)),
        "statistic": statistic,
        "p": p,
    }


def all_models(played: Played) -> dict[str, Any]:
    """Return what all models say (Algorithm 3)."""
    scores = played.scores["all models"]
    assert scores.null is not None
    groups, rng = (scores.included, scores.excluded), stream(SEED, "null", "maxima")
    draws = [rng.choice(scores.null, (_NULL_RUNS, group.size)) for group in groups]
    return {
        **_said(played.findings, "all models", Assumption.GAUSSIAN_MAXIMA),
        "published": published(Scores.of(*groups, None), DELTA),
        "fitted": float(two_fits(groups[0][None], groups[1][None], DELTA)[0]),
        "null": band(two_fits(draws[0], draws[1], DELTA)),
    }


def _said(findings: Sequence[Finding], sees: Sees, fit: str) -> dict[str, Any]:
    """Return the auditor's bounds, and whether it stands by the estimate from this fit."""
    here = [f for f in findings if f.quantity == "epsilon" and f.threat_model.sees == sees]
    bounds = [f for f in here if f.kind == "lower_bound"]
    known = {Assumption.INDEPENDENT_SCORES, Assumption.UNIFORM_CANARIES}
    return {
        "headline": next(f.value for f in bounds if not f.is_conditional),
        "bound": next(f.value for f in bounds if known <= set(f.assumptions)),
        "estimated": any(f.kind == "estimate" and fit in f.assumptions for f in here),
    }


def guaranteed(played: Played, config: Config) -> float:
    """Return the least ε that covers the bounds of all models.

    Where all canaries play, the accountant's findings are about clients, who take part more often
    than a canary: then it is the ε of one who takes part as often.
    """
    bounds = [f for f in played.findings if f.threat_model.sees == "all models"]
    covering = [g.value for g in played.findings if any(covers(g, bound) for bound in bounds)]
    return min(covering, default=accountant(config))


def middle(runs: Runs, view: str, what: str) -> float:
    """Return the median of a number over runs."""
    return float(np.median([float(one[view][what]) for one in runs]))


def shown(runs: Runs, view: str, what: str, digits: str = ".2f") -> str:
    """Return median and range of a number, with an asterisk where the auditor leaves it out."""
    is_left_out = what in STDS and not all(one[view]["estimated"] for one in runs)
    return median_range([one[view][what] for one in runs], digits) + "*" * is_left_out


def shown_view(runs: Runs, view: str, *estimates: str) -> tuple[str, ...]:
    """Return the columns of an attacker: bounds, the published one, estimates, and no leak."""
    low, high = runs[0][view]["null"]
    names = ("headline", "bound", "published", *estimates)
    return (*(shown(runs, view, name) for name in names), f"{low:.2f} to {high:.2f}")


def above(runs: Runs, *views: str) -> str:
    """Return how many bounds are above the accountant's ε."""
    bounds = [float(one[v][b]) for one in runs for v in views for b in ("headline", "bound")]
    return f"{sum(bound > float(runs[0]['epsilon']) for bound in bounds)} of {len(bounds)}"


def mean_std(values: Sequence[float] | Floats, sign: str = "") -> str:
    """Return mean and sample std, where the paper does so too; of a single run its value.

    Both have two digits of the std, and two decimals at most.
    """
    numbers = np.asarray([float(value) for value in values])
    if numbers.size == 1:
        return f"{numbers[0]:{sign}.2f}"
    std = float(numbers.std(ddof=1))
    places = min(1 - math.floor(math.log10(std)), 2) if std else 2
    mean, std = round(float(numbers.mean()), places), round(std, places)
    return f"{mean:{sign}.{max(places, 0)}f} ± {std:.{max(places, 0)}f}"
