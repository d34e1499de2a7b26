"""The guarantees of a noised run, one for each observer, whether protected against or not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.finding import Adjacency, Bound, Finding, Observer, Sees, ThreatModel
from leakmeter.strategies.accounting.accountant import Release, amplified, unamplified
from leakmeter.strategies.accounting.ledger import Entry


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
class Promise:
    """What a mechanism promises, whatever it releases.

    Attributes:
        name: Of the mechanism, in facts.
        protects: The observer that it is meant for. They may know who takes part when.
        exposures: What observers see, from those who see most.
        by_clients: Whether clients add the noise. Then a client that is not drawn adds none, and
            the noise of a sum is as honest as its contributors; and a client whose update is not
            finite sends its noise, and does not stay out.
        is_gaussian: Whether the noise is Gaussian.
    """

    name: str
    protects: Observer
    exposures: tuple[Exposure, ...]
    by_clients: bool
    is_gaussian: bool

    @property
    def amplifies(self) -> bool:
        """Whether Poisson sampling amplifies: Gaussian noise of the server alone has a theorem."""
        return self.is_gaussian and not self.by_clients


@dataclass(frozen=True)
class Assurance:
    """What a run's releases guarantee.

    Attributes:
        promise: What the mechanism promises.
        releases: The sums behind the released models, round by round.
        participations: Most rounds that any client took part in.
        single: The single updates, where clients add all the noise themselves, round by round.
        is_masked: Whether a secure sum hid single updates from the server.
        is_coarse: Whether rounding was too coarse against the clients' noise for a proof.
        canary_rounds: Most rounds that any canary was played in. If it is larger, there is a second
            guarantee for that many, so that a bound from canaries has one to compare with.
        colluders: Clients whose noise was not counted, since they may reveal it.
    """

    promise: Promise
    releases: tuple[Release, ...]
    participations: int
    single: tuple[Release, ...] = ()
    is_masked: bool = False
    is_coarse: bool = False
    canary_rounds: int = 0
    colluders: int = 0

    @property
    def adjacency(self) -> Adjacency:
        """Zero-out, or add/remove if clip bits were released: their proof covers only that."""
        has_bit = any(r.bit_std is not None for r in self.releases)
        return "add-remove" if has_bit else "zero-out"

    @property
    def adjacencies(self) -> tuple[Adjacency, ...]:
        """All adjacencies that have a guarantee."""
        return ("zero-out", "replace") if self.adjacency == "zero-out" else (self.adjacency,)

    def headline(self, delta: float) -> Finding:
        """Return the guarantee that a target is about: against whom the noise is meant for."""
        found = self._priced(self.participations, self.adjacency, delta)
        return next(one for one in found if one.observer == self.promise.protects)

    def entry(self, *, run: str, data: str, seed: int | None) -> Entry:
        """Return the line of a ledger."""
        is_poisson = all(r.sampling == "poisson" for r in self.releases)
        amplifies = is_poisson and self.promise.amplifies
        return Entry(
            run=run,
            data=data,
            seed=seed,
            adjacency=self.adjacency,
            participations=self.participations,
            releases=self.releases,
            amplifies=amplifies,
            dropout_delta=self.dropout_delta() if amplifies else 0.0,
            is_coarse=self.is_coarse,
        )

    def findings(self, delta: float) -> Sequence[Finding]:
        """Return the guarantees against each observer, for each adjacency."""
        known = [f for adjacency in self.adjacencies for f in self._known(adjacency, delta)]
        return [*known, *self._amplified(delta)]

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
        # A client that adds no noise withholds an update that is not finite.
        kept_back = () if self.promise.by_clients else (Assumption.INDEPENDENT_DROPOUTS,)
        for exposure in self.promise.exposures:
            bound = self._bound(exposure, rounds, adjacency, delta)
            is_out = exposure.observer == "outsider"
            hidden = (Assumption.MODELS_ONLY, *kept_back) if is_out else ()
            yield self._finding(bound, rounds, exposure, adjacency, hidden)

    def _bound(self, exposure: Exposure, rounds: int, adjacency: Adjacency, delta: float) -> Bound:
        if exposure.noise == "none":
            return Bound(math.inf, "guarantee", "the server sees the mean before noise", delta)
        priced = self.single if exposure.noise == "own" else self.releases
        return self._plain(priced, rounds, adjacency, delta)

    def _plain(
        self, releases: Sequence[Release], rounds: int, adjacency: Adjacency, delta: float
    ) -> Bound:
        bound = unamplified(releases, delta, participations=rounds, adjacency=adjacency)
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
            if not self.promise.amplifies:
                return
            left -= self.dropout_delta()
        if left <= 0 or any(r.noise_std == 0 for r in self.releases):
            return
        for kind in self.adjacencies:
            try:
                better = amplified(self.releases, left, adjacency=kind)
            except ValueError:
                continue  # no accountant covers this combination
            # The accountant of sampling may be looser than exact composition, which is also valid.
            plain = self._plain(self.releases, self.participations, kind, delta)
            if better.value < plain.value:
                better, rounds = replace(better, delta=delta), len(self.releases)
                hidden = (Assumption.MODELS_ONLY, Assumption.INDEPENDENT_DROPOUTS)
                outside = Exposure("outsider", "noised sum")
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
        is_shared = self.promise.by_clients and not is_own
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
            ),
            adjacency=adjacency,
            unit="client",
            assumptions=(
                *bound.assumptions,
                *assumptions,
                Assumption.EQUAL_WEIGHTS,
                *((Assumption.REAL_GAUSSIAN,) if self.promise.is_gaussian else ()),
                *((Assumption.HONEST_NOISE,) if is_shared else ()),
                *((Assumption.COARSE_ROUNDING,) if is_coarse else ()),
            ),
            facts={
                "noise": self.promise.name,
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
