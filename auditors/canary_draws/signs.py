"""Canaries of random signs: the kind for large models, drawn in a thirtieth of the time.

Bentkus and Dzindzalieta (2015), A tight Gaussian bound for weighted sums of Rademacher random
variables, Bernoulli 21(2), arXiv:1307.3451: for independent fair signs s, P(⟨s, u⟩ ≥ x·‖u‖) is at
most K·P(Z ≥ x) for every x and every vector u, with K = 1/(4·P(Z ≥ √2)), which is attained at
u = (1, 1)/√2 and x = √2. So a canary that is out has a p-value of at most K times the Gaussian
tail: ln K = 1.16 is all that is lost against a canary on the sphere.

Each canary has its own key. A family that shares signs, such as rows of a Hadamard matrix, would be
faster still, but there a canary that is in reveals those that are out.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, ndtr

from leakmeter.auditors.assumptions import Assumption
from leakmeter.auditors.canary_draws.kind import SEED_BITS, Add, Block, CanaryKind

TAIL_FACTOR: Final = float(1 / (4 * ndtr(-math.sqrt(2))))  # K = 3.17866…
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


_FROM_ZERO: Final = modes.CTR(bytes(16))
