"""Fresh local updates at a given model, for auditors that need their distribution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.auditor import DivergedError, Project, RoundMessages, RoundView
from leakmeter.auditors.finding import Game
from leakmeter.auditors.values import AnyFloats, Vector


@dataclass(frozen=True)
class Moments:
    """Sample count, mean and scatter matrix of a stream of vectors.

    Attributes:
        count: Samples, or as many as would be equally informative.
        mean: Their mean.
        scatter: Sum of the outer products of the centred samples; symmetric, in any precision.
        quartic: Sum of the fourth powers of the samples' lengths in standard deviations of each
            coordinate; None where unknown.
        columns: Coordinates of an update that these are of; None for all.
        unit: What rows and columns of the scatter are multiples of, (dim,); None for 1. In such
            units single precision holds every coordinate, however little it moves.
    """

    count: int
    mean: Vector
    scatter: AnyFloats
    quartic: float | None = None
    columns: NDArray[np.int64] | None = field(default=None, compare=False)
    unit: Vector | None = field(default=None, compare=False)

    @property
    def freedom(self) -> int:
        """What the scatter is divided by for the covariance."""
        if self.count < 2:
            raise ValueError(f"count must be at least 2 for a covariance, got {self.count}")
        return self.count - 1

    @property
    def covariance(self) -> NDArray[np.float64]:
        """The unbiased covariance matrix."""
        return np.asarray(self.plain().scatter / self.freedom)

    @property
    def squares(self) -> Vector:
        """The diagonal of the scatter, without units, (dim,)."""
        own = np.diagonal(self.scatter).astype(np.float64, copy=False)
        return own if self.unit is None else own * self.unit**2

    def plain(self) -> Moments:
        """Return the same without units, in double precision."""
        if self.unit is None:
            return self
        scatter = self.unit[:, None] * self.scatter
        scatter *= self.unit
        return replace(self, scatter=scatter, unit=None)


Stream = Sequence[str | int]
Clients = Sequence[int]
Along = NDArray[np.float64] | None  # a projection of updates, (dim, k); None keeps all coordinates

# Updates may be in single precision: equal numbers may differ by this relative amount, but no more.
ROUNDING: Final = 4 * float(np.finfo(np.float32).eps)
# Games that resample data and never give other clients the records of the client under attack. In
# "rerun" everyone keeps their own data; in "independent" nothing is held out.
HOLDING_OUT: Final = frozenset[Game]({"partition", "independent-held-out"})


def finite(chunks: Iterable[AnyFloats]) -> Iterator[AnyFloats]:
    """Yield sampled updates; raise where one is not finite, since NaN compares as "no change".

    Raises:
        DivergedError: An update is not finite.
    """
    for chunk in chunks:
        if not np.isfinite(chunk).all():
            raise DivergedError
        yield chunk


class UpdateSampler(ABC):
    """Draws fresh local updates at a given model, for auditors that need their distribution.

    A row is what one client adds to the sum: its update times weight over `scale`. The server's
    mean update is then `scale` / total weight times the sum of the rows. Draw t of a stream is a
    function of the stream and t, whoever computes it and in whatever chunks.

    A new sampler writes `game`, `sample` and `moments`. If its game is "partition" or
    "independent-held-out", it also writes `excluding_drawn` and `excluding_real`. Everything else
    has a default.
    """

    @property
    @abstractmethod
    def game(self) -> Game:
        """Which randomness a draw resamples.

        "rerun" keeps each client's data and draws new batches. "partition" partitions one data set
        among all clients in each draw. "independent" draws each client's data from all records;
        "independent-held-out" does so too, but after `excluding_drawn` or `excluding_real` the
        other clients never draw the records of the client under attack.
        """

    @property
    def scale(self) -> float:
        """The weight that a factor of 1 corresponds to: a row is update times weight / scale."""
        return 1.0

    @property
    def free(self) -> NDArray[np.int64] | None:
        """Coordinates that determine the others; None if none are known to be redundant."""
        return None

    @property
    def has_noise(self) -> bool:
        """Whether rows contain noise that the clients add for privacy."""
        return False

    @property
    def sends_gradient(self) -> bool | None:
        """Whether an update is one gradient, as in FedSGD; None where that is not known."""
        return None

    @property
    def asks_clients(self) -> bool:
        """Whether every drawn update costs one more training of a client of the run."""
        return False

    def bind(self, messages: RoundMessages) -> None:
        """Take the train messages of a round before they are sent."""

    def limits(self, project: Project) -> Sequence[str]:
        """Return in words what cannot be drawn in this project.

        Raises:
            UnableError: No updates can be drawn there.
        """
        return ()

    def for_round(self, view: RoundView) -> UpdateSampler:
        """Return the sampler for the clients of one round."""
        return self

    @abstractmethod
    def sample(
        self, model: Vector, clients: Clients, draws: int, stream: Stream, *, project: Along = None
    ) -> Iterator[AnyFloats]:
        """Yield chunks (draws, clients, dim or k); one row is one joint redraw of all clients.

        Args:
            model: The global model that the clients start from.
            clients: Whose updates.
            draws: How many joint redraws.
            stream: Names the randomness.
            project: Matrix (dim, k) that each update is multiplied with where it is made.
        """

    def updates(
        self, model: Vector, clients: Clients, draws: int, stream: Stream
    ) -> Iterator[AnyFloats]:
        """Yield the same updates one by one, (dim,): all clients of a draw, then the next draw."""
        for chunk in self.sample(model, clients, draws, stream):
            for rows in chunk:
                yield from rows

    def sums(
        self, model: Vector, clients: Clients, draws: int, stream: Stream, *, project: Along = None
    ) -> Iterator[AnyFloats]:
        """Yield chunks (draws, dim or k) of the same draws, summed over the clients."""
        for rows in self.sample(model, clients, draws, stream, project=project):
            yield rows.sum(axis=1)

    @abstractmethod
    def moments(self, model: Vector, clients: Clients, draws: int, stream: Stream) -> Moments:
        """Return the moments of the sum over `clients`, fitted for the game that is played.

        A sampler may leave out coordinates that `free` calls redundant; see `Moments.columns`.

        Args:
            model: The global model.
            clients: Whose updates are summed.
            draws: In the game "rerun" redraws of each client, else single updates in all.
            stream: Names the randomness; no other call may use it.
        """

    def moments_each(
        self, models: AnyFloats, clients: Clients, draws: int, stream: Stream
    ) -> Iterable[Moments]:
        """Return the same at each of several models, (models, dim), which share the draws."""
        return (self.moments(model, clients, draws, stream) for model in models)

    def seconds(self, model: Vector, client: int) -> float | None:
        """Return about how long one of many updates takes; None if nothing tells."""
        return None

    def keeping(self, stream: Stream) -> UpdateSampler | None:
        """Return the sampler whose clients keep their data over models and batches.

        In draw t a client has the data that this stream gives, in every call; the stream of the
        call gives the rest. None if data and the rest cannot be drawn separately.
        """
        return None

    def holding(self, client: int, stream: Stream, draw: int) -> UpdateSampler | None:
        """Return the sampler in which `client` always has the data of one draw of a stream.

        Only this client may be asked for. None if data and the rest cannot be drawn separately.
        """
        return None

    def one(self, model: Vector, clients: Clients, draw: int, stream: Stream) -> AnyFloats:
        """Return one draw of `sample`, (clients, dim). Slow here; samplers may do it directly."""
        chunks = self.sample(model, clients, draw + 1, stream)
        return np.asarray(np.concatenate(list(chunks))[draw])

    def shares(self, clients: Clients, draw: int, stream: Stream) -> Vector:
        """Return the clients' weights over `scale` in one draw, (clients,); equal by default."""
        return np.ones(len(clients))

    def excluding_drawn(self, client: int, stream: Stream, draws: Sequence[int]) -> UpdateSampler:
        """Return the sampler of the other clients, given the records of `client` in these draws.

        They never hold these records, unless the game is "independent": there the data of the
        others do not depend on the pair, and this is the same sampler. In the game "rerun" they
        never hold them anyway.
        """
        return self._unchanged("excluding_drawn")

    def excluding_real(self, client: int) -> UpdateSampler | None:
        """Return the sampler of the other clients, given the real records of `client`.

        None if the game depends on these records and they are not known: the attacker then makes
        no guess about the sum that was really released.
        """
        return self._unchanged("excluding_real")

    def _unchanged(self, method: str) -> UpdateSampler:
        """Return this sampler where the game takes no records away from the others."""
        if self.game in HOLDING_OUT:
            raise NotImplementedError(f"{type(self).__name__} must define {method}")
        return self


# A sampler for all rounds, or a function of the round if the clients' mechanism changes.
RoundSampler = UpdateSampler | Callable[[RoundView], UpdateSampler]


def sampler_of_round(sampler: RoundSampler, view: RoundView) -> UpdateSampler:
    """Return the sampler for the clients of one round."""
    return sampler.for_round(view) if isinstance(sampler, UpdateSampler) else sampler(view)
