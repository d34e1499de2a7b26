"""The span condition on real rounds: could the others' updates hide what a client has sent?

Zhang and Psounis 2024, Differentially Private Federated Learning without Noise Addition: When is it
Possible? (arXiv:2405.04551), Theorem 1. Updates that were seen in some rounds show only part of
what may be sent, so this is a diagnosis: it may find a client that support alone betrays, and never
shows that one is safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.auditor import RoundView
from leakmeter.auditors.finding import Bound
from leakmeter.auditors.likelihood_ratio.span import Span, SpanTracker

_RULE = "share of a client's update outside of the span of the others' in the same round"
_ASSUMED = (
    "it speaks of these rounds only",
    "the others' updates may be added with any weights, as in Theorem 1",
)


@dataclass(frozen=True)
class RoundSpan:
    """One client's update against the others' of its round.

    Attributes:
        server_round: The round.
        client: Whose update.
        span: How much of it lies outside.
    """

    server_round: int
    client: int
    span: Span

    @property
    def bound(self) -> Bound:
        """The share outside, of kind diagnostic."""
        sizes = {"others": self.span.samples, "rank": self.span.rank, "dim": self.span.dim}
        return Bound(self.span.share, "diagnostic", _RULE, sample_sizes=sizes, assumptions=_ASSUMED)


def span_of_updates(
    updates: Mapping[int, NDArray[np.floating]], server_round: int = 0
) -> list[RoundSpan]:
    """Return for every client how much of its update the others' do not reach.

    Args:
        updates: Client to its plain update, of at least two clients.
        server_round: Noted in the results.
    """
    if len(updates) < 2:
        raise ValueError(f"updates must be of at least 2 clients, got {len(updates)}")
    found = []
    for client in sorted(updates):
        others = np.stack([updates[other] for other in sorted(updates) if other != client])
        tracker = SpanTracker(others.shape[1], affine=False)
        tracker.add(others)
        found.append(RoundSpan(server_round, client, tracker.outside(updates[client])))
    return found


def span_of_rounds(views: Sequence[RoundView]) -> list[RoundSpan]:
    """Return the same for all rounds of a simulation whose clients kept their updates (`truth`)."""
    return [
        one
        for view in views
        if len(view.truth) > 1
        for one in span_of_updates(view.truth, view.server_round)
    ]
