"""The span condition on real rounds: could the other clients' updates hide what a client sent?

Zhang and Psounis 2024, Differentially Private Federated Learning without Noise Addition: When is it
Possible? (arXiv:2405.04551), Theorem 1. A round shows one update of each client, which is only part
of what it may send. So this is a diagnostic: it neither proves that an update is exposed nor that
one is safe.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.audited_round import AuditedRound, ScheduledAuditor
from leakmeter.auditors.auditor import DivergedError, Project, few_clients
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.finding import Finding, PerClient, ThreatModel
from leakmeter.auditors.likelihood_ratio.span import Span, SpanTracker


@dataclass(frozen=True)
class _Outside:
    """The share of one client's update outside the span, with sizes and facts of its finding."""

    value: float
    sizes: Mapping[str, int]
    facts: Mapping[str, int]


class SpanCondition(ScheduledAuditor):
    """Find the client with the largest share of its update outside the span of the others'.

    It needs the plain updates of a simulation. Costs one QR decomposition of the round's updates
    for each client.

    Args:
        every: Rounds between two audits; 0 audits the first only, -1 rounds 1, 2, 4, 8, … and the
            last.

    Example:
        strategy = Audited(FedAvg(), auditors=[SpanCondition(every=10)])
    """

    name = "span"
    reads = frozenset({"truth"})
    wants_truth = True
    wants_mean = False

    _audited: Kept[int]
    _largest: Kept[_Outside | None]

    def __init__(self, *, every: int = 1) -> None:
        super().__init__(every=every)
        self._audited, self._largest = 0, None

    def begin(self, dim: int, num_rounds: int) -> None:
        """Forget an earlier run."""
        super().begin(dim, num_rounds)
        self._audited, self._largest = 0, None

    def limits(self, project: Project) -> Sequence[str]:
        """Say where there are no other clients to compare with."""
        return few_clients(project, 2, "no other update can hide its own; not audited")

    def truth_of(self, server_round: int, honest: Sequence[int]) -> Collection[int]:
        """Return all honest clients of the rounds that are audited."""
        return honest if server_round in self._due else ()

    def audit(self, audited: AuditedRound) -> Sequence[Finding]:
        """Return the largest share of an update outside the span of the others'."""
        view = audited.view
        honest = {c: u for c, u in view.truth.items() if c not in view.instructed}
        if len(honest) < 2:
            return ()
        if not all(np.isfinite(update).all() for update in honest.values()):
            raise DivergedError
        found = spans(honest)
        # The largest of n shares is a selection: it describes this round, and nothing is claimed of
        # others.
        client = max(found, key=lambda c: found[c].share)
        worst = found[client]
        seen = _Outside(
            worst.share,
            {"others": worst.samples, "rank": worst.rank, "dim": worst.dim},
            {
                "client": client,
                "round": view.server_round,
                "draws": 1,
                "idle columns": worst.idle_columns,
            },
        )
        self._audited += 1
        if self._largest is None or worst.share > self._largest.value:
            self._largest = seen
        shares = tuple(s.share for s in found.values())
        details = (PerClient(tuple(found), shares, (1,) * len(found)),)
        return [replace(self._finding(seen, view.server_round), details=details)]

    def report(self) -> Sequence[Finding]:
        """Return the largest share of all audited rounds."""
        return [self._finding(self._largest, None)] if self._largest else ()

    def _finding(self, seen: _Outside, server_round: int | None) -> Finding:
        facts, sizes = seen.facts, seen.sizes
        rounds = f" and {self._audited} audited rounds" if server_round is None else ""
        return Finding(
            value=seen.value,
            kind="diagnostic",
            rule=f"share of client {facts['client']}'s update of round {facts['round']} outside "
            f"the span of the other updates, the largest of {sizes['others'] + 1} clients{rounds}. "
            "Each client was seen once per round, so this does not show what the others never send",
            sample_sizes=sizes,
            assumptions=(Assumption.THIS_ROUND_ONLY, Assumption.ANY_WEIGHTS),
            auditor=self.name,
            quantity="share outside the span",
            threat_model=ThreatModel(observer="server", sees="round sum", knows_cohort=True),
            server_round=server_round,
            facts=facts,
        )


def spans(updates: Mapping[int, NDArray[np.floating]]) -> dict[int, Span]:
    """Return for every client which part of its update is outside the span of the others'.

    Args:
        updates: Client to its plain update, of at least two clients.
    """
    if len(updates) < 2:
        raise ValueError(f"updates must be of at least 2 clients, got {len(updates)}")
    return {client: _outside(updates, client) for client in sorted(updates)}


def _outside(updates: Mapping[int, NDArray[np.floating]], client: int) -> Span:
    # (clients - 1, dim). Theorem 1 asks for the linear span, since weights of clients may differ,
    # so no mean is subtracted (affine=False).
    others = np.stack([updates[other] for other in sorted(updates) if other != client])
    tracker = SpanTracker(others.shape[1], affine=False)
    tracker.add(others)
    return tracker.outside(updates[client])
