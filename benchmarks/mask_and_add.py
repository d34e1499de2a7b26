"""How much faster are 15 masks generated and added than by Flower's generator?

Flower's stream is a Mersenne twister with a seed folded to 32 bits, ours is keyed: AES-128 in
counter mode, as AES-GCM runs it. The bare cipher is measured too, which no mask can be faster than.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from flwr.common.secure_aggregation.ndarrays_arithmetic import parameters_addition, parameters_mod
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

from benchmarks.measure import OURS, Row, Scale, interleave, timer
from leakmeter.clients.secure_sum.quantise import Ring, add_masks

MASKS = 15  # fourteen neighbours and the client's own
FLOWER, RAW = "Flower", "the bare cipher"


def ours(keys: list[bytes], dim: int) -> None:
    """Add masks as a client does."""
    add_masks(np.ones(dim, np.uint32), [(key, 1) for key in keys], Ring(32))


def flower(keys: list[bytes], dim: int) -> None:
    """Add masks as Flower's client does."""
    total = [np.ones(dim, np.int64)]
    for key in keys:
        total = parameters_addition(total, pseudo_rand_gen(key, 1 << 32, [(dim,)]))
    parameters_mod(total, 1 << 32)


def raw_cipher(keys: list[bytes], dim: int) -> None:
    """Make the same bytes with the cipher and nothing else."""
    zeros, out = bytes(4 * dim), bytearray(4 * dim)
    cipher = Cipher(algorithms.AES128(keys[0][:16]), modes.GCM(bytes(12))).encryptor()
    for _ in keys:
        cipher.update_into(zeros, out)


def measure(scale: Scale) -> Iterator[Row]:
    """Yield a row a dimension."""
    sizes, repetitions = {7_850: 20, 1_000_000: 1}, 9  # dimension to calls
    if scale == "quick":
        sizes, repetitions = {1_000: 2, 7_850: 1}, 2
    keys = [os.urandom(32) for _ in range(MASKS)]
    for dim, calls in sizes.items():
        works = {OURS: ours, FLOWER: flower, RAW: raw_cipher}
        times = interleave(
            {name: timer(partial(work, keys, dim), calls=calls) for name, work in works.items()},
            repetitions,
        )
        row = partial(Row, f"d = {dim:,}", times[OURS])
        yield row(times[FLOWER], peer=FLOWER)
        yield row(times[RAW], peer=RAW, note="no masks are added here: the most that can be had")
