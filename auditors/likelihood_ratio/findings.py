"""What played likelihood-ratio games may claim, of one round and of all rounds together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from leakmeter.auditors.audited_round import AuditedRound, Claims, Trials
from leakmeter.auditors.bounds.gaussian import epsilon_gaussian, tradeoff_gaussian
from leakmeter.auditors.finding import Bound, Finding, Game
from leakmeter.auditors.likelihood_ratio.game import ENOUGH_DRAWS, PlayedGame
from leakmeter.auditors.values import Floats, Vector
from leakmeter.auditors.wording import Assumption, counted, number, percent

# Below this p-value of the normality test a Gaussian model of the scores is not printed. A sum that
# is Gaussian loses it in one of 1,000 audited rounds; at 5 % a run of ten rounds would lose it in
# 40 % of all runs.
NORMALITY_LEVEL: Final = 0.001


@dataclass(frozen=True)
class AttackedRound:
    """Where a game was played.

    Attributes:
        server_round: The round.
        game: What its trials resample.
        target: Client under attack.
        others: How many clients hide it.
        has_integers: Whether its noise is over integers, which the trials only resemble.
    """

    server_round: int
    game: Game
    target: int
    others: int
    has_integers: bool = False

    @classmethod
    def of(cls, audited: AuditedRound) -> AttackedRound:
        """Return what a round's findings need to know of it."""
        assert audited.target is not None
        others = len(audited.others)
        return cls(audited.server_round, audited.game, audited.target, others, audited.has_integers)

    @property
    def facts(self) -> dict[str, Any]:
        """Who is under attack, among how many."""
        return {"target": self.target, "others": self.others, "honest clients": self.others + 1}


def of_round(claims: Claims, where: AttackedRound, played: PlayedGame) -> list[Finding]:
    """Return the lower bound, what a Gaussian model says, and whether the model fits."""
    return [
        claims.proven(played.trials, where.facts),
        *([_modelled(claims, played)] if _looks_gaussian(played) else []),
        _separation(claims, played),
        *([] if played.normality is None else [_of_normality(claims, *played.normality)]),
        *_outside_span(claims, played),
    ]


def _modelled(claims: Claims, played: PlayedGame) -> Finding:
    """Return epsilon of Gaussians as far apart as the trials (Theorem 2 of the paper)."""
    separation = played.separation
    modelled = Bound(
        value=epsilon_gaussian(claims.delta, separation),
        kind="approximation",
        rule=f"two Gaussians {separation:.3g} standard deviations apart, as the trials are",
        delta=claims.delta,
        sample_sizes={"trials": played.scores.size},
        assumptions=(Assumption.GAUSSIAN_SUM,),
    )
    return claims.finding(modelled, {"separation": separation})


def _separation(claims: Claims, played: PlayedGame) -> Finding:
    """Return how far the pair is apart."""
    return claims.diagnostic(
        "separation",
        played.separation,
        "distance of the two worlds in standard deviations, on fresh trials; the fit predicted "
        f"{played.modelled:.3g}, the pilot {played.piloted:.3g}",
        {"in_sample": played.modelled, "pilot": played.piloted, **played.facts},
    )


def _of_normality(claims: Claims, statistic: float, p: float) -> Finding:
    """Return whether the scores look Gaussian, and what follows."""
    is_rejected = p < NORMALITY_LEVEL
    rule = f"Anderson-Darling test of the scores of the trials, p = {p:.2g}"
    if is_rejected:
        rule += (
            f". The test rejects a Gaussian at the level {NORMALITY_LEVEL:g}, so the Gaussian "
            "approximation of ε is left out; the lower bound does not depend on it"
        )
    facts = {"p_value": p, "level": NORMALITY_LEVEL, "approximation left out": is_rejected}
    return claims.diagnostic("normality", statistic, rule, facts)


def _outside_span(claims: Claims, played: PlayedGame) -> list[Finding]:
    """Return what part of the difference no sum of the others reached, after enough trials."""
    span, beyond, draws = played.span, played.beyond, played.scores.size
    if span is None or beyond is None or played.reached or draws < ENOUGH_DRAWS:
        return []
    rule = (
        f"{beyond:.2g} of the pair's difference is outside the span of the other "
        f"clients' updates. In {draws} trials their sum never moved along this part; "
        f"{_rule_of_three(draws, claims.confidence)}. The test leaves this part out"
    )
    facts = {
        **_certainty(draws, claims.confidence),
        "idle columns": span.idle_columns,
        "rank": span.rank,
        "sampled updates": span.samples,
    }
    return [claims.diagnostic("certain separation", beyond, rule, facts)]


