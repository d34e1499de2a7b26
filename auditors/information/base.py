"""What both audits of information share: who is hidden, what is drawn, what needs no estimate."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Self

from leakmeter.auditors._types import within
from leakmeter.auditors.audited_round import AuditedRound, ResamplingAuditor, SumObserver
from leakmeter.auditors.auditor import Project, RoundView, few_clients
from leakmeter.auditors.finding import Finding, Quantity
from leakmeter.auditors.information.directions import ConstantUpdatesError
from leakmeter.auditors.information.draws import Drawing, Look
from leakmeter.auditors.information.figure import Information
from leakmeter.auditors.information.findings import Claims
from leakmeter.auditors.information.theory import Theory, remembered
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling.row_store import check_room, file_bytes
from leakmeter.auditors.sampling.sampler import RoundSampler, Stream


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


class InformationAuditor(ResamplingAuditor):
    """Measures what the sum of a round reveals about an update; a subclass writes `measured`.

    Arguments are those of `MutualInformation`.

    Attributes:
        quantity: What is measured.
        drawing: Draws of the last round. An auditor that shares it draws nothing twice.
    """

    quantity: Quantity
    reads = frozenset({"sent", "replies", "facts"})

    def __init__(
        self,
        sampler: RoundSampler,
        *,
        every: int,
        look: Look,
        theory: Theory,
        colluding: Collection[int] | int,
        observer: SumObserver,
        seed: int,
        target: int | None = None,
    ) -> None:
        super().__init__(sampler, every=every, observer=observer)
        self.look, self.seed, self.target = look, seed, target
        self.colluders, self.drawing = Colluders.of(colluding), Drawing()
        self._claims = Claims(
            self.name,
            observer,
            seed,
            entropy_bits=theory.entropy_bits,
            limit=remembered(theory.limit),
            colluders=self.colluders.count,
            directions=look.rank,
        )

    def updates_drawn(self, honest: int, dim: int) -> int:
        """Return how many updates an audited round draws."""
        fit = self.look.fit_draws(self.look.rank, honest) if self.look.rank else 0
        return (fit + self.look.draws) * honest

    def too_few(self, project: Project, fit: int) -> list[str]:
        """Return that too few clients hide one another; raise without room for these draws."""
        few = few_clients(project, 2, "its update is the sum; nothing hides it")
        if few := few or self.colluders.limits(project):
            return few
        if project.honest is not None:
            check_room(file_bytes(fit * project.honest, project.dim))
        return []

    def round_of(self, view: RoundView) -> AuditedRound:
        """Return the round without the clients that collude."""
        found = super().round_of(view)
        hidden = self.colluders.hidden(found.honest, view.server_round, self.seed, self.target)
        return replace(found, colluding=frozenset(found.honest) - set(hidden))

    def audit(self, audited: AuditedRound) -> Sequence[Finding]:
        """Measure what the sum reveals, unless that is known without a draw."""
        hidden = audited.hidden
        if not hidden:
            return ()
        claims = self.claims_of(audited)
        if len(hidden) == 1 and audited.noise_std == 0:
            self.keep_known(audited, math.inf)
            alone = "the sum without noise is this update: it reveals all that is random in it"
            limit = claims.limit_of({hidden[0]: 1}, 1)
            told = Information(math.inf, "diagnostic", alone).limited(limit)
            return [claims.note(told, self.quantity)]
        try:
            return self.measured(audited, claims)
        except ConstantUpdatesError as error:
            self.keep_known(audited, 0.0)
            constant = f"{error}: nothing is random, so nothing can be learnt"
            return [claims.note(Information(0.0, "diagnostic", constant), self.quantity)]

    @abstractmethod
    def measured(self, audited: AuditedRound, claims: Claims) -> Sequence[Finding]:
        """Return what draws of the round show.

        Raises:
            ConstantUpdatesError: No update varies.
        """

    def keep_known(self, audited: AuditedRound, nats: float) -> None:
        """Keep account of a round that needs no estimate."""

    def claims_of(self, audited: AuditedRound) -> Claims:
        """Return what findings about this round have in common."""
        return replace(
            self._claims,
            server_round=audited.server_round,
            game=audited.game,
            hidden=len(audited.hidden),
            colluding=len(audited.honest) - len(audited.hidden),
        )

    def stream_of(self, audited: AuditedRound) -> Stream:
        """Name the draws of a round; both audits of one seed look along the same directions."""
        return ("mutual-information", self.seed, audited.server_round)
