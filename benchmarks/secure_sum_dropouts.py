"""How many secure rounds are abandoned when one client in ten drops out, against the stated chance?

The stated chance is P(abort) of the plan, a bound on the share of abandoned rounds; the target is
this chance times the rounds. Whole rounds are those of `Masked` and `MaskMod` with d = 10. Sparse
graphs are also drawn alone, and it is decided as `Masked` does whether enough shares are left:
fourteen neighbours are too few for a plan, and a thousand rounds would show too little of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.measure import Row, Scale
from benchmarks.secure_sum import DROPOUT, THRESHOLD, Case, within_a_run
from benchmarks.secure_sum_ours import our_round
from leakmeter.clients.secure_sum.keys import Session
from leakmeter.strategies import Risks
from leakmeter.strategies.secure_sum.sum_round import AbandonedError, MaskedCohort
from leakmeter.strategies.secure_sum.topology import GraphPlan, Topology

GRAPHS = {"quick": 50, "full": 20_000}
WHOLE = {
    "quick": (Case(5, 10, None, 2),),
    "full": (Case(30, 10, None, 100), Case(100, 10, "auto", 100)),
}
SPARSE = Case(100, 10, 14, 1)


def measure(scale: Scale) -> list[Row]:
    """Return what was drawn, and what was played."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    return within_a_run(lambda: list(rows(scale)))


def rows(scale: Scale) -> Iterator[Row]:
    """Yield all rows, where Flower lets messages be made."""
    if scale in GRAPHS:
        yield decided(SPARSE, GRAPHS[scale])
    for case in WHOLE.get(scale, ()):
        yield played(case)
        if case.neighbours is None:
            yield played(case, is_signed=True)


def decided(case: Case, rounds: int) -> Row:
    """Draw graphs and count those in which some secret is lost."""
    plan = planned(case)
    clients = range(1, case.clients + 1)
    alive = set(clients) - case.dropped
    lost = 0
    for _ in range(rounds):
        cohort = MaskedCohort(Session(1, 1), {}, plan.draw(clients), plan.threshold)
        try:
            cohort.check(alive, clients)
        except AbandonedError:
            lost += 1
    return row(f"{case}, threshold {plan.threshold}, graphs alone", lost, rounds, plan)


def played(case: Case, *, is_signed: bool = False) -> Row:
    """Play whole rounds and count those without a sum."""
    lost = 0
    for _ in range(case.repetitions):
        try:
            our_round(case, is_signed=is_signed)
        except AbandonedError:
            lost += 1
    name = f"{case}, signed and checked" if is_signed else str(case)
    return row(f"{name}, whole rounds", lost, case.repetitions, planned(case))


def row(name: str, lost: int, rounds: int, plan: GraphPlan) -> Row:
    """Return the count beside what was stated."""
    chance = plan.risk.abort if plan.risk else 0.0
    note = f"P(abort) stated: {chance:.2g} a round"
    return Row(
        f"{name}, {rounds:,} rounds", [lost], unit="rounds", target=chance * rounds, note=note
    )


def planned(case: Case) -> GraphPlan:
    """Return graph and threshold as `Masked` has them."""
    risks = Risks(dropout_rate=DROPOUT)
    if case.neighbours != "auto":  # as asked for, whatever it risks
        risks = replace(risks, max_abort=1.0, max_exposure=1.0)
    topology = Topology(threshold=THRESHOLD, neighbours=case.neighbours, risks=risks)
    return topology.plan(case.clients)
