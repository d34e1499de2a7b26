"""Shamir: any threshold of shares gives the secret, one fewer nothing, errors are survived."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from leakmeter.clients.secure_sum import sharing
from leakmeter.clients.secure_sum.sharing import PRIME, SHARE_BYTES, recover, split
from tests.helpers.numbers import num_examples
from tests.helpers.refusals import refuses

SECRET = bytes(range(100, 132))


def combine(shares: dict[int, bytes], threshold: int) -> bytes:
    return recover({0: shares}, threshold, lambda *_: True)[0]


def limbs_of(share: bytes) -> list[int]:
    return [int.from_bytes(share[i : i + 3], "little") for i in range(0, len(share), 3)]


def slow_value(points: list[tuple[int, int]], at: int) -> int:
    """Value at `at` of the polynomial through the points, by Lagrange in Python integers."""
    total = 0
    for x, y in points:
        for other, _ in points:
            if other != x:
                y = y * (at - other) * pow(x - other, -1, PRIME) % PRIME
        total += y
    return total % PRIME


def uniform_p_value(values: np.ndarray) -> float:
    """P-value that rows (draws, 2) are uniform over residues: chi-square on a 16 by 16 grid."""
    cells = values * 16 // PRIME
    seen = np.bincount(cells[:, 0] * 16 + cells[:, 1], minlength=256)
    expected = len(values) / 256
    return float(chi2.sf(((seen - expected) ** 2 / expected).sum(), 255))


def two_of_three_shares(secret: bytes, count: int) -> np.ndarray:
    dealt = split([secret] * count, 3, [1, 2, 3])
    return np.array([[limbs_of(shares[i])[0] for i in (1, 2)] for shares in dealt])


def test_the_prime_leaves_room_for_exact_sums() -> None:
    assert 2**20 < PRIME < 2**21
    assert all(PRIME % n for n in range(2, int(PRIME**0.5) + 1))
    assert sharing._EXACT_TERMS * (PRIME - 1) ** 2 < 2**53


@given(st.binary(min_size=32, max_size=32), st.data())
@settings(max_examples=num_examples(40), deadline=None)
def test_any_threshold_of_shares_gives_the_secret(secret: bytes, data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(1, PRIME - 1), min_size=1, max_size=12, unique=True))
    threshold = data.draw(st.integers(1, len(indices)))
    chosen = data.draw(st.permutations(indices))[:threshold]
    shares = split([secret], threshold, indices)[0]
    assert all(len(share) == SHARE_BYTES for share in shares.values())
    assert combine({i: shares[i] for i in chosen}, threshold) == secret
    assert combine(shares, threshold) == secret


def test_shares_lie_on_one_polynomial_of_the_right_degree() -> None:
    shares = split([SECRET], 4, range(1, 8))[0]
    for limb in range(SHARE_BYTES // 3):
        points = [(i, limbs_of(share)[limb]) for i, share in shares.items()]
        assert all(slow_value(points[:4], x) == y for x, y in points)


@pytest.mark.parametrize("gaps", [1, 2**20], ids=["row by row", "together"])
@given(st.lists(st.integers(1, PRIME - 1), min_size=1, max_size=40, unique=True))
@settings(max_examples=num_examples(40), deadline=None)
def test_lagrange_rows_equal_the_slow_ones(gaps: int, points: list[int]) -> None:
    rows = [points, points[::-1], [PRIME - x for x in points]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "_MAX_GAPS", gaps)
        fast = sharing._lagrange(np.array(rows))
    for row, weights in zip(rows, fast.tolist(), strict=True):
        for i, x in enumerate(row):
            unit = [(p, int(p == x)) for p in row]
            assert weights[i] == slow_value(unit, 0)


def test_a_product_beyond_what_is_exact_is_reduced_in_between() -> None:
    top = np.full((1, 5000), PRIME - 1, np.int64)
    assert sharing._product(top, top.T).item() == 5000 * (PRIME - 1) ** 2 % PRIME


@pytest.mark.slow
def test_thresholds_beyond_one_exact_product_give_the_secret() -> None:
    shares = split([SECRET], 2500, range(1, 2601))[0]
    assert combine({i: shares[i] for i in range(101, 2601)}, 2500) == SECRET


def test_one_share_fewer_fits_every_secret_exactly_once() -> None:
    # Two of three shares are given; each candidate for the secret completes one polynomial, whose
    # third share exists and differs from candidate to candidate: nothing is excluded.
    shares = split([SECRET], 3, [1, 2, 3])[0]
    known = [(i, limbs_of(shares[i])[0]) for i in (1, 2)]
    thirds = {slow_value([(0, candidate), *known], 3) for candidate in range(2000)}
    assert len(thirds) == 2000


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32], ids=["zeros", "ones"])
def test_fewer_shares_are_uniform_whatever_the_secret(secret: bytes) -> None:
    # Coefficients come from the operating system: fails by chance once in 1e11.
    assert uniform_p_value(two_of_three_shares(secret, 10_000)) > 1e-11


def test_the_same_test_rejects_biased_coefficients(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = sharing._uniform
    # The mistake of drawing 20-bit coefficients because limbs have 20 bits.
    monkeypatch.setattr(sharing, "_uniform", lambda r, c: honest(r, c) & (2**20 - 1))
    assert uniform_p_value(two_of_three_shares(bytes(32), 10_000)) < 1e-20


def test_coefficients_above_the_prime_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    words = iter(
        [b"\xff\xff\xff\xff" * 3 + b"\x05\x00\xe0\xff", (PRIME - 1).to_bytes(4, "little") * 3]
    )
    monkeypatch.setattr(os, "urandom", lambda _: next(words))
    assert sharing._uniform(2, 2).ravel().tolist() == [5, PRIME - 1, PRIME - 1, PRIME - 1]


def test_malformed_secrets_shares_thresholds_and_indices_are_refused() -> None:
    with refuses("secret"):
        split([SECRET[:-1]], 1, [1])
    shares = split([SECRET], 2, [1, 2, 3])[0]
    for bad in (b"", shares[1][:-1], b"\xff" * SHARE_BYTES):  # such a share counts as absent
        assert combine(shares | {1: bad}, 2) == SECRET
        assert recover({0: {1: bad, 2: shares[2]}}, 2, lambda *_: True) == {}
    for threshold in (0, 4):
        with refuses("threshold"):
            split([SECRET], threshold, [1, 2, 3])
    for indices in ([], [1, 1], [0, 1], [1, PRIME]):
        with refuses("indices"):
            split([SECRET], 1, indices)
    assert recover({7: {1: shares[1]}, 8: {}}, 2, lambda *_: True) == {}


def deal(
    owners: range, threshold: int, holders: dict[int, list[int]]
) -> dict[int, dict[int, bytes]]:
    return {o: split([bytes([o]) * 32], threshold, holders[o])[0] for o in owners}


def is_right(owner: int, secret: bytes) -> bool:
    return secret == bytes([owner]) * 32


def test_many_owners_are_recovered_from_the_same_and_from_different_holders() -> None:
    owners = range(1, 9)
    same = deal(owners, 3, {o: [1, 2, 3, 4, 5] for o in owners})
    sparse = deal(owners, 3, {o: [o, o + 1, o + 2, o + 7] for o in owners})
    for held in (same, sparse):
        assert recover(held, 3, is_right) == {o: bytes([o]) * 32 for o in owners}


def test_wrong_and_malformed_shares_are_worked_around() -> None:
    held = deal(range(1, 3), 3, {1: [1, 2, 3, 4, 5], 2: [1, 2, 3]})
    other = split([SECRET], 3, [1, 2, 3])[0]
    held[1] |= {1: other[1], 2: b"short"}  # three good ones are left
    held[2] |= {3: other[3]}  # two are not enough
    assert recover(held, 3, is_right) == {1: bytes([1]) * 32}


def test_every_subset_is_tried_where_there_are_few() -> None:
    # Two liars of seven with threshold five: one subset of 21 is good, and it must be found.
    secret = bytes(range(32))
    for liars in ((1, 2), (3, 7), (6, 7)):
        [shares] = split([secret], 5, range(1, 8))
        held = {i: (bytes(39) if i in liars else share) for i, share in shares.items()}
        found = recover({"owner": held}, 5, lambda _, s: s == secret)
        assert found == {"owner": secret}
    # Of many subsets some are tried at random: 64 without this liar fail with chance 2^-64.
    [shares] = split([secret], 15, range(1, 31))
    held = {**shares, 1: bytes(39)}
    assert recover({"owner": held}, 15, lambda _, s: s == secret) == {"owner": secret}
