"""Keys of one secure sum: agreement, sealed shares, checks of what is revealed, and the binding.

Bonawitz et al. 2017, Practical Secure Aggregation for Privacy-Preserving Machine Learning (CCS);
RFC 7748 for X25519 and RFC 5869 for HKDF. Different from the paper:
1. every derived key is bound to run, round, purpose, both ids and both public keys, so a key or a
   ciphertext of one place is worthless in another;
2. a mask key is bound to all that the client was told in the round as well, see `binding`;
3. a commitment to the self-mask seed is sent with the public keys, and a reconstructed mask secret
   is compared with its public key: a wrong share is noticed before it spoils the sum.

The keys are fresh in each round. Unless they are signed (`signing`), a server that swaps public
keys reads everything.

By (2) two clients that were told different things get different mask keys, so their masks do not
cancel, and the sum shows nothing. Without it, a server that sends everybody but one client a huge
clip range, a learning rate of zero or another model reads that client's update from an honest sum.
(Pasquini et al. 2022, Eluding Secure Aggregation in Federated Learning via Model Inconsistency,
arXiv 2111.07380.)

The digest of what was told is unambiguous: every value has a tag for its type and its length in
front. Names are sorted, since Flower may change their order on the way; the order of a model's
arrays means something and is kept. Left out is what each client is told separately: its boxes and
its canary. Such a record has known fields and no others. Anything else under its name is bound in:
a model there would reach the app, and each client could get another one. Who has a canary seat is a
record of its own, the same for all. So is an order to keep an update: where `tap_mod` refuses it,
training fails, and a server that could choose who fails would choose all but one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord

from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.canary_order import FIELDS

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

_SIZE, _LARGE = struct.Struct("<Q"), 2**12  # bytes
# What each client is told separately: type and fields. `MaskMod` limits what these may say.
_OWN: Mapping[str, tuple[type, frozenset[str]]] = {
    wire.MASK: (ConfigRecord, frozenset({"stage", "round", "number", "boxes"})),
    wire.CANARY: (MetricRecord, FIELDS),
}

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
        check_bytes("secret", secret)
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
            raise BadValueError("secrets", f"{5 * KEY_BYTES} bytes", len(data))
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
        digest: For "mask", what both sides were told in the round, see `binding`; 32 bytes.

    Raises:
        ValueError: If a public key is malformed, of low order, or occurs twice.
    """
    if (purpose == "mask") != bool(digest):
        raise ValueError(f"digest must be given for mask keys alone, got one for {purpose!r}")
    if digest:
        check_bytes("digest", digest)
    if own_id in peers:
        raise BadValueError("peers", f"others than {own_id}", sorted(peers))
    if len({own.public, *peers.values()}) != len(peers) + 1:
        raise ValueError(f"public keys must be distinct, got a duplicate among {len(peers) + 1}")
    secret, label = X25519PrivateKey.from_private_bytes(own.secret), f"agree {purpose}"
    keys = {}
    for peer, public in peers.items():
        check_bytes(f"public key of {peer}", public)
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
    check_bytes("public key", public)
    # RFC 7748, section 5: the highest bit is ignored, and what is left taken modulo the prime.
    if (int.from_bytes(public, "little") & (1 << 255) - 1) % _FIELD in _LOW_ORDER:
        raise ValueError("public key must not be of low order")


@lru_cache(maxsize=1024)  # in a round each is used once a peer
def _loaded(public: bytes) -> X25519PublicKey:
    return X25519PublicKey.from_public_bytes(public)


def self_mask_key(session: Session, owner: int, seed: bytes) -> bytes:
    """Return the key of the self mask that belongs to `seed`."""
    check_bytes("seed", seed)
    return _derive(seed, session.context("self mask", owner))


def commit(session: Session, owner: int, seed: bytes) -> bytes:
    """Return a commitment to `seed`, sent together with the public keys.

    Hiding because the seed has 256 random bits and the mask key is derived under another label;
    binding because HKDF-SHA256 with a fixed salt and inputs of one length is collision resistant.
    """
    check_bytes("seed", seed)
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


def check_bytes(name: str, value: bytes) -> None:
    """Refuse anything but 32 bytes, without showing what may be secret."""
    if not isinstance(value, bytes) or len(value) != KEY_BYTES:
        size = len(value) if isinstance(value, bytes) else type(value).__name__
        raise BadValueError(name, f"{KEY_BYTES} bytes", size)


def _check_id(name: str, value: int) -> None:
    """Refuse a number that does not fit the encoding."""
    if not 0 <= value < 1 << 64:
        raise BadValueError(name, "in [0, 2^64)", value)


