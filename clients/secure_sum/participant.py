"""One client's part in one secure sum: five steps, each taken once and in order.

Bonawitz et al. 2017, Practical Secure Aggregation for Privacy-Preserving Machine Learning (CCS),
Figure 4 without signatures; Bell et al. 2020 for the sparse graph. Steps: announce keys, share
secrets, open the peers' shares, upload the masked vector, reveal one share of each peer. Every
step returns a new value, so a step that fails changes nothing.

The client trusts the server to relay keys, to draw the graph and to name dropouts honestly. What
it refuses by itself: fewer peers or a lower threshold than its own policy, another number than
the one it has committed to, equal keys, a set of survivors that is too small or lacks itself, and
to reveal both secrets of one peer. Signed keys would be verified in `share`, signed lists of
survivors in `reveal`. Texts of refusals travel to the server: they hold no secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from leakmeter.clients.secure_sum.graph import check_threshold
from leakmeter.clients.secure_sum.keys import (
    KEY_BYTES,
    SEAL_BYTES,
    ClientSecrets,
    Session,
    agree,
    commit,
    seal,
    self_mask_key,
    unseal,
)
from leakmeter.clients.secure_sum.masking import Ring, RingVector, mask
from leakmeter.clients.secure_sum.sharing import SHARE_BYTES, split

Step = Literal["announced", "shared", "opened", "uploaded", "revealed"]
_STAGE = "shares"
BOX_BYTES = 2 * SHARE_BYTES + SEAL_BYTES


class RefusedError(ValueError):
    """The client does not take this step; nothing of its has been sent."""


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
class Policy:
    """What a client insists on, whatever the server proposes.

    Attributes:
        min_peers: Fewest peers it masks with.
        min_threshold: Fewest shares that may open a secret. As many clients of its neighbourhood
            must survive before it reveals anything.
        colluders: Peers that it reckons may work for the server.
    """

    min_peers: int = 2
    min_threshold: int = 2
    colluders: int = 0

    def __post_init__(self) -> None:
        for name, least in (("min_peers", 1), ("min_threshold", 2), ("colluders", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")

    def check(self, num_peers: int, threshold: int) -> None:
        """Refuse a round that hides the client less well than it wants."""
        if num_peers < self.min_peers:
            raise RefusedError(f"peers must be at least {self.min_peers}, got {num_peers}")
        # With fewer honest survivors than two, the sum would be the client's own update.
        least = max(self.min_threshold, self.colluders + 2)
        if threshold < least:
            raise RefusedError(f"threshold must be at least {least}, got {threshold}")
        try:
            check_threshold(num_peers + 1, threshold, self.colluders)
        except ValueError as error:
            raise RefusedError(str(error)) from None


@dataclass(frozen=True)
class Participant:
    """A client between two steps of one round.

    Attributes:
        session: Run and round.
        number: Its number in the cohort, from 1.
        step: The last step taken.
        secrets: This round's key pairs and seed; forgotten once the vector is uploaded.
        threshold: Shares that open a secret.
        locks: Peer number to the key of the boxes between the two, until they are opened.
        masks: Peer number to its public mask key, until the vector is uploaded.
        own_shares: Its shares of its own mask secret and seed: it is one of its holders.
        held: Peer number to that peer's two shares, once they have come.
    """

    session: Session
    number: int
    step: Step
    secrets: ClientSecrets | None = field(repr=False)
    threshold: int = 0
    locks: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    masks: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    own_shares: bytes = field(default=b"", repr=False)
    held: Mapping[int, bytes] = field(default_factory=dict, repr=False)

    @classmethod
    def announce(cls, session: Session, number: int) -> Self:
        """Draw this round's secrets; `public` is what to send."""
        return cls(session, number, "announced", ClientSecrets.generate())

    @property
    def public(self) -> PublicKeys:
        """The keys to announce."""
        secrets = self._secrets()
        commitment = commit(self.session, self.number, secrets.seed)
        return PublicKeys(secrets.share.public, secrets.mask.public, commitment)

    def share(
        self, number: int, peers: Mapping[int, PublicKeys], threshold: int, policy: Policy
    ) -> tuple[Self, dict[int, bytes]]:
        """Share mask secret and seed among the peers; return a sealed box for each of them."""
        self._after("announced")
        if number != self.number or number in peers:
            raise RefusedError(f"number must be {self.number} and no peer's, got {number}")
        policy.check(len(peers), threshold)
        secrets = self._secrets()
        own = [secrets.share.public, secrets.mask.public]
        keys = [*own, *(key for peer in peers.values() for key in (peer.share, peer.mask))]
        if len(set(keys)) < len(keys):
            raise RefusedError(f"keys must differ between {len(peers) + 1} clients, some are equal")
        of_mask, of_seed = split(
            [secrets.mask.secret, secrets.seed], threshold, sorted({number, *peers})
        )
        shares = {peer: announced.share for peer, announced in peers.items()}
        locks = agree(self.session, "share", number, secrets.share, shares)
        boxes = {
            peer: seal(
                locks[peer], of_mask[peer] + of_seed[peer], self.session, _STAGE, number, peer
            )
            for peer in peers
        }
        after = replace(
            self,
            step="shared",
            threshold=threshold,
            locks=locks,
            masks={peer: announced.mask for peer, announced in peers.items()},
            own_shares=of_mask[number] + of_seed[number],
        )
        return after, boxes

    def open(self, boxes: Mapping[int, bytes], policy: Policy) -> Self:
        """Open the boxes of the peers that are still there; these it will mask with.

        A box that does not open is refused as a whole round: the server relayed it wrongly, or
        the peer lied, and the client cannot tell which.
        """
        self._after("shared")
        if strangers := set(boxes) - set(self.locks):
            raise RefusedError(f"peers must be among {sorted(self.locks)}, got {sorted(strangers)}")
        policy.check(len(boxes), self.threshold)
        held = {
            peer: unseal(self.locks[peer], box, self.session, _STAGE, peer, self.number)
            for peer, box in boxes.items()
        }
        if any(len(shares) != 2 * SHARE_BYTES for shares in held.values()):
            raise RefusedError(f"a box must hold two shares of {SHARE_BYTES} bytes")
        masks = {peer: self.masks[peer] for peer in boxes}
        return replace(self, step="opened", locks={}, masks=masks, held=held)

    def upload(self, vector: RingVector, ring: Ring) -> tuple[Self, RingVector]:
        """Mask the vector with every peer whose box was opened, and forget the secrets."""
        self._after("opened")
        secrets = self._secrets()
        own_key = self_mask_key(self.session, self.number, secrets.seed)
        pairs = agree(self.session, "mask", self.number, secrets.mask, self.masks)
        masked = mask(vector, self.number, own_key, pairs, ring)
        return replace(self, step="uploaded", secrets=None, masks={}), masked

    def reveal(
        self, survivors: Iterable[int], dropped: Iterable[int]
    ) -> tuple[Self, dict[int, bytes]]:
        """Return one share of each peer: of the seed if it survived, of the mask secret if not."""
        self._after("uploaded")
        alive, gone = set(survivors), set(dropped)
        if alive & gone:
            raise RefusedError(f"a client cannot have survived and dropped: {sorted(alive & gone)}")
        if self.number not in alive or len(alive) < self.threshold:
            raise RefusedError(
                f"survivors must be at least {self.threshold} with {self.number} among them, "
                f"got {sorted(alive)}"
            )
        shares = {**self.held, self.number: self.own_shares}
        if missing := (alive | gone) - set(shares):
            raise RefusedError(f"shares are held for {sorted(shares)}, not for {sorted(missing)}")
        revealed = {peer: shares[peer][SHARE_BYTES:] for peer in alive}
        revealed |= {peer: shares[peer][:SHARE_BYTES] for peer in gone}
        return replace(self, step="revealed", own_shares=b"", held={}), revealed

    def _secrets(self) -> ClientSecrets:
        if self.secrets is None:
            raise RefusedError(f"secrets are forgotten after {self.step!r}")
        return self.secrets

    def _after(self, step: Step) -> None:
        if self.step != step:
            raise RefusedError(
                f"this step comes once and after {step!r}, the last was {self.step!r}"
            )
