"""What a played likelihood-ratio game may claim, in findings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from leakmeter.auditors._types import Vector
from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.bounds.lower_bound import drawn, epsilon_lower_bound
from leakmeter.auditors.bounds.rules import BandAndFixed
from leakmeter.auditors.finding import Bound, Finding, Game, Observer, Quantity, ThreatModel
from leakmeter.auditors.gaussian.normality import anderson_darling
from leakmeter.auditors.gaussian.pair import epsilon_gaussian, tradeoff_gaussian
from leakmeter.auditors.likelihood_ratio.game import ENOUGH_DRAWS, Duel
from leakmeter.auditors.wording import number, percent

_ASSUMED = (Assumption.FROZEN_UPDATES, Assumption.KNOWN_SEATS, Assumption.GAUSSIAN_ROUNDING)
# Below this p-value of the normality test a Gaussian model of the scores is not printed. A sum that
# is Gaussian loses it in one of 1,000 audited rounds; at 5 % a run of ten rounds would lose it in
# 40 % of all runs.
NORMALITY_LEVEL: Final = 0.001


@dataclass(frozen=True)
class Judge:
    """Turns played games into findings; knows the attacker and, once told, the round."""

    name: str
    observer: Observer
    delta: float
    seed: int
    confidence: float = 0.95
    server_round: int | None = None
    game: Game = "rerun"
    target: int = 0
    num_others: int = 0
    has_integers: bool = False

    def of_round(
        self,
        server_round: int,
        game: Game,
        target: int,
        num_others: int,
        *,
        has_integers: bool = False,
    ) -> Judge:
        """Return the judge of one round; with integer noise in it, the trials only resemble it."""
        judge = replace(self, server_round=server_round, game=game, has_integers=has_integers)
        return replace(judge, target=target, num_others=num_others)

    @property
    def _assumed(self) -> tuple[Assumption, ...]:
        more = (Assumption.GAUSSIAN_TRIALS,) if self.has_integers else ()
        return (*_ASSUMED, *more)

    def claims(self, played: Duel) -> list[Finding]:
        """Return the lower bound, what a Gaussian model says, and whether the model fits."""
        normality = _normality(played)
        return [
            self._bound(played),
            *([self._modelled(played)] if _looks_gaussian(played) else []),
            self._separation(played),
            *([] if normality is None else [self._normality(*normality)]),
            *self._beyond(played),
        ]

    def _bound(self, played: Duel) -> Finding:
        """Return what the trials prove."""
        inside, outside = played.scores + played.shift, played.scores
        rule, confidence = BandAndFixed(played.middle), self.confidence
        bound = epsilon_lower_bound(
            inside, outside, delta=self.delta, confidence=confidence, rule=rule
        )
        curve = drawn(
            inside, outside, confidence=confidence, server_round=self.server_round, rule=rule
        )
        assumptions = (*bound.assumptions, *self._assumed)
        return Finding.of(
            replace(bound, assumptions=assumptions),
            facts=self._clients(),
            details=(curve,),
            **self._words(),
        )

    def _clients(self) -> dict[str, int]:
        """Return who is under attack, among how many."""
        return {
            "target": self.target,
            "others": self.num_others,
            "honest clients": self.num_others + 1,
        }

    def _modelled(self, played: Duel) -> Finding:
        """Return epsilon of Gaussians as far apart as the trials (Theorem 2 of the paper)."""
        separation = played.separation
        return Finding(
            value=epsilon_gaussian(self.delta, separation),
            kind="approximation",
            delta=self.delta,
            rule=f"two Gaussians {separation:.3g} standard deviations apart, as the trials are",
            sample_sizes={"trials": played.scores.size},
            assumptions=(Assumption.GAUSSIAN_SUM,),
            facts={"separation": separation},
            **self._words(),
        )

    def _separation(self, played: Duel) -> Finding:
        """Return how far the pair is apart."""
        return self._diagnostic(
            "separation",
            played.separation,
            "distance of the two worlds in standard deviations, on fresh trials; the fit predicted "
            f"{played.modelled:.3g}, the pilot {played.piloted:.3g}",
            {"in_sample": played.modelled, "pilot": played.piloted, **played.facts},
        )

    def _normality(self, statistic: float, p: float) -> Finding:
        """Return whether the scores look Gaussian, and what follows."""
        is_rejected = p < NORMALITY_LEVEL
        rule = f"Anderson-Darling test of the scores of the trials, p = {p:.2g}"
        if is_rejected:
            rule += (
                f". The test rejects a Gaussian at the level {NORMALITY_LEVEL:g}, so the Gaussian "
                "approximation of ε is left out; the lower bound does not depend on it"
            )
        facts = {"p_value": p, "level": NORMALITY_LEVEL, "approximation left out": is_rejected}
        return self._diagnostic("normality", statistic, rule, facts)

    def _beyond(self, played: Duel) -> list[Finding]:
        """Return what part of the difference no sum of the others reached, after enough trials."""
        span, beyond, draws = played.span, played.beyond, played.scores.size
        if span is None or beyond is None or beyond.reached or draws < ENOUGH_DRAWS:
            return []
        rule = (
            f"{beyond.share:.2g} of the pair's difference is outside the span of the other "
            f"clients' updates. In {draws} trials their sum never moved along this part; "
            f"{_rule_of_three(draws, self.confidence)}. The test leaves this part out"
        )
        facts = {
            **_certainty(draws, self.confidence),
            "idle columns": span.idle_columns,
            "rank": span.rank,
            "sampled updates": span.samples,
        }
        return [self._diagnostic("certain separation", beyond.share, rule, facts)]

    def guess(self, played: Duel, seen: Vector | None) -> list[Finding]:
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
            f"{self.target} sent. The value is the log-likelihood ratio on the released sum, of "
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
        return [self._diagnostic("guess", ratio, rule, facts)]

    def constant(
        self, draws: int, *, is_rounded: bool, audited_round: int | None = None
    ) -> Finding:
        """Return that the other clients, the same in all draws, did not hide the target.

        Args:
            draws: How many draws there were.
            is_rounded: Whether the sum was rounded.
            audited_round: The round, where the finding is about a run.
        """
        assert draws >= ENOUGH_DRAWS
        where = "" if audited_round is None else f"round {audited_round}: "
        rule = (
            f"{where}the other clients sent the same in all {draws} draws, so the sum shows the "
            f"update of client {self.target}; {_rule_of_three(draws, self.confidence)}"
        )
        if is_rounded:
            rule += ". Updates that differ by less than the rounding of the sum may look alike"
        facts = {
            **_certainty(draws, self.confidence),
            **self._clients(),
            "rounded": is_rounded,
        }
        if audited_round is not None:
            facts["audited round"] = audited_round
        return self._diagnostic("certain separation", 1.0, rule, facts)

    def constant_of_run(self, where: Mapping[str, Any]) -> Finding:
        """Return for the run that nothing hid the target in one of its rounds."""
        return self._of(where).constant(
            int(where["draws"]),
            is_rounded=bool(where["is_rounded"]),
            audited_round=int(where["round"]),
        )

    def of_run(self, played: Sequence[Mapping[str, Any]], shared: float) -> Finding:
        """Return the largest bound of several rounds, each at a confidence of `shared`."""
        bounds = [self._lower(p, shared) for p in played]
        best = max(range(len(bounds)), key=lambda i: bounds[i].value)
        where = played[best]
        judge = self._of(where)
        rule = bounds[best].rule
        if len(played) > 1:
            rule += f"; largest of {len(played)} audited rounds, which share the confidence"
        bound = replace(
            bounds[best],
            rule=rule,
            confidence=self.confidence,
            assumptions=(*bounds[best].assumptions, *judge._assumed),
        )
        curve = drawn(
            where["scores"] + where["shift"],
            where["scores"],
            confidence=shared,
            server_round=int(where["round"]),
            rule=BandAndFixed(where["middle"]),
        )
        facts = {
            **judge._clients(),
            "audited round": int(where["round"]),
            "audited rounds": len(played),
        }
        return Finding.of(bound, facts=facts, details=(curve,), **judge._words())

    def so_far(self, bound: Bound, rounds: int, largest: Finding | None = None) -> Finding:
        """Return what bets on the trials of all audited rounds prove.

        If every audited round is (ε, δ)-DP, the bets gain nothing. So the bound says that the sum
        of some audited round distinguishes its two updates.

        Args:
            bound: What the bets prove.
            rounds: Audited rounds so far.
            largest: For the run: the largest bound of a round, whose curves are drawn.
        """
        own = self._words() | {"facts": {**self._clients(), "audited rounds": rounds}}
        if largest is not None:
            names = ("auditor", "quantity", "threat_model", "adjacency", "unit", "seed", "details")
            own = {name: getattr(largest, name) for name in names}
            own["facts"] = {"audited rounds": rounds}
        return Finding.of(replace(bound, assumptions=(*bound.assumptions, *self._assumed)), **own)

    def over_models(
        self, played: Sequence[Mapping[str, Any]], where: Mapping[str, Any], constant: int
    ) -> Finding:
        """Return the largest bound over initial models, and how far the models differ.

        A mean of bounds would bound nothing. So each model has its own bound at the confidence,
        and the largest is one at a confidence that all models share.

        Args:
            played: The game at each model, that of the run first.
            where: Round, game, target and number of others.
            constant: Models at which the other clients' updates did not vary; they have no bound.
        """
        judge, models = self._of(where), len(played) + constant
        each = [self._lower(p, self.confidence).value for p in played]
        # Bonferroni over the models: the largest bound is a selection among them.
        shared = 1 - (1 - self.confidence) / models
        best = max((self._lower(p, shared) for p in played), key=lambda bound: bound.value)
        low, middle, high = min(each), float(np.median(each)), max(each)
        rule = (
            f"largest of {models} initial models, which share the confidence; each one alone shows "
            f"{number(low, kind='lower_bound')} to {number(high, kind='lower_bound')}, median "
            f"{number(middle, kind='lower_bound')}"
        )
        if constant:
            rule += f"; at {constant} more the other clients' updates did not vary"
        facts = {
            **judge._clients(),
            "audited round": int(where["round"]),
            "models": models,
            "constant models": constant,
            "smallest": low,
            "median": middle,
            "largest": high,
            **{f"model {i}": value for i, value in enumerate(each, 1)},
        }
        bound = replace(
            best,
            rule=rule,
            confidence=self.confidence,
            assumptions=(*best.assumptions, *judge._assumed),
        )
        words = judge._words() | {"quantity": "epsilon over initial models"}
        return Finding.of(bound, facts=facts, **words)

    def _lower(self, played: Mapping[str, Any], confidence: float) -> Bound:
        """Return what the trials of one game prove."""
        return epsilon_lower_bound(
            # The same trials in both worlds: adding the first update instead of the second moves
            # each score by exactly `shift`.
            played["scores"] + played["shift"],
            played["scores"],
            delta=self.delta,
            confidence=confidence,
            rule=BandAndFixed(played["middle"]),
        )

    def _of(self, where: Mapping[str, Any]) -> Judge:
        """Return the judge of a run whose largest leak was found here."""
        target, others = int(where["target"]), int(where["others"])
        has_integers = bool(where.get("has_integers"))
        judge = replace(self, game=where["game"], has_integers=has_integers)
        return replace(judge, target=target, num_others=others)

    def _words(self) -> dict[str, Any]:
        """Return the fields that all findings share."""
        return {
            "auditor": self.name,
            "quantity": "epsilon",
            "threat_model": ThreatModel(
                observer=self.observer,
                sees="round sum" if self.observer == "server" else "noised sum",
                holds="two updates",
                knows_cohort=True,
                game=self.game,
            ),
            "adjacency": "replace",
            "unit": "client",
            "server_round": self.server_round,
            "seed": self.seed,
        }

    def _diagnostic(
        self, quantity: Quantity, value: float, rule: str, facts: Mapping[str, Any]
    ) -> Finding:
        words = self._words() | {"quantity": quantity}
        return Finding(value=value, kind="diagnostic", rule=rule, facts=facts, **words)


def _normality(played: Duel) -> tuple[float, float] | None:
    """Return statistic and p-value of the test of normality; None for scores that do not vary."""
    return anderson_darling(played.scores) if np.ptp(played.scores) > 0 else None


def _looks_gaussian(played: Duel) -> bool:
    """Whether a Gaussian model of the scores may be used."""
    normality = _normality(played)
    return normality is not None and normality[1] >= NORMALITY_LEVEL


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