def binding(
    session: Session, threshold: int, settings: bytes, roster: bytes, instruction: bytes
) -> bytes:
    """Return the digest of what a client was told in a round; it enters the mask keys.

    Args:
        session: Run and round.
        threshold: Shares that open a secret.
        settings: Fingerprint of the run's configuration, see `fingerprint`.
        roster: Fingerprint of those among whom neighbours were drawn, or of who has announced what.
        instruction: Fingerprint of the train message, see `Instructions`.
    """
    return _hash([session.context("binding", threshold), settings, roster, instruction])


class Instructions:
    """Fingerprints of train messages; a record that several of them share is read once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, bytes]] = {}

    def of(self, message: Message) -> bytes:
        """Return the fingerprint of all that a message tells every client of its round."""
        told = message.metadata
        parts = [PROTOCOL, told.message_type.encode(), told.group_id.encode()]
        for name, record in sorted(_common(message).items()):
            parts += [name.encode(), self._record(record)]
        return _hash(parts)

    def same(self, messages: Iterable[Message]) -> bytes | None:
        """Return the one fingerprint of all messages; None if they differ."""
        found = {self.of(message) for message in messages}
        return found.pop() if len(found) == 1 else None

    def differing(self, one: Message, other: Message) -> list[str]:
        """Return the names of what two messages have differently."""
        ours, theirs = _common(one), _common(other)
        pairs = ((n, ours.get(n), theirs.get(n)) for n in sorted({*ours, *theirs}))
        different = [n for n, a, b in pairs if self._fingerprint(a) != self._fingerprint(b)]
        return different or ["message type"]

    def _fingerprint(self, record: object) -> bytes | None:
        return None if record is None else self._record(record)

    def _record(self, record: object) -> bytes:
        kept = self._known.get(id(record))
        if kept is None:
            # With the record itself, so that nothing else gets its id meanwhile.
            kept = self._known[id(record)] = (record, _record(record))
        return kept[1]


def fingerprint(config: Mapping[str, object]) -> bytes:
    """Return the fingerprint of a run's configuration, which the server hands to every client."""
    return _hash([b"settings", *_entries(config)])


def _common(message: Message) -> dict[str, object]:
    """Return the records that must be the same for all clients."""
    return {n: record for n, record in message.content.items() if not _is_own(n, record)}


def _is_own(name: str, record: object) -> bool:
    """Whether a record is what one client is told by itself, and nothing beside."""
    if name not in _OWN or not isinstance(record, Mapping):
        return False
    kind, fields = _OWN[name]
    return isinstance(record, kind) and record.keys() <= fields


def _record(record: object) -> bytes:
    if isinstance(record, ArrayRecord):
        return _hash([b"arrays", *(part for name in record for part in _array(name, record[name]))])
    if isinstance(record, Mapping):
        # The class tells numbers of a MetricRecord from those of a ConfigRecord.
        return _hash([type(record).__name__.encode(), *_entries(record)])
    raise ValueError(f"a train message must contain Flower's records, got {type(record).__name__}")


def _array(name: str, array: Array) -> list[bytes]:
    shape = struct.pack(f"<{len(array.shape)}q", *array.shape)
    return [name.encode(), array.dtype.encode(), array.stype.encode(), shape, array.data]


def _entries(values: Mapping[str, object]) -> list[bytes]:
    return [
        part for name, value in sorted(values.items()) for part in (name.encode(), _value(value))
    ]


def _value(value: object) -> bytes:
    """Return a value of Flower's records with a tag for its type; True is not 1, and 1 not 1.0."""
    if isinstance(value, bool):
        return b"b1" if value else b"b0"
    if isinstance(value, int):
        return b"i" + str(int(value)).encode()
    if isinstance(value, float):
        return b"f" + struct.pack("<d", value)
    if isinstance(value, str):
        return b"s" + value.encode()
    if isinstance(value, bytes):
        return b"y" + value
    if isinstance(value, list | tuple):
        return b"l" + _joined(map(_value, value))
    raise ValueError(f"a record must contain numbers, texts and bytes, got {type(value).__name__}")


def _joined(parts: Iterable[bytes]) -> bytes:
    return b"".join(piece for part in parts for piece in (_SIZE.pack(len(part)), part))


def _hash(parts: Sequence[bytes]) -> bytes:
    """Return SHA-256 of the parts, each with its length in front; large ones are not copied."""
    state, start = hashlib.sha256(struct.pack("<B", len(PROTOCOL)) + PROTOCOL), 0
    for i, part in enumerate(parts):
        if len(part) > _LARGE:
            state.update(_joined(parts[start:i]) + _SIZE.pack(len(part)))
            state.update(part)
            start = i + 1
    state.update(_joined(parts[start:]))
    return state.digest()
