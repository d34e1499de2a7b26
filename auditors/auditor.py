"""The base class of auditors: which rounds it audits, the view of a round, what is known before."""

from __future__ import annotations

from abc import ABC
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np

from leakmeter.auditors.canary_draws import KINDS, SEED_BITS, KindName
from leakmeter.auditors.codec import Resumable
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Finding, RunWarning
from leakmeter.auditors.values import (
    Record,
    Sliceable,
    Vector,
    Watch,
    require,
    require_one_of,
    within,
)
from leakmeter.auditors.verdict.claim import Claim
from leakmeter.auditors.wording import counted

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid

    from leakmeter.auditors.hook.canary_order import Answer, Sends
    from leakmeter.auditors.hook.layout import Layout, LazyModel


@dataclass(frozen=True)
class Due:
    """The audited rounds of a run.

    Attributes:
        every: Rounds between two audits, from the first on; 0 audits the first only; -1 audits
            rounds 1, 2, 4, 8, … and the last. The audits share the confidence of the run, so with
            fewer of them each bound is larger.
        num_rounds: Planned rounds.

    >>> due = Due(-1, 10)
    >>> [r for r in range(1, 11) if r in due], len(due)
    ([1, 2, 4, 8, 10], 5)
    """

    every: int
    num_rounds: int

    def __post_init__(self) -> None:
        within("every", self.every, lowest=-1)

    def __contains__(self, server_round: int) -> bool:
        if self.every > 0:
            return (server_round - 1) % self.every == 0
        if self.every == 0:
            return server_round == 1
        return server_round == self.num_rounds or server_round & (server_round - 1) == 0

    def __len__(self) -> int:
        return len(self.rounds())

    def rounds(self) -> tuple[int, ...]:
        """Return the audited rounds.

        >>> Due(3, 8).rounds(), Due(0, 8).rounds(), Due(-1, 8).rounds()
        ((1, 4, 7), (1,), (1, 2, 4, 8))
        """
        return tuple(r for r in range(1, self.num_rounds + 1) if r in self)


@dataclass(frozen=True)
class Schedule:
    """Which rounds one auditor was to audit.

    Attributes:
        auditor: Its name.
        every: Rounds between two audits; 0 for the first only, -1 for 1, 2, 4, 8, … and the last.
        num_rounds: Planned rounds.
        audited: The rounds among them that it audits; it skips the others.
    """

    auditor: str
    every: int
    num_rounds: int
    audited: tuple[int, ...]

    @classmethod
    def of(cls, auditor: str, due: Due) -> Schedule:
        """Return the schedule of an auditor."""
        return cls(auditor, due.every, due.num_rounds, due.rounds())

    @property
    def skips(self) -> bool:
        """Whether some rounds are not audited."""
        return len(self.audited) < self.num_rounds


@dataclass(frozen=True)
class Canary:
    """What a canary seat does this round, a pure function of id, seed, kind and dimension.

    Attributes:
        id: Which canary of the auditor's.
        seed: The seed that all canaries of the auditor share, of 128 bits.
        included: Whether the seat sends the canary; otherwise it sends a zero update of the same
            weight.
        norm: Norm of the update; None takes the clip norm, or without one the norm of the update
            that the seat has just trained.
        kind: How the canary is drawn.
    """

    id: int
    seed: int
    included: bool = True
    norm: float | None = None
    kind: KindName = "sphere"

    def __post_init__(self) -> None:
        require("at least 0", id=self.id)
        if not 0 <= self.seed < 2**SEED_BITS:
            raise BadValueError("seed", f"in [0, 2^{SEED_BITS})", self.seed)
        require("[0, inf)", is_optional=True, norm=self.norm)
        require_one_of(KINDS, kind=self.kind)


