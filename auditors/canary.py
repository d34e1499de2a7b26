"""Random canaries: unit vectors that are regenerated when needed and never stored.

Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar (2024), One-shot Empirical Privacy Estimation
for Federated Learning, arXiv:2302.03098, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors._types import Vector
from leakmeter.auditors.rng import derive, of_key

SEED_BITS: Final = 128  # of a seed; p-values below 2^-128 mean nothing
MAX_SCORE: Final = SEED_BITS * math.log(2)  # −ln of the smallest p-value that seeds can show
BLOCK: Final = 2**15  # coordinates of a canary in memory at a time: they fit in the cache


def canary_vector(seed: int, canary: int, dim: int) -> Vector:
    """Return canary number `canary`, uniform on the unit sphere in `dim` dimensions.

    A pure function: clients and auditor generate the vector separately.
    """
    # float32 normals are twice as fast; the direction needs no more digits than a model has.
    vector = _stream(seed, canary).standard_normal(dim, dtype=np.float32).astype(np.float64)
    vector /= np.linalg.norm(vector)
    return vector


def canary_key(seed: int, canary: int) -> int:
    """Return the key that a seat gets: it gives this canary, and reveals no other.

    A seat that knew the seed could send all canaries at once, and those of other seats would seem
    to be in the sum.
    """
    return derive(seed, "canary", canary)


def add_canary(vector: Vector, key: int, norm: float) -> None:
    """Add `norm` times the canary of a key to a vector, in half the memory of a canary."""
    normals = of_key(key).standard_normal(vector.size, dtype=np.float32)
    parts = [slice(start, start + BLOCK) for start in range(0, vector.size, BLOCK)]
    exact = (normals[part].astype(np.float64) for part in parts)
    scale = norm / math.sqrt(sum(float(part @ part) for part in exact))
    for part in parts:
        vector[part] += np.multiply(normals[part], scale, dtype=np.float64)


def canary_products(seed: int, canaries: Iterable[int], vector: Vector) -> NDArray[np.float64]:
    """Return the inner product of each canary with `vector`, without storing a whole canary."""
    drawn = CanaryBlocks(seed, canaries)
    products = np.zeros((1, len(drawn)))
    for start in range(0, vector.size, BLOCK):
        drawn.add_products(vector[None, start : start + BLOCK], products)
    return np.asarray(products[0] / drawn.norms())


class CanaryBlocks:
    """Canaries drawn side by side, the next coordinates of all of them at a time.

    Their numbers are those of `canary_vector` before it divides by the norm, which is known only
    when all coordinates are drawn.

    Args:
        seed: The seed that all canaries share.
        canaries: Their numbers.
        drawn: Remembers them for whoever looks for the same; None draws them for this time only.
        dim: Coordinates of a canary, if `drawn` is given.
    """

    def __init__(
        self,
        seed: int,
        canaries: Iterable[int],
        drawn: DrawnCanaries | None = None,
        dim: int = 0,
    ) -> None:
        self._streams: list[np.random.Generator | _Drawn] = [
            _stream(seed, canary) if drawn is None else drawn.stream(seed, canary, dim)
            for canary in canaries
        ]
        self._squares = np.zeros(len(self._streams))
        self._short = np.empty(0, dtype=np.float32)
        self._long = np.empty((0, 0))

    def __len__(self) -> int:
        return len(self._streams)

    def add_products(
        self, rows: NDArray[np.float64], to: NDArray[np.float64], at_a_time: int = 1
    ) -> None:
        """Draw the next coordinates of all canaries and add their products with some rows.

        Args:
            rows: As many coordinates of other vectors (rows, columns).
            to: Where the products are added (rows, canaries).
            at_a_time: Canaries whose coordinates are held together.
        """
        for first in range(0, len(self), at_a_time):
            some = slice(first, first + at_a_time)
            to[:, some] += rows @ self._next(some, rows.shape[1]).T

    def cosines(
        self, blocks: Iterable[Sequence[Vector]]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the cosines of the only canary with some vectors, and the norms of these.

        Single products take half the time of a matrix product of few rows.

        Args:
            blocks: The next coordinates of all vectors, up to the last.

        Returns:
            Cosines, NaN where a vector is zero or its norm is not finite, (vectors,).
        """
        products: list[float] = []
        for rows in blocks:
            [normals] = self._next(slice(None), rows[0].size)
            found = [(float(row @ normals), float(row @ row)) for row in rows]
            flat = [one for both in found for one in both]
            products = [a + b for a, b in zip(products, flat, strict=True)] if products else flat
        along, squares = np.array(products[::2]), np.array(products[1::2])
        is_defined = (squares > 0) & np.isfinite(squares) & np.isfinite(along)
        cosines = np.full(along.size, np.nan)
        lengths = np.sqrt(squares)
        np.divide(along / self.norms(), lengths, out=cosines, where=is_defined)
        return cosines, lengths

    def norms(self) -> NDArray[np.float64]:
        """Return the norms of the canaries, as far as they are drawn."""
        return np.asarray(np.sqrt(self._squares))

    def _next(self, some: slice, columns: int) -> NDArray[np.float64]:
        """Draw the next coordinates of some canaries, one canary a row."""
        streams = self._streams[some]
        if self._short.size != columns or len(self._long) < len(streams):
            self._short = np.empty(columns, dtype=np.float32)
            self._long = np.empty((len(streams), columns))
        normals = self._long[: len(streams)]
        for rng, row in zip(streams, normals, strict=True):
            rng.standard_normal(dtype=np.float32, out=self._short)
            row[:] = self._short
        self._squares[some] += np.einsum("ij,ij->i", normals, normals)
        return normals


class DrawnCanaries:
    """Canaries that several auditors look for in one round: each is drawn once, if there is room.

    Args:
        most: Most numbers that are remembered, in four bytes each; further canaries are drawn anew
            by everyone, so that memory does not depend on seats or model.
    """

    def __init__(self, most: int = 2**24) -> None:
        self._most = most
        self._normals: dict[tuple[int, int], NDArray[np.float32]] = {}

    def stream(self, seed: int, canary: int, dim: int) -> np.random.Generator | _Drawn:
        """Return what yields the numbers of a canary from its first on."""
        if (seed, canary) not in self._normals:
            if (len(self._normals) + 1) * dim > self._most:
                return _stream(seed, canary)
            normals = _stream(seed, canary).standard_normal(dim, dtype=np.float32)
            self._normals[seed, canary] = normals
        return _Drawn(self._normals[seed, canary])

    def forget(self) -> None:
        """Free the memory: a round is over."""
        self._normals.clear()


class _Drawn:
    """Yields numbers that are drawn already, as a generator would."""

    def __init__(self, normals: NDArray[np.float32]) -> None:
        self._left = normals

    def standard_normal(self, *, dtype: type[np.float32], out: NDArray[np.float32]) -> None:
        """Put the next numbers into an array."""
        out[:] = self._left[: out.size]
        self._left = self._left[out.size :]


def _stream(seed: int, canary: int) -> np.random.Generator:
    return of_key(canary_key(seed, canary))