def guess(
    claims: Claims, where: AttackedRound, played: PlayedGame, seen: Vector | None
) -> list[Finding]:
    """Return the attacker's guess about the sum that was really released, if it makes one."""
    if played.real is None or seen is None:
        return []
    test, mean, std = played.real
    if not (test.shift > 0 and std > 0):
        return []
    middle = mean + test.total / 2
    # ln p(s | first) - ln p(s | second) of two Gaussians of one variance, `shift` apart: linear
    # in s, and 0 in the middle.
    ratio = test.shift / std**2 * (float(test.direction @ seen) - middle)
    separation = test.shift / std
    rule = (
        f"the attacker guesses {'right' if ratio > 0 else 'wrong'} which of two updates client "
        f"{where.target} sent. The value is the log-likelihood ratio on the released sum, of "
        "the update it sent against the farthest candidate"
    )
    error = None
    if _looks_gaussian(played):
        error = float(tradeoff_gaussian(0.5, separation / 2))  # Φ(-separation/2)
        rule += f". A Gaussian model expects {error:.2g} of such guesses to be wrong"
    facts = {
        "right": ratio > 0,
        "separation": separation,
        "expected_error": error,
        "alternative": test.pair[1],
    }
    return [claims.diagnostic("guess", ratio, rule, facts)]


@dataclass(frozen=True)
class ConstantRound:
    """A round in which the other clients, the same in all draws, did not hide the target.

    Attributes:
        where: The round.
        draws: How many draws there were.
        is_rounded: Whether the sum was rounded.
    """

    where: AttackedRound
    draws: int
    is_rounded: bool

    def finding(self, claims: Claims) -> Finding:
        """Return what follows, for the round or for the run."""
        assert self.draws >= ENOUGH_DRAWS
        is_of_run, where = claims.server_round is None, self.where
        rule = (
            f"{f'round {where.server_round}: ' if is_of_run else ''}the other clients sent the "
            f"same in all {self.draws} draws, so the sum shows the update of client "
            f"{where.target}; {_rule_of_three(self.draws, claims.confidence)}"
        )
        if self.is_rounded:
            rule += ". Updates that differ by less than the rounding of the sum may look alike"
        facts = {
            **_certainty(self.draws, claims.confidence),
            **where.facts,
            "rounded": self.is_rounded,
            **({"audited round": where.server_round} if is_of_run else {}),
        }
        return claims.diagnostic("certain separation", 1.0, rule, facts)


def over_models(
    claims: Claims, where: AttackedRound, played: Sequence[Trials], constant: int
) -> Finding:
    """Return the largest bound over initial models, and how far the models differ.

    A mean of bounds would bound nothing. So each model has its own bound at the confidence, and
    the largest is one at a confidence that all models share.

    Args:
        claims: About the round or the run.
        where: The round.
        played: The trials at each model, that of the run first.
        constant: Models at which the other clients' updates did not vary; they have no bound.
    """
    models = len(played) + constant
    each = [one.bound(claims.delta, claims.confidence).value for one in played]
    _, best = claims.largest(played, models)
    low, middle, high = min(each), float(np.median(each)), max(each)
    rule = (
        f"largest of {models} initial models, which share the confidence; each one alone shows "
        f"{number(low, kind='lower_bound')} to {number(high, kind='lower_bound')}, median "
        f"{number(middle, kind='lower_bound')}"
    )
    if constant:
        rule += f"; at {constant} more the other clients' updates did not vary"
    facts = {
        **where.facts,
        "audited round": where.server_round,
        "models": models,
        "constant models": constant,
        "smallest": low,
        "median": middle,
        "largest": high,
        **{f"model {i}": value for i, value in enumerate(each, 1)},
    }
    return claims.finding(replace(best, rule=rule), facts, quantity="epsilon over initial models")


def _looks_gaussian(played: PlayedGame) -> bool:
    """Whether a Gaussian model of the scores may be used."""
    return played.normality is not None and played.normality[1] >= NORMALITY_LEVEL


def _certainty(draws: int, confidence: float) -> dict[str, float | int]:
    """Return what this many draws without an exception show.

    A larger chance p would show none with a chance of (1 - p)^M, below exp(-pM). With 95 %
    confidence that is the rule of three, p = 3/M; the three is rounded up to a tenth.
    """
    three = math.ceil(-10 * math.log1p(-confidence)) / 10
    return {"draws": draws, "confidence": confidence, "largest chance": three / draws}


def _rule_of_three(draws: int, confidence: float) -> str:
    """Return the same in words."""
    chance = _certainty(draws, confidence)["largest chance"]
    return (
        f"with {percent(confidence)} confidence, the chance of an exception is at most "
        f"{percent(chance)}"
    )


