"""The directions in which single updates vary most, from samples that may be in a file.

The samples are fewer than the coordinates of all but the smallest models, so the directions come
from their products, (samples, samples), which are added up block by block. The products are taken
once: those of some draws around their own means follow from those around the means of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from leakmeter.auditors.sampling.sampler import ROUNDING, RowStore
from leakmeter.auditors.values import AnyFloats, Floats, within


@dataclass(frozen=True)
class Subspace:
    """Directions along which sums are looked at, fixed before the samples they are used on.

    Attributes:
        directions: Orthonormal columns, (dim, rank).
        variance_kept: Share of the variance of the samples it was fitted on.
    """

    directions: Floats
    variance_kept: float

    @property
    def rank(self) -> int:
        """Number of directions, d*."""
        return int(self.directions.shape[1])

    def project(self, rows: AnyFloats) -> Floats:
        """Return the coordinates of rows along the directions, (rows, rank)."""
        return np.asarray(rows @ self.directions.astype(rows.dtype), dtype=np.float64)


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
        return _from_products(rows, draws, rank)
    whole = np.concatenate([block for _, block in rows.blocks()], axis=1)
    return _from_rows(whole.reshape(draws, -1, rows.shape[1]), rank)


def _from_rows(drawn: AnyFloats, rank: int) -> Subspace:
    """Return the directions from more samples than coordinates, (draws, clients, dim)."""
    half = len(drawn) // 2
    every, first, second = map(_centred, (drawn, drawn[:half], drawn[half:]))
    if not every.any():
        raise _nothing_varies()
    directions, kept = _leading(every, rank)  # (dim, rank)
    if first.any() and second.any():
        # (draws/2 · clients, rank)
        along = second @ _leading(first, rank)[0].astype(second.dtype)
        kept = float(np.square(along).sum()) / float(np.square(second).sum())
    return Subspace(directions, kept)


def _leading(rows: AnyFloats, rank: int) -> tuple[Floats, float]:
    """Return at most this many directions of rows, and the share of the variance along them all."""
    found = principal_subspace(rows, share=1.0)
    return found.directions[:, :rank], found.variance_kept


def _from_products(samples: RowStore, draws: int, rank: int) -> Subspace:
    """Return the directions from fewer samples than coordinates."""
    # Gram matrix X Xᵀ, (samples, samples), summed over blocks of columns: X itself may be in a
    # file.
    products = np.zeros((len(samples), len(samples)))
    for _, rows in _deviations(samples, draws):
        products += rows @ rows.T
    if not np.trace(products) > 0:
        raise _nothing_varies()
    mix, kept = _mixed(products, rank)
    share = _share_held_out(products, len(samples) // draws, rank)
    # Xᵀ u / √λ for each eigenvector u of the Gram matrix: orthonormal columns, (dim, rank).
    directions = np.empty((samples.shape[1], mix.shape[1]))
    for at, rows in _deviations(samples, draws):
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


def _deviations(rows: RowStore, draws: int) -> Iterator[tuple[slice, Floats]]:
    """Yield blocks of columns in double precision, each client's draws around its own mean."""
    for at, block in rows.blocks():
        yield at, _centred(block.reshape(draws, -1, block.shape[1])).astype(np.float64)


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


def principal_subspace(
    draws: AnyFloats, *, rank: int | None = None, share: float | None = None
) -> Subspace:
    """Return the directions of largest variance; fit on other samples than you then measure.

    Directions chosen on the measured samples themselves would favour their accidents.

    Args:
        draws: Rows, (K, dim). With K < dim of them the small Gram matrix is used.
        rank: Number of directions; or
        share: Least share of the variance to keep, in (0, 1]; the smallest rank that does.
    """
    if (rank is None) == (share is None):
        raise ValueError(f"exactly one of rank and share must be given, got {rank} and {share}")
    spectrum, directions = _principal(draws)
    if not spectrum.sum() > 0:
        raise ValueError("draws must vary in some direction, got constant ones")
    kept = np.cumsum(spectrum) / spectrum.sum()
    if share is not None:
        within("share", share, above=0.0, highest=1.0)
        rank = num_directions(kept, share)
    assert rank is not None
    if not 1 <= rank <= len(spectrum):
        raise ValueError(f"rank must be in [1, {len(spectrum)}], the draws' own, got {rank}")
    return Subspace(np.ascontiguousarray(directions[:, :rank]), min(1.0, float(kept[rank - 1])))


def num_directions(kept: Floats, share: float = 1.0) -> int:
    """Return how many directions keep a share of the variance, from what the first k keep."""
    # 1 + index, since kept[k - 1] is what the first k keep.
    # The last steps of a cumulative sum may miss 1 by a rounding.
    return 1 + int(np.searchsorted(kept, share * (1 - 1e-12)))


def _principal(draws: AnyFloats) -> tuple[Floats, Floats]:
    """Return the positive eigenvalues of the scatter, largest first, and their directions."""
    # Mean in double: rows may be single, and a mean of thousands of them would lose digits.
    centred = draws - draws.mean(axis=0, dtype=np.float64)
    if len(draws) >= draws.shape[1]:
        return positive(*np.linalg.eigh(centred.T @ centred))
    # Fewer rows than coordinates: (K, K) instead of (d, d). X Xᵀ u = λ u implies that Xᵀ u / √λ is
    # a unit eigenvector of Xᵀ X for the same λ.
    spectrum, left = positive(*np.linalg.eigh(centred @ centred.T))
    return spectrum, centred.T @ left / np.sqrt(spectrum)  # (K,), (d, K)


def positive(spectrum: Floats, directions: Floats) -> tuple[Floats, Floats]:
    """Return the eigenvalues above rounding, largest first, and their eigenvectors."""
    # `eigh` sorts upwards, so the last one is the largest; below its rounding a 0 may have any
    # sign.
    floor = len(spectrum) * np.finfo(np.float64).eps * spectrum[-1]
    real = spectrum > max(floor, 0.0)
    return spectrum[real][::-1], directions[:, real][:, ::-1]
