"""The span condition on real rounds: could the other clients' updates hide what a client sent?

Zhang and Psounis 2024, Differentially Private Federated Learning without Noise Addition: When is it
Possible? (arXiv:2405.04551), Theorem 1. A round shows one update of each client, which is only part
of what it may send. So this is a diagnostic: it neither proves that an update is exposed nor that
one is safe.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.audited_round import AuditedRound, Claims, ScheduledAuditor
from leakmeter.auditors.auditor import DivergedError, Project, few_clients
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.finding import Bound, Finding, PerClient, ThreatModel
from leakmeter.auditors.likelihood_ratio.span import Span, SpanTracker


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

    _audited: Kept[int]  # rounds so far
    _largest: Kept[LargestShare | None]

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
        seen = LargestShare(
            worst.share,
            client,
            view.server_round,
            worst.samples,
            worst.rank,
            worst.dim,
            worst.idle_columns,
        )
        self._audited += 1
        if self._largest is None or worst.share > self._largest.share:
            self._largest = seen
        shares = tuple(s.share for s in found.values())
        details = (PerClient(tuple(found), shares, (1,) * len(found)),)
        return [seen.finding(view.server_round, details=details)]

    def report(self) -> Sequence[Finding]:
        """Return the largest share of all audited rounds."""
        if self._largest is None:
            return ()
        return [self._largest.finding(None, f" and {self._audited} audited rounds")]


@dataclass(frozen=True)
class LargestShare:
    """The client of a round with the largest share of its update outside the span of the others'.

    Attributes:
        share: That share.
        client: Whose.
        server_round: The round.
        others: Updates that the span is of.
        rank: Dimension of the span.
        dim: Length of an update.
        idle_columns: Columns in which all other updates are zero.
    """

    share: float
    client: int
    server_round: int
    others: int
    rank: int
    dim: int
    idle_columns: int

    def finding(
        self, server_round: int | None, rounds: str = "", details: tuple[PerClient, ...] = ()
    ) -> Finding:
        """Return it as a finding about a round, or the largest of some rounds."""
        attacker = ThreatModel(observer="server", sees="round sum", knows_cohort=True)
        claims = Claims("span", attacker, adjacency=None, server_round=server_round)
        bound = Bound(
            self.share,
            "diagnostic",
            f"share of client {self.client}'s update of round {self.server_round} outside "
            f"the span of the other updates, the largest of {self.others + 1} clients{rounds}. "
            "Each client was seen once per round, so this does not show what the others never send",
            sample_sizes={"others": self.others, "rank": self.rank, "dim": self.dim},
            assumptions=(Assumption.THIS_ROUND_ONLY, Assumption.ANY_WEIGHTS),
        )
        facts = {
            "client": self.client,
            "round": self.server_round,
            "draws": 1,
            "idle columns": self.idle_columns,
        }
        return claims.finding(bound, facts, details, "share outside the span")


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
