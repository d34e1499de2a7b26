"""All that a server has said and seen in one round, and what it can compute from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Message

from leakmeter.auditors._types import Vector
from leakmeter.auditors.hook import wire
from leakmeter.clients.secure_sum.announcement import PublicKeys
from leakmeter.clients.secure_sum.binding import Instructions, Terms
from leakmeter.clients.secure_sum.keys import KEY_BYTES, KeyPair, Session, agree, self_mask_key
from leakmeter.clients.secure_sum.masking import RingVector, add_masks, pair_sign
from leakmeter.clients.secure_sum.quantise import Quantiser
from leakmeter.clients.secure_sum.sharing import combine
from leakmeter.clients.secure_sum.wire import (
    get_by_number,
    get_numbers,
    get_quantiser,
    get_settings,
    get_upload,
)
from leakmeter.strategies.secure_sum.unmasking import AbandonedError, MaskedCohort

TARGET = 1  # the node whose update the server is after, and its number in every cohort

Shares = dict[int, dict[int, bytes]]  # owner to its shares by holder


@dataclass
class Transcript:
    """One round as the server has seen it; clients go by their numbers in the round.

    Attributes:
        dim: Parameters of the model.
        weight: What each client weighs.
        is_bound: Whether clients bind what they were told into their masks.
        session: Run and round.
        keys: What each client has announced.
        peers: The peers that each client was told.
        threshold: Shares that open a secret.
        settings: Fingerprint of the run's configuration.
        digest: What the target has bound into its masks.
        quantiser: How the target was told to encode its update.
        uploads: Masked vectors.
        seeds: Shares of self-mask seeds that were revealed.
        mask_keys: Shares of mask keys that were revealed.
        refusals: What clients have answered in place of what was asked, by stage.
        abandoned: Why the protocol gave no sum; None if it did.
        mean: The mean update that the protocol gave.
        has_opened: Whether the server has opened something that can be a sum of updates itself.
        told: The survivors that each client was told last.
    """

    dim: int
    weight: float
    is_bound: bool = True
    session: Session = field(default_factory=lambda: Session(0, 0))
    keys: dict[int, PublicKeys] = field(default_factory=dict)
    peers: dict[int, tuple[int, ...]] = field(default_factory=dict)
    threshold: int = 0
    settings: bytes = b""
    digest: bytes = bytes(KEY_BYTES)
    quantiser: Quantiser | None = None
    uploads: dict[int, RingVector] = field(default_factory=dict)
    seeds: Shares = field(default_factory=lambda: defaultdict(dict))
    mask_keys: Shares = field(default_factory=lambda: defaultdict(dict))
    refusals: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    abandoned: str | None = None
    mean: Vector | None = None
    has_opened: bool = False
    told: dict[int, set[int]] = field(default_factory=dict)

    @property
    def has_sum(self) -> bool:
        """Whether a sum with the target's update in it has come out, in whatever way."""
        return TARGET in self.uploads and (self.mean is not None or self.has_opened)

    def note(self, number: int, order: Message, reply: Message) -> None:
        """Keep what one client was told and has answered."""
        asked = wire.config(order.content, wire.MASK)
        if asked is None:
            return
        stage = wire.get_text(asked, "stage")
        if reply.has_error():
            self.refusals[stage].append(reply.error.reason or "")
            return
        self.session = Session(order.metadata.run_id, wire.get_int(asked, "round"))
        answer = wire.config(reply.content, wire.MASK)
        if stage == "train":
            self._note_upload(number, order, reply)
        elif answer is not None:
            self._note_answer(number, stage, asked, answer)

    def _note_answer(
        self, number: int, stage: str, asked: ConfigRecord, answer: ConfigRecord
    ) -> None:
        if "survivors" in asked:
            self.told[number] = set(get_numbers(asked, "survivors"))
        if stage == "keys":
            data = wire.get_bytes(answer, "keys")[: 3 * KEY_BYTES]  # a signature may follow
            self.keys[number] = PublicKeys.from_bytes(data)
            self.settings = get_settings(answer)
        elif stage == "shares":
            self.peers[number] = tuple(sorted(get_by_number(asked, "keys")))
            self.threshold = wire.get_int(asked, "threshold")
        elif stage == "unmask":
            for owner, share in get_by_number(answer, "shares").items():
                kept = self.seeds if owner in self.told[number] else self.mask_keys
                kept[owner][number] = share

    def _note_upload(self, number: int, order: Message, reply: Message) -> None:
        shared = wire.config(order.content, wire.SUM_ORDER)
        assert shared is not None
        quantiser = get_quantiser(shared)
        if number == TARGET:
            self.quantiser = quantiser
            terms = Terms(self.session, self.threshold, self.settings)
            if self.is_bound:
                self.digest = terms.digest(Instructions().of(order))
        length = quantiser.num_slots(self.dim)
        self.uploads[number] = get_upload(reply.content, quantiser.ring, length)

    def sum_of(self, members: Collection[int]) -> Vector | None:
        """Return the sum of the updates of `members`, as if all others had dropped out.

        None if the shares that were revealed do not open it.
        """
        cohort = MaskedCohort(self.session, self.keys, self.peers, self.threshold)
        uploads = {n: vector for n, vector in self.uploads.items() if n in members}
        revealed: Shares = defaultdict(dict)
        for owner in self.keys:
            kept = self.seeds if owner in uploads else self.mask_keys
            for holder, share in kept[owner].items():
                revealed[holder][owner] = share
        if self.quantiser is None or not uploads:
            return None
        try:
            total = cohort.total(uploads, self.peers, revealed, self.quantiser.ring, self.digest)
        except AbandonedError:
            return None
        self.has_opened |= self.quantiser.implausible(total, len(uploads)) is None
        return self.decoded(total)

    def stripped(self, number: int) -> Vector | None:
        """Return the update of a client if both of its secrets have opened, else None."""
        seed, key = (self._secret(kept[number]) for kept in (self.seeds, self.mask_keys))
        if self.quantiser is None or number not in self.uploads or seed is None or key is None:
            return None
        ring = self.quantiser.ring
        peers = {peer: self.keys[peer].mask for peer in self.peers[number]}
        pairs = agree(self.session, "mask", number, KeyPair.of(key), peers, self.digest)
        masks = [(self_mask_key(self.session, number, seed), -1)]
        masks += [(pair, -pair_sign(number, peer)) for peer, pair in pairs.items()]
        vector = add_masks(self.uploads[number], masks, ring)
        self.has_opened |= self.quantiser.implausible(vector, 1) is None
        return self.decoded(vector)

    def decoded(self, total: RingVector) -> Vector:
        """Return the sum of updates behind a ring sum, for clients of equal weight."""
        assert self.quantiser is not None
        mean = self.quantiser.decode(total)
        return mean.mean * (mean.total_weight / self.weight)

    def _secret(self, shares: Mapping[int, bytes]) -> bytes | None:
        if len(shares) < self.threshold:
            return None
        return combine(shares, self.threshold)
