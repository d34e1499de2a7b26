"""Random canaries: unit vectors that are regenerated when needed and never stored.

A canary is a pure function of kind, seed, number and length: clients and auditor generate it
separately. There are two kinds.

1. Uniform on the sphere: Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar (2024), One-shot
   Empirical Privacy Estimation for Federated Learning, arXiv:2302.03098, section 3, and Proposition
   3.1 for the exact null of their cosines.
2. Random signs, for large models, in a thirtieth of the time: Bentkus and Dzindzalieta (2015), A
   tight Gaussian bound for weighted sums of Rademacher random variables, Bernoulli 21(2),
   arXiv:1307.3451: for independent fair signs s, P(⟨s, u⟩ ≥ x·‖u‖) is at most K·P(Z ≥ x) for every
   x and every vector u, with K = 1/(4·P(Z ≥ √2)), which is attained at u = (1, 1)/√2 and x = √2.
   So a canary that is out has a p-value of at most K times the Gaussian tail: ln K = 1.16 is all
   that is lost against the sphere. Each canary has its own key. A family that shares signs, such
   as rows of a Hadamard matrix, would be faster still, but there a canary that is in reveals those
   that are out.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincc, gammaln, log_ndtr, ndtr

from leakmeter.auditors.rng import derive, of_key
from leakmeter.auditors.values import Vector
from leakmeter.auditors.wording import Assumption

SEED_BITS: Final = 128  # of a seed; p-values below 2^-128 mean nothing
MAX_SCORE: Final = SEED_BITS * math.log(2)  # −ln of the smallest p-value that seeds can show
BLOCK: Final = 2**15  # coordinates of a canary in memory at a time: they fit in the cache

Block = NDArray[np.floating[Any]]
Add = Callable[[Block], None]  # adds the next coordinates of a vector to a block


def canary_key(seed: int, canary: int) -> int:
    """Return the key that a seat gets: it gives this canary, and reveals no other.

    A seat that knew the seed could send all canaries at once, and those of other seats would seem
    to be in the sum.
    """
    return derive(seed, "canary", canary)


class Numbers(Protocol):
    """The coordinates of a vector, one after the other."""

    def fill(self, out: Block) -> None:
        """Put the next coordinates into an array."""


class CanaryKind(ABC):
    """How canaries are drawn, and how likely one that nobody sent has a cosine.

    Attributes:
        name: As settings and orders spell it.
        dtype: Least precision in which a canary is added to a model.
        is_remembered: Whether drawing a canary again costs more than memory for it.
        assumed: What findings assume in place of what they assume of canaries on the sphere.
        tail_factor: By how much `logsf` is above the tail of a normal number, at most.
    """

    name: ClassVar[str]
    dtype: ClassVar[type[np.floating[Any]]]
    is_remembered: ClassVar[bool]
    assumed: ClassVar[Mapping[Assumption, Assumption]] = {}
    tail_factor: ClassVar[float] = 1.0

    @abstractmethod
    def numbers(self, key: int) -> Numbers:
        """Return the coordinates of the canary of a key, up to their common scale."""

    @abstractmethod
    def planted(self, key: int, dim: int, norm: float) -> Add:
        """Return what adds `norm` times the canary of a key to a vector, part by part."""

    @abstractmethod
    def logsf(self, cosine: ArrayLike, dim: int) -> NDArray[np.float64]:
        """Return ln P(cosine of a canary with a vector that does not contain it ≥ t), or more."""


_DEEP = 1e-290  # below this the incomplete beta function loses digits, then underflows
_NODES, _WEIGHTS = np.polynomial.laguerre.laggauss(24)


class Sphere(CanaryKind):
    """Normal numbers, divided by their norm."""

    name = "sphere"
    dtype = np.float64
    is_remembered = True

    def numbers(self, key: int) -> Normals:
        """Return normal numbers."""
        return Normals(key)

    def planted(self, key: int, dim: int, norm: float) -> Add:
        """Return what adds the canary, in half the memory of a vector."""
        normals = of_key(key).standard_normal(dim, dtype=np.float32)
        parts = (normals[start : start + BLOCK] for start in range(0, dim, BLOCK))
        exact = (part.astype(np.float64) for part in parts)
        scale = norm / math.sqrt(sum(float(part @ part) for part in exact))
        done = 0

        def add(to: Block) -> None:
            nonlocal done
            part = normals[done : done + to.size]
            to += np.multiply(part, scale, dtype=np.float64)
            done += to.size

        return add

    def logsf(self, cosine: ArrayLike, dim: int) -> NDArray[np.float64]:
        """Return ln P(cosine ≥ t) exactly."""
        return cosine_logsf(cosine, dim)


class Normals:
    """Normal numbers of a key, in single precision."""

    def __init__(self, key: int) -> None:
        self._rng = of_key(key)
        self._short = np.empty(0, dtype=np.float32)

    def fill(self, out: Block) -> None:
        """Put the next ones into an array."""
        # float32 normals are twice as fast; the direction needs no more digits than a model has.
        if self._short.size != out.size:
            self._short = np.empty(out.size, dtype=np.float32)
        self._rng.standard_normal(dtype=np.float32, out=self._short)
        out[:] = self._short


def cosine_logsf(cosine: ArrayLike, dim: int) -> NDArray[np.float64]:
    """Return ln P(cosine of a canary with a vector that does not contain it ≥ t).

    Andrew et al. (2024), Proposition 3.1: for t ≥ 0 it is ½·I_{1−t²}(a, ½), a = (d−1)/2. Deep in
    the tail this underflows. Substituting 1 − u² = (1 − t²)·e^(−w/a) in its integral leaves
    (1−t²)^a / (2a·B(a, ½)) times the mean of 1/u over an exponential w, which is smooth.

    >>> round(float(cosine_logsf(0.5, 1000)), 6)
    -147.379589
    """
    t = np.clip(np.asarray(cosine, dtype=np.float64), -1.0, 1.0)
    a = (dim - 1) / 2
    square = t**2
    tail = betaincc(0.5, a, square) / 2  # in t², which keeps its digits near 0
    with np.errstate(divide="ignore"):
        # Gauss-Laguerre quadrature in w: nodes along the last axis, (..., nodes).
        inner = 1 - square[..., None]
        u = np.sqrt(square[..., None] - inner * np.expm1(-_NODES / a))
        front = a * np.log1p(-square) - math.log(2 * a) - _log_beta(a)
        upper = np.where(tail < _DEEP, front + np.log((_WEIGHTS / u).sum(axis=-1)), np.log(tail))
    return np.asarray(np.where(t >= 0, upper, np.log1p(-tail)))


def _log_beta(a: float) -> float:
    """Return ln B(a, ½); for large a by a series, since two large logs would cancel."""
    if a < 40:
        return float(gammaln(a) + gammaln(0.5) - gammaln(a + 0.5))
    ratio = 0.5 * math.log(a) - 1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5)
    return 0.5 * math.log(math.pi) - ratio


TAIL_FACTOR: Final = float(1 / (4 * ndtr(-math.sqrt(2))))  # K = 3.17866…
_FROM_ZERO: Final = modes.CTR(bytes(16))
_BYTE: Final = 8  # signs that a byte of the stream makes
_BITS: Final = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")


def _table(scale: float, dtype: Any) -> NDArray[Any]:
    """Return the eight signs of every byte, times a scale, (256, 8)."""
    return np.asarray(np.where(_BITS, scale, -scale), dtype=dtype)


_TABLES: Final = {np.dtype(kind): _table(1.0, kind) for kind in (np.float32, np.float64)}


class SignCanaries(CanaryKind):
    """Independent fair signs, divided by √d."""

    name = "signs"
    dtype = np.float32
    is_remembered = False
    tail_factor = TAIL_FACTOR
    assumed: ClassVar = {
        Assumption.UNIFORM_CANARIES: Assumption.SIGN_CANARIES,
        Assumption.KNOWN_NULL: Assumption.BOUNDED_NULL,
    }

    def numbers(self, key: int) -> SignStream:
        """Return the signs of a key."""
        return SignStream(key)

    def planted(self, key: int, dim: int, norm: float) -> Add:
        """Return what adds the canary, in the precision of what it is added to."""
        signs, scale = SignStream(key), norm / math.sqrt(dim)
        tables = {kind: _table(scale, kind) for kind in _TABLES}
        room = np.empty(0)

        def add(to: Block) -> None:
            nonlocal room
            if room.size < to.size or room.dtype != to.dtype:
                room = np.empty(to.size, dtype=to.dtype)
            part = room[: to.size]
            signs.fill(part, tables[to.dtype])
            to += part

        return add

    def logsf(self, cosine: ArrayLike, dim: int) -> NDArray[np.float64]:
        """Return an upper limit on ln P(cosine ≥ t), whatever the vector is.

        >>> round(float(SignCanaries().logsf(0.01, 10**6)), 3)
        -52.075
        """
        score = math.sqrt(dim) * np.asarray(cosine, dtype=np.float64)
        return np.asarray(np.minimum(math.log(TAIL_FACTOR) + log_ndtr(-score), 0.0))


class SignStream:
    """Fair signs from AES in counter mode, eight from each byte, its lowest bit first."""

    def __init__(self, key: int) -> None:
        cipher = Cipher(algorithms.AES128(key.to_bytes(SEED_BITS // 8, "little")), _FROM_ZERO)
        self._bytes = cipher.encryptor()
        self._zeros = b""
        self._left = 0  # signs of the last byte that are still to come
        self._last = 0

    def fill(self, out: Block, table: NDArray[Any] | None = None) -> None:
        """Put the next signs into an array.

        Args:
            out: In single or double precision, without gaps.
            table: The eight numbers of each byte, in the precision of `out`; None for signs.
        """
        table = _TABLES[out.dtype] if table is None else table
        done = min(self._left, out.size)
        if done:
            first = _BYTE - self._left
            out[:done] = table[self._last, first : first + done]
            self._left -= done
        whole, rest = divmod(out.size - done, _BYTE)
        drawn = self._next(whole + (rest > 0))
        # "clip" writes into the array; the default mode would fill another one first.
        rows = out[done : out.size - rest].reshape(whole, _BYTE)
        table.take(drawn[:whole], axis=0, out=rows, mode="clip")
        if rest:
            self._last, self._left = int(drawn[-1]), _BYTE - rest
            out[out.size - rest :] = table[self._last, :rest]

    def _next(self, count: int) -> NDArray[np.uint8]:
        """Return the next bytes of the stream."""
        if len(self._zeros) != count:
            self._zeros = bytes(count)
        return np.frombuffer(self._bytes.update(self._zeros), dtype=np.uint8)


KindName = Literal["sphere", "signs"]
Kind = Literal["sphere", "signs", "auto"]
KINDS: Final[Mapping[KindName, CanaryKind]] = {"sphere": Sphere(), "signs": SignCanaries()}
MAX_ON_SPHERE: Final = 10**6  # parameters up to which "auto" is the sphere


def kind_for(kind: Kind, dim: int) -> KindName:
    """Return the kind that is meant for a model of this length.

    >>> kind_for("auto", 10**6), kind_for("auto", 10**7), kind_for("sphere", 10**7)
    ('sphere', 'signs', 'sphere')
    """
    if kind == "auto":
        return "signs" if dim > MAX_ON_SPHERE else "sphere"
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
        most: Most numbers that are remembered, in four bytes each; further canaries are drawn again
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
