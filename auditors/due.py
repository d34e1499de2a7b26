"""Which rounds of a run an auditor audits, and how a report says so."""

from __future__ import annotations

from dataclasses import dataclass

from leakmeter.auditors._validate import within

DOUBLING = -1  # rounds 1, 2, 4, 8, … and the last
FIRST = 0


def check_every(every: int) -> None:
    """Raise unless `every` is a schedule: -1, 0, or the number of rounds between two audits."""
    within("every", every, lowest=DOUBLING)


@dataclass(frozen=True)
class Due:
    """The audited rounds of a run.

    Attributes:
        every: Rounds between two audits, from the first on; 0 audits the first only; -1 audits
            rounds 1, 2, 4, 8, … and the last. The audits share the confidence of the run, so with
            fewer of them each bound is larger.
        num_rounds: Planned rounds.

    >>> due = Due(-1, 10)
    >>> [r for r in range(1, 11) if r in due], len(due)
    ([1, 2, 4, 8, 10], 5)
    """

    every: int
    num_rounds: int

    def __post_init__(self) -> None:
        check_every(self.every)

    def __contains__(self, server_round: int) -> bool:
        if self.every > 0:
            return (server_round - 1) % self.every == 0
        if self.every == FIRST:
            return server_round == 1
        return server_round == self.num_rounds or server_round & (server_round - 1) == 0

    def __len__(self) -> int:
        if self.every > 0:
            return -(-self.num_rounds // self.every)
        if self.every == FIRST:
            return min(self.num_rounds, 1)
        doubled = self.num_rounds.bit_length()  # powers of two up to the last round
        is_power = self.num_rounds & (self.num_rounds - 1) == 0
        return doubled + (not is_power)

    def rounds(self) -> tuple[int, ...]:
        """Return the audited rounds.

        >>> Due(3, 8).rounds(), Due(0, 8).rounds(), Due(-1, 8).rounds()
        ((1, 4, 7), (1,), (1, 2, 4, 8))
        """
        return tuple(r for r in range(1, self.num_rounds + 1) if r in self)


@dataclass(frozen=True)
class Schedule:
    """Which rounds one auditor was to audit.

    Attributes:
        auditor: Its name.
        every: Rounds between two audits; 0 for the first only, -1 for 1, 2, 4, 8, … and the last.
        num_rounds: Planned rounds.
        audited: The rounds among them that it audits; it skips the others.
    """

    auditor: str
    every: int
    num_rounds: int
    audited: tuple[int, ...]

    @classmethod
    def of(cls, auditor: str, due: Due) -> Schedule:
        """Return the schedule of an auditor."""
        return cls(auditor, due.every, due.num_rounds, due.rounds())

    @property
    def skips(self) -> bool:
        """Whether some rounds are not audited."""
        return len(self.audited) < self.num_rounds
