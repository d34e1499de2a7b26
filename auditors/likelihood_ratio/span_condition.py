"""The span condition on real rounds: could the other clients' updates hide what a client sent?

Zhang and Psounis 2024, Differentially Private Federated Learning without Noise Addition: When is it
Possible? (arXiv:2405.04551), Theorem 1. A round shows one update of each client, which is only part
of what it may send. So this is a diagnostic: it neither proves that an update is exposed nor that
one is safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.auditor import Auditor, Project, RoundView, few_clients
from leakmeter.auditors.details import PerClient
from leakmeter.auditors.due import Due, check_every
from leakmeter.auditors.finding import Finding, ThreatModel
from leakmeter.auditors.likelihood_ratio.span import Span, SpanTracker


class SpanCondition(Auditor):
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

    def __init__(self, *, every: int = 1) -> None:
        check_every(every)
        self.every, self._due = every, Due(every, 1)

    @property
    def due(self) -> Due:
        """Which rounds it looks at."""
        return self._due

    def begin(self, dim: int, num_rounds: int) -> None:
        """Take up the planned rounds."""
        self._due = Due(self.every, num_rounds)

    def limits(self, project: Project) -> Sequence[str]:
        """Say where there are no other clients to compare with."""
        return few_clients(project, 2, "no other update can hide its own; not audited")

    def observe(self, view: RoundView) -> Sequence[Finding]:
        """Return the largest share of an update outside the span of the others'."""
        honest = {c: u for c, u in view.truth.items() if c not in view.instructed}
        if len(honest) < 2 or view.server_round not in self._due:
            return ()
        found = spans(honest)
        client = max(found, key=lambda c: found[c].share)
        worst = found[client]
        return [
            Finding(
                value=worst.share,
                kind="diagnostic",
                rule=f"share of client {client}'s update outside the span of the other updates, "
                f"the largest of {len(found)} clients. Each client was seen once, so this does "
                "not show what the others never send",
                sample_sizes={"others": worst.samples, "rank": worst.rank, "dim": worst.dim},
                assumptions=(
                    Assumption.THIS_ROUND_ONLY,
                    Assumption.ANY_WEIGHTS,
                ),
                auditor=self.name,
                quantity="share outside the span",
                threat_model=ThreatModel(observer="server", sees="round sum", knows_cohort=True),
                server_round=view.server_round,
                facts={
                    "client": client,
                    "draws": 1,
                    "idle columns": worst.idle_columns,
                },
                details=(
                    PerClient(
                        tuple(found), tuple(s.share for s in found.values()), (1,) * len(found)
                    ),
                ),
            )
        ]


def spans(updates: Mapping[int, NDArray[np.floating]]) -> dict[int, Span]:
    """Return for every client which part of its update is outside the span of the others'.

    Args:
        updates: Client to its plain update, of at least two clients.
    """
    if len(updates) < 2:
        raise ValueError(f"updates must be of at least 2 clients, got {len(updates)}")
    return {client: _outside(updates, client) for client in sorted(updates)}


def _outside(updates: Mapping[int, NDArray[np.floating]], client: int) -> Span:
    others = np.stack([updates[other] for other in sorted(updates) if other != client])
    tracker = SpanTracker(others.shape[1], affine=False)
    tracker.add(others)
    return tracker.outside(updates[client])
