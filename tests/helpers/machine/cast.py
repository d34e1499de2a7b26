"""Who plays in an explored round: keys, announcements and boxes of honest clients and colluders.

Identities are numbered from 1. In an honest round the client with identity i has the number i; a
server may hand out numbers as it likes, so the two are kept apart.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord

from leakmeter.clients.secure_sum import keys
from leakmeter.clients.secure_sum.keys import Session, agree, seal, unseal
from leakmeter.clients.secure_sum.mask_mod import SigningClient
from leakmeter.clients.secure_sum.participant import Participant
from leakmeter.clients.secure_sum.quantise import Ring
from leakmeter.clients.secure_sum.sharing import SHARE_BYTES
from leakmeter.clients.secure_sum.signing import (
    Identity,
    PublicKeys,
    TrustedKeys,
    survivors_text,
)
from leakmeter.clients.secure_sum.wire import put_by_number

SESSION = Session(2**63 + 5, 3)
RING = Ring(32)
MAX_IDENTITIES = 12
INSTRUCTIONS = {0: b"\x00" * 32, 1: b"\x01" * 32}  # fingerprints of two train messages
SETTINGS = bytes(32)


@cache
def identity(of: int) -> Identity:
    """Return a client's signing key, the same in every test."""
    return Identity(Ed25519PrivateKey.from_private_bytes(bytes([of]) * 32))


@cache
def signing_client(of: int) -> SigningClient:
    """Return the client as its owner has set it up: it trusts everybody who may play."""
    keys = [identity(one).line for one in range(1, MAX_IDENTITIES + 1)]
    return SigningClient(identity(of), TrustedKeys.of(keys))


@cache
def start(of: int, number: int) -> Participant:  # noqa: ARG001
    """Return somebody with keys for the explored round, the same for all who are shown them."""
    return Participant.announce(SESSION, number)


def told(participant: Participant, instruction: int) -> bytes:
    """Return the digest of what a client was told, as `MaskMod` makes it."""
    told = (SETTINGS, participant.roster, INSTRUCTIONS[instruction])
    return keys.binding(SESSION, participant.threshold, *told)


def peers_order(number: int, threshold: int, keys: Mapping[int, PublicKeys]) -> ConfigRecord:
    """Return the server's order to share secrets among these peers."""
    shown = {n: signed.to_bytes() for n, signed in keys.items()}
    return ConfigRecord({"number": number, "threshold": threshold, **put_by_number("keys", shown)})


@dataclass(frozen=True)
class Colluder:
    """Somebody who works for the server, under one number.

    Attributes:
        of: Whose signing key it has.
        number: The number that it announces.
        start: Its own secrets.
    """

    of: int
    number: int
    start: Participant = field(repr=False)

    @classmethod
    def under(cls, of: int, number: int) -> Colluder:
        """Return a colluder that announces this number."""
        return cls(of, number, Participant.announce(SESSION, number))

    @property
    def signed(self) -> PublicKeys:
        """Its announcement, properly signed."""
        return self.start.signed(identity(self.of))

    def _lock(self, peer: int, keys: PublicKeys) -> bytes:
        assert self.start.secrets is not None
        share = self.start.secrets.share
        return agree(SESSION, "share", self.number, share, {peer: keys.share})[peer]

    def box_for(self, peer: int, keys: PublicKeys) -> bytes:
        """Return a box that the peer opens; what is in it helps nobody."""
        text = os.urandom(2 * SHARE_BYTES)
        return seal(self._lock(peer, keys), text, SESSION, "shares", self.number, peer)

    def shares_from(self, peer: int, keys: PublicKeys, box: bytes) -> tuple[bytes, bytes]:
        """Return the shares of a peer's mask secret and seed from the box that it has sent."""
        text = unseal(self._lock(peer, keys), box, SESSION, "shares", peer, self.number)
        return text[:SHARE_BYTES], text[SHARE_BYTES:]

    def signature(self, digest: bytes, survivors: Iterable[int]) -> bytes:
        """Return a signature of any list that the server wants."""
        own = self.start.public.announced
        text = survivors_text(SESSION, self.number, own, digest, survivors)
        return identity(self.of).sign(text)
