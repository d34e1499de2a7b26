"""The directions in which single updates vary most, from samples that may be in a file.

The samples are fewer than the coordinates of all but the smallest models, so the directions come
from their products, (samples, samples), which are added up block by block. The products are taken
once: those of some draws around their own means follow from those around the means of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from leakmeter.auditors._types import AnyFloats, Floats
from leakmeter.auditors.information.logdet import (
    Subspace,
    num_directions,
    positive,
    principal_subspace,
)
from leakmeter.auditors.sampler import ROUNDING
from leakmeter.auditors.sampling.row_store import RowStore


class ConstantUpdatesError(ValueError):
    """No update varies in this game, so there is nothing to learn."""


def leading_directions(rows: RowStore, draws: int, rank: int) -> Subspace:
    """Return the directions of largest variance around each client's mean, at most `rank`.

    The share of the variance is that of the second half of the draws along the directions of the
    first, if both vary: directions look better on the draws they come from.

    Args:
        rows: All clients of the first draw, then of the second, and so on, (draws · clients, dim).
        draws: How many draws.
        rank: Most directions.

    Raises:
        ConstantUpdatesError: No update varies.
    """
    if len(rows) < rows.shape[1]:
        return _from_products(_Deviations(rows, draws), rank)
    whole = np.concatenate([block for _, block in rows.blocks()], axis=1)
    return _from_rows(whole.reshape(draws, -1, rows.shape[1]), rank)


def _from_rows(drawn: AnyFloats, rank: int) -> Subspace:
    """Return the directions from more samples than coordinates, (draws, clients, dim)."""
    half = len(drawn) // 2
    every, first, second = map(_centred, (drawn, drawn[:half], drawn[half:]))
    if not every.any():
        raise _nothing_varies()
    directions, kept = _principal(every, rank)  # (dim, rank)
    if first.any() and second.any():
        # (draws/2 · clients, rank)
        along = second @ _principal(first, rank)[0].astype(second.dtype)
        kept = float(np.square(along).sum()) / float(np.square(second).sum())
    return Subspace(directions, kept)


def _principal(rows: AnyFloats, rank: int) -> tuple[Floats, float]:
    """Return at most this many directions of rows, and the share of the variance along them all."""
    found = principal_subspace(rows, share=1.0)
    return found.directions[:, :rank], found.variance_kept


def _from_products(samples: _Deviations, rank: int) -> Subspace:
    """Return the directions from fewer samples than coordinates."""
    # Gram matrix X Xᵀ, (samples, samples), summed over blocks of columns: X itself may be in a
    # file.
    products = np.zeros((samples.count, samples.count))
    for _, rows in samples.blocks():
        products += rows @ rows.T
    if not np.trace(products) > 0:
        raise _nothing_varies()
    mix, kept = _mixed(products, rank)
    share = _share_held_out(products, samples.clients, rank)
    # Xᵀ u / √λ for each eigenvector u of the Gram matrix: orthonormal columns, (dim, rank).
    directions = np.empty((samples.dim, mix.shape[1]))
    for at, rows in samples.blocks():
        directions[at] = rows.T @ mix
    return Subspace(directions, kept if share is None else share)


def _mixed(products: Floats, rank: int) -> tuple[Floats, float]:
    """Return the weights of samples in directions, (samples, rank), and the variance along all."""
    # λ (k,) and u (samples, k); the weights u / √λ make each direction a unit vector.
    spectrum, left = positive(*np.linalg.eigh(products))
    kept = np.cumsum(spectrum) / spectrum.sum()
    every = num_directions(kept)
    return (left / np.sqrt(spectrum))[:, : min(rank, every)], min(1.0, float(kept[every - 1]))


def _share_held_out(products: Floats, clients: int, rank: int) -> float | None:
    """Return the second half's share along the first half's directions; None if one is constant."""
    # Whole draws only: a client split between halves would be centred around two means.
    half = len(products) // clients // 2 * clients
    first, crossed, second = (
        _recentred(part, clients)
        for part in (products[:half, :half], products[half:, :half], products[half:, half:])
    )
    least = ROUNDING**2 * np.trace(products)  # below it deviations are rounding
    if not min(np.trace(first), total := np.trace(second)) > least:
        return None
    # crossed @ weights are the second half's coordinates along the first half's directions,
    # (draws/2 · clients, rank); their squares over the trace of all squares are the share.
    return float(np.square(crossed @ _mixed(first, rank)[0]).sum() / total)


def _recentred(products: Floats, clients: int) -> Floats:
    """Return the products of some draws with others, each client's around its mean of these.

    Inner products are linear: means of samples are means of their products, on either side.
    """
    draws, others = (size // clients for size in products.shape)
    found = products.reshape(draws, clients, others, clients)  # (k, i, l, j)
    # ⟨a - ā, b - b̄⟩: the mean over draws is taken off once for each side of the product.
    found = found - found.mean(axis=0)
    found -= found.mean(axis=2, keepdims=True)
    return np.asarray(found.reshape(products.shape))


class _Deviations:
    """Draws, each client's around its own mean, in double precision.

    Args:
        rows: As `leading_directions` takes them.
        draws: How many.
    """

    def __init__(self, rows: RowStore, draws: int) -> None:
        self._rows, self._draws = rows, draws
        self.clients, (self.count, self.dim) = len(rows) // draws, rows.shape

    def blocks(self) -> Iterator[tuple[slice, Floats]]:
        """Yield blocks of columns, (draws · clients, columns), and which columns they are."""
        if self._rows.is_in_memory:
            yield slice(0, self.dim), self._whole
            return
        for at, block in self._rows.blocks():
            yield at, self._of(block)

    @cached_property
    def _whole(self) -> Floats:
        """All columns, centred once for all who ask; only of rows in memory."""
        return self._of(self._rows.columns(slice(0, self.dim)))

    def _of(self, block: AnyFloats) -> Floats:
        drawn = block.reshape(self._draws, self.clients, block.shape[1])
        return _centred(drawn).astype(np.float64)


def _centred(drawn: AnyFloats) -> AnyFloats:
    """Return draws less each client's own mean as rows of one matrix; rounding is set to 0."""
    mean = drawn.mean(axis=0, dtype=np.float64)
    rest = drawn - mean.astype(drawn.dtype)
    # A coordinate that never moves differs from its mean by rounding: that is no direction.
    still = np.abs(rest).max(axis=0) <= ROUNDING * np.abs(mean)  # (clients, columns)
    rest[:, still] = 0.0
    return np.reshape(rest, (-1, drawn.shape[-1]))


def _nothing_varies() -> ConstantUpdatesError:
    return ConstantUpdatesError("every update is the same in every draw of this game")
