"""The guarantees of a noised run, one for each observer, whether protected against or not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.finding import Adjacency, Bound, Finding, Observer, Sees, ThreatModel
from leakmeter.strategies.accounting.accountant import Release, amplified, unamplified
from leakmeter.strategies.mechanism import Central, Distributed, Local, Noise, law_of


@dataclass(frozen=True)
class Assurance:
    """What a run's releases guarantee.

    Attributes:
        noise: Who added it.
        releases: The sums behind the released models, round by round.
        participations: Most rounds that any client took part in.
        single: The single updates under local noise, round by round.
        is_masked: Whether a secure sum hid single updates from the server.
        is_rough: Whether rounding was too coarse against the clients' noise for a proof.
        canary_rounds: Most rounds that any canary was played in. If it is larger, there is a second
            guarantee for that many, so that a bound from canaries has one to compare with.
        colluders: Clients whose noise was not counted, since they may reveal it.
    """

    noise: Noise
    releases: tuple[Release, ...]
    participations: int
    single: tuple[Release, ...] = ()
    is_masked: bool = False
    is_rough: bool = False
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

    @property
    def amplifies(self) -> bool:
        """Whether Poisson sampling amplifies: central Gaussian noise alone has a theorem."""
        # Elsewhere a client that is not drawn adds no noise either.
        return isinstance(self.noise, Central) and law_of(self.noise) == "gaussian"

    def headline(self, delta: float) -> Finding:
        """Return the guarantee that a target is about.

        It protects a client against the observer that the noise is meant for: outsiders with
        central noise, otherwise the server. They may know who takes part when, so there is no
        amplification.
        """
        observer = "outsider" if isinstance(self.noise, Central) else "server"
        found = self._priced(self.participations, self.adjacency, delta)
        return next(finding for finding in found if finding.observer == observer)

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
        plain = self._plain(self.releases, rounds, adjacency, delta)
        yield from self._inside(plain, rounds, adjacency, delta)
        # A client that adds no noise withholds an update that is not finite.
        kept_back = (Assumption.INDEPENDENT_DROPOUTS,) if isinstance(self.noise, Central) else ()
        hidden = (Assumption.MODELS_ONLY, *kept_back)
        yield self._finding(plain, rounds, "outsider", adjacency, "noised sum", hidden)

    def _plain(
        self, releases: Sequence[Release], rounds: int, adjacency: Adjacency, delta: float
    ) -> Bound:
        bound = unamplified(releases, delta, participations=rounds, adjacency=adjacency)
        if rounds == self.participations:
            return bound
        rule = f"{bound.rule}; canaries play that often, clients at most {self.participations}"
        return replace(bound, rule=rule)

    def _inside(
        self, plain: Bound, rounds: int, adjacency: Adjacency, delta: float
    ) -> Iterator[Finding]:
        """Yield the guarantees against the server and on the wire."""
        match self.noise:
            case Central():
                # The noise is added after the server has seen the mean.
                rule = "the server sees the mean before noise"
                none = Bound(math.inf, "guarantee", rule, delta)
                yield self._finding(none, rounds, "server", adjacency, "round sum")
            case Distributed():
                yield self._finding(plain, rounds, "server", adjacency, "round sum")
            case Local():
                own = self._plain(self.single, rounds, adjacency, delta)
                for observer in ("server", "wire"):
                    yield self._finding(own, rounds, observer, adjacency, "updates")

    def _amplified(self, delta: float) -> Iterator[Finding]:
        """Yield the guarantees against those who see models but not the cohorts."""
        if self.colluders:
            return  # a colluder that is drawn gets its peers' keys and so learns the cohort
        left = delta
        if all(r.sampling == "poisson" for r in self.releases):
            if not self.amplifies:
                return
            left -= self.thin_rounds()
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
                yield self._finding(
                    better, rounds, "outsider", kind, "noised sum", hidden, knows_cohort=False
                )

    def thin_rounds(self) -> float:
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
        observer: Observer,
        adjacency: Adjacency,
        sees: Sees,
        assumptions: tuple[str, ...] = (),
        *,
        knows_cohort: bool = True,
    ) -> Finding:
        is_own = isinstance(self.noise, Local) and observer != "outsider"
        is_shared = not isinstance(self.noise, Central) and not is_own
        rough = self.is_rough and is_shared
        priced = self.single if is_own else self.releases
        return Finding.of(
            bound,
            kind="approximation" if rough else bound.kind,
            auditor="accountant",
            quantity="epsilon",
            threat_model=ThreatModel(
                observer=observer,
                sees=sees,
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
                *((Assumption.REAL_GAUSSIAN,) if law_of(self.noise) == "gaussian" else ()),
                *((Assumption.HONEST_NOISE,) if is_shared else ()),
                *((Assumption.COARSE_ROUNDING,) if rough else ()),
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
    """Return law and grid of integer noise; nothing for Gaussian noise."""
    grids = [r.grid for r in releases if r.grid is not None]
    if not grids:
        return {}
    return {
        "law": ", ".join(sorted({grid.law for grid in grids})),
        "largest grid step": max(grid.step for grid in grids),
    }
