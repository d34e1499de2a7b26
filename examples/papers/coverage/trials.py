"""Trials in two worlds a known ε apart, and every bound that they give.

Ngo et al. (2024), arXiv:2403.17775, section 4.5: Clopper-Pearson limits of both errors at 95 %
confidence, the threshold varied over the trials that are counted, and the largest epsilon of (8).
The limits hold at one threshold that was fixed before. Andrew et al. (2024), arXiv:2302.03098,
section 5.1, do the same with the exact false positive rate and a Jeffreys limit of the false
negative rate. Beside them ours, on the same scores: a round's bound and that of several rounds, of
a transcript whose rounds are correlated, of one record in a sum, and of the records of a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from scipy.optimize import brentq
from scipy.stats import hypergeom

from leakmeter.auditors.audited_round import Claims
from leakmeter.auditors.bounds.gaussian import epsilon_gaussian
from leakmeter.auditors.bounds.lower_bound import (
    BandAndFixed,
    Fixed,
    PilotSplit,
    Scores,
    epsilon_lower_bound,
)
from leakmeter.auditors.finding import Bound, ThreatModel
from leakmeter.auditors.likelihood_ratio.transcript_runs import Transcripts, prove
from leakmeter.auditors.records.game import RecordBudget, RecordCase, audit_records
from leakmeter.auditors.records.membership import membership_bound
from leakmeter.auditors.values import Floats
from leakmeter.clients.protection.gradients import Rows
from leakmeter.papers.andrew2024 import audit as one_shot
from leakmeter.papers.coverage.case import ALLOWED, CONFIDENCE, Case, Rng, no_bound

BEST: Final = "best threshold"
EXACT: Final = "best threshold, known null"
RARE: Final = "Gaussian, 8 apart"  # errors are rare
ROUNDS: Final = 5  # audited rounds that share the confidence
TRANSCRIPT: Final = 10  # rounds of a transcript
CORRELATION: Final = 0.5  # between any two of its rounds
FEW: Final = 500  # trials where a case has one number of them
MANY: Final = 1000  # trials of the independent game


@dataclass(frozen=True)
class Noise:
    """Scores of two worlds: one distribution, once as it is and once moved."""

    name: str  # for the table
    shift: float  # how far it is moved
    draw: Callable[[Rng, int], Floats]  # draws scores that are not moved
    logsf: Callable[[Floats], Floats]  # ln P(score >= t) of such scores
    delta: float  # the δ that ε belongs to
    epsilon: float  # the truth


def _normal(shift: float, delta: float) -> Noise:
    return Noise(
        f"Gaussian, {shift:g} apart" if shift else "no leak",
        shift,
        lambda rng, size: rng.standard_normal(size),
        one_shot.normal_logsf,
        delta,
        epsilon_gaussian(delta, shift),
    )


def _laplace(shift: float, delta: float) -> Noise:
    return Noise(
        f"Laplace, {shift:g} apart",
        shift,
        lambda rng, size: rng.laplace(size=size),
        lambda t: np.where(t > 0, math.log(0.5) - np.abs(t), np.log1p(-0.5 * np.exp(-np.abs(t)))),
        delta,
        # Of Laplace noise of scale 1: δ(ε) = 1 - exp((ε - shift)/2) up to ε = shift.
        shift + 2 * math.log1p(-delta),
    )


NOISES: Final = (
    *(_normal(shift, 1e-5) for shift in (0.0, 0.5, 1.0, 8.0)),
    *(_normal(shift, 0.1) for shift in (1.0, 2.0)),
    *(_laplace(shift, 1e-5) for shift in (0.5, 1.0)),
)


def cases(trials: Sequence[int]) -> tuple[Case, ...]:
    """Return every mechanism, those of `NOISES` with each number of trials."""
    return (
        *(
            Case(
                f"{noise.name}, {n} trials", noise.delta, noise.epsilon, partial(_bounds, noise, n)
            )
            for n in trials
            for noise in NOISES
        ),
        *(_independent(others, d) for others, d in ((20, 0.05), (5, 1e-5))),
        *(_rounds(noise) for noise in NOISES),
        *(_transcript(gap) for gap in (0.0, 1.0)),
        *(_record(gap) for gap in (0.0, 1.0)),
        _members("members, no leak", 0.0, NOISES[0]),
        _members("members, Laplace noise on each record", NOISES[-1].epsilon, NOISES[-1]),
        _members("members are another population, no leak", 0.0, NOISES[1]),
    )


def _bounds(noise: Noise, trials: int, rng: Rng) -> dict[str, Bound]:
    """Return the bound of every rule on the same scores."""
    outside, inside = noise.draw(rng, trials), noise.draw(rng, trials) + noise.shift
    ours = partial(epsilon_lower_bound, inside, delta=noise.delta, confidence=CONFIDENCE)
    known, middle = Scores.of(inside, None, noise.logsf), noise.shift / 2
    return {
        BEST: no_bound(best_threshold(inside, outside, noise.delta), BEST),
        EXACT: no_bound(one_shot.published(known, noise.delta, ALLOWED), EXACT),
        "band": ours(outside),
        "band, known null": ours(null_logsf=noise.logsf),
        "pilot": ours(outside, rule=PilotSplit()),
        "fixed": ours(outside, rule=Fixed(middle)),
        "band and fixed": ours(outside, rule=BandAndFixed(middle)),
    }


def best_threshold(inside: Floats, outside: Floats, delta: float) -> float:
    """Return the largest epsilon of (8) over all thresholds: no confidence belongs to it."""
    # B(1 - γ/2; ...) for each of both rates.
    scores = Scores.of(inside, outside, None)
    return one_shot.published(scores, delta, ALLOWED / 2, "clopper-pearson")


def _rounds(noise: Noise) -> Case:
    """Return several audited rounds: the largest of their bounds, which share the confidence.

    As in an audit, one set of draws serves both worlds of a round.
    """
    shared = 1 - ALLOWED / ROUNDS

    def audit(rng: Rng) -> Mapping[str, Bound]:
        played = [noise.draw(rng, FEW) for _ in range(ROUNDS)]
        prove = partial(epsilon_lower_bound, delta=noise.delta, rule=BandAndFixed(noise.shift / 2))
        bounds = [prove(own + noise.shift, own, confidence=shared) for own in played]
        return {f"largest of {ROUNDS} rounds": max(bounds, key=lambda bound: bound.value)}

    return Case(f"{noise.name}, {ROUNDS} rounds", noise.delta, noise.epsilon, audit)


def _transcript(gap: float, delta: float = 0.1) -> Case:
    """Return rounds that are correlated, in one test whose weights a pilot fixes.

    With the covariance C of the rounds' scores, the worlds are √(gᵀC⁻¹g) standard deviations apart.
    """
    share = CORRELATION * TRANSCRIPT
    apart = gap * math.sqrt(TRANSCRIPT / (1 - CORRELATION + share))
    pilot = 100
    attacker = ThreatModel(
        observer="server",
        sees="round sum",
        holds="two data sets",
        knows_cohort=True,
        game="independent",
    )
    claims = Claims("transcript", attacker, delta, CONFIDENCE, server_round=TRANSCRIPT)

    def audit(rng: Rng) -> Mapping[str, Bound]:
        own = rng.standard_normal((2, pilot + FEW, TRANSCRIPT))
        kept = rng.standard_normal((2, pilot + FEW, 1))  # what the others keep over all rounds
        worlds = math.sqrt(1 - CORRELATION) * own + math.sqrt(CORRELATION) * kept
        worlds[0] += gap
        rounds = [Transcripts(*both) for both in np.split(worlds, TRANSCRIPT, axis=2)]
        return {"transcript": prove(claims, rounds, target=0, pilot=pilot)}

    name = f"{TRANSCRIPT} correlated rounds, {gap:g} apart each"
    return Case(name, delta, epsilon_gaussian(delta, apart), audit)


def _record(gap: float, delta: float = 0.1) -> Case:
    """Return a sum in which one record is exchanged, with variance 1 in every direction."""
    rows = Rows(np.array([[1.0, 0.0, 2.0], [1.0, gap, 2.0]]))
    case = RecordCase((rows,), records=1, batch=0, floor=0.25, rest=0.75)
    budget = RecordBudget(pairs=1, pilot=1, trials=FEW)

    def audit(rng: Rng) -> Mapping[str, Bound]:
        seed = int(rng.integers(2**31))
        audited = audit_records(case, delta=delta, budget=budget, confidence=CONFIDENCE, seed=seed)
        return {"one record": audited.bound}

    name = f"one record exchanged, {gap:g} apart"
    return Case(name, delta, epsilon_gaussian(delta, gap), audit)


def _members(name: str, epsilon: float, noise: Noise) -> Case:
    """Return a model that scores members as `noise` moved, and held-out records as it is."""

    def audit(rng: Rng) -> Mapping[str, Bound]:
        members, held_out = noise.draw(rng, FEW) + noise.shift, noise.draw(rng, FEW)
        prove = partial(membership_bound, delta=noise.delta, confidence=CONFIDENCE)
        return {"members of one model": prove(members, held_out)}

    return Case(name, noise.delta, epsilon, audit)


def _independent(others: int, delta: float) -> Case:
    """Return the independent game of a secure sum: which of two updates is in it?

    Of 2,000 records half are ones. A client holds 20 of them, drawn again in every trial from all
    records, and sends its number of ones. The candidates have none and 20.
    """
    one = hypergeom(2000, 1000, 20).pmf(np.arange(21))
    chances = np.ones(1)
    for _ in range(others):
        chances = np.convolve(chances, one)
    low, high = np.append(chances, np.zeros(20)), np.append(np.zeros(20), chances)
    sums, middle = np.arange(chances.size), 10 * others + 10.0

    def gap(epsilon: float) -> float:
        ways = ((low, high), (high, low))
        return max(float(np.maximum(p - math.exp(epsilon) * q, 0).sum()) for p, q in ways) - delta

    def audit(rng: Rng) -> Mapping[str, Bound]:
        outside, inside = (rng.choice(sums, MANY, p=chances) + shift for shift in (0, 20))
        prove = partial(epsilon_lower_bound, inside, outside, delta=delta, confidence=CONFIDENCE)
        return {"trials, band": prove(), "trials, two rules": prove(rule=BandAndFixed(middle))}

    name = f"independent game, {others} others"
    # Beyond ε = 60 only sums count that one of the two candidates cannot give.
    return Case(name, delta, float(brentq(gap, 0.0, 60.0)), audit)
