"""What auditors claim: findings are made here, with the fields that all of one audit share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from leakmeter.auditors._types import Vector
from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.bounds.lower_bound import CurveRule, drawn, epsilon_lower_bound
from leakmeter.auditors.bounds.rules import BandAndFixed, SimultaneousBand
from leakmeter.auditors.finding import (
    Adjacency,
    Bound,
    Detail,
    ErrorCurve,
    Finding,
    Quantity,
    ThreatModel,
    Unit,
)


@dataclass(frozen=True, eq=False)
class Trials:
    """Scores of one test in two worlds, a separate trial for each.

    Attributes:
        first: Scores in the world that a large score favours, (trials,).
        second: Scores in the other world, (trials,).
        threshold: Score at which neither is more likely, fixed before any trial; None if there is
            none.
    """

    first: Vector
    second: Vector
    threshold: float | None = None

    @property
    def rule(self) -> CurveRule:
        """Where the threshold of a bound comes from."""
        return SimultaneousBand() if self.threshold is None else BandAndFixed(self.threshold)

    @property
    def separation(self) -> float:
        """Distance of the two worlds in standard deviations of their scores."""
        std = math.sqrt((self.first.var(ddof=1) + self.second.var(ddof=1)) / 2)
        gap = float(self.first.mean() - self.second.mean())
        return gap / std if std > 0 else math.copysign(math.inf, gap) if gap else 0.0

    def bound(self, delta: float, confidence: float) -> Bound:
        """Return the ε that the trials prove."""
        return epsilon_lower_bound(
            self.first, self.second, delta=delta, confidence=confidence, rule=self.rule
        )

    def curve(self, confidence: float, server_round: int | None = None) -> ErrorCurve:
        """Return the limits of both error rates for a figure."""
        return drawn(
            self.first,
            self.second,
            confidence=confidence,
            server_round=server_round,
            rule=self.rule,
        )


@dataclass(frozen=True)
class Claims:
    """Makes findings about one attacker.

    Attributes:
        auditor: Whose findings.
        threat_model: Who attacks, and with what.
        delta: Of the bounds.
        confidence: Of the bounds.
        adjacency: How the two worlds differ.
        unit: Whose participation is at stake.
        server_round: The round; None for the run.
        seed: Of the auditor.
        assumptions: What every lower bound takes for granted beyond its own rule.
    """

    auditor: str
    threat_model: ThreatModel
    delta: float = 1e-5
    confidence: float = 0.95
    adjacency: Adjacency | None = "replace"
    unit: Unit = "client"
    server_round: int | None = None
    seed: int | None = None
    assumptions: tuple[Assumption, ...] = ()

    def finding(
        self,
        bound: Bound,
        facts: Mapping[str, Any] | None = None,
        details: tuple[Detail, ...] = (),
        quantity: Quantity = "epsilon",
    ) -> Finding:
        """Return a number as a finding about this attacker."""
        return Finding.of(
            bound,
            auditor=self.auditor,
            quantity=quantity,
            threat_model=self.threat_model,
            adjacency=self.adjacency,
            unit=self.unit,
            server_round=self.server_round,
            seed=self.seed,
            facts=facts or {},
            details=details,
        )

    def diagnostic(
        self, quantity: Quantity, value: float, rule: str, facts: Mapping[str, Any]
    ) -> Finding:
        """Return an observation without a claim."""
        return self.finding(Bound(value, "diagnostic", rule), facts, quantity=quantity)

    def proven(self, trials: Trials, facts: Mapping[str, Any], rule: str = "") -> Finding:
        """Return the ε that trials prove, with its curve; `rule` says what they were about."""
        bound = self.assuming(trials.bound(self.delta, self.confidence))
        bound = replace(bound, rule=f"{bound.rule}{rule}")
        return self.finding(bound, facts, (trials.curve(self.confidence, self.server_round),))

    def assuming(self, bound: Bound) -> Bound:
        """Return a bound that takes for granted what all claims do."""
        return replace(bound, assumptions=(*bound.assumptions, *self.assumptions))

    def shared(self, looks: int) -> float:
        """Return the confidence of each of several looks, so that all hold at the confidence.

        Bonferroni: the largest of n bounds fails if any of them does.
        """
        return 1 - (1 - self.confidence) / looks

    def largest(self, played: Sequence[Trials], looks: int) -> tuple[int, Bound]:
        """Return whose ε is the largest, and that bound, at a confidence that all looks share."""
        bounds = [one.bound(self.delta, self.shared(looks)) for one in played]
        best = max(range(len(bounds)), key=lambda i: bounds[i].value)
        return best, self.assuming(replace(bounds[best], confidence=self.confidence))
