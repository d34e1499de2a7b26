"""A sampler whose law is known: all clients' updates are Gaussian."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from leakmeter.auditors.finding import Game
from leakmeter.auditors.rng import stream as numbers
from leakmeter.auditors.sampling.moments import Scatter
from leakmeter.auditors.sampling.sampler import Moments, Stream, UpdateSampler
from leakmeter.auditors.values import Vector


@pytest.fixture
def gaussian_sampler() -> type[GaussianSampler]:
    """Return the maker of samplers with a known law."""
    return GaussianSampler


@dataclass(frozen=True)
class GaussianSampler(UpdateSampler):
    """Update = root @ normal; the same for all clients, independent of the model."""

    root: NDArray[np.float64]  # (dim, rank): covariance is root rootᵀ
    seed: int = 0
    game: Game = "independent"
    scale: float = 1.0
    free: NDArray[np.int64] | None = None
    chunk: int = 64
    frozen: bool = False  # every draw of a client is the same
    held: tuple[int, ...] = ()
    others: NDArray[np.float64] | None = None  # (dim, dim): clients but 0 send update @ others

    def sample(
        self,
        model: Vector,
        clients: Sequence[int],
        draws: int,
        stream: Stream,
        *,
        project: NDArray[np.float64] | None = None,
    ) -> Iterator[NDArray[np.floating]]:
        """Yield chunks of fresh updates."""
        root = self.root if project is None or self.others is not None else project.T @ self.root
        for first in range(0, draws, self.chunk):
            last = min(first + self.chunk, draws)
            normals = [self._draw(clients, t, stream) for t in range(first, last)]
            rows = np.stack(normals) @ root.T
            if self.others is not None:
                places = [place for place, client in enumerate(clients) if client != 0]
                rows[:, places] = rows[:, places] @ self.others
                rows = rows if project is None else rows @ project
            yield rows

    def _draw(self, clients: Sequence[int], t: int, stream: Stream) -> NDArray[np.float64]:
        rng = numbers(self.seed) if self.frozen else numbers(self.seed, *stream, t)
        return rng.standard_normal((len(clients), self.root.shape[1]))

    def moments(self, model: Vector, clients: Sequence[int], draws: int, stream: Stream) -> Moments:
        """Return n times the moments of one client."""
        scatter = Scatter(len(self.root))
        for chunk in self.sample(model, clients[:1], draws, stream):
            scatter.add(chunk[:, 0])
        m, n = scatter.moments(), len(clients)
        return Moments(m.count, n * m.mean, n * m.scatter, m.quartic)

    def excluding_drawn(self, client: int, stream: Stream, draws: Sequence[int]) -> GaussianSampler:
        """Return the same: records are not held by anybody."""
        return replace(self, held=tuple(draws))

    def excluding_real(self, client: int) -> GaussianSampler:
        """Return the same, for the same reason."""
        return self
