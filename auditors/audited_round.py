"""One round as audits see it, what they claim, and the base classes of auditors of some rounds.

Who is honest, who is under attack, which noise the observer sees and who draws fresh updates are
resolved here, once. An auditor writes `audit`, which is its mathematics. `Claims` makes its
findings, with the fields that all of one audit share.

Sums are in the sampler's units: a client's row is its update times weight over `scale`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np

from leakmeter.auditors.auditor import (
    Auditor,
    DivergedError,
    Due,
    Project,
    RoundFacts,
    RoundMessages,
    RoundView,
    check_noise_is_known,
)
from leakmeter.auditors.bounds.lower_bound import (
    BandAndFixed,
    CurveRule,
    SimultaneousBand,
    epsilon_lower_bound,
    error_curve,
)
from leakmeter.auditors.finding import (
    Adjacency,
    Bound,
    Detail,
    ErrorCurve,
    Finding,
    Game,
    Quantity,
    Sees,
    ThreatModel,
    Unit,
)
from leakmeter.auditors.sampling.sampler import RoundSampler, UpdateSampler, sampler_of_round
from leakmeter.auditors.values import Vector, Watch, require_one_of
from leakmeter.auditors.wording import Assumption

SumObserver = Literal["server", "outsider"]
# What each of them sees, as findings say it.
SEES: Final[Mapping[SumObserver, Sees]] = {"server": "round sum", "outsider": "noised sum"}
# Fields of a finding that all of one audit share; the others are those of its bound.
_SHARED: Final = ("auditor", "threat_model", "adjacency", "unit", "server_round", "seed")


def no_watch(stage: str, share: float) -> None:
    """Tell nobody about the progress."""


@dataclass(frozen=True, eq=False)
class AuditedRound:
    """Everything that an audit needs to know about a round.

    Attributes:
        view: What the round has shown.
        source: The auditor's sampler; None for audits that draw no updates.
        observer: "server" sees the sum before server noise, "outsider" after it.
        target: Client under attack; None if there is none.
        colluding: Clients that show the observer their update and their share of the noise.
        watch: Told of the progress.
    """

    view: RoundView
    source: RoundSampler | None = None
    observer: SumObserver = "server"
    target: int | None = None
    colluding: frozenset[int] = frozenset()
    watch: Watch = no_watch

    @property
    def server_round(self) -> int:
        """Round number, from 1."""
        return self.view.server_round

    @property
    def model(self) -> Vector:
        """Model that the clients start from."""
        return self.view.sent

    @property
    def facts(self) -> RoundFacts:
        """What the server's wrappers know."""
        return self.view.facts

    @cached_property
    def honest(self) -> list[int]:
        """Clients of the round that play no canary, in order."""
        return sorted(set(self.view.replies) - set(self.view.instructed))

    @cached_property
    def hidden(self) -> list[int]:
        """Honest clients whose updates the observer does not know."""
        return [c for c in self.honest if c not in self.colluding]

    @cached_property
    def others(self) -> list[int]:
        """Clients whose sum hides the target: `seen_sum` subtracts what canary seats have sent."""
        return [c for c in self.hidden if c != self.target]

    @cached_property
    def sampler(self) -> UpdateSampler:
        """Draws fresh updates of the round's clients.

        Raises:
            ValueError: Rows would contain noise that audits add to the sum themselves, or other
                weights than those of the round.
        """
        assert self.source is not None
        found = sampler_of_round(self.source, self.view)
        if found.has_noise:
            raise ValueError(
                "sampler must leave the clients' noise out, which is added to the sum: inside an "
                "update it would count as signal; got one that adds it"
            )
        if self.facts.divisor is not None and found.scale != 1:
            raise ValueError(
                "sampler must weigh all clients 1 where sums are divided by a fixed number "
                f"(weighted=False), got a scale of {found.scale:g}"
            )
        return found

    @property
    def game(self) -> Game:
        """Which randomness a draw resamples."""
        return self.sampler.game

    @property
    def has_integers(self) -> bool:
        """Whether the noise is over integers, which Gaussian trials only resemble."""
        return self.facts.noise_distribution is not None

    @property
    def noise_std(self) -> float:
        """The mechanism's noise on each coordinate of the sum that the observer sees."""
        return self._noise_std(self.observer)

    @property
    def rounding_std(self) -> float:
        """Spread of the secure sum's rounding errors, per coordinate.

        Each of n clients rounds to a grid of step s, up or down at random: n·s²/6 on average over
        where its numbers are between two points. The quantum is n·s over the total weight.
        """
        facts = self.facts
        largest = (facts.quantum or 0.0) * facts.total_weight / self.sampler.scale
        return largest / math.sqrt(6 * max(facts.num_clients, 1))

    @property
    def seen_std(self) -> float:
        """Noise and rounding together: independent errors, so their variances add."""
        return math.hypot(self.noise_std, self.rounding_std)

    @property
    def added_std(self) -> float:
        """Noise that the server adds to the sum after the observer has seen it."""
        # What an outsider sees has both noises; the rest is the difference of variances.
        return math.sqrt(max(self._noise_std("outsider") ** 2 - self.noise_std**2, 0.0))

    def _noise_std(self, observer: SumObserver) -> float:
        facts, scale = self.facts, self.sampler.scale
        if observer == "outsider":
            return (facts.noise_std or 0.0) * (facts.divisor or facts.total_weight) / scale
        known = len(self.honest) - len(self.hidden)
        shares = max(facts.num_clients - known, 0)
        return (facts.share_std or 0.0) * math.sqrt(shares) / scale

    def contribution(self, client: int) -> Vector | None:
        """Return what a client has put into the sum before noise; None where that is not known."""
        view, facts = self.view, self.facts
        weight = view.truth_weights.get(client) if facts.divisor is None else 1.0
        update = view.truth.get(client)
        if update is None or weight is None:
            return None
        norm = float(np.linalg.norm(update))
        # The tap is inside the mod that clips.
        clipped = min(facts.clip_norm / norm, 1.0) if facts.clip_norm and norm > 0 else 1.0
        return update * (clipped * weight / self.sampler.scale)

    def seen_sum(self) -> Vector | None:
        """Return the sum that the observer saw, without what canary seats have put in."""
        facts, scale = self.facts, self.sampler.scale
        if self.observer == "outsider" and facts.noised is not None:
            seen = facts.noised * ((facts.divisor or facts.total_weight) / scale)
        elif facts.aggregate is not None:
            seen = facts.aggregate * (facts.total_weight / scale)
        else:
            return None
        for client in sorted(self.view.instructed):
            own = self.contribution(client)
            if own is None:
                return None
            seen = seen - own
        return seen

    def at(self, model: Vector) -> AuditedRound:
        """Return the same round with clients that start from another model; nothing was sent."""
        facts = replace(self.facts, aggregate=None, noised=None)
        view = replace(self.view, sent=model, facts=facts, truth={})
        return replace(self, view=view, source=self.sampler)


