"""The record-level audit on the rounds of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from leakmeter.auditors._validate import within
from leakmeter.auditors.auditor import Auditor, RoundView
from leakmeter.auditors.finding import Bound, Finding, plain
from leakmeter.auditors.records.game import (
    RecordAudit,
    RecordCase,
    RecordEffort,
    audit_records,
    record_finding,
)
from leakmeter.auditors.sampling.round_sum import is_due


class RecordLikelihoodRatio(Auditor):
    """Plays the game of `audit_records` on some rounds.

    A bound for one round is one for the run as well. At the end comes the largest, at a confidence
    that all audited rounds share.

    Args:
        case_of: Returns a client's part in the round; the gradients are taken at `view.sent`.
        every: Rounds between two audits; 0 for the first only.
        delta: δ.
        effort: How much is drawn.
        confidence: Of each round's bound, and of the run's.
        seed: Names the draws.
    """

    name = "record-likelihood-ratio"
    reads = frozenset({"sent", "facts"})

    def __init__(
        self,
        case_of: Callable[[RoundView], RecordCase],
        *,
        every: int = 0,
        delta: float = 1e-5,
        effort: RecordEffort = RecordEffort(),  # noqa: B008 - a frozen value
        confidence: float = 0.95,
        seed: int = 0,
    ) -> None:
        within("every", every, lowest=0)
        within("delta", delta, lowest=0.0, below=1.0)
        within("confidence", confidence, above=0.0, below=1.0)
        self._case_of, self._every, self._seed = case_of, every, seed
        self._confidence, self._num_audits = confidence, 1
        self._audit = partial(
            audit_records, delta=delta, effort=effort, confidence=confidence, seed=seed
        )
        self._shared: list[dict[str, Any]] = []  # bounds at the confidence that rounds share

    def begin(self, dim: int, num_rounds: int) -> None:
        """Count the rounds that will be audited."""
        self._shared = []
        self._num_audits = -(-num_rounds // self._every) if self._every else 1

    def observe(self, view: RoundView) -> Sequence[Finding]:
        """Audit the round if it is due and there was a sum."""
        if not is_due(view.server_round, self._every) or view.facts.abandoned is not None:
            return ()
        found = self._audit(self._case_of(view), path=("round", view.server_round))
        shared = found.at(1 - (1 - self._confidence) / self._num_audits)
        self._shared.append(_kept(shared))
        return [found.finding(self.name, server_round=view.server_round, seed=self._seed)]

    def report(self) -> Sequence[Finding]:
        """Return the largest bound of the audited rounds."""
        if not self._shared:
            return ()
        best = max(self._shared, key=lambda kept: float(kept["bound"]["value"]))
        own = {**best["bound"], "assumptions": tuple(best["bound"]["assumptions"])}
        own["rule"] += (
            f"; largest of {len(self._shared)} audited rounds, which share the confidence"
        )
        bound = Bound(**{**own, "confidence": self._confidence})
        return [record_finding(bound, self.name, seed=self._seed, details=best["details"])]

    def state(self) -> dict[str, Any]:
        """Return the bounds so far."""
        return {"shared": list(self._shared), "num_audits": self._num_audits}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up a state that `state` returned."""
        self._shared, self._num_audits = list(state["shared"]), int(state["num_audits"])


def _kept(found: RecordAudit) -> dict[str, Any]:
    """Return bound and details in JSON types."""
    bound = {spec.name: plain(getattr(found.bound, spec.name)) for spec in fields(Bound)}
    return {"bound": bound, "details": plain(found.details)}
