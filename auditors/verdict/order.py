"""Which attackers and which questions are at least as strong as others.

Where one attacker can compute everything that another one sees, a lower bound about the weaker is
one about the stronger, and a guarantee against the stronger is one against the weaker. The same
holds for questions: whoever can distinguish any two updates can distinguish an update from zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, get_args

from leakmeter.auditors.finding import Adjacency, Finding, Sees, ThreatModel, Unit

# Seeing the first, one can compute all of the second: models follow from noised sums, noised sums
# from sums, sums from updates. A guarantee about sums holds whatever models were sent, so it holds
# for frozen ones.
_FOLLOWS: Final[Mapping[Sees, frozenset[Sees]]] = {
    "updates": frozenset(get_args(Sees)),
    "round sum": frozenset(get_args(Sees)) - {"updates"},
    "noised sum": frozenset(get_args(Sees)) - {"updates", "round sum"},
    "frozen sums": frozenset({"frozen sums"}),
    "all models": frozenset({"all models", "round model", "final model"}),
    "round model": frozenset({"round model"}),
    "final model": frozenset({"final model"}),
}
# A bound in one of these games is not about this run's own others, so no other row takes it over.
_OWN_GAMES = ("worst-data",)


@dataclass(frozen=True)
class Question:
    """What an attacker wants to know: whose participation, and how the two worlds differ."""

    unit: Unit
    adjacency: Adjacency

    @classmethod
    def of(cls, finding: Finding) -> Question | None:
        """Return the question of a finding; None where it has no two worlds."""
        return None if finding.adjacency is None else cls(finding.unit, finding.adjacency)

    def is_implied_by(self, other: Question) -> bool:
        """Whether ε of this question is at most ε of the other.

        For a client zero is an update, and a record, or all its copies, change one update: cases of
        replacing an update by any other. Nothing else is ordered: removing a client may change the
        denominator, the noise or the count, and a record is no part of "sent it or sent nothing".
        """
        if self == other:
            return True
        replaces_updates = other == Question("client", "replace")
        return replaces_updates and (self.unit != "client" or self.adjacency == "zero-out")


def attacker(finding: Finding) -> ThreatModel:
    """Return who attacks, without what the test at hand brings along.

    Two candidates, a canary and the game of the trials belong to a method, not to the attacker.
    """
    model = finding.threat_model
    game = model.game if model.game in _OWN_GAMES else None
    return replace(model, holds=None, game=game)


def is_same(one: ThreatModel, other: ThreatModel) -> bool:
    """Whether two attackers share a row: they differ in numbers of rounds and colluders only."""
    return unsized(one) == unsized(other)


def strongest(models: Iterable[ThreatModel]) -> ThreatModel:
    """Return the attacker of a row: the most rounds and colluders of those who share it."""
    found = list(models)
    rounds = [m.participations for m in found if m.participations is not None]
    most = max(rounds, default=None)
    return replace(found[0], participations=most, colluders=max(m.colluders for m in found))


def is_weaker(one: ThreatModel, other: ThreatModel) -> bool:
    """Whether `other` sees, knows and may do at least as much as `one`."""
    if one.sees is None or other.sees is None:
        return one == other
    # The server also gets every model; someone on the wire and the server are not compared.
    is_seen_by = one.observer == other.observer or (one.observer, other.observer) == (
        "outsider",
        "server",
    )
    return (
        is_seen_by
        and one.sees in _FOLLOWS[other.sees]
        and other.game in (None, one.game)
        and one.knows_cohort <= other.knows_cohort
        and _rounds(one) <= _rounds(other)
        and one.colluders <= other.colluders
        and (one.conduct == other.conduct or other.conduct == "active")
    )


def carries_bounds(one: ThreatModel, other: ThreatModel) -> bool:
    """Whether a lower bound about `one` is a lower bound about `other`.

    A bound at the models of this run, or with the other clients' data at their worst, is about a
    composition that the run did not play. It stays in its own row.
    """
    is_alone = one.sees == "frozen sums" or one.game is not None
    return is_weaker(one, other) and (is_same(one, other) if is_alone else True)


def covers(guarantee: Finding, bound: Finding) -> bool:
    """Whether a lower bound may be set against a guarantee: every field must allow it.

    A conditional bound may not, since it may be above the truth. A guarantee at a smaller δ is the
    stronger one and holds at every larger δ as well.
    """
    if guarantee.kind != "guarantee" or bound.kind != "lower_bound" or bound.is_conditional:
        return False
    if not (guarantee.quantity == bound.quantity == "epsilon"):
        return False
    if bound.threat_model.sees is None:  # two attackers that see something unknown may differ
        return False
    asked, answered = Question.of(bound), Question.of(guarantee)
    return (
        asked is not None
        and answered is not None
        and asked.is_implied_by(answered)
        and guarantee.server_round in (None, bound.server_round)
        and is_weaker(attacker(bound), attacker(guarantee))
        and (guarantee.delta or 0.0) <= (bound.delta or 0.0)
    )


def unsized(model: ThreatModel) -> ThreatModel:
    """Return an attacker without numbers: in one round or in several, with no colluders."""
    rounds = None if model.participations is None else 1
    return replace(model, participations=rounds, colluders=0)


def _rounds(model: ThreatModel) -> int:
    return 1 if model.participations is None else model.participations
