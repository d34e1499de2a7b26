"""What played transcripts may claim, in findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.bounds.lower_bound import drawn, epsilon_lower_bound
from leakmeter.auditors.bounds.rules import BandAndFixed
from leakmeter.auditors.finding import Detail, Finding, Game, Observer, Sees, ThreatModel
from leakmeter.auditors.likelihood_ratio.transcript.case import Mode
from leakmeter.auditors.likelihood_ratio.transcript.combination import (
    Combination,
    Transcripts,
    separation,
)
from leakmeter.auditors.wording import counted


@dataclass(frozen=True)
class Verdicts:
    """Turns transcripts into findings.

    Attributes:
        name: The auditor.
        mode: Whether rounds are played at the run's models, or whole runs are.
        observer: Who attacks.
        knows_cohort: Whether it knows in which rounds the target takes part.
        game: Which randomness each transcript resamples.
        target: Client under attack.
        delta: Of the bounds.
        confidence: Of the bounds.
        seed: Of the audit.
        pilot: Transcripts that fix the test; the others are trials.
        has_integers: Whether the run's noise is of integers, which the trials only resemble.
    """

    name: str
    mode: Mode
    observer: Observer
    knows_cohort: bool
    game: Game
    target: int
    delta: float
    confidence: float
    seed: int
    pilot: int
    has_integers: bool = False

    def bound(
        self,
        rounds: Sequence[Transcripts],
        models: Sequence[Transcripts] = (),
        server_round: int | None = None,
    ) -> Finding:
        """Return what the trials of these rounds together prove.

        Args:
            rounds: Scores of the rounds in which the target takes part or might.
            models: The same for models that the attacker has seen beside the sums.
            server_round: The last of them, if the run continues.
        """
        pilot, trials = Transcripts.joined([*rounds, *models]).split(self.pilot)
        test = Combination.fit(pilot)
        first, second = test.scores(trials)
        rule = BandAndFixed(test.middle)
        bound = epsilon_lower_bound(
            first, second, delta=self.delta, confidence=self.confidence, rule=rule
        )
        facts = {
            "target": self.target,
            "rounds": len(rounds),
            "separation": separation(first, second),
        }
        details: tuple[Detail, ...] = ()
        if server_round is None:
            alone = [self._alone(one, len(rounds)) for one in rounds]
            facts["largest single round"] = max(value for value, _ in alone)
            facts["largest separation of one round"] = max(apart for _, apart in alone)
            details = (drawn(first, second, confidence=self.confidence, rule=rule),)
        return Finding.of(
            replace(
                bound,
                rule=f"{bound.rule}; one test over {counted(len(rounds), 'round')}",
                assumptions=(*bound.assumptions, *self._assumed()),
            ),
            facts=facts,
            details=details,
            server_round=server_round,
            **self._words(len(rounds)),
        )

    def _alone(self, one: Transcripts, rounds: int) -> tuple[float, float]:
        """Return the bound of one round at its share of the confidence, and its separation."""
        pilot, trials = one.split(self.pilot)
        test = Combination.fit(pilot)
        first, second = test.scores(trials)
        bound = epsilon_lower_bound(
            first,
            second,
            delta=self.delta,
            confidence=1 - (1 - self.confidence) / rounds,
            rule=BandAndFixed(test.middle),
        )
        return bound.value, separation(first, second)

    def _assumed(self) -> tuple[Assumption, ...]:
        frozen = (Assumption.MODELS_AS_SENT,) if self.mode == "frozen-models" else ()
        integers = (Assumption.GAUSSIAN_TRIALS,) if self.has_integers else ()
        return (Assumption.KNOWN_SEATS, Assumption.GAUSSIAN_ROUNDING, *frozen, *integers)

    def _words(self, rounds: int) -> dict[str, Any]:
        """Return the fields that all findings share."""
        sees: Sees = "round sum" if self.observer == "server" else "noised sum"
        return {
            "auditor": self.name,
            "quantity": "epsilon",
            "threat_model": ThreatModel(
                observer=self.observer,
                sees="frozen sums" if self.mode == "frozen-models" else sees,
                holds="two data sets",
                knows_cohort=self.knows_cohort,
                participations=rounds,
                game=self.game,
            ),
            "adjacency": "replace",
            "unit": "client",
            "seed": self.seed,
        }
