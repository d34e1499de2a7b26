"""Corollary 1 for whole runs, and the entropy of a batch: what the figures are drawn with.

Elkordy et al. (2023), arXiv:2208.02304. An audit adds up the bounds of its own rounds instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.information.theory import (
    Case,
    Information,
    round_bound,
    update_entropy,
    whole,
)
from leakmeter.auditors.values import within
from leakmeter.auditors.wording import Assumption


def run_bound(
    rank: int,
    users: int,
    batch_size: int,
    *,
    rounds: int,
    cases: Sequence[Case],
    cohort: int | None = None,
    participations: float | None = None,
    dropped: int = 0,
    colluding: int = 0,
) -> Information:
    """Return the upper bound on what all rounds reveal about a user's data.

    Corollary 1, (13) and (14): the rounds that the user takes part in times the bound of one; with
    a cohort drawn each round, (16). The mean T·K/N of these rounds bounds the information given
    the cohorts, which is no less than without them, so it also holds if the cohorts stay secret.

    Args:
        rank: Rank d* of the gradient's covariance, at least 0.
        users: All users.
        batch_size: Records per update, B.
        rounds: Rounds T of the run.
        cases: As for `round_bound`.
        cohort: Users drawn uniformly each round; None takes all.
        participations: Rounds that the user takes part in, if known; None takes their mean.
        dropped: Users of each cohort who drop out.
        colluding: Survivors of each cohort who collude.
    """
    rounds, users = whole("rounds", rounds, 0), whole("users", users, 1)
    cohort = users if cohort is None else whole("cohort", cohort, 1)
    if cohort > users:
        raise BadValueError("cohort", f"in [1, users = {users}]", cohort)
    if participations is None:
        # (16) with T: each round draws the user with probability K/N, whatever happened before.
        participations = rounds * cohort / users
    within("participations", participations, lowest=0, highest=rounds)
    one = round_bound(rank, cohort, batch_size, cases=cases, dropped=dropped, colluding=colluding)
    return Information(
        nats=participations * one.nats,
        kind=one.kind,
        rule=f"Corollary 1 over {participations:g} rounds; {one.rule}",
        rank=rank,
        assumptions=one.assumptions,
        facts=one.facts,
    )


def accumulated(rounds: Sequence[Information]) -> Information:
    """Return the sum over rounds that differ in users, dropouts or batch size; see (34)."""
    if not rounds:
        raise BadValueError("rounds", "at least one Information", rounds)
    if weak := [r.kind for r in rounds if r.kind != "guarantee"]:
        raise BadValueError("rounds", "all of kind 'guarantee'", weak[0])
    # Chain rule: the rounds' terms add up. Exact summation, so that the order of rounds is no
    # matter.
    return Information(
        nats=math.fsum(r.nats for r in rounds),
        kind="guarantee",
        rule=f"Corollary 1 over {len(rounds)} rounds, each with its own bound",
        assumptions=tuple(dict.fromkeys(a for r in rounds for a in r.assumptions)),
    )


def batch_entropy(records: int, batch_size: int) -> Information:
    """Return the most that a round can reveal about which of a client's known records it used.

    With local data fixed and known, only the choice of B out of D records is random: log₂ C(D, B)
    bits. In exact arithmetic a sum over any number of users generically reveals all of it.

    >>> round(batch_entropy(1200, 32).bits, 2)
    209.06
    """
    batch_size = whole("batch_size", batch_size, 1)
    return Information(
        nats=update_entropy(records, records, [batch_size]).over(1),
        kind="guarantee",
        rule="log₂ C(D, B)",
        assumptions=(Assumption.RANDOM_BATCH_ONLY,),
    )