@dataclass(frozen=True)
class RoundFacts:
    """What our own wrappers know about a round beyond what crossed the wire.

    Attributes:
        aggregate: Mean update that the server learnt; None if it could not learn it, or if no
            auditor needs it.
        noised: The same after server noise; None if the server adds none.
        num_clients: Contributors to the mean.
        blank: Clients of a secure sum whose training gave no update; None where nobody counts them.
        total_weight: Sum of their weights.
        clip_norm: Joint L2 norm each update was clipped to, if any.
        noise_std: Standard deviation of the noise on the mean, per coordinate, if any.
        share_std: The part of it that each client has added to its own update, if any.
        noise_distribution: Distribution of the noise, if it is over integers.
        divisor: Public number that the sum was divided by in place of `total_weight`, if any.
        quantum: Largest rounding error of the secure sum's mean, per coordinate, if any.
        saturated: Coordinates that clients had to clip to fit the secure sum, over all of them.
        coordinates: Coordinates in the secure sum, over all clients: what `saturated` is out of.
        asked: Clients that were asked to take part; None where the train messages show it.
        abandoned: Why the round gave no aggregate, if it did not.
        rejected: True if the sum was opened, and so shown to the server, before it was rejected.
    """

    aggregate: Vector | None = None
    noised: Vector | None = None
    num_clients: int = 0
    total_weight: float = 0.0
    clip_norm: float | None = None
    noise_std: float | None = None
    share_std: float | None = None
    noise_distribution: str | None = None
    divisor: float | None = None
    quantum: float | None = None
    saturated: int | None = None
    coordinates: int | None = None
    asked: int | None = None
    blank: int | None = None
    abandoned: str | None = None
    rejected: bool | None = None

    def over(self, other: RoundFacts) -> RoundFacts:
        """Return these facts, with those of `other` where these are None or have no clients."""
        said = {name: value for name, value in vars(self).items() if value is not None}
        if not self.num_clients:
            del said["num_clients"], said["total_weight"]
        return replace(other, **said)


@dataclass(frozen=True)
class RoundView:
    """Everything that one round shows; an auditor reads only what its adversary sees.

    Attributes:
        server_round: Round number, from 1, counted over the whole run.
        sent: Model that the clients received.
        replies: Client index to the update that crossed the wire (masked if masked), lazily.
        released: Model after aggregation, noise and server optimiser.
        facts: What the server's wrappers know.
        truth: Simulation only: client index to its plain update. May label, never score.
        instructed: Client index to the canary it was told to play, of those that answered.
        truth_weights: Simulation only: client index to the weight that it stated with it.
        sends: Whether clients reply with models or with differences.
        sign: 1 if the server adds what clients send, -1 if it subtracts it.
        answers: Client index to what its `canary_mod` said, of those that were asked.
        took: Client index to whether it says that it trained on the records it was asked to plant.
    """

    server_round: int
    sent: Vector
    replies: Mapping[int, Vector]
    released: Vector
    facts: RoundFacts
    truth: Mapping[int, Vector] = field(default_factory=dict)
    instructed: Mapping[int, Canary] = field(default_factory=dict)
    truth_weights: Mapping[int, float] = field(default_factory=dict)
    sends: Sends = "models"
    sign: int = 1
    answers: Mapping[int, Answer] = field(default_factory=dict)
    took: Mapping[int, bool] = field(default_factory=dict)

    @property
    def step(self) -> tuple[Sliceable, Sliceable]:
        """The models before and after the round; swapped if the server subtracts updates."""
        sent, released = (vars(self)[name] for name in _MODELS)  # not made into vectors
        return (sent, released) if self.sign > 0 else (released, sent)


def _model(name: str) -> property:
    """Return a field of a view that is made into a vector when an auditor reads it."""

    def read(view: RoundView) -> Vector:
        held: LazyModel | Vector = vars(view)[name]
        return held if isinstance(held, np.ndarray) else held.vector

    return property(read, lambda view, held: vars(view).update({name: held}))


_MODELS: Final = ("sent", "released")
for _name in _MODELS:  # behind `dataclass`, which would take them for default values
    setattr(RoundView, _name, _model(_name))


@dataclass(frozen=True)
class RoundMessages:
    """The train messages of a round before they are sent, for auditors that send them again.

    Attributes:
        grid: Delivers messages to the clients.
        by_client: Client index to the message that the client is sent.
        layout: Turns the arrays of a message into a vector.
        model: What they send.
        weight_key: The metric by which the strategy weights clients.
    """

    grid: Grid
    by_client: Mapping[int, Message]
    layout: Layout
    model: LazyModel
    weight_key: str

    @property
    def sent(self) -> Vector:
        """The model in the messages."""
        return self.model.vector


class DivergedError(ValueError):
    """Models or updates of a round are not finite, so it cannot be audited."""

    def __init__(self) -> None:
        super().__init__(
            "training diverged: rounds whose models or updates are not finite are not audited"
        )


class UnableError(ValueError):
    """An auditor cannot measure anything in this project. The text says why, and what to do."""