@dataclass(frozen=True, eq=False)
class Trials:
    """Scores of one test in two worlds, a separate trial for each.

    Attributes:
        first: Scores in the world that a large score favours, (trials,).
        second: Scores in the other world, (trials,).
        threshold: Score at which neither is more likely, fixed before any trial; None if there is
            none.
    """

    first: Vector
    second: Vector
    threshold: float | None = None

    @property
    def rule(self) -> CurveRule:
        """Where the threshold of a bound comes from."""
        return SimultaneousBand() if self.threshold is None else BandAndFixed(self.threshold)

    @property
    def separation(self) -> float:
        """Distance of the two worlds in standard deviations of their scores."""
        std = math.sqrt((self.first.var(ddof=1) + self.second.var(ddof=1)) / 2)
        gap = float(self.first.mean() - self.second.mean())
        return gap / std if std > 0 else math.copysign(math.inf, gap) if gap else 0.0

    def bound(self, delta: float, confidence: float) -> Bound:
        """Return the ε that the trials prove."""
        return epsilon_lower_bound(
            self.first, self.second, delta=delta, confidence=confidence, rule=self.rule
        )

    def curve(self, confidence: float, server_round: int | None = None) -> ErrorCurve:
        """Return the limits of both error rates for a figure."""
        scores, rule = (self.first, self.second), self.rule
        return error_curve(*scores, confidence=confidence, server_round=server_round, rule=rule)


