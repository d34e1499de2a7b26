"""Shamir sharing of 32-byte secrets, many shares by one exact matrix product.

Shamir 1979, How to Share a Secret (CACM). Different from the textbook: a secret is cut into 20-bit
limbs that are shared each by its own polynomial over one small prime. With P < 2^21 a product of
two residues stays below 2^42, so float64 adds 2,048 of them without rounding and the shares of all
limbs for all receivers are one BLAS product. Secrecy is that of Shamir over any prime field:
perfect against fewer than `threshold` shares, limb by limb.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate, combinations
from random import SystemRandom
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.values import require
from leakmeter.clients.secure_sum.keys import KEY_BYTES, check_bytes

Ints = NDArray[np.int64]
Owner = TypeVar("Owner", bound=Hashable)

PRIME = 2_097_143  # the largest below 2^21
_LIMB_BITS = 20
_NUM_LIMBS = -(-8 * KEY_BYTES // _LIMB_BITS)
_EXACT_TERMS = 2**53 // PRIME**2
_MAX_GAPS = 2**20  # differences of points in memory at once: 8 MB
_TRIES = 64  # random subsets of an owner's shares before it is given up
# Three bytes a limb; packing 21 bits tightly would save four bytes of 39.
SHARE_BYTES = 3 * _NUM_LIMBS


def split(
    secrets: Sequence[bytes], threshold: int, indices: Sequence[int]
) -> list[dict[int, bytes]]:
    """Return for each secret its shares by receiver index; any `threshold` of them give it back.

    Args:
        secrets: 32 bytes each.
        threshold: Shares needed; one fewer says nothing at all.
        indices: Distinct receiver numbers from 1 to PRIME − 1. In a sparse graph use the number
            within the whole cohort, so that a receiver has the same one for every owner.
    """
    points = tuple(indices)
    _check_points(points)
    require(f"[1, {len(points)}]", threshold=threshold)
    limbs = np.array([_to_limbs(secret) for secret in secrets], np.int64)
    count = len(secrets) * _NUM_LIMBS
    # Row 0 holds the secrets, the others the random coefficients of x, x², …
    polynomials = np.concatenate([limbs.reshape(1, count), _uniform(threshold - 1, count)])
    values = _product(_powers(points, threshold), polynomials)  # (receivers, secrets * limbs)
    packed, size = _pack(values), len(secrets) * SHARE_BYTES
    return [
        {point: packed[i : i + SHARE_BYTES] for point, i in zip(points, starts, strict=True)}
        for starts in (range(s, len(packed), size) for s in range(0, size, SHARE_BYTES))
    ]


def recover(
    held: Mapping[Owner, Mapping[int, bytes]],
    threshold: int,
    accept: Callable[[Owner, bytes], bool],
) -> dict[Owner, bytes]:
    """Return every secret that can be reconstructed and is accepted, by owner.

    Malformed shares count as absent. All owners' first `threshold` shares are combined together. If
    `accept` says no, some share was wrong: all other subsets are tried where they
    are few, else random ones, each without any of e bad shares of m with chance about
    (1 − threshold/m)^e.

    Args:
        held: Owner to its shares by receiver index.
        threshold: Shares needed.
        accept: Whether a secret is the right one for this owner.

    Returns:
        Owner to secret; an owner that is missing could not be recovered.
    """
    limbs, rows = _read(held)
    first = {o: tuple(sorted(own)[:threshold]) for o, own in rows.items() if len(own) >= threshold}
    secrets = _combined(limbs, [(rows[owner], points) for owner, points in first.items()])
    found: dict[Owner, bytes] = {}
    for owner, guess in zip(first, secrets, strict=True):
        secret = guess
        if secret is None or not accept(owner, secret):
            secret = _search(limbs, rows[owner], threshold, partial(accept, owner))
        if secret is not None:
            found[owner] = secret
    return found


def _search(
    limbs: Ints, rows: Mapping[int, int], threshold: int, accept: Callable[[bytes], bool]
) -> bytes | None:
    """Return an accepted secret from some random subset, or None."""
    if len(rows) == threshold:
        return None
    for points in _subsets(sorted(rows), threshold):
        secret = _combined(limbs, [(rows, points)])[0]
        if secret is not None and accept(secret):
            return secret
    return None


def _subsets(indices: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """Yield all subsets of this size where there are few, else random ones."""
    if math.comb(len(indices), size) <= 16 * _TRIES:
        yield from combinations(indices, size)
        return
    for _ in range(_TRIES):
        yield tuple(SystemRandom().sample(indices, size))


def _read(
    held: Mapping[Owner, Mapping[int, bytes]],
) -> tuple[Ints, dict[Owner, dict[int, int]]]:
    """Return the limbs of all shares, one row each, and whose rows could have come from `split`."""
    sized = [
        (owner, index, share)
        for owner, shares in held.items()
        for index, share in shares.items()
        if _has_size(share) and 1 <= index < PRIME
    ]
    limbs = _unpack(b"".join(share for *_, share in sized))  # (shares, limbs)
    rows: dict[Owner, dict[int, int]] = {owner: {} for owner in held}
    for row, top in enumerate(limbs.max(axis=1).tolist()):
        if top < PRIME:
            owner, index, _ = sized[row]
            rows[owner][index] = row
    return limbs, rows


def _combined(
    limbs: Ints, chosen: Sequence[tuple[Mapping[int, int], tuple[int, ...]]]
) -> list[bytes | None]:
    """Return the secret behind each choice of shares; None where they give none.

    Args:
        limbs: Of all shares, one row each.
        chosen: For each secret the row of each index, and the indices to take, as many for each.
    """
    if not chosen:
        return []
    rows = np.array([[row[index] for index in points] for row, points in chosen])
    different = list(dict.fromkeys(points for _, points in chosen))  # one in a complete graph
    weights = dict(zip(different, _lagrange(np.array(different, np.int64)), strict=True))
    each = np.array([weights[points] for _, points in chosen])  # (secrets, threshold)
    # Below 2^42 each, and fewer than 2^21 of them: int64 adds them exactly.
    values = np.einsum("st,stl->sl", each, limbs[rows]) % PRIME
    return [_to_secret(row) for row in values.tolist()]


def _product(left: Ints, right: Ints) -> Ints:
    """Return left @ right modulo the prime, exactly."""
    total = np.zeros((left.shape[0], right.shape[1]), np.int64)
    # float64 because numpy has BLAS for it and only a plain loop for integers.
    for start in range(0, left.shape[1], _EXACT_TERMS):
        part = slice(start, start + _EXACT_TERMS)
        exact = left[:, part].astype(np.float64) @ right[part].astype(np.float64)
        total = (total + exact.astype(np.int64)) % PRIME
    return total


@lru_cache(maxsize=8)
def _powers(points: tuple[int, ...], count: int) -> Ints:
    """Return the Vandermonde matrix x^0 … x^(count−1), one row a point; by doubling."""
    powers = np.ones((count, len(points)), np.int64)  # built the other way round: long rows
    step, done = np.array(points, np.int64), 1
    while done < count:
        more = min(done, count - done)
        powers[done : done + more] = powers[:more] * step % PRIME
        step, done = step * step % PRIME, done + more
    powers.setflags(write=False)
    return powers.T


def _lagrange(points: Ints) -> Ints:
    """Return the weights Π_{j≠i} x_j / (x_j − x_i) that give polynomials' values at 0, by row."""
    weights = np.empty_like(points)  # (choices of points, threshold)
    count, size = points.shape
    step = max(_MAX_GAPS // size**2, 1)
    for start in range(0, count, step):
        x = points[start : start + step]
        gaps = (x[:, None, :] - x[:, :, None]) % PRIME
        gaps[:, range(size), range(size)] = 1
        # Π_{j≠i} x_j is the product of all over x_i.
        denominators = _fold(gaps.transpose(2, 0, 1)) * x % PRIME
        inverses = _inverses(denominators.ravel()).reshape(x.shape)
        weights[start : start + step] = _fold(x.T)[:, None] * inverses % PRIME
    return weights


def _fold(factors: Ints) -> Ints:
    """Return the product along the first axis modulo the prime, by halving."""
    size = 1 << (len(factors) - 1).bit_length()
    padded = np.ones((size, *factors.shape[1:]), np.int64)
    padded[: len(factors)] = factors
    while size > 1:
        size //= 2
        padded = padded[:size] * padded[size:] % PRIME
    product: Ints = padded[0]
    return product


def _inverses(values: Ints) -> Ints:
    """Return 1/v modulo the prime for each v: one inverse of the product, then peeled off."""
    factors = values.tolist()
    products = list(accumulate(factors, lambda a, b: a * b % PRIME, initial=1))
    rest, result = pow(products.pop(), -1, PRIME), []
    for before, factor in zip(reversed(products), reversed(factors), strict=True):
        result.append(rest * before % PRIME)
        rest = rest * factor % PRIME
    return np.array(result[::-1], np.int64)


def _uniform(rows: int, columns: int) -> Ints:
    """Return uniform residues from the operating system's source, by rejection."""
    count = rows * columns
    accepted = np.empty(0, np.int64)
    while len(accepted) < count:
        words = np.frombuffer(os.urandom(4 * (count - len(accepted))), "<u4")
        candidates = (words & (2**21 - 1)).astype(np.int64)
        # Taking the remainder instead would make small residues more likely.
        accepted = np.concatenate([accepted, candidates[candidates < PRIME]])
    return accepted.reshape(rows, columns)


def _to_limbs(secret: bytes) -> list[int]:
    check_bytes("secret", secret)
    number = int.from_bytes(secret, "little")
    return [number >> _LIMB_BITS * i & (2**_LIMB_BITS - 1) for i in range(_NUM_LIMBS)]


def _to_secret(limbs: Sequence[int]) -> bytes | None:
    """Return the secret, or None if wrong shares have led outside the range of secrets."""
    if max(limbs) >> _LIMB_BITS:
        return None
    number = sum(limb << _LIMB_BITS * i for i, limb in enumerate(limbs))
    return None if number >> 8 * KEY_BYTES else number.to_bytes(KEY_BYTES, "little")


def _pack(values: Ints) -> bytes:
    """Return residues one after the other, in three bytes each, low byte first."""
    wide = values.astype("<u4").view(np.uint8).reshape(-1, 4)
    return wide[:, :3].tobytes()


def _unpack(data: bytes) -> Ints:
    """Return the limbs (shares, limbs) of shares one after the other."""
    wide = np.zeros((len(data) // 3, 4), np.uint8)
    wide[:, :3] = np.frombuffer(data, np.uint8).reshape(-1, 3)
    return wide.view("<u4").astype(np.int64).reshape(-1, _NUM_LIMBS)


def _has_size(share: bytes) -> bool:
    return isinstance(share, bytes) and len(share) == SHARE_BYTES


def _check_points(points: Sequence[int]) -> None:
    if len(set(points)) != len(points) or not points:
        raise BadValueError("indices", "distinct and at least one", len(points))
    if min(points) < 1 or max(points) >= PRIME:
        raise BadValueError("indices", f"in [1, {PRIME - 1}]", (min(points), max(points)))
