"""Masks in the ring of integers modulo 2^bits: one keyed stream each, added block by block.

Bonawitz et al. 2017, Practical Secure Aggregation for Privacy-Preserving Machine Learning (CCS).
Client k sends z_k = x_k + p_k + Σ_{u<k} s_{k,u} − Σ_{u>k} s_{u,k}: every pairwise mask s is added
by the client with the higher number and subtracted by the other, and p_k is the self mask. A mask
is an AES-128 keystream in counter mode; a key serves one mask only. Overflow of unsigned integers
is the ring's addition, not an accident.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

RingVector: TypeAlias = NDArray[np.unsignedinteger[Any]]

_AES_BLOCK = 16
_NONCE_BYTES = 12
# Zeros, keystream and accumulator of this size lie together in a core's second-level cache, so the
# accumulator is read from memory once for all masks.
_CHUNK_BYTES = 1 << 17
_ZEROS = bytes(_CHUNK_BYTES)


@dataclass(frozen=True)
class Ring:
    """Integers modulo 2^bits, held in the smallest unsigned type that has room.

    Attributes:
        bits: From 8 to 64. Fewer bits make the stream and the upload shorter: 8 and 16 are held
            in one and two bytes.
    """

    bits: int

    def __post_init__(self) -> None:
        if not 8 <= self.bits <= 64:
            raise ValueError(f"bits must be in [8, 64], got {self.bits}")

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """Little-endian unsigned type of the vectors, the same on every machine."""
        size = 1 << (-(-self.bits // 8) - 1).bit_length()
        return np.dtype(f"<u{size}")

    @property
    def wire_bytes(self) -> int:
        """Bytes of a coordinate on the wire.

        Whole bytes keep the encoding one strided copy; packing single bits would save less than
        one byte in `bits`/8.
        """
        return -(-self.bits // 8)

    def reduce(self, vector: RingVector) -> RingVector:
        """Return the vector modulo 2^bits; the vector itself if its type is the ring."""
        if self.bits == 8 * self.dtype.itemsize:
            return vector
        return vector & self.dtype.type((1 << self.bits) - 1)

    def signed(self, vector: RingVector) -> NDArray[np.int64]:
        """Return the representatives in [−2^(bits−1), 2^(bits−1))."""
        # Shifting up and back copies the ring's sign bit into the unused ones.
        unused = np.uint64(64 - self.bits)
        shifted = vector.astype(np.uint64) << unused
        return shifted.view(np.int64) >> np.int64(unused)

    def from_signed(self, values: NDArray[np.int64]) -> RingVector:
        """Return integers as ring elements."""
        return self.reduce(values.view(np.uint64).astype(self.dtype))

    def to_bytes(self, vector: RingVector) -> bytes:
        """Return the wire form: `wire_bytes` a coordinate, low byte first."""
        self._check(vector)
        wide = np.ascontiguousarray(vector).view(np.uint8).reshape(-1, self.dtype.itemsize)
        return wide[:, : self.wire_bytes].tobytes()

    def from_bytes(self, data: bytes, length: int) -> RingVector:
        """Return the vector of `length` coordinates behind its wire form.

        Raises:
            ValueError: If the number of bytes is wrong or a coordinate is not below 2^bits.
        """
        if len(data) != length * self.wire_bytes:
            raise ValueError(f"data must be {length * self.wire_bytes} bytes, got {len(data)}")
        wide = np.zeros((length, self.dtype.itemsize), np.uint8)
        wide[:, : self.wire_bytes] = np.frombuffer(data, np.uint8).reshape(length, self.wire_bytes)
        vector: RingVector = wide.view(self.dtype).reshape(length)
        if (vector != self.reduce(vector)).any():
            raise ValueError(f"coordinates must be below 2^{self.bits}, got {vector.max()}")
        return vector

    def _check(self, vector: RingVector) -> None:
        if vector.ndim != 1 or vector.dtype != self.dtype:
            raise ValueError(
                f"vector must be flat and of type {self.dtype} for {self.bits} bits, "
                f"got shape {vector.shape} of {vector.dtype}"
            )


def mask(
    vector: RingVector, own: int, self_key: bytes, pair_keys: Mapping[int, bytes], ring: Ring
) -> RingVector:
    """Return what client `own` uploads for `vector`.

    Args:
        vector: Quantised update in the ring.
        own: The client's number; numbers order the pairs.
        self_key: Key of its self mask.
        pair_keys: Peer number to the key of the mask they have in common.
        ring: The ring.
    """
    signs = [(key, pair_sign(own, peer)) for peer, key in pair_keys.items()]
    return add_masks(vector, [(self_key, 1), *signs], ring)


def unmask(
    total: RingVector,
    self_keys: Iterable[bytes],
    orphans: Mapping[int, Mapping[int, bytes]],
    ring: Ring,
) -> RingVector:
    """Return the sum of the plain vectors behind a sum of uploads.

    Args:
        total: Sum of the survivors' uploads.
        self_keys: Keys of the survivors' self masks.
        orphans: Dropped client to the survivors it shared a mask with, and that mask's key; the
            survivors' halves of these masks had no counterpart in the sum.
        ring: The ring.
    """
    halves = [
        (key, -pair_sign(survivor, dropped))
        for dropped, survivors in orphans.items()
        for survivor, key in survivors.items()
    ]
    return add_masks(total, [*((key, -1) for key in self_keys), *halves], ring)


def pair_sign(own: int, peer: int) -> int:
    """Return +1 if `own` adds the mask it has in common with `peer`, −1 if it subtracts it."""
    if own == peer:
        raise ValueError(f"peer must be another client than {own}, got {peer}")
    return 1 if peer < own else -1


def add_masks(vector: RingVector, masks: Iterable[tuple[bytes, int]], ring: Ring) -> RingVector:
    """Return `vector` plus the masks of the given keys, each with its sign (+1 or −1)."""
    ring._check(vector)
    total = vector.copy()
    # One call of the cipher and one addition a mask and chunk; all masks of a chunk in a row.
    streams = [(_stream(key), np.add if sign > 0 else np.subtract) for key, sign in masks]
    buffer = np.empty(min(len(total), _CHUNK_BYTES // ring.dtype.itemsize), ring.dtype)
    for start in range(0, len(total), len(buffer) or 1):
        part = total[start : start + len(buffer)]
        stream = buffer[: len(part)]
        zeros, raw = memoryview(_ZEROS)[: stream.nbytes], stream.view(np.uint8).data
        for cipher, combine in streams:
            cipher.update_into(zeros, raw)
            combine(part, stream, out=part)
    return ring.reduce(total)


def add_vectors(vectors: Iterable[RingVector], ring: Ring) -> RingVector:
    """Return the ring sum of at least one vector, all of one length."""
    total: RingVector | None = None
    for vector in vectors:
        ring._check(vector)
        if total is None:
            total = vector.copy()
        elif len(vector) != len(total):  # numpy would stretch a vector of length one
            raise ValueError(f"vectors must be of length {len(total)}, got {len(vector)}")
        else:
            np.add(total, vector, out=total)
    if total is None:
        raise ValueError("vectors must be at least one, got none")
    return ring.reduce(total)


def _stream(key: bytes) -> CipherContext:
    """Return the keystream of a 32-byte key, to be fed with zeros."""
    if len(key) != 2 * _AES_BLOCK:
        raise ValueError(f"key must be {2 * _AES_BLOCK} bytes, got {len(key)}")
    # AES-128 is as strong as X25519 and a seventh faster than AES-256 here. The other half gives
    # the nonce, so that many masks cannot be attacked in one search. GCM is counter mode with a tag
    # that nobody asks for: OpenSSL has code for wide vectors for it alone, twice as fast.
    nonce = key[_AES_BLOCK : _AES_BLOCK + _NONCE_BYTES]
    return Cipher(algorithms.AES128(key[:_AES_BLOCK]), modes.GCM(nonce)).encryptor()
