"""Signing keys: files that are not overwritten, lists that are checked, signatures that bind."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from leakmeter.auditors.hook.wire import RefusedError
from leakmeter.clients import MaskMod
from leakmeter.clients.secure_sum.keys import Session
from leakmeter.clients.secure_sum.participant import Participant
from leakmeter.clients.secure_sum.signing import (
    Identity,
    KeyFileError,
    PublicKeys,
    TrustedKeys,
    is_signed,
    public_line,
    survivors_text,
)

ALICE, BOB = (Identity(Ed25519PrivateKey.from_private_bytes(bytes([i]) * 32)) for i in (1, 2))
BOTH = TrustedKeys.of([ALICE.line, BOB.line])
SESSION = Session(5, 2)


def test_a_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    made = Identity.create(tmp_path / "new")
    path = tmp_path / "new" / "identity.pem"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    with pytest.raises(KeyFileError, match="exists and is not overwritten"):
        Identity.create(tmp_path / "new")
    assert path.read_bytes() == before
    for given in (path, path.parent, str(path)):
        assert Identity.of(given).public == made.public
        assert Identity.of(given).folder == path.parent


def test_what_is_no_key_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"cannot be read.*leakmeter keys new"):
        Identity.load(tmp_path / "missing")
    (tmp_path / "text").write_text("no key")
    with pytest.raises(KeyFileError, match="PEM"):
        Identity.load(tmp_path / "text")
    other = X25519PrivateKey.generate()
    pem = other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "other").write_bytes(pem)
    with pytest.raises(KeyFileError, match="must be an Ed25519 key"):
        Identity.load(tmp_path / "other")
    (tmp_path / "file").write_text("")
    with pytest.raises(KeyFileError, match="cannot be made"):
        Identity.create(tmp_path / "file")


def test_a_list_may_be_a_file_lines_names_or_keys(tmp_path: Path) -> None:
    path = tmp_path / "trusted.txt"
    path.write_text(f"# clients\n\n{ALICE.line} alice at home\n  {BOB.line}\n")
    read = TrustedKeys.of(path)
    assert read.names == {ALICE.public: "alice at home", BOB.public: ""}
    for given in (str(path), [ALICE.line, BOB.public], {"a": ALICE.line, "b": BOB.line}, read):
        assert set(TrustedKeys.of(given).names) == {ALICE.public, BOB.public}
    assert ALICE.public in read
    assert len(read) == 2
    assert TrustedKeys.of([public_line(ALICE.public, "a b")]).names == {ALICE.public: "a b"}
    with pytest.raises(KeyFileError, match="cannot be read"):
        TrustedKeys.of(tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(KeyFileError, match="text"):
        TrustedKeys.of(tmp_path / "binary")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ssh-ed25519 AAAA", "line 1: a public line must be 'leakmeter-ed25519 KEY"),
        ("leakmeter-ed25519", "line 1: a public line must be"),
        ("\nleakmeter-ed25519 !!!!", "line 2: the key must be base64"),
        ("leakmeter-ed25519 AAAA", "line 1: a key must be 32 bytes, got 3"),
        (f"{ALICE.line}\n{ALICE.line} again", "must be distinct.*twice"),
    ],
)
def test_a_malformed_list_is_refused_with_its_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "trusted.txt"
    path.write_text(text)
    with pytest.raises(KeyFileError, match=reason):
        TrustedKeys.of(path)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"identity": ALICE}, "identity must come with trusted"),
        ({"trusted": BOTH}, "trusted must come with identity"),
        ({"identity": ALICE, "trusted": [BOB.line]}, "must have this client's own line"),
        ({"identity": ALICE, "trusted": BOTH}, "trusted must have the public keys of at least 3"),
        ({"max_clip_range": 0.0}, "max_clip_range must be in"),
        ({"max_weight": -1.0}, "max_weight must be in"),
    ],
)
def test_a_mod_refuses_settings_that_cannot_be(options: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        MaskMod(**options)


def test_an_announcement_is_genuine_in_its_place_only() -> None:
    signed = Participant.announce(SESSION, 1).signed(ALICE)
    assert PublicKeys.from_bytes(signed.to_bytes(), is_signed=True) == signed
    signed.check(SESSION, 1, BOTH)
    for session, number in ((Session(6, 2), 1), (Session(5, 3), 1), (SESSION, 2)):
        with pytest.raises(RefusedError, match="must be signed for it, in this run and round"):
            signed.check(session, number, BOTH)
    with pytest.raises(RefusedError, match="trusted list"):
        signed.check(SESSION, 1, TrustedKeys.of([BOB.line]))
    other = Participant.announce(SESSION, 1).public
    swapped = replace(other, signer=ALICE.public, signature=signed.signature)
    with pytest.raises(RefusedError, match="must be signed"):
        swapped.check(SESSION, 1, BOTH)


def test_a_statement_about_survivors_is_worthless_elsewhere() -> None:
    told, own = bytes(32), bytes(range(32))
    text = survivors_text(SESSION, 1, own, told, [3, 1, 2])
    signature = ALICE.sign(text)
    assert text == survivors_text(SESSION, 1, own, told, [1, 2, 3])
    others = [
        survivors_text(Session(5, 3), 1, own, told, [1, 2, 3]),
        survivors_text(Session(6, 2), 1, own, told, [1, 2, 3]),
        survivors_text(SESSION, 2, own, told, [1, 2, 3]),
        survivors_text(SESSION, 1, told, told, [1, 2, 3]),
        survivors_text(SESSION, 1, own, own, [1, 2, 3]),
        survivors_text(SESSION, 1, own, told, [1, 2]),
        survivors_text(SESSION, 1, own, told, []),
    ]
    assert is_signed(ALICE.public, signature, text)
    assert not is_signed(BOB.public, signature, text)
    assert not any(is_signed(ALICE.public, signature, other) for other in others)
    assert not is_signed(b"short", signature, text)
    assert not is_signed(ALICE.public, b"short", text)
