"""The few types that carry an audit: what a round shows, what an auditor does, what it may say."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Protocol, Self, get_args

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.limitations import Project

Vector = NDArray[np.float64]

# How strong a number is. A weaker kind is never printed as a stronger one.
Kind = Literal["guarantee", "lower_bound", "estimate", "approximation", "diagnostic"]
# What the two worlds that an adversary tells apart differ in.
Adjacency = Literal["add-remove", "zero-out", "replace", "honest-seat"]
# Whose participation is at stake.
Unit = Literal["client", "record"]
# Who looks on: the server inside a round, anyone who gets a model, or someone on the wire.
Observer = Literal["server", "outsider", "wire"]
_WORDS = {"observer": Observer, "adjacency": Adjacency, "unit": Unit}


@dataclass(frozen=True)
class Bound:
    """One number about privacy, with how it was obtained and how far it could have gone.

    Attributes:
        value: The number itself.
        kind: How strong it is; see `Kind`.
        delta: The delta that an epsilon belongs to, if it is one.
        confidence: Coverage of a lower bound; None for everything else.
        rule: How it was computed, in words.
        sample_sizes: How many samples of what went in.
        cap: The largest value this method could have shown with these samples.
        saturated: Whether the value has reached the cap.
        assumptions: What must hold for the kind to be deserved.
    """

    value: float
    kind: Kind
    rule: str
    delta: float | None = None
    confidence: float | None = None
    sample_sizes: Mapping[str, int] = field(default_factory=dict)
    cap: float | None = None
    saturated: bool = False
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if math.isnan(self.value):
            raise ValueError(f"value must be a number, got {self.value}")
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {get_args(Kind)}, got {self.kind!r}")
        if self.kind == "lower_bound" and self.confidence is None:
            raise ValueError("a lower_bound must state its confidence, got None")
        if self.delta is not None and not 0 <= self.delta < 1:
            raise ValueError(f"delta must be in [0, 1), got {self.delta}")
        if self.confidence is not None and not 0 < self.confidence < 1:
            raise ValueError(f"confidence must be in (0, 1), got {self.confidence}")


@dataclass(frozen=True, kw_only=True)
class Finding(Bound):
    """A `Bound` that an auditor reports: which adversary it speaks of, and about what.

    Attributes:
        auditor: The auditor's name.
        quantity: What the value is, such as "epsilon" or "mutual information".
        threat_model: What the adversary knows and does, in words.
        observer: Who the adversary is; a guarantee for one observer says nothing of another.
        adjacency: What the two worlds differ in.
        unit: Whose participation is at stake.
        server_round: The round it belongs to; None if it speaks of the whole run.
        null_band: 5 % and 95 % quantile of the same method when nothing leaks.
        seed: The seed of the auditor's own randomness.
        details: Further numbers for the report, JSON only (histograms, curves).
    """

    auditor: str
    quantity: str
    threat_model: str
    observer: Observer
    adjacency: Adjacency | None = None
    unit: Unit = "client"
    server_round: int | None = None
    null_band: tuple[float, float] | None = None
    seed: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, allowed in _WORDS.items():
            value = getattr(self, name)
            if value not in get_args(allowed) and not (name == "adjacency" and value is None):
                raise ValueError(f"{name} must be one of {get_args(allowed)}, got {value!r}")

    @classmethod
    def of(cls, bound: Bound, **context: Any) -> Self:
        """Return `bound` as a finding of the given auditor, round and threat model."""
        own = {f.name: getattr(bound, f.name) for f in fields(Bound)}
        return cls(**(own | context))

    def to_json(self) -> dict[str, Any]:
        """Return a plain dictionary; infinities become strings, which JSON lacks."""
        return {name: plain(value) for name, value in asdict(self).items()}


def plain(value: Any) -> Any:
    """Return `value` in types that every JSON reader knows."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


@dataclass(frozen=True)
class Canary:
    """What a canary seat does this round, a pure function of id, seed and dimension.

    Attributes:
        id: Which canary of the auditor's.
        seed: The seed that all canaries of the auditor share.
        included: Whether the seat sends the canary; else it sends a zero update of equal weight.
        norm: Length of the update; None takes the clip norm, or failing that the length of the
            update which the seat has just trained.
    """

    id: int
    seed: int
    included: bool = True
    norm: float | None = None


@dataclass(frozen=True)
class RoundFacts:
    """What our own wrappers know of a round beyond what crossed the wire.

    Attributes:
        aggregate: Mean update that the server learnt; None if it could not learn it.
        noised: The same after server noise; None where the server adds none.
        num_clients: Contributors to the mean.
        total_weight: Sum of their weights.
        clip_norm: Joint L2 norm each update was clipped to, if any.
        noise_std: Standard deviation of the noise on the mean, per coordinate, if any.
        share_std: Of that, what each client has added to its own update, if any.
        divisor: Public number that the sum was divided by in place of `total_weight`, if any.
        quantum: Largest rounding error of the secure sum's mean, per coordinate, if any.
        saturated: Coordinates that clients had to clip to fit the secure sum, over all of them.
        abandoned: Why the round gave no aggregate, if it did not.
    """

    aggregate: Vector | None = None
    noised: Vector | None = None
    num_clients: int = 0
    total_weight: float = 0.0
    clip_norm: float | None = None
    noise_std: float | None = None
    share_std: float | None = None
    divisor: float | None = None
    quantum: float | None = None
    saturated: int | None = None
    abandoned: str | None = None