class DamagedError(ValueError):
    """A working file of an auditor is missing or damaged. The text says which, and what to do."""


@dataclass(frozen=True)
class Project:
    """What is known about a run before its first training.

    Auditors are asked twice: when the run starts, and when the first round has chosen its clients.

    Attributes:
        dim: Float parameters of the model.
        num_rounds: Planned rounds.
        clients: Clients of the first round; None until they are chosen.
        seats: Those among them that play canaries.
        is_masked: Whether clients mask their updates, as far as the messages show.
        has_client_noise: Whether clients are told to add noise, as far as the messages show.
        noised_by: Strategies in the chain that add an unknown amount of noise.
        bent_by: Strategies in the chain whose optimiser scales every coordinate separately.
        selected_by: Strategies in the chain that drop or trim updates which differ from the rest.
        clipped_by: Strategies in the chain that clip the mean update.
        claims: Privacy claims about the run, for auditors that may refute them.
    """

    dim: int
    num_rounds: int
    clients: int | None = None
    seats: int = 0
    is_masked: bool = False
    has_client_noise: bool = False
    noised_by: tuple[str, ...] = ()
    bent_by: tuple[str, ...] = ()
    selected_by: tuple[str, ...] = ()
    clipped_by: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()

    @property
    def honest(self) -> int | None:
        """Clients of the first round that play no canary; None until they are chosen."""
        return None if self.clients is None else self.clients - self.seats


class Auditor(Resumable, ABC):
    """Sees each round and reports what an adversary could have learnt.

    All methods have a default that does nothing, so a new auditor writes only what it needs.
    Annotate with `Kept` what must survive an interruption, such as `_total: Kept[float]`; or
    override `state`, which returns only JSON types and numpy arrays, and `restore`.

    Attributes:
        name: Its name in findings and checkpoints; differs between the auditors of one run.
        reads: Fields of `RoundView` that its adversary sees. A finding may depend on no others.
        optional: Fields among these that it can do without, and what is left out then.
        wants_truth: Whether clients should keep their plain updates (simulation only).
        wants_mean: Whether it reads `facts.aggregate`. The hook does not compute the mean of plain
            updates for auditors that do not.
        wants_answers: Whether it reads `answers` of all clients in every round; otherwise they are
            asked once.
        delta: Of its lower bounds, for auditors that have any.
        confidence: Of its lower bounds, for auditors that have any.
        num_bounds: How many lower bounds without a condition it may add to the run's verdict. All
            of them share the allowed failures of the run, so that they hold together.
        watch: Called with the stage and progress of a long audit, if anything displays it.
        folder: Folder of working files, set before `begin`; None takes temporary files. They stay
            when a run is interrupted, so a state need not repeat what is in them.
        claims: Privacy claims about the run that it may refute; set before `begin`, and before the
            confidence is shared.
        population: Clients of the whole project, as far as the first round shows; None before.
        fewer: What makes it audit fewer rounds, in the words of whoever has made it.
    """

    name: str = "auditor"
    reads: frozenset[str] = frozenset({"sent", "released"})
    optional: Mapping[str, str] = MappingProxyType({})
    wants_truth: bool = False
    wants_mean: bool = True
    wants_answers: bool = False
    delta: float = 1e-5
    confidence: float = 0.95
    num_bounds: int = 0
    _asked: float | None = None  # the confidence of its own, before it was shared
    watch: Watch | None = None
    folder: Path | None = None
    claims: tuple[Claim, ...] = ()
    population: int | None = None
    fewer: str = "every=-1"

    def __repr__(self) -> str:
        """Return how it was made: arguments that are numbers or words, and not the defaults."""
        made = signature(type(self)).parameters.values()
        kept = [(one, vars(self).get(one.name, vars(self).get(f"_{one.name}"))) for one in made]
        # What a sampler or an array was is a matter of the project, and may be long.
        plain = [(one, value) for one, value in kept if isinstance(value, bool | int | float | str)]
        told = (f"{one.name}={value!r}" for one, value in plain if value != one.default)
        return f"{type(self).__name__}({', '.join(told)})"

    @property
    def canaries_played(self) -> tuple[int, int] | None:
        """How many canaries took part, of how many planned; None for auditors without canaries."""
        return None

    @property
    def unplayed(self) -> str | None:
        """Why no canary has taken part; None if one has, and for auditors without canaries."""
        return None

    @property
    def warnings(self) -> Sequence[RunWarning]:
        """Reasons to doubt the run that the audit itself has given, so far."""
        return ()

    @property
    def claimed(self) -> Sequence[Claim]:
        """Privacy claims that it has heard from clients; asked after `report`."""
        return ()

    @property
    def noticed(self) -> Sequence[str]:
        """What it has found out in the run that it cannot measure here; asked after `report`."""
        return ()

    @property
    def is_anytime(self) -> bool:
        """Whether findings of its rounds have bounds that hold at all rounds together."""
        return False

    @property
    def due(self) -> Due | None:
        """Which rounds it audits, for auditors that skip some; None for all."""
        return None

    def join(self, others: Sequence[Auditor]) -> None:
        """Called before `begin` with the other auditors of the run, to share work with them."""

    def begin(self, dim: int, num_rounds: int) -> None:
        """Called once before round 1 with the model's size and the planned rounds."""

    def limits(self, project: Project) -> Sequence[str]:
        """Return what it cannot measure in this project; raise `UnableError` if nothing at all.

        Called before training starts: once at the start, and again once round 1 has chosen its
        clients.
        """
        return ()

    def trainings(self, project: Project) -> int:
        """Return how often the audit makes a client train beyond the run's own rounds.

        Called once round 1 has chosen its clients. The log warns before they train if it is more
        than the run itself needs.
        """
        return 0

    def instruct(self, server_round: int, chosen: Sequence[int]) -> Mapping[int, Canary]:
        """Return which of the chosen clients play which canary this round."""
        return {}

    def plant(
        self, server_round: int, chosen: Sequence[int]
    ) -> Mapping[int, tuple[Sequence[Record], int]]:
        """Return records for some of the chosen clients to train on, and how often each is there.

        Clients take them only if their app lists `plant_mod` and asks for them.
        """
        return {}

    def bind(self, messages: RoundMessages) -> None:
        """Called before the messages of a round are sent; for auditors that send them again."""

    def replays(self, server_round: int) -> bool:
        """Whether this auditor sends messages of this round to clients again."""
        return False

    def truth_of(self, server_round: int, honest: Sequence[int]) -> Collection[int]:
        """Return the clients, of the honest ones that replied, whose plain updates it needs."""
        return honest if self.wants_truth else ()

    def seconds(self, view: RoundView) -> float | None:
        """Return about how long `observe` will take for this round; None if that is not known.

        Called before its first audited round. The log says beforehand if all of them take long.
        """
        return None

    def observe(self, view: RoundView) -> Sequence[Finding]:
        """Called after each round; returns what this round alone shows."""
        return ()

    def report(self) -> Sequence[Finding]:
        """Called after the last round; returns what the run shows."""
        return ()

    def close(self) -> None:
        """Remove working files; called once the report is written, or the auditor is left out."""


