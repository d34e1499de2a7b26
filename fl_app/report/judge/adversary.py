"""Which findings speak of one adversary, and which are said first, in terminal and page alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from leakmeter.auditors.finding import Finding

# Threat model, adjacency and unit: numbers that differ in one of them do not compare.
Adversary = tuple[str, str | None, str]


def by_adversary(findings: Sequence[Finding]) -> dict[Adversary, list[Finding]]:
    """Return the findings about each adversary, those of one observer next to each other.

    So a guarantee stands beside what was measured for the same observer.
    """
    observers = list(dict.fromkeys(f.observer for f in findings))
    groups: dict[Adversary, list[Finding]] = {}
    for f in sorted(findings, key=lambda f: observers.index(f.observer)):
        groups.setdefault((f.threat_model, f.adjacency, f.unit), []).append(f)
    return groups


def leading(findings: Iterable[Finding]) -> list[Finding]:
    """Return the numbers to show first: each estimate and guarantee, one bound an auditor.

    Of several lower bounds the one that the auditor lists first, whatever it says: the largest
    would have a lower confidence than each by itself.
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
