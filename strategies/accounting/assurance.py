"""What a noised run has released so far, who has paid for it, and what that guarantees to whom.

There is one guarantee for each observer, whether protected against or not.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import numpy as np

from leakmeter.auditors.codec import plain
from leakmeter.auditors.finding import (
    Adjacency,
    Bound,
    Conduct,
    Finding,
    Observer,
    Sees,
    ThreatModel,
)
from leakmeter.auditors.wording import Assumption, counted
from leakmeter.strategies.accounting.accountant import Release, amplified, unamplified
from leakmeter.strategies.accounting.ledger import Entry

if TYPE_CHECKING:
    from leakmeter.strategies.protection.mechanism import ClientNoise


# What noise depends on where the server may do anything.
OF_OWNERS = (
    Assumption.TRUSTED_KEYS,
    Assumption.OWN_APP,
    Assumption.OWN_THRESHOLD,
    Assumption.OWN_NOISE,
)


class Priced(Protocol):
    """A release in a charge: frozen data that its mechanism can price."""

    def of_shares(self, shares: int) -> Self:
        """Return it with the noise of so many contributors, from that of one."""
        ...


class Guarantees(ABC):
    """What the charges of a run guarantee."""

    @abstractmethod
    def findings(self, delta: float) -> Sequence[Finding]:
        """Return a guarantee for each observer."""

    @abstractmethod
    def headline(self, delta: float, adjacency: Adjacency | None = None) -> Finding:
        """Return the guarantee that a target is about: against whom the noise is meant for.

        Args:
            delta: Its δ.
            adjacency: Which two worlds it is about; None for the usual ones of this noise.
        """

    @abstractmethod
    def entry(self, *, run: str, data: str, seed: int | None) -> Entry:
        """Return the line of a ledger.

        Raises:
            ValueError: The guarantee is not about whole clients.
        """


@dataclass(frozen=True)
class Charge:
    """One sum that somebody has seen or may have seen, and who pays for it.

    Attributes:
        release: The sum. Where clients add noise, it has the noise of one contributor, since the
            number that counts is known only at the end.
        contributors: How many clients are in the sum with noise that counts unless they collude.
        clients: Clients, or nodes if clients are not known, that took part: in the sum or in a
            round that was rejected.
        canaries: Canaries that some of these were told to play, by name.
        bearable: Colluders that the secure sum tolerates; None without one.
        is_masked: Whether a secure sum hid single updates.
        is_coarse: Whether rounding was too coarse against the clients' noise for a proof.
        fewest: The same as `contributors` for the smallest sum that a server which may do anything
            could have opened in place of this one; None where it must follow the protocol.
    """

    release: Priced
    contributors: int
    clients: tuple[int, ...] = ()
    canaries: tuple[str, ...] = ()
    bearable: int | None = None
    is_masked: bool = False
    is_coarse: bool = False
    fewest: int | None = None


@dataclass
class Spending:
    """The charges of a run, round by round.

    Attributes:
        charges: All so far. That of an open round is the last: it is for everybody who was asked,
            and it stays if the sum is rejected or the process ends.
        opened: The charge of the open round, until it is known who was in the sum.
    """

    charges: list[Charge] = field(default_factory=list)
    opened: Charge | None = None

    def add(self, charge: Charge) -> None:
        """Charge a round."""
        self.charges.append(charge)

    def open(self, charge: Charge) -> None:
        """Charge a round before its outcome is known."""
        self.add(charge)
        self.opened = charge

    def undo(self) -> None:
        """Revert the charge of the open round, if there is one."""
        if self.opened is not None:
            self.charges.pop()
        self.opened = None

    def close(self) -> None:
        """Keep the charge of the last round."""
        self.opened = None

    def rebase(self, charges: Iterable[Charge]) -> None:
        """Take these charges in place of our own, and add that of the open round."""
        self.charges = list(charges)
        if self.opened is not None:
            self.charges.append(self.opened)

    @property
    def times(self) -> Counter[int]:
        """Rounds that each client, or node if clients are not known, took part in."""
        return Counter(chain.from_iterable(charge.clients for charge in self.charges))

    @property
    def participations(self) -> int:
        """Most rounds that any client took part in."""
        return max(self.times.values(), default=0)

    @property
    def canary_rounds(self) -> int:
        """Most rounds that any canary was played in, whichever client had its seat."""
        played = Counter(canary for charge in self.charges for canary in charge.canaries)
        return max(played.values(), default=0)

    @property
    def bearable(self) -> int | None:
        """Fewest colluders that the secure sum of any round tolerates; None without one."""
        known = [c.bearable for c in self.charges if c.bearable is not None]
        return min(known, default=None)

    @property
    def releases(self) -> tuple[Any, ...]:
        """The releases as they were charged."""
        return tuple(charge.release for charge in self.charges)

    def sums(self, colluders: int, least: int = 0) -> tuple[Any, ...]:
        """Return the releases with the noise of all contributors but the colluders.

        Args:
            colluders: Contributors of each sum whose noise does not count.
            least: Contributors that count in any case.
        """
        return tuple(
            charge.release.of_shares(max(charge.contributors - colluders, least))
            for charge in self.charges
        )

    def smallest(self) -> Spending | None:
        """Return the same for a server that has opened the smallest sums that clients accept.

        None where a server must follow the protocol.
        """
        if not self.charges or any(charge.fewest is None for charge in self.charges):
            return None
        return Spending([replace(c, contributors=c.fewest or 0) for c in self.charges])

    def state(self) -> dict[str, Any]:
        """Return the charges as plain values."""
        return {"charges": plain(self.charges, np.copy)}


@dataclass(frozen=True)
class Exposure:
    """What one observer sees.

    Attributes:
        observer: Who.
        sees: What.
        noise: The noise on it: that of the whole sum, a client's own, or none.
    """

    observer: Observer
    sees: Sees
    noise: Literal["sum", "own", "none"] = "sum"


@dataclass(frozen=True)
class Assurance(Guarantees):
    """What a run's releases guarantee.

    Attributes:
        noise: The mechanism, which says who sees what.
        releases: The sums behind the released models, round by round.
        participations: Most rounds that any client took part in.
        single: The single updates, where clients add all the noise themselves, round by round.
        is_masked: Whether a secure sum hid single updates from the server.
        is_coarse: Whether rounding was too coarse against the clients' noise for a proof.
        canary_rounds: Most rounds that any canary was played in. If it is larger, there is a second
            guarantee for that many, so that a bound from canaries has one to compare with.
        colluders: Clients whose noise was not counted, since they may reveal it.
        smallest: The sums that a server could have opened in place of these if it may do anything;
            empty where it must follow the protocol.
        conduct: What the server may do.
    """

    noise: ClientNoise
    releases: tuple[Release, ...]
    participations: int
    single: tuple[Release, ...] = ()
    is_masked: bool = False
    is_coarse: bool = False
    canary_rounds: int = 0
    colluders: int = 0
    smallest: tuple[Release, ...] = ()
    conduct: Conduct = "curious"

    @property
    def against_active(self) -> Assurance:
        """The same against a server that may do anything, where clients defend against one."""
        if not self.smallest:
            return self
        return replace(self, releases=self.smallest, smallest=(), conduct="active")

    @property
    def adjacency(self) -> Adjacency:
        """Zero-out, or add/remove if clip bits were released: their proof covers only that."""
        has_bit = any(r.bit_std is not None for r in self.releases)
        return "add-remove" if has_bit else "zero-out"

    @property
    def adjacencies(self) -> tuple[Adjacency, ...]:
        """All adjacencies that have a guarantee."""
        return ("zero-out", "replace") if self.adjacency == "zero-out" else (self.adjacency,)

    @property
    def amplifies(self) -> bool:
        """Whether Poisson sampling amplifies: Gaussian noise of the server alone has a theorem."""
        return self.noise.noise_distribution.is_gaussian and not self.noise.by_clients

    def headline(self, delta: float, adjacency: Adjacency | None = None) -> Finding:
        worlds = self.adjacency if adjacency is None else adjacency
        found = self.against_active._priced(self.participations, worlds, delta)
        return next(one for one in found if one.observer == self.noise.protects)

    def entry(self, *, run: str, data: str, seed: int | None) -> Entry:
        is_poisson = all(r.sampling == "poisson" for r in self.releases)
        amplifies = is_poisson and self.amplifies
        return Entry(
            run=run,
            data=data,
            seed=seed,
            adjacency=self.adjacency,
            participations=self.participations,
            releases=self.against_active.releases,
            amplifies=amplifies,
            dropout_delta=self.dropout_delta() if amplifies else 0.0,
            is_coarse=self.is_coarse,
        )

    def findings(self, delta: float) -> Sequence[Finding]:
        """Return the guarantees against each observer, for each adjacency."""
        known = [f for adjacency in self.adjacencies for f in self._known(adjacency, delta)]
        found = [*known, *self._amplified(delta), *self._bits()]
        if not self.smallest:
            return found
        active = self.against_active.findings(delta)
        return [*found, *(one for one in active if one.observer == "server")]

    def _bits(self) -> Iterator[Finding]:
        """Yield how many bits about a client's updates an observer of all rounds can get.

        A sum is a channel: a client that sends at most C through Gaussian noise of standard
        deviation σ conveys at most C²/(2σ²) nats, whatever it sends. Other noise conveys at most
        its Rényi divergence from zero, of any order above 1. Rounds add up.
        """
        if self.adjacency != "zero-out":  # clip bits were released, which no divergence covers
            return
        for exposure in self.noise.exposures:
            if exposure.noise == "none":
                continue
            priced = self.single if exposure.noise == "own" else self.releases
            nats = sorted((_conveyed(release) for release in priced), reverse=True)
            bits = math.fsum(nats[: self.participations]) / math.log(2)
            rule = (
                "capacity of a channel with this noise and updates within the clip norm, added "
                f"over {counted(self.participations, 'participation')}"
            )
            exact = any(release.grid is not None for release in priced)
            drawn = (Assumption.UNIFORM_BITS,) if exact else ()
            bound = Bound(bits, "guarantee", rule, assumptions=drawn)
            hidden = self._hidden_from(exposure)
            found = self._finding(bound, self.participations, exposure, "zero-out", hidden)
            yield replace(found, quantity="mutual information", adjacency=None)

    def _known(self, adjacency: Adjacency, delta: float) -> Sequence[Finding]:
        """Return the guarantees against those who know the cohorts, the clients' rounds first."""
        of_clients = list(self._priced(self.participations, adjacency, delta))
        if self.canary_rounds <= self.participations:
            return of_clients
        of_canaries = list(self._priced(self.canary_rounds, adjacency, delta))
        pairs = zip(of_clients, of_canaries, strict=True)
        # At an equal price, such as ∞, the guarantee for more rounds includes the other.
        return [*(own for own, often in pairs if own.value != often.value), *of_canaries]

    def _priced(self, rounds: int, adjacency: Adjacency, delta: float) -> Iterator[Finding]:
        """Yield the guarantees for this many participations: against server, wire, outsiders."""
        for exposure in self.noise.exposures:
            bound = self._bound(exposure, rounds, adjacency, delta)
            yield self._finding(bound, rounds, exposure, adjacency, self._hidden_from(exposure))

    def _hidden_from(self, exposure: Exposure) -> tuple[Assumption, ...]:
        """Return what an observer must not see besides."""
        if exposure.observer != "outsider":
            return ()
        # A client that adds no noise withholds an update that is not finite.
        kept_back = () if self.noise.by_clients else (Assumption.INDEPENDENT_DROPOUTS,)
        return (Assumption.MODELS_ONLY, *kept_back)

    def _bound(self, exposure: Exposure, rounds: int, adjacency: Adjacency, delta: float) -> Bound:
        if exposure.noise == "none":
            return Bound(math.inf, "guarantee", "the server sees the mean before noise", delta)
        priced = self.single if exposure.noise == "own" else self.releases
        bound = unamplified(priced, delta, participations=rounds, adjacency=adjacency)
        if rounds == self.participations:
            return bound
        rule = f"{bound.rule}; canaries play that often, clients at most {self.participations}"
        return replace(bound, rule=rule)

    def _amplified(self, delta: float) -> Iterator[Finding]:
        """Yield the guarantees against those who see models but not the cohorts."""
        if self.colluders:
            return  # a colluder that is drawn gets its peers' keys and so learns the cohort
        left = delta
        if all(r.sampling == "poisson" for r in self.releases):
            if not self.amplifies:
                return
            left -= self.dropout_delta()
        if left <= 0 or any(r.noise_std == 0 for r in self.releases):
            return
        outside = Exposure("outsider", "noised sum")
        for kind in self.adjacencies:
            try:
                better = amplified(self.releases, left, adjacency=kind)
            except ValueError:
                continue  # no accountant covers this combination
            # The accountant of sampling may be looser than exact composition, which is also valid.
            plain = self._bound(outside, self.participations, kind, delta)
            if better.value < plain.value:
                better, rounds = replace(better, delta=delta), len(self.releases)
                hidden = (Assumption.MODELS_ONLY, Assumption.INDEPENDENT_DROPOUTS)
                yield self._finding(better, rounds, outside, kind, hidden, knows_cohort=False)

    def dropout_delta(self) -> float:
        """Return the probability that one client decided whether there was a secure sum at all.

        Fewer than three clients give none, and observers see that. Without masks an empty round
        gets noise like any other.
        """
        if not self.is_masked:
            return 0.0
        from scipy.stats import binom  # takes a second, and most runs never ask

        return math.fsum(float(binom.cdf(2, r.population - 1, r.rate)) for r in self.releases)

    def _finding(
        self,
        bound: Bound,
        rounds: int,
        exposure: Exposure,
        adjacency: Adjacency,
        assumptions: tuple[str, ...] = (),
        *,
        knows_cohort: bool = True,
    ) -> Finding:
        is_own = exposure.noise == "own"
        is_shared = self.noise.by_clients and not is_own
        is_coarse = self.is_coarse and is_shared
        priced = self.single if is_own else self.releases
        return Finding.of(
            bound,
            kind="approximation" if is_coarse else bound.kind,
            auditor="accountant",
            quantity="epsilon",
            threat_model=ThreatModel(
                observer=exposure.observer,
                sees=exposure.sees,
                knows_cohort=knows_cohort,
                participations=rounds,
                colluders=self.colluders,
                conduct=self.conduct,
            ),
            adjacency=adjacency,
            unit="client",
            assumptions=(
                *bound.assumptions,
                *assumptions,
                Assumption.EQUAL_WEIGHTS,
                *((Assumption.REAL_GAUSSIAN,) if self.noise.noise_distribution.is_gaussian else ()),
                *((Assumption.HONEST_NOISE,) if is_shared else ()),
                *((Assumption.COARSE_ROUNDING,) if is_coarse else ()),
                *(OF_OWNERS if self.conduct == "active" else ()),
            ),
            facts={
                "noise": type(self.noise).__name__.lower(),
                **_grid_facts(priced),
                "least noise std": min((r.noise_std for r in priced), default=0.0),
                "largest sensitivity": max((r.sensitivity for r in priced), default=0.0),
                "sampling": ", ".join(sorted({r.sampling for r in priced})),
                "most rounds of a client": self.participations,
                "most rounds of a canary": self.canary_rounds,
            },
        )


def _grid_facts(releases: Sequence[Release]) -> dict[str, float | str]:
    """Return distribution and grid; nothing for Gaussian noise."""
    named = [(r.distribution, r.grid) for r in releases if r.grid is not None]
    if not named:
        return {}
    return {
        "distribution": ", ".join(sorted({name for name, _ in named})),
        "largest grid step": max(grid.step for _, grid in named),
    }


def _conveyed(release: Release) -> float:
    """Return the most nats that one sum conveys about one update in it."""
    if release.grid is None:
        return release.separation("zero-out") ** 2 / 2
    return float(np.min(release.divergence("zero-out")))
