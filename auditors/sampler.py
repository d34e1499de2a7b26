"""Fresh local updates at a given model, for auditors that need their distribution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors._types import Vector
from leakmeter.auditors.auditor import Project, RoundMessages, RoundView
from leakmeter.auditors.finding import Game


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


Stream = Sequence[str | int]

# Updates may come in single precision: equal numbers seem to differ by so much of their size, but
# no more.
ROUNDING: Final = 4 * float(np.finfo(np.float32).eps)


class UpdateSampler(ABC):
    """Draws fresh local updates at a given model, for auditors that need their distribution.

    A row is what one client adds to the sum: its update times weight over `scale`. The server's
    mean update is then `scale` / total weight times the sum of the rows. Draw t of a stream is a
    function of the stream and t, whoever computes it and in whatever chunks.

    A new sampler writes `game`, `sample` and `moments`, and `apart` and `beside` unless its game is
    "rerun". Everything else has a default.
    """

    @property
    @abstractmethod
    def game(self) -> Game:
        """Which randomness a draw resamples.

        "rerun" keeps each client's data and draws new batches; "partition" deals one data set anew
        to all clients in each draw; "independent" draws each client's data afresh.
        """

    @property
    def scale(self) -> float:
        """The weight that a factor of 1 stands for: a row is the update times weight / scale."""
        return 1.0

    @property
    def free(self) -> NDArray[np.int64] | None:
        """Coordinates that determine the others; None if none are known to be redundant."""
        return None

    @property
    def has_noise(self) -> bool:
        """Whether rows carry noise that the clients add to hide themselves."""
        return False

    @property
    def sends_gradient(self) -> bool | None:
        """Whether an update is one gradient, as in FedSGD; None where that is not known."""
        return None

    @property
    def is_settled(self) -> bool:
        """Whether game, scale and free coordinates are known before the first round."""
        return True

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
        for rows in self.sample(model, clients, draws, stream, project=project):
            yield rows.sum(axis=1)

    @abstractmethod
    def moments(self, model: Vector, clients: Sequence[int], draws: int, stream: Stream) -> Moments:
        """Return the moments of the sum over `clients`, fitted for the game that is played."""

    def apart(self, client: int, stream: Stream, draws: Sequence[int]) -> UpdateSampler:
        """Return a sampler whose other clients never hold what `client` held in these draws."""
        return self._with_own_data("apart")

    def beside(self, client: int) -> UpdateSampler | None:
        """Return a sampler whose other clients never hold what `client` really holds.

        None if that is not known: the sum that was really released is then not judged.
        """
        return self._with_own_data("beside")

    def _with_own_data(self, method: str) -> UpdateSampler:
        """Return this sampler where every client keeps data of its own."""
        if self.game != "rerun":
            raise NotImplementedError(f"{type(self).__name__} must define {method}")
        return self


class PerRound(UpdateSampler):
    """Another sampler for each round, where the clients' mechanism changes from round to round.

    Args:
        make: Returns the sampler for the clients of one round.
    """

    is_settled = False

    def __init__(self, make: Callable[[RoundView], UpdateSampler]) -> None:
        self._make = make

    def for_round(self, view: RoundView) -> UpdateSampler:
        """Make the round's sampler."""
        return self._make(view)

    @property
    def game(self) -> Game:
        return self._unsettled()

    def sample(
        self,
        model: Vector,
        clients: Sequence[int],
        draws: int,
        stream: Stream,
        *,
        project: NDArray[np.float64] | None = None,
    ) -> Iterator[NDArray[np.floating]]:
        return self._unsettled()

    def moments(self, model: Vector, clients: Sequence[int], draws: int, stream: Stream) -> Moments:
        return self._unsettled()

    def _unsettled(self) -> NoReturn:
        raise TypeError("each round has a sampler of its own: ask for_round(view) for it first")
