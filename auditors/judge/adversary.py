"""Which findings are about one attacker, which come first, and which guarantee covers them.

Terminal, page and figures all decide it here, by fields alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from leakmeter.auditors.finding import Finding, ThreatModel
from leakmeter.auditors.wording import attacker, counted, is_epsilon, sentence

# What leads: a bound before what is merely estimated, and that before what is promised.
_ORDER = ("lower_bound", "estimate", "approximation", "guarantee", "diagnostic")


@dataclass(frozen=True)
class Adversary:
    """Findings that differ in one of these do not compare.

    Attributes:
        model: The attacker without the numbers of a run, so that runs of different size line up.
        adjacency: What the two worlds differ in.
        unit: Whose participation is at stake.
        is_measured: Whether audits are about it; a guarantee that covers none forms a group alone.
    """

    model: ThreatModel
    adjacency: str | None
    unit: str
    is_measured: bool

    @classmethod
    def of(cls, finding: Finding) -> Adversary:
        """Return the attacker of a finding."""
        model = finding.threat_model
        rounds = None if model.participations is None else 1  # one round, or any number of them
        unsized = replace(model, participations=rounds, colluders=0)
        return cls(unsized, finding.adjacency, finding.unit, not is_promise(finding))

    def sentence(self) -> str:
        """Return who attacks; claims in prose have a sentence of their own."""
        if self.model.sees is None:
            return sentence(self.model.sentence())
        return attacker(self.model, is_sized=False)


@dataclass(frozen=True)
class Group:
    """What was found about one attacker, from both ends.

    Attributes:
        adversary: Who.
        findings: What was measured; or guarantees, where these cover nothing measured.
        guarantees: Those that cover one of the leading bounds.
    """

    adversary: Adversary
    findings: tuple[Finding, ...]
    guarantees: tuple[Finding, ...] = ()

    @property
    def leads(self) -> list[Finding]:
        """The numbers to show first, lower bounds before the rest."""
        return leading(self.findings)

    @property
    def rows(self) -> list[tuple[Finding, Finding | None]]:
        """Each leading number with the guarantee that it may be compared with, if there is one."""
        made = [(f, self.above(f)) for f in self.leads]
        beside = [upper for _, upper in made if upper is not None]
        return made + [(g, None) for g in self.guarantees if g not in beside]

    def above(self, bound: Finding) -> Finding | None:
        """Return the smallest guarantee that the bound may be set against."""
        upper = [g for g in self.guarantees if covers(g, bound)]
        return min(upper, key=lambda g: g.value, default=None)


def by_adversary(findings: Sequence[Finding]) -> list[Group]:
    """Return what was found about each attacker, those of one observer next to each other."""
    observers = list(dict.fromkeys(f.observer for f in findings))
    found: dict[Adversary, list[Finding]] = {}
    for f in sorted(findings, key=lambda f: observers.index(f.observer)):
        found.setdefault(Adversary.of(f), []).append(f)
    promises = [f for f in findings if is_promise(f)]
    groups: list[Group] = []
    placed: list[Finding] = []
    for adversary, own in found.items():
        if not adversary.is_measured:
            continue
        upper = tuple(g for g in promises if any(covers(g, f) for f in leading(own)))
        groups.append(Group(adversary, tuple(own), upper))
        placed += upper
    for adversary, own in found.items():
        rest = tuple(f for f in own if f not in placed)
        if rest and not adversary.is_measured:
            groups.append(Group(adversary, rest))
    return sorted(groups, key=lambda g: observers.index(g.findings[0].observer))


def leading(findings: Iterable[Finding]) -> list[Finding]:
    """Return the numbers to show first: one bound per auditor, then all but diagnostics.

    Of an auditor's lower bounds the first that needs no condition, in the order in which it lists
    them: the largest has a lower confidence than each one alone.
    """
    ordered = sorted(findings, key=lambda f: (_ORDER.index(f.kind), f.is_conditional))
    bounded: set[str] = set()
    kept = []
    for f in ordered:
        if f.kind == "diagnostic" or (f.kind == "lower_bound" and f.auditor in bounded):
            continue
        if f.kind == "lower_bound":
            bounded.add(f.auditor)
        kept.append(f)
    return kept


def unsaid_bounds(findings: Sequence[Finding]) -> str:
    """Return how many lower bounds `leading` leaves to the table, in words; empty if none."""
    said = leading(findings)
    left = [f for f in findings if f.kind == "lower_bound" and f not in said]
    conditional = sum(f.is_conditional for f in left)
    counts = ((len(left) - conditional, "by other methods"), (conditional, "under conditions"))
    words = [f"{counted(count, 'more lower bound')} {how}" for count, how in counts if count]
    return " and ".join(words)


def covers(guarantee: Finding, bound: Finding) -> bool:
    """Whether a lower bound may be set against a guarantee: every field must allow it.

    A conditional bound may not, since it may be above the truth. A guarantee at a smaller δ is
    the stronger one and holds at every larger δ as well.
    """
    return (
        is_epsilon(guarantee)
        and is_epsilon(bound)
        and guarantee.kind == "guarantee"
        and bound.kind == "lower_bound"
        and not bound.is_conditional
        and guarantee.unit == bound.unit
        and guarantee.adjacency is not None
        and guarantee.adjacency == bound.adjacency
        and guarantee.server_round in (None, bound.server_round)
        and bound.threat_model.is_within(guarantee.threat_model)
        and (guarantee.delta or 0.0) <= (bound.delta or 0.0)
    )


def is_promise(finding: Finding) -> bool:
    """Whether it is an upper bound on an ε."""
    return finding.kind == "guarantee" and is_epsilon(finding)
