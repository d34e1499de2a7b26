"""Which findings are about one adversary, which come first, and which guarantee covers them.

Terminal and page both decide it here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from leakmeter.auditors.finding import Finding
from leakmeter.auditors.wording import is_epsilon

# Threat model, adjacency and unit: numbers that differ in one of them do not compare.
Adversary = tuple[str, str | None, str]


def by_adversary(findings: Sequence[Finding]) -> dict[Adversary, list[Finding]]:
    """Return the findings about each adversary, those of one observer next to each other.

    So a guarantee is listed next to what was measured for the same observer.
    """
    observers = list(dict.fromkeys(f.observer for f in findings))
    groups: dict[Adversary, list[Finding]] = {}
    for f in sorted(findings, key=lambda f: observers.index(f.observer)):
        groups.setdefault((f.threat_model, f.adjacency, f.unit), []).append(f)
    return groups


def leading(findings: Iterable[Finding]) -> list[Finding]:
    """Return the numbers to show first: each estimate and guarantee, one bound per auditor.

    Of several lower bounds the first that the auditor lists, not the largest: the largest has a
    lower confidence than each by itself.
    """
    bounded: set[str] = set()
    kept = []
    for f in findings:
        if f.kind == "diagnostic" or (f.kind == "lower_bound" and f.auditor in bounded):
            continue
        if f.kind == "lower_bound":
            bounded.add(f.auditor)
        kept.append(f)
    return kept


def unsaid_bounds(findings: Sequence[Finding]) -> int:
    """Return how many lower bounds `leading` leaves to the table."""
    every, first = (
        sum(f.kind == "lower_bound" for f in some) for some in (findings, leading(findings))
    )
    return every - first


def covers(guarantee: Finding, measured: Finding) -> bool:
    """Whether an upper bound is about the adversary that was measured.

    Observer, adjacency and unit must be the same. A guarantee that counts on a hidden cohort says
    nothing of an adversary who knows it, nor of canaries: these have a seat for certain, and
    sampling amplifies the privacy only of those who take part by chance.
    """
    if guarantee.kind != "guarantee" or not (is_epsilon(guarantee) and is_epsilon(measured)):
        return False
    worlds = [(f.observer, f.adjacency, f.unit) for f in (guarantee, measured)]
    hidden = any("does not learn who took part" in a for a in guarantee.assumptions)
    certain = any("a canary stands for a client that takes part" in a for a in measured.assumptions)
    known = certain or "knows who" in measured.threat_model
    return worlds[0] == worlds[1] and not (hidden and known)
