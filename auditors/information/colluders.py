"""Clients that show the server their update: named ones, or any number of a round."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

from leakmeter.auditors._validate import within
from leakmeter.auditors.auditor import Project
from leakmeter.auditors.rng import stream


@dataclass(frozen=True)
class Colluders:
    """Who works for the server.

    Attributes:
        named: Those that are known by number.
        any_of: How many of a round's clients, whoever they are. Audits of the same seed draw the
            same clients in their place.
    """

    named: frozenset[int] = frozenset()
    any_of: int = 0

    @classmethod
    def of(cls, colluding: Collection[int] | int) -> Self:
        """Return the colluders that an auditor was told of: their numbers, or how many."""
        if isinstance(colluding, int):
            within("colluding", colluding, lowest=0)
            return cls(any_of=colluding)
        return cls(frozenset(colluding))

    @property
    def count(self) -> int:
        """How many there are at most."""
        return self.any_of or len(self.named)

    def hidden(
        self, honest: Sequence[int], server_round: int, seed: int, target: int | None = None
    ) -> list[int]:
        """Return the clients of a round that hide one another; a target does not collude."""
        if not self.any_of:
            return [c for c in honest if c not in self.named]
        if self.any_of >= len(honest):
            return []
        others = [c for c in honest if c != target]
        rng = stream(seed, "mutual-information", "colluders", server_round)
        known = rng.choice(others, self.any_of, replace=False).tolist()
        return [c for c in honest if c not in known]

    def limits(self, project: Project) -> list[str]:
        """Return that too few clients are left to hide one another, if so."""
        if project.honest is None or project.honest - self.any_of >= 2:
            return []
        return [
            f"{self.any_of} of {project.honest} honest clients of round 1 may collude with the "
            "server: fewer than 2 are left, so nothing hides a client; assume fewer colluders or "
            "ask more clients"
        ]