@dataclass(frozen=True)
class Claims:
    """Makes findings about one attacker.

    Attributes:
        auditor: Whose findings.
        threat_model: Who attacks, and with what.
        delta: Of the bounds.
        confidence: Of the bounds.
        adjacency: How the two worlds differ.
        unit: Whose participation is at stake.
        server_round: The round; None for the run.
        seed: Of the auditor.
        assumptions: What every lower bound takes for granted beyond its own rule.
    """

    auditor: str
    threat_model: ThreatModel
    delta: float = 1e-5
    confidence: float = 0.95
    adjacency: Adjacency | None = "replace"
    unit: Unit = "client"
    server_round: int | None = None
    seed: int | None = None
    assumptions: tuple[Assumption, ...] = ()

    def finding(
        self,
        bound: Bound,
        facts: Mapping[str, Any] | None = None,
        details: tuple[Detail, ...] = (),
        quantity: Quantity = "epsilon",
    ) -> Finding:
        """Return a number as a finding about this attacker."""
        shared = {name: getattr(self, name) for name in _SHARED}
        return Finding.of(bound, **shared, quantity=quantity, facts=facts or {}, details=details)

    def diagnostic(
        self, quantity: Quantity, value: float, rule: str, facts: Mapping[str, Any]
    ) -> Finding:
        """Return an observation without a claim."""
        return self.finding(Bound(value, "diagnostic", rule), facts, quantity=quantity)

    def proof(self, trials: Trials, facts: Mapping[str, Any], rule: str = "") -> Finding:
        """Return the ε that trials prove, with its curve; `rule` says what they were about."""
        bound = self.assuming(trials.bound(self.delta, self.confidence))
        bound = replace(bound, rule=f"{bound.rule}{rule}")
        return self.finding(bound, facts, (trials.curve(self.confidence, self.server_round),))

    def assuming(self, bound: Bound) -> Bound:
        """Return a bound that takes for granted what all claims do."""
        return replace(bound, assumptions=(*bound.assumptions, *self.assumptions))

    def shared_confidence(self, looks: int) -> float:
        """Return the confidence of each of several looks, so that all hold at the confidence.

        Bonferroni: the largest of n bounds fails if any of them does.
        """
        return 1 - (1 - self.confidence) / looks

    def largest(self, played: Sequence[Trials], looks: int) -> tuple[int, Bound]:
        """Return whose ε is the largest, and that bound, at a confidence that all looks share."""
        bounds = [one.bound(self.delta, self.shared_confidence(looks)) for one in played]
        best = max(range(len(bounds)), key=lambda i: bounds[i].value)
        return best, self.assuming(replace(bounds[best], confidence=self.confidence))


