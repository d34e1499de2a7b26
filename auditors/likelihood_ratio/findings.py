"""What a played likelihood-ratio game may claim, in findings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from leakmeter.auditors._types import Vector
from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.bounds.curve import drawn
from leakmeter.auditors.bounds.lower_bound import epsilon_lower_bound
from leakmeter.auditors.finding import Finding, Game, Observer, Quantity, ThreatModel
from leakmeter.auditors.gaussian.normality import anderson_darling
from leakmeter.auditors.gaussian.pair import epsilon_gaussian, tradeoff_gaussian
from leakmeter.auditors.likelihood_ratio.game import Duel

_ASSUMED = (Assumption.FROZEN_UPDATES, Assumption.KNOWN_SEATS, Assumption.GAUSSIAN_ROUNDING)


@dataclass(frozen=True)
class Judge:
    """Turns played games into findings; knows the adversary and, once told, the round."""

    name: str
    observer: Observer
    delta: float
    seed: int
    server_round: int | None = None
    game: Game = "rerun"
    target: int = 0
    num_others: int = 0

    def of_round(self, server_round: int, game: Game, target: int, num_others: int) -> Judge:
        """Return the judge of one round."""
        judge = replace(self, server_round=server_round, game=game)
        return replace(judge, target=target, num_others=num_others)

    def claims(self, played: Duel, confidence: float) -> list[Finding]:
        """Return the lower bound, what a Gaussian model would say, and how sound the model is."""
        return [
            self._bound(played, confidence),
            *([self._modelled(played)] if math.isfinite(played.separation) else []),
            *self._diagnoses(played),
        ]

    def _bound(self, played: Duel, confidence: float) -> Finding:
        """Return what the trials prove."""
        inside, outside = played.scores + played.shift, played.scores
        bound = epsilon_lower_bound(inside, outside, delta=self.delta, confidence=confidence)
        curve = drawn(inside, outside, confidence=confidence, server_round=self.server_round)
        assumptions = (*bound.assumptions, *_ASSUMED)
        return Finding.of(
            replace(bound, assumptions=assumptions),
            facts={"target": self.target, "others": self.num_others},
            details=(curve,),
            **self._words(),
        )

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

    def _diagnoses(self, played: Duel) -> list[Finding]:
        """Return how far the pair is apart, and whether the model's assumptions look sound."""
        found = [
            self._diagnostic(
                "separation",
                played.separation,
                f"distance of the two worlds on fresh trials; the fit promised "
                f"{played.modelled:.3g}, the pilot {played.piloted:.3g}",
                {"in_sample": played.modelled, "pilot": played.piloted, **played.facts},
            )
        ]
        if played.scores.size >= 8 and np.ptp(played.scores) > 0:
            statistic, p = anderson_darling(played.scores)
            rule = f"normality of the test statistic over trials, p = {p:.2g}"
            quantity = "normality"
            found.append(self._diagnostic(quantity, statistic, rule, {"p_value": p}))
        if played.span is not None and played.span.separated and self._is_sure(played):
            rule = f"{played.span.words}; the test leaves this out"
            details = {"idle_columns": played.span.idle_columns, "rank": played.span.rank}
            quantity = "certain separation"
            found.append(self._diagnostic(quantity, played.span.share, rule, details))
        return found

    def _is_sure(self, played: Duel) -> bool:
        """Whether enough updates were sampled to say that the others never reach a place.

        What none of M updates reached, one update reaches with a chance of at most 3/M (95 %
        confidence), and a sum of n with n times that; up to 5 % are let pass.
        """
        return 3 * self.num_others <= 0.05 * played.span_samples

    def verdict(self, played: Duel, seen: Vector | None) -> list[Finding]:
        """Return what the test says of the sum that was really released, if that can be known."""
        if played.real is None or seen is None:
            return []
        test, mean, std = played.real
        if not (test.shift > 0 and std > 0):
            return []
        middle = mean + float(test.direction @ (test.first + test.second)) / 2
        ratio = test.shift / std**2 * (float(test.direction @ seen) - middle)
        separation = test.shift / std
        error = float(tradeoff_gaussian(0.5, separation / 2))  # Φ(-separation/2)
        says = "the update that was sent" if ratio > 0 else "the other one"
        rule = (
            f"log-likelihood ratio of client {self.target}'s true update against the farthest "
            f"candidate, on the released sum: the server says {says}; a Gaussian model expects "
            f"an error in {error:.2g} of such guesses"
        )
        details = {
            "right": ratio > 0,
            "separation": separation,
            "expected_error": error,
            "alternative": test.pair[1],
        }
        return [self._diagnostic("guess", ratio, rule, details)]

    def constant(self, why: str, *, is_rounded: bool) -> Finding:
        """Return that nothing hides the target."""
        rule = f"{why}: any two different updates of client {self.target} are told apart for sure"
        if is_rounded:
            rule += ", unless they differ by less than the sum is rounded"
        return self._diagnostic("certain separation", 1.0, rule, {})

    def constant_of_run(self, where: Mapping[str, Any]) -> Finding:
        """Return for the run that nothing hid the target in one of its rounds."""
        judge = replace(
            self, game=where["game"], target=int(where["target"]), num_others=int(where["others"])
        )
        why = f"round {int(where['round'])}: {where['why']}"
        return judge.constant(why, is_rounded=bool(where["is_rounded"]))

    def of_run(
        self, played: Sequence[Mapping[str, Any]], shared: float, confidence: float
    ) -> Finding:
        """Return the largest bound of several rounds, each at a confidence of `shared`."""
        bounds = [
            epsilon_lower_bound(
                p["scores"] + p["shift"], p["scores"], delta=self.delta, confidence=shared
            )
            for p in played
        ]
        best = max(range(len(bounds)), key=lambda i: bounds[i].value)
        where = played[best]
        judge = replace(
            self, game=where["game"], target=int(where["target"]), num_others=int(where["others"])
        )
        rule = bounds[best].rule
        if len(played) > 1:
            rule += f"; largest of {len(played)} audited rounds, which share the confidence"
        bound = replace(
            bounds[best],
            rule=rule,
            confidence=confidence,
            assumptions=(*bounds[best].assumptions, *_ASSUMED),
        )
        curve = drawn(
            where["scores"] + where["shift"],
            where["scores"],
            confidence=shared,
            server_round=int(where["round"]),
        )
        facts = {"audited rounds": len(played)}
        return Finding.of(bound, facts=facts, details=(curve,), **judge._words())

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
