"""The MINE audit: what do neural critics find of one client's update in the sum of a round?

Belghazi et al. 2018, Mutual Information Neural Estimation (arXiv:1801.04062), as in section 4.1 of
Elkordy et al. 2023 (arXiv:2208.02304). Ours differs in four points:
1. Critics look along the directions of the log-det audit (`auditor`), and share its draws. In all
   coordinates of a model they find next to nothing of thousands of nats.
2. Values are of draws that no critic was trained on, next to those of shuffled pairs. The paper's
   reading, on training samples, finds about as much in shuffled pairs and is not made.
3. Few draws of many clients are enough, since they are recombined (`recombined`).
4. The figure of the run is the mean over its audited rounds, never the largest.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.audited_round import AuditedRound
from leakmeter.auditors.auditor import Project
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.finding import Finding, Game
from leakmeter.auditors.information.base import InformationAuditor
from leakmeter.auditors.information.draws import Look
from leakmeter.auditors.information.figure import Information
from leakmeter.auditors.information.findings import NEURAL, Claims
from leakmeter.auditors.information.recombined import (
    MIN_DRAWS,
    MIN_PAIRS,
    Critics,
    HeldOut,
    held_out,
    null_band,
)
from leakmeter.auditors.information.theory import LimitOf, Theory
from leakmeter.auditors.sampling.sampler import RoundSampler
from leakmeter.auditors.wording import counted

MAX_DIRECTIONS = 200  # from here on held-out critics find nothing, whatever there is


class NeuralInformation(InformationAuditor):
    """Estimates I(client's update; sum of the round | model) by critics on held-out draws.

    Args:
        sampler: Draws fresh updates, and names the game; a function of the round where the
            clients' mechanism changes.
        every: Rounds between two audits; 0 audits the first only, -1 rounds 1, 2, 4, 8, … and the
            last.
        look: Draws and directions, as for `MutualInformation`; at least 8 draws. The rank must be
            a number.
        critics: How many critics, and how they are trained.
        limit: Gives the entropy of a client's updates, which no figure may exceed.
        colluding: Clients that show the server their update, or any number of them.
        observer: "server" sees the sum before server noise, "outsider" after it.
        seed: Names all draws. With the seed, sampler and look of a `MutualInformation` both look
            along the same directions.

    Attributes:
        drawing: Draws of the last round. An auditor that shares it draws nothing twice.

    Example:
        information = MutualInformation(sampler, look=Look(draws=16, rank=8))
        mine = NeuralInformation(sampler, look=Look(draws=16, rank=8))
        mine.drawing = information.drawing
        strategy = Audited(FedAvg(), auditors=[information, mine], out="runs/mine")
    """

    name = "mine"
    quantity = NEURAL
    _rounds: Kept[_Rounds]

    def __init__(
        self,
        sampler: RoundSampler,
        *,
        every: int = 1,
        look: Look = Look(draws=MIN_DRAWS),  # noqa: B008 - a frozen value
        critics: Critics = Critics(),  # noqa: B008 - a frozen value
        limit: LimitOf | None = None,
        colluding: Collection[int] | int = (),
        observer: Literal["server", "outsider"] = "server",
        seed: int = 0,
    ) -> None:
        super().__init__(
            sampler,
            every=every,
            look=look,
            theory=Theory(limit=limit),
            colluding=colluding,
            observer=observer,
            seed=seed,
        )
        if look.rank is None:
            raise ValueError(
                "look.rank must be a number of directions, got None: in all coordinates of a model "
                "critics find nothing; use 8"
            )
        if look.draws < MIN_DRAWS:
            raise ValueError(f"look.draws must be at least {MIN_DRAWS}, got {look.draws}")
        self.critics = critics
        self._rounds = _Rounds()

    def begin(self, dim: int, num_rounds: int) -> None:
        """Forget an earlier run."""
        super().begin(dim, num_rounds)
        self._rounds = _Rounds()

    def limits(self, project: Project) -> Sequence[str]:
        """Return where updates cannot be resampled, or critics have too few pairs to say much."""
        said = list(super().limits(project))
        rank = min(self.look.rank or 0, project.dim)
        if rank >= MAX_DIRECTIONS:
            said.append(
                f"critics find nothing along {rank} directions, whatever there is: use fewer than "
                f"{MAX_DIRECTIONS}, such as 8"
            )
        if project.honest is None:
            return said
        if few := self.too_few(project, self.look.fit_draws(self.look.rank or 1, project.honest)):
            return said + few
        if (pairs := self.look.draws * project.honest) < MIN_PAIRS:
            draws = -(-MIN_PAIRS // project.honest)
            said.append(
                f"{self.look.draws} draws of {project.honest} honest clients make {pairs} pairs, "
                f"and critics need {MIN_PAIRS}: use at least {draws} draws"
            )
        return said

    def measured(self, audited: AuditedRound, claims: Claims) -> Sequence[Finding]:
        """Let critics look at draws of the round, the same as those of the log-det audit."""
        hidden, game, noise_std = audited.hidden, audited.game, audited.noise_std
        if self.look.draws * len(hidden) < MIN_PAIRS:
            return ()
        drawn = self.drawing.directed(
            audited.sampler,
            audited.model,
            hidden,
            look=self.look,
            stream=self.stream_of(audited),
            noise_std=noise_std,
            watch=audited.watch,
        )
        audited.watch("critics", 0.0)
        found = held_out(
            drawn.rows,
            drawn.fitted,
            critics=self.critics,
            path=(audited.server_round,),
            seed=self.seed,
            noise_std=noise_std,
            is_dealt=game == "partition",
            keeps_data=game == "rerun",
        )
        self._rounds.add(audited.server_round, found, game)
        figure = replace(
            _figure(found, self.critics, len(hidden), game),
            rank=drawn.subspace.rank,
            variance_kept=drawn.subspace.variance_kept,
        )
        known = claims.known(drawn.subspace.rank, noise_std)
        limit = claims.limit_of(dict.fromkeys(hidden, 1), 1)
        return [claims.neural(figure.limited(limit), known, found.null_band)]

    def report(self) -> Sequence[Finding]:
        """Return the mean over the audited rounds."""
        kept = self._rounds
        if not kept.rounds:
            return ()
        claims = replace(self._claims, game=kept.game)
        return [claims.neural(kept.figure(), {"audited rounds": len(kept.rounds)}, kept.band())]


def _figure(found: HeldOut, critics: Critics, clients: int, game: Game) -> Information:
    """Return the figure of one round."""
    return Information(
        nats=found.mean,
        kind="estimate",
        rule=f"held-out NWJ, mean of {critics.count} critics, pairs of all clients pooled",
        std_error=found.std_error,
        sample_sizes={"pairs": found.pairs, "clients": clients, "critics": critics.count},
        cap=found.cap,
        assumptions=_assumed(game),
    )


def _assumed(game: Game) -> tuple[str, ...]:
    """Return what the figure needs in a game."""
    pooled = (Assumption.GOOD_CRITIC, Assumption.POOLED_CLIENTS)
    # Shares of one partition are not recombined.
    return pooled if game == "partition" else (*pooled, Assumption.INDEPENDENT_CLIENTS)


@dataclass
class _Rounds:
    """What is kept of the audited rounds.

    Attributes:
        rounds: Which.
        values: Estimate, its standard error, mean of the shuffled pairs and cap in nats by round.
        single: Null band of a run with one audited round.
        game: What was random.
    """

    rounds: list[int] = field(default_factory=list)
    values: list[tuple[float, float, float, float]] = field(default_factory=list)
    single: tuple[float, float] = (0.0, 0.0)
    game: Game = "rerun"

    def add(self, server_round: int, found: HeldOut, game: Game) -> None:
        """Add a round."""
        self.rounds.append(server_round)
        self.values.append((found.mean, found.std_error, float(np.mean(found.nulls)), found.cap))
        self.single, self.game = found.null_band, game

    def figure(self) -> Information:
        """Return the mean over the rounds. Each round is judged alone: nothing is added up."""
        # (rounds, 4), transposed.
        means, _, _, caps = np.array(self.values).T
        rounds = counted(len(means), "audited round")
        return Information(
            nats=float(means.mean()),
            kind="estimate",
            rule=f"held-out NWJ of critics per round, mean over {rounds}",
            std_error=self._error(),
            sample_sizes={"audited rounds": len(means)},
            cap=float(caps.mean()),
            assumptions=_assumed(self.game),
        )

    def band(self) -> tuple[float, float]:
        """Return the 90 % band of that mean without a leak."""
        if len(self.rounds) == 1:
            return self.single
        nulls = [null for _, _, null, _ in self.values]
        return null_band(nulls, 1 / len(nulls), self._error())

    def _error(self) -> float:
        """Return the standard error of the mean: over the rounds, which have draws of their own."""
        means, errors, _, _ = np.array(self.values).T
        if len(means) == 1:
            return float(errors[0])
        return float(np.std(means, ddof=1) / math.sqrt(len(means)))
