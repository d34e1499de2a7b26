"""Keys: both sides agree, nothing fits another place, wrong secrets are noticed."""

from __future__ import annotations

import hashlib
import os

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from flwr.app import ConfigRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from leakmeter.auditors.hook.wire import RefusedError
from leakmeter.clients.secure_sum import keys
from leakmeter.clients.secure_sum.keys import (
    ClientSecrets,
    KeyPair,
    Session,
    agree,
    belongs,
    both_sides_here,
    check_order,
    commit,
    opens,
    seal,
    self_mask_key,
    unseal,
)
from leakmeter.clients.secure_sum.signing import PublicKeys
from leakmeter.clients.secure_sum.wire import get_keys
from tests.helpers.numbers import num_examples
from tests.helpers.refusals import refuses

SESSION = Session(run=7, server_round=3)
DIGEST = bytes(range(32))
ALICE, BOB = KeyPair.of(bytes(range(32))), KeyPair.of(bytes(range(1, 33)))


def test_a_process_with_both_sides_computes_each_exchange_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apart = agree(SESSION, "mask", 4, ALICE, {9: BOB.public}, DIGEST)[9]
    with both_sides_here():
        first = agree(SESSION, "mask", 4, ALICE, {9: BOB.public}, DIGEST)[9]
        with monkeypatch.context() as patch:  # whoever computes again fails
            patch.setattr("leakmeter.clients.secure_sum.keys._loaded", None)
            second = agree(SESSION, "mask", 9, BOB, {4: ALICE.public}, DIGEST)[4]
        assert second == agree(SESSION, "mask", 9, BOB, {4: ALICE.public}, DIGEST)[4]
        other = agree(SESSION, "mask", 4, ALICE, {9: BOB.public}, bytes(32))[9]
    assert first == second == apart
    assert other != first  # who was told something else gets another key here, too
    monkeypatch.setattr("leakmeter.clients.secure_sum.keys._loaded", None)
    with pytest.raises(TypeError):
        agree(SESSION, "mask", 4, ALICE, {9: BOB.public}, DIGEST)  # nothing is kept outside


def test_agreed_key_is_hkdf_of_the_exchange_of_fresh_secrets_on_both_sides() -> None:
    common = X25519PrivateKey.from_private_bytes(ALICE.secret).exchange(
        X25519PublicKey.from_public_bytes(BOB.public)
    )
    info = SESSION.context("agree mask", 4, 9) + ALICE.public + BOB.public + DIGEST
    hkdf = HKDF(algorithm=SHA256(), length=32, salt=b"leakmeter secure sum 3", info=info)
    expected = hkdf.derive(common)
    assert agree(SESSION, "mask", 4, ALICE, {9: BOB.public}, DIGEST) == {9: expected}
    assert agree(SESSION, "mask", 9, BOB, {4: ALICE.public}, DIGEST) == {4: expected}
    first, second = ClientSecrets.generate(), ClientSecrets.generate()
    raw = [s for c in (first, second) for s in (c.share.secret, c.mask.secret, c.seed)]
    assert len(set(raw)) == 6
    assert all(str(secret) not in repr(first) for secret in raw)


def test_every_field_changes_the_key() -> None:
    peers = {9: BOB.public}
    keys = [
        agree(SESSION, "mask", 4, ALICE, peers, DIGEST)[9],
        agree(SESSION, "share", 4, ALICE, peers)[9],
        agree(Session(run=8, server_round=3), "mask", 4, ALICE, peers, DIGEST)[9],
        agree(Session(run=7, server_round=4), "mask", 4, ALICE, peers, DIGEST)[9],
        agree(SESSION, "mask", 5, ALICE, peers, DIGEST)[9],
        agree(SESSION, "mask", 4, ALICE, peers, bytes(32))[9],
        agree(SESSION, "mask", 4, ALICE, {8: BOB.public}, DIGEST)[8],
        self_mask_key(SESSION, 4, ALICE.secret),
        self_mask_key(SESSION, 5, ALICE.secret),
        commit(SESSION, 4, ALICE.secret),
    ]
    assert len(set(keys)) == len(keys)


@given(st.text(max_size=9), st.lists(st.integers(0, 2**64 - 1), max_size=4))
def test_context_is_unambiguous(label: str, ids: list[int]) -> None:
    context = SESSION.context(label, *ids)
    assert context != SESSION.context(label + "x", *ids)
    assert context != SESSION.context(label, *ids, 0)
    assert context != Session(run=7, server_round=2**40).context(label, *ids)


def test_peers_with_the_same_key_are_refused() -> None:
    with pytest.raises(ValueError, match="distinct"):
        agree(SESSION, "mask", 1, ALICE, {2: BOB.public, 3: BOB.public}, DIGEST)
    with pytest.raises(ValueError, match="distinct"):
        agree(SESSION, "mask", 1, ALICE, {2: ALICE.public}, DIGEST)
    with refuses("peers"):
        agree(SESSION, "mask", 1, ALICE, {1: BOB.public}, DIGEST)


