"""The likelihood-ratio audit of a secure sum: can the server distinguish two updates of a client?

Ngo, Östman, Durisi, Graell i Amat (2024), Secure Aggregation is Not Private Against Membership
Inference Attacks, arXiv:2403.17775, section 4.5. Ours differs in five points:
1. Three disjoint sets: one fits the distribution of the others' sum, one chooses pair, test and
   threshold, one tests. A test looks better than it is on the samples that chose it.
2. The limits of the error rates hold for all thresholds together. One threshold, fixed on the
   pilot half way between the two worlds, has tighter limits of its own.
3. What the trials resample is a named game. Where all clients partition one finite data set, the
   others' updates are correlated and the attack is stronger than for independent clients.
4. Noise of the mechanism is part of every trial, exactly, through its component along the test.
5. The attacker guesses about the aggregate that the round really released, where that is known.

The claim is: there are two feasible updates of one client, the worst of those sampled and fixed
before testing, that the sum distinguishes. It is not a statement about a typical update.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from leakmeter.auditors.audited_round import (
    SEES,
    AuditedRound,
    Claims,
    ResamplingAuditor,
    SumObserver,
    Trials,
)
from leakmeter.auditors.auditor import Project, few_clients
from leakmeter.auditors.bounds.anytime import Anytime, AnytimeBound
from leakmeter.auditors.bounds.gaussian import epsilon_gaussian, tradeoff_gaussian
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Bound, Finding, Game, ThreatModel
from leakmeter.auditors.likelihood_ratio.game import (
    ENOUGH_DRAWS,
    ConstantSumError,
    PlayedGame,
    SampleBudget,
    play_game,
)
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling.sampler import RoundSampler, check_room
from leakmeter.auditors.values import Vector, within
from leakmeter.auditors.wording import Assumption, number, percent

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
        claims.proof(played.trials, where.facts),
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


_log = logging.getLogger("flwr")


class LikelihoodRatio(ResamplingAuditor):
    """Let the server guess which of two updates of a client is in the sum.

    Args:
        sampler: Draws fresh updates, and names the game; a function of the round where the
            clients' mechanism changes.
        target: Client under attack; None draws one of the round's clients. A round without the
            target is not audited.
        every: Rounds between two audits; 0 audits the first only, as the paper does, and -1
            rounds 1, 2, 4, 8, … and the last.
        budget: How many draws go into each stage, and at which further initial models.
        observer: "server" sees the sum before server noise, "outsider" after it. Both know who
            takes part in the round.
        delta: The delta of the bounds.
        confidence: Of each round's bound; over the run it is shared among the audited rounds.
            With `Anytime(0.95)` the rounds share nothing: bets on the trials of all of them prove
            an ε after each, and these bounds hold together.
        seed: Names all draws.
    """

    name = "likelihood-ratio"
    num_bounds = 1
    # The server knows the model and who takes part, and sees the sum. The truth makes the
    # candidate of the guess and subtracts what canary seats have sent; it scores nothing.
    reads = frozenset({"sent", "replies", "facts", "truth"})
    optional = MappingProxyType({"truth": "the guess about the sum that was really released"})
    wants_truth = True

    _played: Kept[list[tuple[AttackedRound, Trials]]]
    _bets: Kept[AnytimeBound | None]
    # The first audited round at other models, and at how many of them nothing varied.
    _repeated: Kept[tuple[list[Trials], int] | None]
    _constant: Kept[ConstantRound | None]  # the first round in which nothing hid the target

    def __init__(
        self,
        sampler: RoundSampler,
        *,
        target: int | None = None,
        every: int = 0,
        budget: SampleBudget = SampleBudget(),  # noqa: B008 - a frozen value
        observer: SumObserver = "server",
        delta: float = 1e-5,
        confidence: float | Anytime = 0.95,
        seed: int = 0,
    ) -> None:
        super().__init__(sampler, every=every, observer=observer)
        within("delta", delta, above=0.0, below=1.0)
        if target is not None and target < 0:
            raise BadValueError("target", "a client, 0 or more, or None", target)
        self.target, self.budget, self.seed = target, budget, seed
        self.further_audits = len(budget.models)
        self.delta, self.confidence = delta, Anytime.level(confidence)
        self._is_anytime = isinstance(confidence, Anytime)
        self._played, self._bets, self._repeated, self._constant = [], None, None, None

    @property
    def is_anytime(self) -> bool:
        """Whether it bets after every round."""
        return self._is_anytime

    def begin(self, dim: int, num_rounds: int) -> None:
        """Count the rounds that will be audited: they share the run's confidence."""
        if wrong := [np.shape(m) for m in self.budget.models if np.shape(m) != (dim,)]:
            raise BadValueError("models", f"of shape ({dim},)", wrong[0])
        self._played, self._repeated, self._constant = [], None, None
        if self._is_anytime:
            self._bets = AnytimeBound(delta=self.delta, confidence=self.confidence)
        super().begin(dim, num_rounds)

    def limits(self, project: Project) -> Sequence[str]:
        """Say where updates cannot be resampled or stored, or too few clients hide one another."""
        said = list(super().limits(project))
        if few := few_clients(project, 2, "a sum hides a client only among others; not audited"):
            return said + few
        if project.honest is not None:
            check_room(self.budget.file_bytes(project.honest - 1, project.dim))
        then = "its Gaussian approximation is poor for so few; the lower bound holds"
        return said + few_clients(project, 4, then)

    def updates_drawn(self, honest: int, dim: int) -> int:
        """Return how many updates a game samples."""
        return self.budget.updates(honest - 1, dim)

    def truth_of(self, server_round: int, honest: Sequence[int]) -> Collection[int]:
        """Return the target, if the round is audited."""
        if server_round not in self._due:
            return ()
        target = self.target_among(honest, server_round)
        return () if target is None else (target,)

    def target_among(self, honest: Sequence[int], server_round: int) -> int | None:
        """Return the client under attack in this round."""
        if self.target is not None:
            return self.target if self.target in honest else None
        if not honest:
            return None
        return int(stream(self.seed, "likelihood-ratio", "target", server_round).choice(honest))

    def audit(self, audited: AuditedRound) -> Sequence[Finding]:
        """Let the server guess which of two updates of the target is in the sum."""
        server_round = audited.server_round
        if audited.target is None or not audited.others:
            _log.warning("round %d: no client to audit among %s", server_round, audited.honest)
            return ()
        where = AttackedRound.of(audited)
        claims, names = self._claims(where, server_round), (self.name, self.seed, server_round)
        try:
            played = play_game(audited, budget=self.budget, stream=names)
        except ConstantSumError as error:
            if error.moved:
                _log.warning("round %d: %s; not audited", server_round, error)
                return ()
            constant = ConstantRound(where, error.draws, bool(audited.facts.quantum))
            self._constant = self._constant or constant
            return [constant.finding(claims)]
        self._played.append((where, played.trials))
        found = [
            *self._bet(claims, where, played),
            *of_round(claims, where, played),
            *guess(claims, where, played, audited.seen_sum()),
        ]
        if self.budget.models and self._repeated is None:
            self._repeated = self._repeat(audited)
            found += self._over_models(server_round)
        return found

    def report(self) -> Sequence[Finding]:
        """Return the largest bound of the audited rounds, or what all bets together prove.

        Rounds in which nothing hid the target have no bound; the first of them is reported too.
        """
        constant = self._constant
        found = [] if constant is None else [constant.finding(self._claims(constant.where))]
        if not self._played:
            return found
        return [self._of_run(), *self._over_models(), *found]

    def _claims(self, where: AttackedRound, server_round: int | None = None) -> Claims:
        """Return what makes findings about a round, or about the run if no round is given."""
        return Claims(
            self.name,
            ThreatModel(
                observer=self.observer,
                sees=SEES[self.observer],
                holds="two updates",
                knows_cohort=True,
                game=where.game,
            ),
            self.delta,
            self.confidence,
            server_round=server_round,
            seed=self.seed,
            assumptions=_assumed(where.has_integers),
        )

    def _of_run(self) -> Finding:
        """Return the largest bound of all audited rounds, or what bets on all of them prove."""
        played, claims = [one for _, one in self._played], self._claims(self._played[0][0])
        # A run that was cut short has looked less often than planned, which costs power only.
        looks = max(len(self._due), len(played))
        best, bound = claims.largest(played, looks)
        where, trials = self._played[best]
        claims = self._claims(where)
        curve = trials.curve(claims.shared_confidence(looks), where.server_round)
        audited = {"audited rounds": len(played)}
        if self._bets is not None:
            assumed = _assumed(any(one.has_integers for one, _ in self._played))
            claims = replace(claims, assumptions=assumed)
            return claims.finding(claims.assuming(self._bets.bound()), audited, (curve,))
        if len(played) > 1:
            rule = (
                f"{bound.rule}; largest of {len(played)} audited rounds, which share the confidence"
            )
            bound = replace(bound, rule=rule)
        facts = {**where.facts, "audited round": where.server_round, **audited}
        return claims.finding(bound, facts, (curve,))

    def _bet(self, claims: Claims, where: AttackedRound, played: PlayedGame) -> list[Finding]:
        """Bet on the trials of a round, and return what all bets so far prove.

        If every audited round is (ε, δ)-DP, the bets gain nothing. So the bound says that the sum
        of some audited round distinguishes its two updates.
        """
        if self._bets is None:
            return []
        if played.shift > 0:  # else the pair is no pair, and there is nothing to bet on
            self._bets.add_trials(*played.ratios())
        facts = {**where.facts, "audited rounds": len(self._played)}
        return [claims.finding(claims.assuming(self._bets.bound()), facts)]

    def _repeat(self, audited: AuditedRound) -> tuple[list[Trials], int]:
        """Return the round's game at the further initial models, and where nothing varied."""
        games, constant = [], 0
        for index, model in enumerate(self.budget.models):
            names = (self.name, self.seed, audited.server_round, "model", index)
            other = audited.at(np.asarray(model, dtype=np.float64))
            try:
                games.append(play_game(other, budget=self.budget, stream=names).trials)
            except ConstantSumError:
                constant += 1
        return games, constant

    def _over_models(self, server_round: int | None = None) -> list[Finding]:
        """Return the largest bound over the initial models and their spread, if asked for."""
        if self._repeated is None:
            return []
        # The first game is the one that was repeated: in earlier rounds nothing varied.
        (where, first), (games, constant) = self._played[0], self._repeated
        return [over_models(self._claims(where, server_round), where, [first, *games], constant)]


def _assumed(has_integers: bool) -> tuple[Assumption, ...]:
    """Return what all bounds take for granted."""
    more = (Assumption.GAUSSIAN_TRIALS,) if has_integers else ()
    return (
        Assumption.FROZEN_UPDATES,
        Assumption.KNOWN_SEATS,
        Assumption.GAUSSIAN_ROUNDING,
        *more,
    )
