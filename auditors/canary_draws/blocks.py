"""Random canaries: unit vectors that are regenerated when needed and never stored.

A canary is a pure function of kind, seed, number and length: clients and auditor generate it
separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors._types import Vector
from leakmeter.auditors.canary_draws.kind import BLOCK, Block, CanaryKind, Numbers, canary_key
from leakmeter.auditors.canary_draws.signs import SignCanaries
from leakmeter.auditors.canary_draws.sphere import Sphere

KindName = Literal["sphere", "signs"]
Kind = Literal["sphere", "signs", "auto"]
KINDS: Final[Mapping[KindName, CanaryKind]] = {"sphere": Sphere(), "signs": SignCanaries()}
MOST_ON_SPHERE: Final = 10**6  # parameters up to which "auto" is the sphere


def kind_for(kind: Kind, dim: int) -> KindName:
    """Return the kind that is meant for a model of this length.

    >>> kind_for("auto", 10**6), kind_for("auto", 10**7), kind_for("sphere", 10**7)
    ('sphere', 'signs', 'sphere')
    """
    if kind == "auto":
        return "signs" if dim > MOST_ON_SPHERE else "sphere"
    return kind


def canary_vector(seed: int, canary: int, dim: int, kind: KindName = "sphere") -> Vector:
    """Return canary number `canary`, a random unit vector in `dim` dimensions."""
    vector = np.empty(dim)
    KINDS[kind].numbers(canary_key(seed, canary)).fill(vector)
    vector /= np.linalg.norm(vector)
    return vector


def canary_products(
    seed: int, canaries: Iterable[int], vector: Vector, kind: KindName = "sphere"
) -> NDArray[np.float64]:
    """Return the inner product of each canary with `vector`, without storing a whole canary."""
    drawn = CanaryBlocks(seed, canaries, kind=kind)
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
        kind: How they are drawn.
    """

    def __init__(
        self,
        seed: int,
        canaries: Iterable[int],
        drawn: DrawnCanaries | None = None,
        dim: int = 0,
        kind: KindName = "sphere",
    ) -> None:
        how = KINDS[kind]
        keys = [canary_key(seed, canary) for canary in canaries]
        self._streams: list[Numbers] = [
            drawn.numbers(how, key, dim) if drawn and how.is_remembered else how.numbers(key)
            for key in keys
        ]
        self._squares = np.zeros(len(self._streams))
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
            [numbers] = self._next(slice(None), rows[0].size)
            found = [(float(row @ numbers), float(row @ row)) for row in rows]
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
        if self._long.shape[1] != columns or len(self._long) < len(streams):
            self._long = np.empty((len(streams), columns))
        numbers = self._long[: len(streams)]
        for one, row in zip(streams, numbers, strict=True):
            one.fill(row)
        self._squares[some] += np.einsum("ij,ij->i", numbers, numbers)
        return numbers


class DrawnCanaries:
    """Canaries that several auditors look for in one round: each is drawn once, if there is room.

    Args:
        most: Most numbers that are remembered, in four bytes each; further canaries are drawn anew
            by everyone, so that memory does not depend on seats or model.
    """

    def __init__(self, most: int = 2**24) -> None:
        self._most = most
        self._kept: dict[int, NDArray[np.float32]] = {}

    def numbers(self, kind: CanaryKind, key: int, dim: int) -> Numbers:
        """Return what yields the numbers of a canary from its first on."""
        if key not in self._kept:
            if (len(self._kept) + 1) * dim > self._most:
                return kind.numbers(key)
            self._kept[key] = np.empty(dim, dtype=np.float32)
            kind.numbers(key).fill(self._kept[key])
        return _Drawn(self._kept[key])

    def forget(self) -> None:
        """Free the memory: a round is over."""
        self._kept.clear()


class _Drawn:
    """Yields numbers that are drawn already."""

    def __init__(self, numbers: NDArray[np.float32]) -> None:
        self._left = numbers

    def fill(self, out: Block) -> None:
        """Put the next numbers into an array."""
        out[:] = self._left[: out.size]
        self._left = self._left[out.size :]