@dataclass(frozen=True)
class Transcripts:
    """Scores of played transcripts, the same number in each of the two worlds.

    Attributes:
        first: Scores if the target holds the first data set, (draws, features).
        second: Scores if it holds the second.
    """

    first: Floats
    second: Floats

    def __post_init__(self) -> None:
        if self.first.shape != self.second.shape or self.first.ndim != 2:
            shapes = f"{self.first.shape} and {self.second.shape}"
            raise ValueError(f"both worlds must have scores (draws, features), got {shapes}")

    def __len__(self) -> int:
        return len(self.first)

    def judged(self, pilot: int) -> Trials:
        """Return the scores of a test that the first `pilot` transcripts fix, on the others."""
        fitted = Transcripts(self.first[:pilot], self.second[:pilot])
        judged = Transcripts(self.first[pilot:], self.second[pilot:])
        return Combination.fit(fitted).trials(judged)

    @staticmethod
    def joined(rounds: Sequence[Transcripts]) -> Transcripts:
        """Return the features of several rounds side by side."""
        return Transcripts(
            np.concatenate([one.first for one in rounds], axis=1),
            np.concatenate([one.second for one in rounds], axis=1),
        )


@dataclass(frozen=True)
class Combination:
    """One linear test over the scores of all rounds, fitted on transcripts of its own.

    Fisher's linear discriminant: for Gaussian scores with one covariance C in both worlds and means
    that differ by g, the log-likelihood ratio is linear with weights C⁻¹g, and the worlds are
    √(gᵀC⁻¹g) standard deviations apart. For independent rounds that is √ΣΔ_t². Any weights give a
    valid test, since the trials that judge it are others: a bad fit costs power, never confidence.

    Attributes:
        weights: One for each feature, (features,).
        middle: Combined score at which neither world is more likely.
    """

    weights: Vector
    middle: float

    @classmethod
    def fit(cls, pilot: Transcripts) -> Combination:
        """Return the discriminant of some transcripts, which may not be used as trials."""
        if len(pilot) < 4:
            raise ValueError(f"pilot must be at least 4 transcripts, got {len(pilot)}")
        means = pilot.first.mean(axis=0), pilot.second.mean(axis=0)
        # g of the docstring, (features,).
        gap = means[0] - means[1]
        # Both worlds around their own means, (2 draws, features): one covariance C, pooled, with 2
        # draws - 2 degrees of freedom.
        centred = np.concatenate([pilot.first - means[0], pilot.second - means[1]])
        std = np.sqrt(np.square(centred).sum(axis=0) / (len(centred) - 2))
        # A feature that never varies would get an infinite weight; rounding gives it a little.
        std = np.maximum(std, 1e-9 * max(float(np.abs(gap).max()), 1e-300))
        scaled = centred / std
        correlation = _shrunk(scaled.T @ scaled / (len(centred) - 2), len(pilot))
        # C⁻¹g with C = D R D, D = diag(std): D⁻¹R⁻¹D⁻¹g. Shrinking R instead of C leaves the scale
        # of each feature alone.
        weights = np.linalg.solve(correlation, gap / std) / std
        return cls(weights, float((means[0] + means[1]) @ weights) / 2)

    def trials(self, transcripts: Transcripts) -> Trials:
        """Return the combined scores in both worlds, (draws,) each."""
        first, second = transcripts.first @ self.weights, transcripts.second @ self.weights
        return Trials(first, second, self.middle)


def prove(
    claims: Claims,
    rounds: Sequence[Transcripts],
    models: Sequence[Transcripts] = (),
    *,
    target: int,
    pilot: int,
) -> Finding:
    """Return what the trials of these rounds together prove.

    Args:
        claims: About the last of these rounds if the run continues, else about the run.
        rounds: Scores of the rounds in which the target takes part or might.
        models: The same for models that the attacker has seen beside the sums.
        target: Client under attack.
        pilot: Transcripts that fix the test; the others are trials.
    """
    model = replace(claims.threat_model, participations=len(rounds))
    claims, count = replace(claims, threat_model=model), len(rounds)
    trials = Transcripts.joined([*rounds, *models]).judged(pilot)
    bound = claims.assuming(trials.bound(claims.delta, claims.confidence))
    bound = replace(bound, rule=f"{bound.rule}; one test over {counted(count, 'round')}")
    facts = {"target": target, "rounds": count, "separation": trials.separation}
    if claims.server_round is not None:
        return claims.finding(bound, facts)
    alone = [one.judged(pilot) for one in rounds]
    shared = claims.shared(count)
    facts["largest single round"] = max(one.bound(claims.delta, shared).value for one in alone)
    facts["largest separation of one round"] = max(one.separation for one in alone)
    return claims.finding(bound, facts, (trials.curve(claims.confidence),))


def _shrunk(correlation: Floats, draws: int) -> Floats:
    """Return a correlation matrix pulled to the identity as far as its errors ask for.

    Schäfer and Strimmer (2005), A Shrinkage Approach to Large-Scale Covariance Matrix Estimation:
    the best intensity is the sum of the variances of the off-diagonal entries over the sum of
    their squares; here with the variance of a correlation of Gaussians, (1 - r²)²/(draws - 1).
    """
    off = correlation[~np.eye(len(correlation), dtype=bool)]
    size = float(np.square(off).sum())
    errors = float(np.square(1 - np.square(off)).sum()) / (draws - 1)
    share = min(errors / size, 1.0) if size > 0 else 1.0
    return (1 - share) * correlation + share * np.eye(len(correlation))
