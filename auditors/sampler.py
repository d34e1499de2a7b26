"""Fresh local updates at a given model, for auditors that need their distribution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors._types import Vector


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
