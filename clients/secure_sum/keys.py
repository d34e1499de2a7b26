"""Keys of one secure sum: agreement, derivation, sealed shares, and checks of revealed secrets.

Bonawitz et al. 2017, Practical Secure Aggregation for Privacy-Preserving Machine Learning (CCS);
RFC 7748 for X25519 and RFC 5869 for HKDF. Different from the paper:
1. every derived key is bound to run, round, purpose, both ids and both public keys, so a key or a
   ciphertext of one place is worthless in another;
2. a mask key is bound to all that the client was told in the round as well (`binding`);
3. a commitment to the self-mask seed is sent with the public keys, and a reconstructed mask secret
   is compared with its public key: a wrong share is noticed before it spoils the sum.

The keys are fresh in each round. Unless they are signed (`signing`), a server that swaps public
keys reads everything.
"""

from __future__ import annotations

import hmac
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
_NONCE_BYTES = 12
SEAL_BYTES = _NONCE_BYTES + 16  # what `seal` adds to a text: the nonce, and AES-GCM's tag
PROTOCOL = b"leakmeter secure sum 3"

_FIELD = 2**255 - 19
# Points of Curve25519 and its twist that X25519 takes to zero, its secrets being multiples of 8:
# u = 0 has order 2, ±1 order 4, and order 8 the roots of (u² − 1)² = 4u(u² + 486662u + 1).
_LOW_ORDER = frozenset(
    {
        *(0, 1, _FIELD - 1),
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    }
)

# "share" keys encrypt and are never shared; "mask" keys can be reconstructed once a client is gone.
Purpose = Literal["share", "mask"]


@dataclass(frozen=True)
class Session:
    """The run and the round that keys, ciphertexts and commitments belong to."""

    run: int
    server_round: int

    def __post_init__(self) -> None:
        _check_id("run", self.run)
        _check_id("server_round", self.server_round)

    def context(self, label: str, *ids: int) -> bytes:
        """Return an unambiguous encoding of protocol, run, round, label and ids."""
        head, numbers = _head(label, len(ids))
        try:
            return head + numbers.pack(self.run, self.server_round, *ids)
        except struct.error:
            for value in ids:
                _check_id("id", value)
            raise


@lru_cache(maxsize=64)  # there are a handful of labels, and many thousand contexts in a round
def _head(label: str, num_ids: int) -> tuple[bytes, struct.Struct]:
    """Return how a context begins, and how the numbers after it are packed."""
    name = label.encode()
    # The lengths in front keep ("ab", 1) apart from any other label and list of ids.
    head = struct.pack("<BBB", len(PROTOCOL), len(name), num_ids) + PROTOCOL + name
    return head, struct.Struct(f"<{2 + num_ids}Q")


@dataclass(frozen=True)
class KeyPair:
    """An X25519 pair as raw bytes, so that it can wait in a client's state between stages."""

    secret: bytes = field(repr=False)
    public: bytes

    @classmethod
    def generate(cls) -> Self:
        """Return a fresh pair from the operating system's random source."""
        return cls.of(os.urandom(KEY_BYTES))

    @classmethod
    def of(cls, secret: bytes) -> Self:
        """Return the pair that a 32-byte secret belongs to."""
        _check_bytes("secret", secret)
        public = X25519PrivateKey.from_private_bytes(secret).public_key()
        return cls(secret, public.public_bytes_raw())