def share_confidence(auditors: Sequence[Auditor]) -> None:
    """Let the lower bounds of all auditors of a run hold together at the confidence of each.

    The largest of four bounds of 95 % holds in 81 % of runs only; four bounds of 98.75 % hold
    together in 95 % (Bonferroni). Called before `begin`; a second call changes nothing.
    """
    total = sum(one.num_bounds for one in auditors)
    for one in auditors:
        if one.num_bounds:
            if one._asked is None:
                one._asked = one.confidence
            one.confidence = 1 - (1 - one._asked) / total


def check_noise_is_known(observer: str, project: Project) -> None:
    """Raise if an outsider's sum carries an unknown amount of noise, or is clipped.

    Raises:
        UnableError: Without that noise or clipping in the trials, a bound for an outsider would be
            false.
    """
    if observer == "outsider" and project.clipped_by:
        raise UnableError(
            f"an outsider sees the mean that {', '.join(project.clipped_by)} has clipped, and this "
            "audit is about sums without clipping: use observer='server', which audits the sum "
            "before clipping"
        )
    if observer == "outsider" and project.noised_by:
        raise UnableError(
            "an outsider sees the noised sum, and how much noise "
            f"{', '.join(project.noised_by)} adds is not known here: use observer='server', "
            "which audits the sum before the noise"
        )


def few_clients(project: Project, enough: int, then: str) -> list[str]:
    """Return a limitation if there are fewer honest clients than `enough`."""
    if project.honest is None or project.honest >= enough:
        return []
    seats = f" and {counted(project.seats, 'canary seat')}" if project.seats else ""
    return [f"round 1 has {counted(project.honest, 'honest client')}{seats}: {then}"]
