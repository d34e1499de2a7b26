"""The record-level audit on the rounds of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from leakmeter.auditors._validate import within
from leakmeter.auditors.auditor import Auditor, Due, RoundView, check_every
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.finding import Finding, ThreatModel
from leakmeter.auditors.records.game import (
    THIS_RUN,
    WORST_CASE,
    RecordAudit,
    RecordBudget,
    RecordCase,
    audit_records,
)


class RecordLikelihoodRatio(Auditor):
    """Plays the game of `audit_records` on some rounds.

    Each audit assumes the worst data of the other clients. Where the case knows the noise that they
    really added, it is repeated with that, for a statement about this run.

    A bound for one round is also one for the run. The report has the largest of each kind, at a
    confidence that all audited rounds share.

    Args:
        case_of: Returns a client's part in the round; the gradients are taken at `view.sent`.
        every: Rounds between two audits; 0 for the first only, -1 for rounds 1, 2, 4, 8, … and the
            last.
        delta: δ.
        budget: How much is drawn.
        confidence: Of each round's bound, and of the run's.
        seed: Names the draws.
    """

    name = "record-likelihood-ratio"
    reads = frozenset({"sent", "facts", "instructed"})

    _played: Kept[list[tuple[int, RecordAudit]]]  # with their rounds

    def __init__(
        self,
        case_of: Callable[[RoundView], RecordCase],
        *,
        every: int = 0,
        delta: float = 1e-5,
        budget: RecordBudget = RecordBudget(),  # noqa: B008 - a frozen value
        confidence: float = 0.95,
        seed: int = 0,
    ) -> None:
        check_every(every)
        within("delta", delta, lowest=0.0, below=1.0)
        within("confidence", confidence, above=0.0, below=1.0)
        self._case_of, self._every, self._seed = case_of, every, seed
        self._confidence, self._due = confidence, Due(every, 1)
        self._audit = partial(
            audit_records, delta=delta, budget=budget, confidence=confidence, seed=seed
        )
        self._played = []

    @property
    def due(self) -> Due:
        """Which rounds it audits."""
        return self._due

    def begin(self, dim: int, num_rounds: int) -> None:
        """Count the rounds that will be audited."""
        self._played = []
        self._due = Due(self._every, num_rounds)

    def observe(self, view: RoundView) -> Sequence[Finding]:
        """Audit the round if it is due and there was a sum."""
        if view.server_round not in self._due or view.facts.abandoned is not None:
            return ()
        case, path = self._case_of(view), ("round", view.server_round)
        found = [self._audit(replace(case, excess=()), path=path)]
        if case.excess:
            found.append(self._audit(case, path=(*path, "own-noise")))
        self._played += [(view.server_round, one) for one in found]
        about = {"server_round": view.server_round, "seed": self._seed}
        return [one.finding(self.name, **about) for one in found]

    def report(self) -> Sequence[Finding]:
        """Return the largest bound of the audited rounds, for the worst case and for this run."""
        found = (self._largest(threat) for threat in (WORST_CASE, THIS_RUN))
        return [finding for finding in found if finding is not None]

    def _largest(self, threat: ThreatModel) -> Finding | None:
        audits = [(r, one) for r, one in self._played if one.threat_model == threat]
        if not audits:
            return None
        # A strategy's own loop may run longer than planned; its rounds share the confidence too.
        sharing = max(len(self._due), len(audits))
        level = 1 - (1 - self._confidence) / sharing
        shared = [(r, one.at(level)) for r, one in audits]
        server_round, best = max(shared, key=lambda pair: pair[1].bound.value)
        finding = best.finding(self.name, seed=self._seed, details=best.details(server_round))
        return replace(
            finding,
            confidence=self._confidence,
            rule=f"{finding.rule}; largest of {len(audits)} audited rounds, which share the "
            "confidence",
            facts={**finding.facts, "audited rounds": len(audits), "sharing confidence": sharing},
        )
