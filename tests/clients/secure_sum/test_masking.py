"""Masks: they cancel exactly, look uniform, and what is left behind by dropouts can be removed."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from leakmeter.clients.secure_sum import quantise
from leakmeter.clients.secure_sum.quantise import (
    Ring,
    RingVector,
    add_masks,
    add_vectors,
    mask,
    pair_sign,
)
from tests.helpers.refusals import refuses

BITS = [8, 12, 16, 24, 31, 32, 40, 64]


def key_of(*names: object) -> bytes:
    return hashlib.sha256(repr(names).encode()).digest()


def random_vector(length: int, ring: Ring, seed: int) -> RingVector:
    words = np.random.default_rng(seed).integers(0, 2**64, length, dtype=np.uint64)
    return ring.reduce(words.astype(ring.dtype))


def mask_of(key: bytes, length: int, ring: Ring) -> RingVector:
    return add_masks(np.zeros(length, ring.dtype), [(key, 1)], ring)


def slow_mask(key: bytes, length: int, ring: Ring) -> list[int]:
    """The mask by encrypting counters one by one, in Python integers."""
    ecb = Cipher(algorithms.AES128(key[:16]), modes.ECB()).encryptor()
    size = ring.dtype.itemsize
    # GCM of NIST SP 800-38D with a nonce of 96 bits: counter 1 is for the tag, 2 the first block.
    counters = [key[16:28] + (2 + i).to_bytes(4, "big") for i in range(length * size // 16 + 1)]
    text = b"".join(ecb.update(counter) for counter in counters)
    words = [int.from_bytes(text[i * size : (i + 1) * size], "little") for i in range(length)]
    return [word % 2**ring.bits for word in words]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("length", [0, 1, 37])
def test_masks_are_aes_in_counter_mode(bits: int, length: int) -> None:
    ring = Ring(bits)
    assert mask_of(key_of(1), length, ring).tolist() == slow_mask(key_of(1), length, ring)


@pytest.mark.parametrize("bits", [8, 24, 32, 64])
def test_chunks_make_no_difference(bits: int) -> None:
    ring = Ring(bits)
    length = 2 * quantise._CHUNK_BYTES // ring.dtype.itemsize + 13
    vector = random_vector(length, ring, 0)
    masks = [np.array(slow_mask(key_of(name), length, ring), ring.dtype) for name in "ab"]
    expected = ring.reduce(vector + masks[0] - masks[1])
    before = vector.copy()
    result = add_masks(vector, [(key_of("a"), 1), (key_of("b"), -1)], ring)
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(vector, before)


def test_the_textbook_example(monkeypatch: pytest.MonkeyPatch) -> None:
    # Updates 8, 5, 11 with pairwise masks s21 = 4, s31 = 7, s32 = 2 give −3, 7, 20 and 24 in all.
    class Constant:
        def __init__(self, key: bytes) -> None:
            self.value = key[0]

        def update_into(self, _zeros: memoryview, out: memoryview) -> None:
            np.frombuffer(out, np.uint8)[:] = [self.value, 0, 0, 0]

    monkeypatch.setattr(quantise, "_stream", Constant)
    ring, none = Ring(32), bytes(1)
    shared = {(2, 1): bytes([4]), (3, 1): bytes([7]), (3, 2): bytes([2])}
    sent = []
    for own, update in ((1, 8), (2, 5), (3, 11)):
        pairs = {p: shared[max(own, p), min(own, p)] for p in (1, 2, 3) if p != own}
        sent.append(mask(np.array([update], ring.dtype), own, none, pairs, ring))
    assert [ring.signed(vector).item() for vector in sent] == [-3, 7, 20]
    assert ring.signed(add_vectors(sent, ring)).item() == 24


@given(st.sampled_from(BITS), st.integers(0, 50), st.integers(0, 9))
def test_wire_form_comes_back(bits: int, length: int, seed: int) -> None:
    ring = Ring(bits)
    vector = random_vector(length, ring, seed)
    np.testing.assert_array_equal(ring.from_bytes(ring.to_bytes(vector), length), vector)


@given(st.sampled_from(BITS), st.data())
def test_signed_values_come_back(bits: int, data: st.DataObject) -> None:
    ring, half = Ring(bits), 1 << bits - 1
    values = np.array(data.draw(st.lists(st.integers(-half, half - 1), max_size=9)), np.int64)
    np.testing.assert_array_equal(ring.signed(ring.from_signed(values)), values)


def test_what_is_no_ring_vector_key_or_sum_is_refused() -> None:
    none, ring = np.zeros(3, np.uint32), Ring(32)
    for name, call in {
        "key": lambda: mask_of(bytes(16), 3, ring),
        "peer": lambda: pair_sign(2, 2),
        "data": lambda: ring.from_bytes(bytes(11), 3),
        "coordinates": lambda: Ring(12).from_bytes(b"\xff\xff", 1),
        "bits": lambda: Ring(65),
        "vectors": lambda: add_vectors([none, none[:1]], ring),
    }.items():
        with refuses(name):
            call()
    with pytest.raises(ValueError, match="vectors must be at least one, got none"):
        add_vectors([], ring)
    for wrong in (np.zeros(3, np.uint64), np.zeros((3, 1), np.uint32)):
        with pytest.raises(ValueError, match="vector must be flat and of type uint32"):
            add_masks(wrong, [], ring)