class ScheduledAuditor(Auditor):
    """Audits the rounds that are due; a subclass writes `audit`.

    Args:
        every: Rounds between two audits; 0 audits the first only, -1 rounds 1, 2, 4, 8, … and the
            last.
    """

    def __init__(self, *, every: int) -> None:
        self.every, self._due = every, Due(every, 1)

    @property
    def due(self) -> Due | None:
        """Which rounds it audits."""
        return self._due

    def begin(self, dim: int, num_rounds: int) -> None:
        """Plan the audited rounds."""
        self._due = Due(self.every, num_rounds)

    def observe(self, view: RoundView) -> Sequence[Finding]:
        """Audit this round if it is due and there was a sum."""
        return self.audit_if_due(self.round_of(view))

    def audit_if_due(self, audited: AuditedRound) -> Sequence[Finding]:
        """Return what a round shows; nothing if it is not due, or there was no sum.

        Raises:
            DivergedError: The model is not finite.
        """
        if audited.server_round not in self._due or audited.facts.abandoned is not None:
            return ()
        if not np.isfinite(audited.model).all():
            raise DivergedError
        return self.audit(audited)

    def round_of(self, view: RoundView) -> AuditedRound:
        """Return the round as this auditor sees it."""
        return AuditedRound(view, watch=self.watch or no_watch)

    @abstractmethod
    def audit(self, audited: AuditedRound) -> Sequence[Finding]:
        """Return what this round alone shows."""


class ResamplingAuditor(ScheduledAuditor):
    """Audits the sum of some rounds with updates that a sampler draws.

    Args:
        sampler: Draws fresh updates, and names the game; a function from a `RoundView` to a sampler
            where the clients' mechanism changes from round to round.
        every: See `ScheduledAuditor`.
        observer: "server" sees the sum before server noise, "outsider" after it.

    Attributes:
        further_audits: Audits of the run beyond one for each round that is due.
    """

    further_audits: int = 0

    def __init__(self, sampler: RoundSampler, *, every: int, observer: SumObserver) -> None:
        super().__init__(every=every)
        if not (isinstance(sampler, UpdateSampler) or callable(sampler)):
            raise TypeError(
                "sampler must be an UpdateSampler, or a function from a RoundView to one, got "
                f"{type(sampler).__name__}; try ReplaySampler()"
            )
        require_one_of(SEES, observer=observer)
        self.sampler, self.observer = sampler, observer

    @property
    def settled(self) -> UpdateSampler | None:
        """The sampler if it is known before the first round, the same for all of them."""
        return self.sampler if isinstance(self.sampler, UpdateSampler) else None

    @property
    def asks_clients(self) -> bool:
        """Whether every drawn update costs one more training of a client of the run."""
        return self.settled is not None and self.settled.asks_clients

    def limits(self, project: Project) -> Sequence[str]:
        """Return where updates cannot be resampled; raise if a sum has unknown noise."""
        check_noise_is_known(self.observer, project)
        return () if self.settled is None else self.settled.limits(project)

    def bind(self, messages: RoundMessages) -> None:
        """Show the sampler the round, whose messages it may send again."""
        if self.settled is not None:
            self.settled.bind(messages)

    def replays(self, server_round: int) -> bool:
        """Whether the sampler sends messages of this round again."""
        return self.asks_clients and server_round in self._due

    def updates_drawn(self, honest: int, dim: int) -> int:
        """Return about how many updates an audited round draws, with so many honest clients."""
        return 0

    def trainings(self, project: Project) -> int:
        """Return how many updates all audits draw, where every one is a client's training."""
        if not self.asks_clients or project.honest is None or project.honest < 2:
            return 0
        audits = len(Due(self.every, project.num_rounds)) + self.further_audits
        return audits * self.updates_drawn(project.honest, project.dim)

    def seconds(self, view: RoundView) -> float | None:
        """Return how long the sampler takes for a round's updates; None if it cannot tell."""
        honest = AuditedRound(view).honest
        if len(honest) < 2 or not (updates := self.updates_drawn(len(honest), view.sent.size)):
            return None
        each = sampler_of_round(self.sampler, view).seconds(view.sent, honest[0])
        return None if each is None else each * updates

    def round_of(self, view: RoundView) -> AuditedRound:
        """Return the round as this auditor sees it, with its sampler and its target."""
        watch = self.watch or no_watch
        found = AuditedRound(view, self.sampler, self.observer, watch=watch)
        return replace(found, target=self.target_among(found.honest, view.server_round))

    def target_among(self, honest: Sequence[int], server_round: int) -> int | None:
        """Return the client under attack in a round; None if there is none."""
        return None