# The five points, those that are below 2^255 with the prime added, and all with the ignored bit.
LOW_ORDER = [
    (u + k * keys._FIELD + top).to_bytes(32, "little")
    for u in sorted(keys._LOW_ORDER)
    for k in (0, 1)
    for top in (0, 1 << 255)
    if u + k * keys._FIELD < 1 << 255
]


@pytest.mark.parametrize("public", LOW_ORDER)
def test_points_of_low_order_are_refused(public: bytes) -> None:
    with pytest.raises(ValueError, match=r"(?i)shared key"):
        agree(SESSION, "mask", 1, ALICE, {2: public}, DIGEST)
    with pytest.raises(ValueError, match="low order"):
        check_order(public)


def test_the_points_of_low_order_are_all_there_are() -> None:
    # Curve and twist have groups of 8 and 4 times a prime, cyclic in their small part (RFC 7748):
    # with 4 and 2 points of order 8 and 4 on the curve, 2 of order 4 on the twist, one u for ±.
    field, low = keys._FIELD, keys._LOW_ORDER

    def double(u: int) -> int | None:
        below = 4 * u * (u * u + 486662 * u + 1) % field
        return (u * u - 1) ** 2 * pow(below, -1, field) % field if below else None

    assert double(0) is None
    assert {u for u in low if double(u) == 0} == {1, field - 1}
    assert len({u for u in low if double(u) == 1}) == 2
    assert len(low) == 5


@given(st.integers(0, 2**256 - 1))
def test_other_points_are_accepted_as_x25519_accepts_them(number: int) -> None:
    public = number.to_bytes(32, "little")
    if public not in LOW_ORDER:
        check_order(public)
        assert agree(SESSION, "mask", 1, ALICE, {2: public}, DIGEST)


def test_wrong_sizes_and_ids_that_do_not_fit_are_named() -> None:
    for size in (0, 31, 33):
        for name, call in {
            "secret": lambda size=size: KeyPair.of(bytes(size)),
            "public key of 2": lambda size=size: agree(
                SESSION, "mask", 1, ALICE, {2: bytes(size)}, DIGEST
            ),
            "seed": lambda size=size: commit(SESSION, 1, bytes(size)),
            "run": lambda: Session(run=-1, server_round=1),
            "id": lambda: SESSION.context("x", 1 << 64),
        }.items():
            with refuses(name):
                call()


def test_commitment_opens_only_for_its_seed_owner_and_round_and_a_secret_for_its_key() -> None:
    assert belongs(ALICE.secret, ALICE.public)
    assert not belongs(BOB.secret, ALICE.public)
    seed = hashlib.sha256(b"seed").digest()
    commitment = commit(SESSION, 5, seed)
    assert opens(SESSION, 5, seed, commitment)
    assert not opens(SESSION, 6, seed, commitment)
    assert not opens(Session(run=7, server_round=4), 5, seed, commitment)
    assert not opens(SESSION, 5, seed[:-1] + b"\x00", commitment)


@given(text=st.binary(max_size=100))
def test_sealed_text_comes_back(text: bytes) -> None:
    key = bytes(32)
    box = seal(key, text, SESSION, "shares", 1, 2)
    assert unseal(key, box, SESSION, "shares", 1, 2) == text
    assert seal(key, text, SESSION, "shares", 1, 2) != box


@settings(max_examples=num_examples(60))
@given(st.integers(0, 12 + 78 + 16 - 1), st.integers(1, 255))
def test_a_changed_byte_is_noticed(position: int, flip: int) -> None:
    key = bytes(32)
    box = bytearray(seal(key, bytes(78), SESSION, "shares", 1, 2))
    box[position] ^= flip
    for wrong in (bytes(box), bytes(box)[:position]):
        with pytest.raises(ValueError, match="must be sealed by 1 for 2"):
            unseal(key, wrong, SESSION, "shares", 1, 2)


@pytest.mark.parametrize(
    ("session", "stage", "sender", "receiver"),
    [
        (Session(run=8, server_round=3), "shares", 1, 2),
        (Session(run=7, server_round=2), "shares", 1, 2),
        (SESSION, "unmask", 1, 2),
        (SESSION, "shares", 2, 1),
        (SESSION, "shares", 1, 3),
        (SESSION, "shares", 3, 2),
    ],
)
def test_a_box_opens_nowhere_else(session: Session, stage: str, sender: int, receiver: int) -> None:
    key = os.urandom(32)
    box = seal(key, b"share", SESSION, "shares", 1, 2)
    with pytest.raises(ValueError, match="must be sealed by"):
        unseal(key, box, session, stage, sender, receiver)


def test_one_key_for_shares_and_masks_is_refused() -> None:
    both = PublicKeys(ALICE.public, BOB.public, bytes(32))
    assert get_keys(ConfigRecord({"keys": both.to_bytes()})) == both
    twice = PublicKeys(ALICE.public, ALICE.public, bytes(32))
    with pytest.raises(RefusedError, match="must differ, got one key twice"):
        get_keys(ConfigRecord({"keys": twice.to_bytes()}))
