"""What a measured round or run may claim about mutual information, and the account of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from leakmeter.auditors import audited_round
from leakmeter.auditors.audited_round import SEES, AuditedRound, SumObserver
from leakmeter.auditors.finding import Finding, Game, PerClient, Quantity, ThreatModel
from leakmeter.auditors.information.draws import Measured
from leakmeter.auditors.information.over_rounds import OverRounds
from leakmeter.auditors.information.theory import (
    NATS_PER_BIT,
    Information,
    LimitOf,
    gaussian_information,
)
from leakmeter.auditors.wording import TOLD_FROM_ZERO, Assumption

QUANTITY: Quantity = "mutual information"
# Figures that are not of the directions looked along, or not of a model, have names of their own.
WHOLE: Quantity = "mutual information of all coordinates"
NEURAL: Quantity = "mutual information by critics"
OVER_ROUNDS: Quantity = "information about the data over all rounds"


@dataclass
class Entry:
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
class Account:
    """Entries by client, and what the audited rounds have in common.

    Attributes:
        entries: By client.
        rounds: Which rounds were audited.
        game: The game that they were played in.
        variance: Of the sum of all nats. Clients of a round share its draws, so it is not the sum
            of their variances.
        has_alike: Whether every audited round has a figure for all coordinates.
    """

    entries: dict[int, Entry] = field(default_factory=dict)
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
            entry = self.entries.setdefault(client, Entry())
            entry.audited += 1
            entry.nats += nats
            entry.variance += own_error**2
            entry.alike += alike or 0.0

    def took_part(self, clients: Sequence[int], bound: float) -> None:
        """Add who took part in a round, and its bound in nats."""
        for client in clients:
            entry = self.entries.setdefault(client, Entry())
            entry.rounds += 1
            entry.bound += bound

    def typical(self) -> Entry | None:
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
        return Entry(
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
class Claims:
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
        sums = {c: Entry(audited=1, nats=nats) for c, (nats, _) in measured.each.items()}
        found = [self.finding(figure, known, drawn=(self.spread(sums),))]
        # Where an entropy is asked for and not known, the formula may exceed what is random.
        if whole is not None and (limit is not None or self.limit is None):
            found.append(self.finding(whole.limited(limit), {}, WHOLE))
        return found

    def run(self, account: Account) -> list[Finding]:
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

    def spread(self, entries: Mapping[int, Entry]) -> PerClient:
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
    def _shared(self) -> audited_round.Claims:
        """What makes findings about this attacker."""
        attacker = ThreatModel(
            observer=self.observer,
            sees=SEES[self.observer],
            knows_cohort=True,
            participations=self.participations,
            game=self.game,
            colluders=self.colluders,
        )
        return audited_round.Claims(
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