@dataclass(frozen=True)
class RoundView:
    """All that one round shows. An auditor reads only the fields of its adversary.

    Attributes:
        server_round: Round number, from 1, counted over the whole run.
        sent: Model that the clients received.
        replies: Client index to the update that crossed the wire (masked if masked), lazily.
        released: Model after aggregation, noise and server optimiser.
        facts: What the server's wrappers know.
        truth: Simulation only: client index to its plain update. May label, never score.
        instructed: Client index to the canary it was told to play, of those that answered.
        truth_weights: Simulation only: client index to the weight that it stated beside it.
    """

    server_round: int
    sent: Vector
    replies: Mapping[int, Vector]
    released: Vector
    facts: RoundFacts
    truth: Mapping[int, Vector] = field(default_factory=dict)
    instructed: Mapping[int, Canary] = field(default_factory=dict)
    truth_weights: Mapping[int, float] = field(default_factory=dict)


class Auditor(ABC):
    """Sees each round and says what an adversary could have learnt.

    All methods have a default that does nothing, so a new auditor writes only what it needs.
    `state` must return JSON types and numpy arrays only; it is what a resumed run starts from.

    Attributes:
        name: How findings and records call it; differs between the auditors of one run.
        reads: Fields of `RoundView` that its adversary sees. A finding may depend on no others.
        wants_truth: Whether clients should keep their plain updates (simulation only).
    """

    name: str = "auditor"
    reads: frozenset[str] = frozenset({"sent", "released"})
    wants_truth: bool = False

    def begin(self, dim: int, num_rounds: int) -> None:
        """Called once before round 1 with the model's size and the planned rounds."""

    def limits(self, project: Project) -> Sequence[str]:
        """Return in words what cannot be done in this project; raise `UnableError` if nothing can.

        Called before anybody trains: at the start, and again once round 1 has chosen its clients.
        """
        return ()

    def instruct(self, server_round: int, chosen: Sequence[int]) -> Mapping[int, Canary]:
        """Return which of the chosen clients play which canary this round."""
        return {}

    def observe(self, view: RoundView) -> Sequence[Finding]:
        """Called after each round; returns what this round alone shows."""
        return ()

    def report(self) -> Sequence[Finding]:
        """Called after the last round; returns what the run shows."""
        return ()

    def state(self) -> dict[str, Any]:
        """Return everything needed to go on after an interruption."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up a state that `state` returned."""


@dataclass(frozen=True)
class Moments:
    """Sample count, mean and scatter matrix of a stream of vectors.

    Attributes:
        count: Samples, or as many as would be equally informative.
        mean: Their mean.
        scatter: Sum of the outer products of the centred samples; symmetric.
        quartic: Sum of the fourth powers of the samples' lengths in standard deviations of each
            coordinate; None where unknown.
    """

    count: int
    mean: Vector
    scatter: NDArray[np.float64]
    quartic: float | None = None

    @property
    def covariance(self) -> NDArray[np.float64]:
        """The unbiased covariance matrix."""
        if self.count < 2:
            raise ValueError(f"count must be at least 2 for a covariance, got {self.count}")
        return self.scatter / (self.count - 1)


# Which randomness is played anew in each draw of updates; see `UpdateSampler`.
Game = Literal["rerun", "partition", "independent"]
Stream = Sequence[str | int]


class UpdateSampler(Protocol):
    """Draws fresh local updates at a given model, for auditors that need their law.

    A row is what one client adds to the sum: its update times weight over `scale`. The server's
    mean update is then `scale` / total weight times the sum of the rows. Draw t of a stream is a
    function of the stream and t, whoever computes it and in whatever chunks.

    Attributes:
        game: "rerun" keeps each client's data and draws new batches; "partition" deals one data
            set anew to all clients in each draw; "independent" draws each client's data afresh.
        scale: The weight that a factor of 1 stands for.
        free: Coordinates that determine the others, if some are redundant; None for all.
    """

    @property
    def game(self) -> Game: ...

    @property
    def scale(self) -> float: ...

    @property
    def free(self) -> NDArray[np.int64] | None: ...

    def sample(
        self,
        model: Vector,
        clients: Sequence[int],
        draws: int,
        stream: Stream,
        *,
        project: NDArray[np.float64] | None = None,
    ) -> Iterator[NDArray[np.floating]]:
        """Yield chunks (draws, clients, dim or k); one row is one joint redraw of all clients.

        Args:
            model: The global model that the clients start from.
            clients: Whose updates.
            draws: How many joint redraws.
            stream: Names the randomness.
            project: Matrix (dim, k) that each update is multiplied with where it is made.
        """
        ...

    def sums(
        self,
        model: Vector,
        clients: Sequence[int],
        draws: int,
        stream: Stream,
        *,
        project: NDArray[np.float64] | None = None,
    ) -> Iterator[NDArray[np.floating]]:
        """Yield chunks (draws, dim or k) of the same draws, summed over the clients."""
        ...

    def moments(self, model: Vector, clients: Sequence[int], draws: int, stream: Stream) -> Moments:
        """Return the moments of the sum over `clients`, fitted for the game that is played."""
        ...

    def apart(self, client: int, stream: Stream, draws: Sequence[int]) -> UpdateSampler:
        """Return a sampler whose other clients never hold what `client` held in these draws."""
        ...

    def beside(self, client: int) -> UpdateSampler | None:
        """Return a sampler whose other clients never hold what `client` really holds.

        None if that is not known: the sum that was really released is then not judged.
        """
        ...
