"""Moments of a sum over clients from redraws of single updates, one way for each game.

A draw costs as many updates as there are clients and gives one sum, so the covariance of the sum is
computed from single updates wherever the game allows it. Every class takes chunks (draws, clients,
dim) in order, and then returns the moments of the sum. `count` - 1 is always the degrees of freedom
of the covariance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.finding import Game
from leakmeter.auditors.sampling.sampler import Moments
from leakmeter.auditors.sampling.scatter import Scatter
from leakmeter.auditors.values import Vector, require

# With fewer partitions ("deals") than this many times the dimension, the covariance of their sums
# alone is poor.
DEALS_PER_DIMENSION = 5

Rows = NDArray[np.floating]


class SumMoments(ABC):
    """Collects redraws and returns the moments of the sum over the clients."""

    def __init__(self, dim: int) -> None:
        self._scatter = Scatter(dim)

    @abstractmethod
    def add(self, rows: Rows) -> Self:
        """Add the next redraws, (draws, clients, dim)."""

    @abstractmethod
    def moments(self) -> Moments:
        """Return mean and covariance of the sum; this empties the accumulator."""


class Interchangeable(SumMoments):
    """Independent clients of one distribution: n times mean and covariance of a single update.

    Args:
        dim: Length of an update.
        num_clients: Clients in the sum; a draw has one of them.
    """

    def __init__(self, dim: int, num_clients: int) -> None:
        super().__init__(dim)
        self._num_clients = num_clients

    def add(self, rows: Rows) -> Self:
        self._scatter.add(rows.reshape(-1, rows.shape[-1]))
        return self

    def moments(self) -> Moments:
        single, n = self._scatter.moments(), self._num_clients
        np.multiply(single.scatter, n, out=single.scatter)
        return replace(single, mean=n * single.mean)


class Reruns(SumMoments):
    """Independent clients, each with its own distribution: the sum of means and covariances.

    Args:
        dim: Length of an update.
        draws: Redraws of each client. Clients come in blocks: all draws of one block, in one
            chunk or several, then all of the next.
    """

    def __init__(self, dim: int, draws: int) -> None:
        if draws < 2:
            raise ValueError(f"draws must be at least 2 for a covariance, got {draws}")
        super().__init__(dim)
        self._draws = draws
        self._num_clients = 0
        self._mean: Vector = np.zeros(dim)
        self._seen = 0
        self._means: NDArray[np.float64] | None = None  # of the open block, (clients, dim)

    def add(self, rows: Rows) -> Self:
        means = rows.mean(axis=0, dtype=np.float64)  # (clients, dim)
        # Centred for each client: what differs between clients is no variance of the sum.
        self._scatter.add((rows - means.astype(rows.dtype)).reshape(-1, rows.shape[-1]))
        self._close(len(rows), means)
        return self

    def _close(self, draws: int, means: NDArray[np.float64]) -> None:
        """Join the block's means; a finished block leaves nothing but its sum."""
        if self._means is None:
            self._seen, self._means = draws, means
        else:
            total = self._seen + draws
            step = means - self._means
            # Chan, Golub, LeVeque (1983), eq. 2.1, for each client; the two signs keep the mean 0.
            between = np.sqrt(self._seen * draws / total / 2) * step
            self._scatter.add(np.concatenate([between, -between]))
            self._seen, self._means = total, self._means + step * (draws / total)
        if self._seen == self._draws:
            self._num_clients += len(self._means)
            self._mean = self._mean + self._means.sum(axis=0)
            self._means = None

    def moments(self) -> Moments:
        assert self._means is None, "a block lacks draws"
        inside = self._scatter.moments()
        n = self._num_clients
        # Each of the n covariances, scatter / (draws - 1), adds its draws - 1 degrees of freedom.
        np.multiply(inside.scatter, n, out=inside.scatter)
        return replace(inside, count=n * (self._draws - 1) + 1, mean=self._mean)


class DealSums(SumMoments):
    """Any dependence within a draw: the moments of the sums themselves."""

    def add(self, rows: Rows) -> Self:
        self._scatter.add(rows.sum(axis=1, dtype=np.float64))
        return self

    def moments(self) -> Moments:
        return self._scatter.moments()


class WithinDeals(SumMoments):
    """Interchangeable clients that share one partition, of which `DealSums` has too few.

    With V = Cov(x_i) and C = Cov(x_i, x_j), the scatter within partitions estimates V - C, and the
    sum has covariance n (V - C) + n² C. The second term is modelled as proportional to the first:
    one factor for all directions, the mean over coordinates of Var(sum) / (n (V - C)).

    Args:
        dim: Length of an update.
        num_clients: Clients in the sum, and in every draw; at least two.
    """

    def __init__(self, dim: int, num_clients: int) -> None:
        require("at least 2", num_clients=num_clients)
        super().__init__(dim)
        self._num_clients = num_clients
        self._deals = 0
        self._mean: Vector = np.zeros(dim)
        self._squares: Vector = np.zeros(dim)

    def add(self, rows: Rows) -> Self:
        sums = rows.sum(axis=1, dtype=np.float64)  # (partitions, dim)
        means = (sums / self._num_clients).astype(rows.dtype)
        self._scatter.add((rows - means[:, None]).reshape(-1, rows.shape[-1]))
        mean = sums.mean(axis=0)
        self._join(len(sums), mean, np.einsum("ij,ij->j", sums - mean, sums - mean))
        return self

    def _join(self, deals: int, mean: Vector, squares: Vector) -> None:
        total = self._deals + deals
        step = mean - self._mean
        # Chan, Golub, LeVeque (1983), eq. 2.1.
        self._squares = self._squares + (squares + step**2 * (self._deals * deals / total))
        self._mean = self._mean + step * (deals / total)
        self._deals = total

    def moments(self) -> Moments:
        n, deals = self._num_clients, self._deals
        if deals < 2:
            raise ValueError(f"draws must be at least {n + 1} for two partitions, got {n * deals}")
        within = self._scatter.moments()
        freedom = deals * (n - 1)
        # What the variance of the sum would be if clients were independent: n (V - C), (dim,).
        predicted = n * within.squares / freedom
        moves = predicted > 0
        # Below 1: partitioning one data set makes the clients negatively correlated.
        ratios = self._squares[moves] / (deals - 1) / predicted[moves]
        factor = float(ratios.mean()) if moves.any() else 1.0
        np.multiply(within.scatter, n * factor, out=within.scatter)
        return replace(within, count=freedom + 1, mean=self._mean)


def sum_moments(game: Game, dim: int, num_clients: int, draws: int) -> SumMoments:
    """Return what puts the moments of a sum together in this game.

    Args:
        game: Which randomness each draw resamples.
        dim: Length of an update.
        num_clients: Clients in the sum.
        draws: In the game "rerun" redraws of each client, else single updates in all.
    """
    if game == "rerun":
        return Reruns(dim, draws)
    if game in ("independent", "independent-held-out"):
        return Interchangeable(dim, num_clients)
    deals = -(-draws // num_clients)
    if num_clients == 1 or deals >= DEALS_PER_DIMENSION * dim:
        return DealSums(dim)
    return WithinDeals(dim, num_clients)
