"""The mutual-information audit: how many bits does the sum of a round reveal about an update?

Elkordy, Zhang, Ezzeldin, Psounis, Avestimehr (2023), How Much Privacy Does Federated Learning with
Secure Aggregation Guarantee?, arXiv:2208.02304, sections 3 and 4.1. Ours differs in six points:
1. The figure comes from determinants of covariances, along directions fixed beforehand if there
   are fewer draws than coordinates. The paper's neural estimator is another auditor (`neural`).
2. What is random is a named game. With local data fixed and known, as the paper samples, the truth
   is the entropy of the batch, whatever the number of clients.
3. Where the entropy of what is random is known, no figure exceeds it. Over several rounds the
   client's records count once and its batches every time.
4. Noise of the mechanism is part of the sum, exactly.
5. Clients that collude with the server are taken off the sum, as Corollary 2 has it.
6. The sum over rounds is called that; Corollary 1 turns it into a bound only under its assumption.
   It is the mean over clients times the most rounds of any client, never the largest estimate.

First comes what may be claimed (`InformationClaims`) and the account of a run, then the auditor.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final

from leakmeter.auditors.audited_round import (
    SEES,
    AuditedRound,
    Claims,
    ResamplingAuditor,
    SumObserver,
)
from leakmeter.auditors.auditor import Due, Project, RoundView, few_clients
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Finding, Game, PerClient, Quantity, ThreatModel
from leakmeter.auditors.information.draws import (
    ConstantUpdatesError,
    DrawPlan,
    Draws,
    Measured,
    SharedDraws,
    check_whole,
    measure,
)
from leakmeter.auditors.information.over_rounds import (
    OverRounds,
    PairedDraws,
    directions_of,
    many_trainings,
    over_rounds,
    paired_draws,
)
from leakmeter.auditors.information.theory import (
    NATS_PER_BIT,
    Information,
    LimitOf,
    Theory,
    gaussian_information,
    most_directions,
    round_bound,
)
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling.sampler import RoundSampler, Stream, check_room, file_bytes
from leakmeter.auditors.values import within
from leakmeter.auditors.wording import TOLD_FROM_ZERO, Assumption

QUANTITY: Quantity = "mutual information"
# Figures that are not of the directions looked along, or not of a model, have names of their own.
WHOLE: Quantity = "mutual information of all coordinates"
NEURAL: Quantity = "mutual information by critics"
OVER_ROUNDS: Quantity = "information about the data over all rounds"


@dataclass
class ClientEntry:
    """What is known about one client, or about the mean of several.

    Attributes:
        audited: Audited rounds that it took part in.
        nats: Sum of what they revealed.
        variance: Of that sum.
        alike: Sum of what they would reveal if all coordinates varied and clients were alike.
        rounds: Rounds that it took part in, audited or not.
        bound: Sum of their bounds in nats, if there are bounds.
    """

    audited: int = 0
    nats: float = 0.0
    variance: float = 0.0
    alike: float = 0.0
    rounds: int = 0
    bound: float = 0.0


@dataclass
class InformationAccount:
    """Entries by client, and what the audited rounds have in common.

    Attributes:
        entries: By client.
        rounds: Which rounds were audited.
        game: The game that they were played in.
        variance: Of the sum of all nats. Clients of a round share its draws, so it is not the sum
            of their variances.
        has_alike: Whether every audited round has a figure for all coordinates.
    """

    entries: dict[int, ClientEntry] = field(default_factory=dict)
    rounds: list[int] = field(default_factory=list)
    game: Game = "rerun"
    variance: float = 0.0
    has_alike: bool = True

    def audited(
        self,
        audited: AuditedRound,
        protected: Sequence[int],
        each: Mapping[int, tuple[float, float]],
        *,
        error: float,
        alike: float | None,
    ) -> None:
        """Add an audited round.

        Args:
            audited: Which.
            protected: Clients that the server may not know. Those that were drawn as colluders get
                the mean of the others.
            each: Nats and standard error by client.
            error: Standard error of the mean of these nats.
            alike: What the round would reveal if all coordinates varied and clients were alike;
                None where that is not known.
        """
        if len(protected) > len(each) == len(audited.hidden):
            mean = [math.fsum(column) / len(each) for column in zip(*each.values(), strict=True)]
            each = {c: each.get(c, (mean[0], mean[1])) for c in protected}
        self.rounds.append(audited.server_round)
        self.game = audited.game
        # Of the sum over clients: `error` is that of their mean. Rounds have draws of their own, so
        # their variances add.
        self.variance += (len(each) * error) ** 2
        self.has_alike = self.has_alike and alike is not None
        for client, (nats, own_error) in each.items():
            entry = self.entries.setdefault(client, ClientEntry())
            entry.audited += 1
            entry.nats += nats
            entry.variance += own_error**2
            entry.alike += alike or 0.0

    def took_part(self, clients: Sequence[int], bound: float) -> None:
        """Add who took part in a round, and its bound in nats."""
        for client in clients:
            entry = self.entries.setdefault(client, ClientEntry())
            entry.rounds += 1
            entry.bound += bound

    def typical(self) -> ClientEntry | None:
        """Return the mean client, in as many audited rounds as any client took part in.

        The largest sum of all clients would be the luckiest estimate: where clients are alike it
        is above the truth for each of them.
        """
        seen = [entry for entry in self.entries.values() if entry.audited]
        if not seen:
            return None
        most = max(entry.audited for entry in seen)
        # Exact sums: a resumed run has its clients in another order.
        share = most / sum(entry.audited for entry in seen)
        return ClientEntry(
            audited=most,
            nats=share * math.fsum(entry.nats for entry in seen),
            variance=share**2 * self.variance,
            alike=share * math.fsum(entry.alike for entry in seen),
        )

    def most_bound(self, target: int | None) -> int | None:
        """Return the client whose bounds add up to the most, or the target; None if absent."""
        there = [c for c in sorted(self.entries) if self.entries[c].rounds]
        if target is not None:
            there = [c for c in there if c == target]
        # Bounds follow from participations alone, so the largest is no selection among estimates.
        return max(there, key=lambda c: self.entries[c].bound, default=None)


@dataclass(frozen=True)
class InformationClaims:
    """Turns figures into findings; knows the attacker and, once told, the round.

    Attributes:
        name: Of the auditor.
        observer: Who looks on.
        seed: Of the auditor.
        entropy_bits: Entropy of the target's data in bits, for a share of it; None for no share.
        limit: Gives the entropy of a client's updates; None where it is not known.
        colluders: Clients that show the server their update, in the round or not.
        server_round: Which round; None for the run.
        participations: Audited rounds that the figure counts; None for a single round.
        game: What is random.
        target: Whose update is at stake; None for the mean over all.
        hidden: Clients in the sum that the observer does not know.
        colluding: Clients in the sum whose updates it takes off.
        directions: Along how many directions it looks at most; None for all coordinates.
    """

    name: str
    observer: SumObserver
    seed: int
    entropy_bits: float | None = None
    limit: LimitOf | None = None
    colluders: int = 0
    server_round: int | None = None
    participations: int | None = None
    game: Game = "rerun"
    target: int | None = None
    hidden: int = 0
    colluding: int = 0
    directions: int | None = None

    def round(
        self, measured: Measured, whole: Information | None, noise_std: float
    ) -> list[Finding]:
        """Return what was measured, and what alike Gaussian clients would reveal.

        Args:
            measured: The figures.
            whole: What alike Gaussian clients reveal in all coordinates; None if not known.
            noise_std: Noise on each coordinate of the sum.
        """
        clients = list(measured.each) if self.target is None else [self.target]
        limit = self.limit_of(dict.fromkeys(clients, 1), 1)
        known = self.known(measured.rank, noise_std)
        figure = measured.figure.limited(limit)
        if "gaussian_nats" in known:
            known["share_of_gaussian"] = _share(figure.nats, known["gaussian_nats"])
        if limit is not None:
            known["share_of_limit"] = _share(figure.nats, limit)
        sums = {c: ClientEntry(audited=1, nats=nats) for c, (nats, _) in measured.each.items()}
        found = [self.finding(figure, known, drawn=(self.spread(sums),))]
        # Where an entropy is asked for and not known, the formula may exceed what is random.
        if whole is not None and (limit is not None or self.limit is None):
            found.append(self.finding(whole.limited(limit), {}, WHOLE))
        return found

    def run(self, account: InformationAccount) -> list[Finding]:
        """Return what the audited rounds add up to, as far as it can be said."""
        seen = {c: e for c, e in account.entries.items() if e.audited}
        if self.target is None:
            entry, how = account.typical(), "mean over clients per audited round, times the most"
        else:
            seen = {c: e for c, e in seen.items() if c == self.target}
            entry, how = seen.get(self.target), f"sum for client {self.target} over"
        if entry is None:
            return []
        those = replace(self, participations=entry.audited)
        limit = self.limit_of({c: e.audited for c, e in seen.items()}, entry.audited)
        facts = {"target": self.target, "clients": len(seen)}
        looked, rounds = self.directions, entry.audited
        along = "all coordinates" if looked is None else f"at most {looked} directions"
        # The chain rule bounds what a run reveals by what each round reveals given the earlier
        # ones. The sum over single rounds is that bound if no round repeats what earlier rounds
        # have revealed.
        total = Information(
            nats=entry.nats,
            kind="approximation",
            rule=f"{how} rounds audited of one client ({rounds}), along {along}",
            std_error=math.sqrt(entry.variance) if math.isfinite(entry.variance) else None,
            sample_sizes={"audited rounds": rounds},
            assumptions=(Assumption.FRESH_EVERY_ROUND, Assumption.GAUSSIAN_UPDATES),
        )
        found = [those.finding(total.limited(limit), facts, drawn=(self.spread(account.entries),))]
        # Without a limit, rounds would count again and again what an update can reveal only once.
        if account.has_alike and limit is not None:
            # The same for all coordinates, if clients were alike and Gaussian.
            alike = Information(
                nats=entry.alike,
                kind="approximation",
                rule=f"(d*/2) log₂(N / (N − 1)) per round, over {rounds} audited rounds",
                sample_sizes={"audited rounds": rounds},
                assumptions=(
                    Assumption.FRESH_EVERY_ROUND,
                    Assumption.ALIKE_GAUSSIAN_UPDATES,
                    Assumption.ALL_COORDINATES_VARY,
                ),
            )
            found.append(those.finding(alike.limited(limit), facts, WHOLE))
        return found

    def over_rounds(self, found: OverRounds, directions: int) -> Finding:
        """Return what all audited rounds of a client together reveal about its data."""
        known = None if self.limit is None else self.limit(found.client)
        # About the data, not the batches: their entropy counts once, however many the rounds.
        figure = found.figure.limited(None if known is None else known.records)
        facts = {
            "target": found.client,
            TOLD_FROM_ZERO: found.is_told_from_zero,
            "single_rounds_bits": found.single_rounds / NATS_PER_BIT,
        }
        those = replace(self, participations=found.rounds, directions=directions)
        return those.finding(figure, facts, OVER_ROUNDS, null_band=found.null_band)

    def limit_of(self, clients: Mapping[int, int], rounds: int) -> float | None:
        """Return the entropy in nats of the updates of this many rounds, as a mean over clients.

        Args:
            clients: How often each client counts.
            rounds: Rounds in which it takes part.

        Returns:
            None unless the entropy is known for all of them.
        """
        if self.limit is None:
            return None
        found = [self.limit(client) for client in clients]
        known = [one.over(rounds) for one in found if one is not None]
        if not known or len(known) < len(found):
            return None
        shares = [count / sum(clients.values()) for count in clients.values()]
        return math.fsum(share * one for share, one in zip(shares, known, strict=True))

    def spread(self, entries: Mapping[int, ClientEntry]) -> PerClient:
        """Return what its audited rounds revealed about each client, in bits."""
        clients = sorted(entries)
        rows = [entries[client] for client in clients]
        limits = [self.limit_of({c: 1}, e.audited) for c, e in zip(clients, rows, strict=True)]
        nats = [
            e.nats if limit is None else min(e.nats, limit)
            for e, limit in zip(rows, limits, strict=True)
        ]
        bits = tuple(value / NATS_PER_BIT for value in nats)
        return PerClient(tuple(clients), bits, tuple(e.audited for e in rows))

    def finding(
        self,
        figure: Information,
        facts: Mapping[str, Any],
        quantity: Quantity = QUANTITY,
        drawn: tuple[PerClient, ...] = (),
        null_band: tuple[float, float] | None = None,
    ) -> Finding:
        """Return one figure with its error and, if asked for, its share of an entropy.

        The band of what a method says without a leak is given in nats.
        """
        more: dict[str, Any] = {"nats": figure.nats, "bits": figure.bits, "rank": figure.rank}
        more["variance_kept"] = figure.variance_kept
        if self.directions is not None and quantity != WHOLE:  # else it would look like the total
            more["directions"] = self.directions
        if figure.std_error is not None:
            more["std_error_bits"] = figure.std_error / NATS_PER_BIT
        if self.entropy_bits is not None:
            more["share_of_entropy"] = figure.bits / self.entropy_bits
        known = more | dict(figure.facts) | dict(facts)
        found = self._shared.finding(figure.bound(), known, drawn, quantity)
        if null_band is None:
            return found
        low, high = null_band
        return replace(found, null_band=(low / NATS_PER_BIT, high / NATS_PER_BIT))

    def note(self, figure: Information, quantity: Quantity = QUANTITY) -> Finding:
        """Return a value that needs no estimate, with the reason in its rule."""
        return self._shared.finding(figure.bound(), quantity=quantity)

    def known(self, rank: int, noise_std: float) -> dict[str, Any]:
        """Return what the figure may be compared with."""
        known: dict[str, Any] = {
            "target": self.target,
            "hidden": self.hidden,
            "colluding": self.colluding,
            "noise_std": noise_std,
        }
        if (same := alike_gaussians(rank, self.hidden, self.game, noise_std)) is not None:
            known["gaussian_nats"] = same.nats
        return known

    @property
    def _shared(self) -> Claims:
        """What makes findings about this attacker."""
        attacker = ThreatModel(
            observer=self.observer,
            sees=SEES[self.observer],
            knows_cohort=True,
            participations=self.participations,
            game=self.game,
            colluders=self.colluders,
        )
        return Claims(
            self.name, attacker, adjacency=None, server_round=self.server_round, seed=self.seed
        )


def alike_gaussians(
    rank: int, hidden: int, game: Game, noise_std: float, *more: Assumption
) -> Information | None:
    """Return what alike Gaussian clients reveal in this many directions, if that says anything.

    The formula is for a sum without noise, of two independent updates or more. Clients that share
    one partition of the data are not independent. `more` is what else it assumes here.
    """
    if hidden < 2 or noise_std > 0 or game == "partition":
        return None
    figure = gaussian_information(rank, hidden)
    return replace(figure, assumptions=(*figure.assumptions, *more))


def _share(nats: float, whole: float) -> float:
    return nats / whole if whole else 0.0


_log = logging.getLogger("flwr")
_KEEPING: Final = "independent"  # the game in which a client's data can be kept over rounds


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
        plan: DrawPlan,
        theory: Theory,
        colluding: Collection[int] | int,
        *,
        every: int,
        observer: SumObserver,
        seed: int,
        target: int | None = None,
    ) -> None:
        super().__init__(sampler, every=every, observer=observer)
        self.plan, self.theory, self.seed, self.target = plan, theory, seed, target
        self.drawing, self._any_of, self._named = SharedDraws(), 0, frozenset[int]()
        if isinstance(colluding, int):
            self._any_of = int(within("colluding", colluding, lowest=0))
        else:
            self._named = frozenset(colluding)
        self._claims = InformationClaims(
            self.name,
            observer,
            seed,
            entropy_bits=theory.entropy_bits,
            limit=None if theory.limit is None else cache(theory.limit),
            colluders=self._any_of or len(self._named),
            directions=plan.rank,
        )

    def updates_drawn(self, honest: int, dim: int) -> int:
        """Return how many updates an audited round draws."""
        fit = self.plan.fit_draws(self.plan.rank, honest) if self.plan.rank else 0
        return (fit + self.plan.draws) * honest

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
        colluding = self.colluding_in(found.honest, view.server_round)
        return replace(found, colluding=colluding)

    def colluding_in(self, honest: Sequence[int], server_round: int) -> frozenset[int]:
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
    def measured(self, audited: AuditedRound, claims: InformationClaims) -> Sequence[Finding]:
        """Return what draws of the round show.

        Raises:
            ConstantUpdatesError: No update varies.
        """

    def keep_known(self, audited: AuditedRound, nats: float) -> None:
        """Keep account of a round that needs no estimate."""

    def claims_of(self, audited: AuditedRound) -> InformationClaims:
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


class MutualInformation(InformationAuditor):
    """Measures I(client's update; sum of the round | model) in bits.

    Args:
        sampler: Draws fresh updates, and names the game; a function of the round where the
            clients' mechanism changes.
        target: Client whose update is at stake; None takes the mean over the round's clients and
            lists each of them.
        every: Rounds between two audits; 0 audits the first only, -1 rounds 1, 2, 4, 8, … and the
            last.
        plan: Draws and directions of each audited round.
        theory: What the figure is compared with: the bound of Theorem 1, entropies that limit it.
        colluding: Clients that show the server their update. A number means any that many of a
            round's clients: the bound of Theorem 1 holds whoever they are, and the measured figure
            takes off as many others that are drawn in each round.
        observer: "server" sees the sum before server noise, "outsider" after it.
        seed: Names all draws.

    Attributes:
        drawing: Draws of the last round. An auditor that shares it draws nothing twice.

    Example:
        auditor = MutualInformation(sampler, plan=DrawPlan(draws=16, rank=8))
        strategy = Audited(FedAvg(), auditors=[auditor], out="runs/mine")
    """

    name = "mutual-information"
    quantity = QUANTITY
    _account: Kept[InformationAccount]
    _paired: Kept[list[PairedDraws]]

    def __init__(
        self,
        sampler: RoundSampler,
        *,
        target: int | None = None,
        every: int = 1,
        plan: DrawPlan = DrawPlan(),  # noqa: B008 - a frozen value
        theory: Theory = Theory(),  # noqa: B008 - a frozen value
        colluding: Collection[int] | int = (),
        observer: SumObserver = "server",
        seed: int = 0,
    ) -> None:
        super().__init__(
            sampler,
            plan,
            theory,
            colluding,
            every=every,
            observer=observer,
            seed=seed,
            target=target,
        )
        if target is not None and (target < 0 or target in self._named):
            raise BadValueError("target", "None or a client, 0 or more and not colluding", target)
        self._account, self._paired, self._dim = InformationAccount(), [], 0
        self._directions = 0  # of each round, for the information over all rounds

    def begin(self, dim: int, num_rounds: int) -> None:
        """Start a new account."""
        super().begin(dim, num_rounds)
        self._account, self._paired, self._dim = InformationAccount(), [], dim
        if self.plan.pairs:
            self._directions = directions_of(self.plan.pairs, len(self._due), self.plan.rank)

    def limits(self, project: Project) -> Sequence[str]:
        """Return where updates cannot be resampled, or draws, clients or theory do not suffice."""
        said = list(super().limits(project))
        if self.plan.pairs:
            said += many_trainings(self.plan.pairs, len(self._due), self._directions)
        if self.settled is None:
            return said
        if self.plan.pairs and self.settled.game != _KEEPING:
            said.append(
                f"the information over all rounds is measured in the game {_KEEPING} only: "
                "elsewhere the data are known, or clients share them"
            )
        if self.theory.cases and not self.theory.covers(self.settled):
            said.append(
                "Theorem 1 is about FedSGD with independent clients, so its bound is not printed"
            )
        if self.plan.rank is None:
            check_whole(self.settled, project.dim, self.plan.draws)
        if few := self.too_few(project, self._fit_draws(project)):
            return said + few
        most = self._most_directions(project)
        if self.plan.rank is None or most is None or most >= self.plan.rank:
            return said
        return [
            *said,
            f"{self.plan.draws} draws of {project.honest} honest clients allow {max(most, 0)} of "
            f"{self.plan.rank} directions: the others need more draws",
        ]

    def trainings(self, project: Project) -> int:
        """Return how many updates are drawn in all audited rounds, where clients train."""
        if not self.asks_clients or project.honest is None or project.honest < 2:
            return 0
        fit = self._fit_draws(project)
        if self.plan.rank is not None and not fit:  # no direction can be looked along
            return 0
        updates = (fit + self.plan.draws) * project.honest
        return updates * len(Due(self.every, project.num_rounds))

    def observe(self, view: RoundView) -> Sequence[Finding]:
        """Audit this round if it is due; its bound counts in any case."""
        audited = self.round_of(view)
        if view.facts.abandoned or not audited.hidden:
            return ()
        bound = self._bound(audited)
        unbounded = math.inf if self.theory.cases else 0.0
        protected = self._protected(audited)
        self._account.took_part(protected, unbounded if bound is None else bound.nats)
        found = self.audit_if_due(audited)
        if bound is None or not found:
            return found
        return [*found, self.claims_of(audited).finding(bound, {}, WHOLE)]

    def audit(self, audited: AuditedRound) -> Sequence[Finding]:
        """Measure what the sum reveals."""
        if self.target is not None and self.target not in audited.hidden:
            _log.warning("round %d: client %d took no part", audited.server_round, self.target)
            return ()
        found = super().audit(audited)
        if self.plan.pairs and audited.game == _KEEPING:
            names = (self.name, self.seed, "over-rounds")
            self._paired += paired_draws(audited, self.plan.pairs, self._directions, names)
        return found

    def claims_of(self, audited: AuditedRound) -> InformationClaims:
        """Return what findings about this round have in common, with the client at stake."""
        target = self.target
        if target is None and self.plan.rank is None:  # only one can be looked at
            rng = stream(self.seed, self.name, "target", audited.server_round)
            target = int(rng.choice(audited.hidden))
        return replace(super().claims_of(audited), target=target)

    def report(self) -> Sequence[Finding]:
        """Return the sum over the audited rounds, and Corollary 1's bound over all rounds."""
        account = self._account
        claims = replace(self._claims, game=account.game, target=self.target)
        if self.target is not None and self.target not in account.entries:
            never = f"client {self.target} took part in no round: the sums reveal nothing about it"
            return [replace(claims, participations=0).note(Information(0.0, "diagnostic", never))]
        found = claims.run(account)
        if self._paired and (together := over_rounds(self._paired, self.target, self.seed)):
            found.append(claims.over_rounds(together, self._directions))
        who = account.most_bound(self.target) if self.theory.cases else None
        if who is None or not math.isfinite((entry := account.entries[who]).bound):
            return found
        claims = replace(claims, participations=entry.rounds)
        bound = self.theory.over_rounds(self._dim, entry.rounds, entry.bound)
        return [*found, claims.finding(bound, {"target": who}, WHOLE)]

    def measured(self, audited: AuditedRound, claims: InformationClaims) -> list[Finding]:
        """Measure the round, keep account of it and say what was found."""
        sampler, hidden, noise_std = audited.sampler, audited.hidden, audited.noise_std
        dim = audited.model.size if sampler.free is None else sampler.free.size
        found = measure(
            Draws.of(audited),
            target=claims.target,
            plan=self.plan,
            stream=self.stream_of(audited),
            seed=self.seed,
            drawing=self.drawing,
        )
        every = Assumption.ALL_COORDINATES_VARY
        whole = alike_gaussians(dim, len(hidden), sampler.game, noise_std, every)
        std_error = found.figure.std_error
        error = math.inf if std_error is None else std_error
        alike = None if whole is None else whole.nats
        self._account.audited(
            audited, self._protected(audited), found.each, error=error, alike=alike
        )
        return claims.round(found, whole, noise_std)

    def keep_known(self, audited: AuditedRound, nats: float) -> None:
        """Keep account of a round that needs no estimate."""
        each = dict.fromkeys(audited.hidden, (nats, 0.0))
        self._account.audited(audited, self._protected(audited), each, error=0.0, alike=nats)

    def _protected(self, audited: AuditedRound) -> list[int]:
        # Any client may be the colluder that was drawn, so all of them count.
        return audited.honest if self._any_of else audited.hidden

    def _fit_draws(self, project: Project) -> int:
        """Return draws of each client that fix the directions; 0 without any."""
        if self.plan.rank is None or not project.honest:
            return 0
        most = self._most_directions(project)
        rank = self.plan.rank if most is None else min(self.plan.rank, max(most, 0))
        return self.plan.fit_draws(rank, project.honest) if rank else 0

    def _most_directions(self, project: Project) -> int | None:
        """Return along how many directions a round without noise can be looked; None if unknown."""
        if project.honest is None or self.settled is None or self.settled.game == "partition":
            return None
        if project.has_client_noise or self.observer == "outsider":  # noise allows any number
            return None
        return most_directions(self.plan.draws, project.honest)

    def _bound(self, audited: AuditedRound) -> Information | None:
        """Return Theorem 1 for those whom the server does not know, as Corollary 2 has it.

        They are the survivors of this round: whoever dropped out has no part in its sum.
        """
        view, honest = audited.view, len(audited.honest)
        survivors = honest
        if view.facts.num_clients:  # a reply that was not used hides nobody
            survivors = min(survivors, view.facts.num_clients - len(view.instructed))
        unknown = survivors - (honest - len(audited.hidden))
        theory = self.theory
        if not theory.cases or unknown < 2 or not theory.covers(audited.sampler):
            return None
        return round_bound(view.sent.size, unknown, theory.batch_size, cases=theory.cases)
