"""Masks: they cancel exactly, look uniform, and what is left behind by dropouts can be removed."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from leakmeter.clients.secure_sum import quantise
from leakmeter.clients.secure_sum.keys import (
    ClientSecrets,
    KeyPair,
    Session,
    agree,
    belongs,
    commit,
    opens,
)
from leakmeter.clients.secure_sum.keys import self_mask_key as mask_key_of
from leakmeter.clients.secure_sum.quantise import (
    Ring,
    RingVector,
    add_masks,
    add_vectors,
    mask,
    pair_sign,
    unmask,
)
from leakmeter.clients.secure_sum.sharing import recover, split
from tests.helpers.numbers import num_examples
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


def uniform_p_value(words: np.ndarray) -> float:
    """P-value that 32-bit words are uniform: bits fair, changing fairly in time and in a word."""
    bits = ((words[:, None] >> np.arange(32, dtype=np.uint32)) & 1).astype(np.int64)
    coins = [bits, bits[1:] ^ bits[:-1], bits[:, 1:] ^ bits[:, :-1]]  # pairwise independent
    scores = np.concatenate([(2 * c.sum(axis=0) - len(c)) ** 2 / len(c) for c in coins])
    return float(chi2.sf(scores.sum(), len(scores)))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("length", [0, 1, 37])
def test_masks_are_aes_in_counter_mode(bits: int, length: int) -> None:
    ring = Ring(bits)
    assert mask_of(key_of(1), length, ring).tolist() == slow_mask(key_of(1), length, ring)


def test_keys_of_another_size_are_refused() -> None:
    with refuses("key"):
        mask_of(bytes(16), 3, Ring(32))


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


def test_higher_numbers_add_and_lower_ones_subtract() -> None:
    assert pair_sign(3, 1) == 1
    assert pair_sign(1, 3) == -1
    with refuses("peer"):
        pair_sign(2, 2)


@given(
    bits=st.sampled_from(BITS), clients=st.integers(2, 6), length=st.integers(0, 40), data=st.data()
)
@settings(max_examples=num_examples(60), deadline=None)
def test_survivors_sum_is_exact_for_any_dropout(
    bits: int, clients: int, length: int, data: st.DataObject
) -> None:
    ring, names = Ring(bits), range(1, clients + 1)
    alive = data.draw(st.sets(st.sampled_from(list(names)), min_size=1))
    plain = {k: random_vector(length, ring, k) for k in names}
    pair = {(k, u): key_of("pair", max(k, u), min(k, u)) for k in names for u in names if u != k}
    sent = {
        k: mask(plain[k], k, key_of(k), {u: pair[k, u] for u in names if u != k}, ring)
        for k in alive
    }
    orphans = {u: {k: pair[k, u] for k in alive} for u in names if u not in alive}
    total = add_vectors(sent.values(), ring)
    result = unmask(total, [key_of(k) for k in alive], orphans, ring)
    np.testing.assert_array_equal(result, add_vectors([plain[k] for k in alive], ring))


def test_a_whole_round_with_keys_shares_and_a_dropout_is_exact() -> None:
    session, ring, threshold = Session(run=1, server_round=1), Ring(32), 4
    names, gone = range(1, 6), 2
    secrets = {k: ClientSecrets.generate() for k in names}
    publics = {k: s.mask.public for k, s in secrets.items()}
    promises = {k: commit(session, k, s.seed) for k, s in secrets.items()}
    dealt = {k: split([s.seed, s.mask.secret], threshold, names) for k, s in secrets.items()}
    plain = {k: random_vector(50, ring, k) for k in names}

    def upload(own: int) -> RingVector:
        others = {k: p for k, p in publics.items() if k != own}
        keys = agree(session, "mask", own, secrets[own].mask, others, bytes(32))
        return mask(plain[own], own, mask_key_of(session, own, secrets[own].seed), keys, ring)

    alive = [k for k in names if k != gone]
    total = add_vectors([upload(k) for k in alive], ring)
    seeds = recover(
        {k: {i: dealt[k][0][i] for i in alive} for k in alive},
        threshold,
        lambda k, seed: opens(session, k, seed, promises[k]),
    )
    lost = recover(
        {gone: {i: dealt[gone][1][i] for i in alive}},
        threshold,
        lambda k, secret: belongs(secret, publics[k]),
    )
    orphans = {
        k: agree(session, "mask", k, KeyPair.of(secret), {i: publics[i] for i in alive}, bytes(32))
        for k, secret in lost.items()
    }
    self_keys = [mask_key_of(session, k, seed) for k, seed in seeds.items()]
    result = unmask(total, self_keys, orphans, ring)
    np.testing.assert_array_equal(result, add_vectors([plain[k] for k in alive], ring))


def test_an_upload_of_zeros_looks_uniform() -> None:
    # Keys are fixed, so this never flakes; a fair draw would pass with chance 1 − 1e-6.
    zeros = np.zeros(20_000, np.uint32)
    pairs = {u: key_of("u", u) for u in (1, 3, 4)}
    assert uniform_p_value(mask(zeros, 2, key_of("self"), pairs, Ring(32))) > 1e-6
    assert uniform_p_value(mask_of(key_of("x"), 20_000, Ring(32))) > 1e-6


def test_the_same_test_rejects_weak_generators() -> None:
    congruential = np.empty(20_000, np.uint32)  # the low bit alternates
    state = 1
    for i in range(len(congruential)):
        state = (1664525 * state + 1013904223) % 2**32
        congruential[i] = state
    rng = np.random.default_rng(0)
    narrow = rng.integers(0, 2**31, 20_000, dtype=np.uint32)
    unmasked = rng.integers(-100, 100, 20_000).astype(np.uint32)
    for weak in (congruential, narrow, unmasked):
        assert uniform_p_value(weak) < 1e-20


def test_masks_of_two_keys_have_nothing_in_common() -> None:
    first, second = (mask_of(key_of(k), 20_000, Ring(32)) for k in "ab")
    assert uniform_p_value(first - second) > 1e-6


@pytest.mark.parametrize(("bits", "type_bytes", "wire_bytes"), [
    (8, 1, 1), (12, 2, 2), (16, 2, 2), (24, 4, 3), (31, 4, 4), (32, 4, 4), (40, 8, 5), (64, 8, 8),
])  # fmt: skip
def test_sizes_follow_the_bits(bits: int, type_bytes: int, wire_bytes: int) -> None:
    ring = Ring(bits)
    assert ring.dtype.itemsize == type_bytes
    assert ring.wire_bytes == wire_bytes
    assert len(ring.to_bytes(np.zeros(7, ring.dtype))) == 7 * wire_bytes


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


def test_malformed_wire_data_is_refused() -> None:
    with refuses("data"):
        Ring(32).from_bytes(bytes(11), 3)
    with refuses("coordinates"):
        Ring(12).from_bytes(b"\xff\xff", 1)


@pytest.mark.parametrize("bits", [7, 65])
def test_rings_out_of_range_are_refused(bits: int) -> None:
    with refuses("bits"):
        Ring(bits)


def test_sums_of_nothing_and_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="vectors must be at least one, got none"):
        add_vectors([], Ring(32))
    with refuses("vectors"):
        add_vectors([np.zeros(3, np.uint32), np.zeros(1, np.uint32)], Ring(32))


def test_vectors_of_another_type_are_refused() -> None:
    for wrong in (np.zeros(3, np.uint64), np.zeros((3, 1), np.uint32)):
        with pytest.raises(ValueError, match="vector must be flat and of type uint32"):
            add_masks(wrong, [], Ring(32))
