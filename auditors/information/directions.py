"""The directions in which single updates vary most, from samples that may be in a file.

The samples are fewer than the coordinates of all but the smallest models, so the directions come
from their products, (samples, samples), which are added up block by block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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

    Args:
        rows: All clients of the first draw, then of the second, and so on, (draws · clients, dim).
        draws: How many draws.
        rank: Most directions.

    Raises:
        ConstantUpdatesError: No update varies.
    """
    clients, half = len(rows) // draws, draws // 2
    every, first, second = (
        _Draws(rows, clients, start, stop) for start, stop in ((0, draws), (0, half), (half, draws))
    )
    if not every.vary():
        raise ConstantUpdatesError("every update is the same in every draw of this game")
    found = every.leading(rank)
    if not (first.vary() and second.vary()):
        return found
    # Directions look better on the draws they come from: the share is that of the other half.
    fitted = first.leading(rank).directions
    along, total = None, 0.0  # (draws · clients, rank), and all squares
    for at, block in second.blocks():
        part = block @ fitted[at].astype(block.dtype)
        along = part if along is None else along + part
        total += float(np.square(block).sum())
    assert along is not None
    return Subspace(found.directions, float(np.square(along).sum()) / total)


@dataclass(frozen=True)
class _Draws:
    """The draws from `start` to `stop`, each client's around its own mean."""

    rows: RowStore  # all draws, as `leading_directions` takes them
    clients: int
    start: int
    stop: int

    def blocks(self) -> Iterator[tuple[slice, AnyFloats]]:
        """Yield blocks of columns, (draws · clients, columns), and which columns they are."""
        if self.rows.is_in_memory:
            yield slice(0, self.rows.shape[1]), self._whole
            return
        for at, block in self.rows.blocks():
            yield at, self._centred(block)

    @cached_property
    def _whole(self) -> AnyFloats:
        """All columns, centred once for all who ask; only of rows in memory."""
        return self._centred(self.rows.columns(slice(0, self.rows.shape[1])))

    def _centred(self, block: AnyFloats) -> AnyFloats:
        drawn = block.reshape(-1, self.clients, block.shape[1])
        return _centred(drawn[self.start : self.stop])

    def vary(self) -> bool:
        """Whether any update varies."""
        return any(np.abs(block).max(initial=0.0) > 0 for _, block in self.blocks())

    def leading(self, rank: int) -> Subspace:
        """Return the leading directions; as many as there are, if they are fewer."""
        count, dim = (self.stop - self.start) * self.clients, self.rows.shape[1]
        if count >= dim:
            whole = np.concatenate([block for _, block in self.blocks()], axis=1)
            found = principal_subspace(whole, share=1.0)
            return Subspace(found.directions[:, :rank], found.variance_kept)
        gram = np.zeros((count, count))
        for _, block in self.blocks():
            centred = _around_mean(block)
            gram += centred @ centred.T
        spectrum, left = positive(*np.linalg.eigh(gram))
        kept = np.cumsum(spectrum) / spectrum.sum()
        every = num_directions(kept)
        directions = np.empty((dim, min(rank, every)))
        leading = (left / np.sqrt(spectrum))[:, : directions.shape[1]]
        for at, block in self.blocks():
            directions[at] = _around_mean(block).T @ leading
        return Subspace(directions, min(1.0, float(kept[every - 1])))


def _centred(drawn: AnyFloats) -> AnyFloats:
    """Return draws less each client's own mean as rows of one matrix; rounding is set to 0."""
    mean = drawn.mean(axis=0, dtype=np.float64)
    rest = drawn - mean.astype(drawn.dtype)
    still = np.abs(rest).max(axis=0) <= ROUNDING * np.abs(mean)  # (clients, columns)
    rest[:, still] = 0.0
    return np.reshape(rest, (-1, drawn.shape[-1]))


def _around_mean(rows: AnyFloats) -> Floats:
    """Return rows less their mean."""
    return np.asarray(rows - rows.mean(axis=0, dtype=np.float64))