@dataclass(frozen=True)
class ClientSecrets:
    """All that one client draws for one round, and must not use again in another.

    Attributes:
        share: Pair that opens what peers send. Its secret never leaves the client: if it were
            the mask pair, whoever reconstructs that one could read the shares of everybody.
        mask: Pair behind the pairwise masks; peers hold shares of its secret.
        seed: Seed of the self mask; peers hold shares of it too, and reveal only one of the two.
    """

    share: KeyPair
    mask: KeyPair
    seed: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> Self:
        """Return fresh pairs and a fresh seed from the operating system's random source."""
        return cls(KeyPair.generate(), KeyPair.generate(), os.urandom(KEY_BYTES))

    def to_bytes(self) -> bytes:
        """Return the 160 bytes that a client keeps between two stages."""
        pairs = (self.share.secret, self.share.public, self.mask.secret, self.mask.public)
        return b"".join([*pairs, self.seed])

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return what `to_bytes` was given."""
        if len(data) != 5 * KEY_BYTES:
            raise ValueError(f"secrets must be {5 * KEY_BYTES} bytes, got {len(data)}")
        a, b, c, d, seed = (data[i : i + KEY_BYTES] for i in range(0, len(data), KEY_BYTES))
        return cls(KeyPair(a, b), KeyPair(c, d), seed)


# In a simulation that runs both sides of a pair: the key that the first has derived, for the
# second, by the info of its derivation. None anywhere else; only `both_sides_here` changes it.
_open_pairs: dict[bytes, bytes] | None = None


@contextmanager
def both_sides_here() -> Iterator[None]:
    """Let the two sides of each pair agree once, in a process that simulates both."""
    global _open_pairs
    _open_pairs = {}
    try:
        yield
    finally:
        _open_pairs = None


def _pair_key(secret: X25519PrivateKey, public: bytes, info: bytes) -> bytes:
    """Return the key that two key pairs have in common; `info` names both."""
    if _open_pairs is not None and info in _open_pairs:
        return _open_pairs.pop(info)
    # `exchange` refuses low-order points, whose outcome would be zero for everyone.
    key = _derive(secret.exchange(_loaded(public)), info)
    if _open_pairs is not None:
        _open_pairs[info] = key
    return key


def agree(
    session: Session,
    purpose: Purpose,
    own_id: int,
    own: KeyPair,
    peers: Mapping[int, bytes],
    digest: bytes = b"",
) -> dict[int, bytes]:
    """Return the key that `own_id` has in common with each peer, by peer id.

    The server calls it too, with the reconstructed mask pair of a client that is gone.

    Args:
        session: Run and round.
        purpose: What the pairs are for; must match on both sides.
        own_id: Id of the client that `own` belongs to.
        own: Its key pair for this purpose.
        peers: Peer id to the peer's public key for this purpose.
        digest: For "mask", what both sides were told in the round (`binding`); 32 bytes.

    Raises:
        ValueError: If a public key is malformed, of low order, or occurs twice.
    """
    if (purpose == "mask") != bool(digest):
        raise ValueError(f"digest must be given for mask keys alone, got one for {purpose!r}")
    if digest:
        _check_bytes("digest", digest)
    if own_id in peers:
        raise ValueError(f"peers must be others than {own_id}, got {sorted(peers)}")
    if len({own.public, *peers.values()}) != len(peers) + 1:
        raise ValueError(f"public keys must be distinct, got a duplicate among {len(peers) + 1}")
    secret, label = X25519PrivateKey.from_private_bytes(own.secret), f"agree {purpose}"
    keys = {}
    for peer, public in peers.items():
        _check_bytes(f"public key of {peer}", public)
        # The lower id first, so that both sides have the same text.
        if own_id < peer:
            place, both = session.context(label, own_id, peer), own.public + public
        else:
            place, both = session.context(label, peer, own_id), public + own.public
        keys[peer] = _pair_key(secret, public, place + both + digest)
    return keys


def check_order(public: bytes) -> None:
    """Refuse a public key of low order: with it, everybody's common key is zero.

    Raises:
        ValueError: If it is one, or no key at all.
    """
    _check_bytes("public key", public)
    # RFC 7748, section 5: the highest bit is ignored, and what is left taken modulo the prime.
    if (int.from_bytes(public, "little") & (1 << 255) - 1) % _FIELD in _LOW_ORDER:
        raise ValueError("public key must not be of low order")


@lru_cache(maxsize=1024)  # in a round each is used once a peer
def _loaded(public: bytes) -> X25519PublicKey:
    return X25519PublicKey.from_public_bytes(public)


def self_mask_key(session: Session, owner: int, seed: bytes) -> bytes:
    """Return the key of the self mask that belongs to `seed`."""
    _check_bytes("seed", seed)
    return _derive(seed, session.context("self mask", owner))


def commit(session: Session, owner: int, seed: bytes) -> bytes:
    """Return a commitment to `seed`, sent together with the public keys.

    Hiding because the seed has 256 random bits and the mask key is derived under another label;
    binding because HKDF-SHA256 with a fixed salt and inputs of one length is collision resistant.
    """
    _check_bytes("seed", seed)
    return _derive(seed, session.context("commitment", owner))


def opens(session: Session, owner: int, seed: bytes, commitment: bytes) -> bool:
    """Whether `seed` is what `owner` committed to."""
    return hmac.compare_digest(commit(session, owner, seed), commitment)


def belongs(secret: bytes, public: bytes) -> bool:
    """Whether a reconstructed `secret` is the one behind `public`."""
    return hmac.compare_digest(KeyPair.of(secret).public, public)


def seal(
    key: bytes, text: bytes, session: Session, stage: str, sender: int, receiver: int
) -> bytes:
    """Return `text` encrypted and bound to run, round, stage, sender and receiver."""
    # Both directions and every retry use the same key, so the nonce is random.
    nonce = os.urandom(_NONCE_BYTES)
    place = session.context(f"seal {stage}", sender, receiver)
    return nonce + AESGCM(key).encrypt(nonce, text, place)


def unseal(
    key: bytes, box: bytes, session: Session, stage: str, sender: int, receiver: int
) -> bytes:
    """Return the text that `seal` was given.

    Raises:
        ValueError: If the box was changed or sealed elsewhere: other key, run, round, stage,
            sender or receiver.
    """
    place = session.context(f"seal {stage}", sender, receiver)
    try:
        return AESGCM(key).decrypt(box[:_NONCE_BYTES], box[_NONCE_BYTES:], place)
    except (InvalidTag, ValueError) as error:
        raise ValueError(
            f"box must be sealed by {sender} for {receiver} in round {session.server_round}, "
            f"stage {stage!r}; these {len(box)} bytes were not"
        ) from error


def _derive(secret: bytes, info: bytes) -> bytes:
    """Return 32 bytes that depend on `secret` and on every field of `info`.

    HKDF-SHA256 of RFC 5869 with a key of one block: extract, then one step of expand. Two calls
    of HMAC take a third of the time of `cryptography`'s object.
    """
    return hmac.digest(hmac.digest(PROTOCOL, secret, "sha256"), info + b"\x01", "sha256")


def _check_bytes(name: str, value: bytes) -> None:
    """Refuse anything but 32 bytes, without showing what may be secret."""
    if not isinstance(value, bytes) or len(value) != KEY_BYTES:
        size = len(value) if isinstance(value, bytes) else type(value).__name__
        raise ValueError(f"{name} must be {KEY_BYTES} bytes, got {size}")


def _check_id(name: str, value: int) -> None:
    """Refuse a number that does not fit the encoding."""
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{name} must be in [0, 2^64), got {value}")
