"""What both audits of information share: who is hidden, what is drawn, what needs no estimate."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache

from leakmeter.auditors._types import within
from leakmeter.auditors.audited_round import AuditedRound, ResamplingAuditor, SumObserver
from leakmeter.auditors.auditor import Project, RoundView, few_clients
from leakmeter.auditors.finding import Finding, Quantity
from leakmeter.auditors.information.directions import ConstantUpdatesError
from leakmeter.auditors.information.draws import Drawing, Look
from leakmeter.auditors.information.findings import Claims
from leakmeter.auditors.information.theory import Information, Theory
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling.row_store import check_room, file_bytes
from leakmeter.auditors.sampling.sampler import RoundSampler, Stream


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
        self.look, self.theory, self.seed, self.target = look, theory, seed, target
        self.drawing, self._any_of, self._named = Drawing(), 0, frozenset[int]()
        if isinstance(colluding, int):
            self._any_of = int(within("colluding", colluding, lowest=0))
        else:
            self._named = frozenset(colluding)
        self._claims = Claims(
            self.name,
            observer,
            seed,
            entropy_bits=theory.entropy_bits,
            limit=None if theory.limit is None else cache(theory.limit),
            colluders=self._any_of or len(self._named),
            directions=look.rank,
        )

    def updates_drawn(self, honest: int, dim: int) -> int:
        """Return how many updates an audited round draws."""
        fit = self.look.fit_draws(self.look.rank, honest) if self.look.rank else 0
        return (fit + self.look.draws) * honest

    def too_few(self, project: Project, fit: int) -> list[str]:
        """Return that too few clients hide one another; raise without room for these draws."""
        few = few_clients(project, 2, "its update is the sum; nothing hides it")
        if few or project.honest is None:
            return few
        if project.honest - self._any_of < 2:
            return [
                f"{self._any_of} of {project.honest} honest clients of round 1 may collude with "
                "the server: fewer than 2 are left, so nothing hides a client; assume fewer "
                "colluders or ask more clients"
            ]
        check_room(file_bytes(fit * project.honest, project.dim))
        return []

    def round_of(self, view: RoundView) -> AuditedRound:
        """Return the round without the clients that collude."""
        found = super().round_of(view)
        colluding = self._colluding(found.honest, view.server_round)
        return replace(found, colluding=colluding)

    def _colluding(self, honest: Sequence[int], server_round: int) -> frozenset[int]:
        """Return who shows the server its update in a round; a target does not.

        Where any clients may collude, audits of the same seed draw the same in their place.
        """
        if not self._any_of:
            return self._named & set(honest)
        if self._any_of >= len(honest):
            return frozenset(honest)
        others = [c for c in honest if c != self.target]
        rng = stream(self.seed, "mutual-information", "colluders", server_round)
        return frozenset(rng.choice(others, self._any_of, replace=False).tolist())

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
