"""What a client announces in a round: fresh public keys, signed or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from leakmeter.auditors.hook.wire import RefusedError
from leakmeter.clients.secure_sum.keys import KEY_BYTES, Session
from leakmeter.clients.secure_sum.signing import (
    SIGNATURE_BYTES,
    Signer,
    TrustedKeys,
    announced,
    announcement_text,
    is_signed,
)


@dataclass(frozen=True)
class PublicKeys:
    """What a client announces: two public keys and a commitment to its self-mask seed."""

    share: bytes
    mask: bytes
    commitment: bytes

    def to_bytes(self) -> bytes:
        """Return the 96 bytes that travel."""
        return self.share + self.mask + self.commitment

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the keys behind 96 bytes."""
        if len(data) != 3 * KEY_BYTES:
            raise RefusedError(f"public keys must be {3 * KEY_BYTES} bytes, got {len(data)}")
        return cls(*(data[i : i + KEY_BYTES] for i in range(0, len(data), KEY_BYTES)))


@dataclass(frozen=True)
class SignedKeys:
    """An announcement with who has made it.

    Attributes:
        keys: What is announced.
        public: The signer's public key.
        signature: Over run, round, number and keys.
    """

    keys: PublicKeys
    public: bytes
    signature: bytes

    SIZE = 4 * KEY_BYTES + SIGNATURE_BYTES

    def to_bytes(self) -> bytes:
        """Return the 192 bytes that travel."""
        return self.keys.to_bytes() + self.public + self.signature

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the announcement behind 192 bytes."""
        if len(data) != cls.SIZE:
            raise RefusedError(f"signed keys must be {cls.SIZE} bytes, got {len(data)}")
        keys, rest = data[: 3 * KEY_BYTES], data[3 * KEY_BYTES :]
        return cls(PublicKeys.from_bytes(keys), rest[:KEY_BYTES], rest[KEY_BYTES:])

    @property
    def signer(self) -> Signer:
        """What later signatures of this client are checked against."""
        return Signer(self.public, announced(self.keys.to_bytes()))

    def check(self, session: Session, number: int, trusted: TrustedKeys) -> None:
        """Refuse an announcement that nobody trusted has made here, in this round, for itself."""
        if self.public not in trusted:
            raise RefusedError(f"client {number} must have a key on the trusted list, it has none")
        text = announcement_text(session, number, self.keys.to_bytes())
        if not is_signed(self.public, self.signature, text):
            raise RefusedError(
                f"keys of client {number} must be signed for it, in this run and round"
            )
