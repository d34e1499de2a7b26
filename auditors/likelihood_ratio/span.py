"""The span condition on real rounds: does a client's update leave the span of the others'?

Source: Zhang and Psounis 2024, Differentially Private Federated Learning without Noise Addition:
When is it Possible? (arXiv:2405.04551), Theorem 1; see `outside_span`. It is a diagnostic. A round
shows one update of each client, which is only part of what it may send, so it proves neither that
an update is exposed nor that one is safe. Whether a client stands out is a test: the first client
of the first audited round has the largest share of n with a probability of at most 1/n, if all send
alike updates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.audited_round import AuditedRound, Claims, ScheduledAuditor
from leakmeter.auditors.auditor import DivergedError, Project, few_clients
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Bound, Finding, PerClient, ThreatModel
from leakmeter.auditors.likelihood_ratio.sum_distribution import Span, outside_span
from leakmeter.auditors.values import within
from leakmeter.auditors.wording import Assumption

_SERVER = ThreatModel(observer="server", sees="round sum", knows_cohort=True)


class SpanCondition(ScheduledAuditor):
    """Find the client with the largest share of its update outside the span of the others'.

    It needs the plain updates of a simulation. Costs one QR decomposition of the round's updates
    for each client.

    Args:
        every: Rounds between two audits; 0 audits the first only, -1 rounds 1, 2, 4, 8, … and the
            last.
        confidence: Of the test whether a client stands out; one test a run.

    Example:
        strategy = Audited(FedAvg(), auditors=[SpanCondition(every=10)])
    """

    name = "span"
    num_bounds = 1
    reads = frozenset({"truth"})
    wants_truth = True
    wants_mean = False

    _audited: Kept[int]  # rounds so far
    _largest: Kept[tuple[int, int, Span] | None]  # round, client and its share
    _tested: Kept[tuple[int, int, int, int] | None]  # round, client, its rank and of how many

    def __init__(self, *, every: int = 1, confidence: float = 0.95) -> None:
        super().__init__(every=every)
        within("confidence", confidence, above=0.0, below=1.0)
        self.confidence = confidence
        self._audited, self._largest, self._tested = 0, None, None

    def begin(self, dim: int, num_rounds: int) -> None:
        """Forget an earlier run."""
        super().begin(dim, num_rounds)
        self._audited, self._largest, self._tested = 0, None, None

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
        seen = (view.server_round, client, found[client])
        self._audited += 1
        if self._tested is None:  # one test a run, of a client that is fixed beforehand
            first = min(found)
            own = found[first]
            # Of updates that the others span, only rounding is left, and its order means nothing.
            rank = sum(one.share >= own.share or not own.outside for one in found.values())
            self._tested = (view.server_round, first, rank, len(found))
        if self._largest is None or found[client].share > self._largest[2].share:
            self._largest = seen
        shares = tuple(s.share for s in found.values())
        details = (PerClient(tuple(found), shares, (1,) * len(found)),)
        return [_finding(seen, view.server_round, details=details)]

    def report(self) -> Sequence[Finding]:
        """Return whether a client stands out, and the largest share of all audited rounds."""
        if self._largest is None or self._tested is None:
            return ()
        largest = _finding(self._largest, None, f" and {self._audited} audited rounds")
        return [self._stands_out(*self._tested), largest]

    def _stands_out(self, seen_in: int, client: int, rank: int, clients: int) -> Finding:
        """Return the test; of few clients one is too likely to be the first by chance."""
        can_show = 1 / clients <= 1 - self.confidence
        bound = Bound(
            float(can_show and rank == 1),
            "lower_bound",
            f"client {client}, fixed beforehand, has rank {rank} of {clients} by the share of its "
            f"update of round {seen_in} outside the span of the others'; among clients that send "
            f"alike updates it would be first with a chance of 1 in {clients}",
            confidence=1 - 1 / clients if can_show else self.confidence,
            sample_sizes={"clients": clients},
            cap=float(can_show),
            saturated=can_show and rank == 1,
            assumptions=(Assumption.THIS_ROUND_ONLY, Assumption.ANY_WEIGHTS),
        )
        facts = {"client": client, "round": seen_in, "rank": rank, "of clients": clients}
        claims = Claims("span", _SERVER, adjacency=None)
        return claims.finding(bound, facts, quantity="clients that stand out")


def _finding(
    largest: tuple[int, int, Span],
    server_round: int | None,
    rounds: str = "",
    details: tuple[PerClient, ...] = (),
) -> Finding:
    """Return the largest share as a finding about a round, or the largest of some rounds."""
    seen_in, client, span = largest
    claims = Claims("span", _SERVER, adjacency=None, server_round=server_round)
    bound = Bound(
        span.share,
        "diagnostic",
        f"share of client {client}'s update of round {seen_in} outside "
        f"the span of the other updates, the largest of {span.samples + 1} clients{rounds}. "
        "Each client was seen once per round, so this does not show what the others never send",
        sample_sizes={"others": span.samples, "rank": span.rank, "dim": span.dim},
        assumptions=(Assumption.THIS_ROUND_ONLY, Assumption.ANY_WEIGHTS),
    )
    facts = {"client": client, "round": seen_in, "draws": 1, "idle columns": span.idle_columns}
    return claims.finding(bound, facts, details, "share outside the span")


def spans(updates: Mapping[int, NDArray[np.floating]]) -> dict[int, Span]:
    """Return for every client which part of its update is outside the span of the others'.

    Theorem 1 asks for the linear span, since weights of clients may differ, so no mean is
    subtracted.

    Args:
        updates: Client to its plain update, of at least two clients.
    """
    if len(updates) < 2:
        raise BadValueError("updates", "of at least 2 clients", len(updates))
    found = {}
    for client in sorted(updates):
        others = np.stack([updates[other] for other in sorted(updates) if other != client])
        found[client] = outside_span(updates[client], others, affine=False)
    return found
