"""Rounds of a given size and noise, for audits that are played without a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from leakmeter.auditors.audited_round import AuditedRound, no_watch
from leakmeter.auditors.auditor import RoundFacts, RoundView
from leakmeter.auditors.sampling.sampler import UpdateSampler
from leakmeter.auditors.values import Vector, Watch


def round_of(server_round: int = 1, *, clients: int = 6, dim: int = 20, **facts: Any) -> RoundView:
    """Return a round of this many clients with equal weights that have sent nothing."""
    known = {"num_clients": clients, "total_weight": float(clients)}
    sent = np.zeros(dim)
    replies = dict.fromkeys(range(clients), sent)
    return RoundView(server_round, sent, replies, sent, RoundFacts(**(known | facts)))


def audited_round(
    sampler: UpdateSampler,
    model: Vector,
    others: Iterable[int],
    *,
    noise_std: float = 0.0,
    really: Vector | None = None,
    watch: Watch = no_watch,
) -> AuditedRound:
    """Return a round in which client 0 is attacked among others.

    Args:
        sampler: Draws updates.
        model: Model that the clients start from.
        others: The other clients.
        noise_std: Noise on each coordinate of the sum.
        really: What client 0 has put into the sum; None where that is not known.
        watch: Told of the progress.
    """
    # An outsider's noise is given for the mean: with a total weight of 1 that is the sum.
    facts = RoundFacts(total_weight=1.0, noise_std=noise_std or None)
    view = RoundView(
        1,
        model,
        dict.fromkeys((0, *others), model),
        model,
        facts,
        truth={} if really is None else {0: really},
        truth_weights={0: 1.0},
    )
    return AuditedRound(view, sampler, "outsider", target=0, watch=watch)
