"""How a client that signs answers the stages of a secure sum, for a server that may do anything."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import ConfigRecord

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.wire import RefusedError
from leakmeter.clients.secure_sum.participant import Participant
from leakmeter.clients.secure_sum.policy import Policy
from leakmeter.clients.secure_sum.signed_wire import (
    get_roster,
    get_signatures,
    get_signed_keys_of_peers,
)
from leakmeter.clients.secure_sum.signing import Identity, TrustedKeys
from leakmeter.clients.secure_sum.wire import get_numbers, put_by_number


@dataclass(frozen=True)
class SigningClient:
    """A client with a key of its own and a list of those of the others.

    Attributes:
        identity: Its own key.
        trusted: The keys of all clients.
    """

    identity: Identity
    trusted: TrustedKeys

    def __post_init__(self) -> None:
        if self.identity.public not in self.trusted:
            raise ValueError(
                f"trusted must have this client's own line, {self.identity.line}: the others' "
                "lists need it too"
            )
        self.trusted.check_enough()

    def draw(
        self, policy: Policy, order: ConfigRecord, before: Participant
    ) -> tuple[Participant, ConfigRecord]:
        """Draw neighbours among all who take part, if they are enough to hide among."""
        clients = get_roster(order)
        if strangers := sum(key not in self.trusted for key in clients.values()):
            raise RefusedError(f"all clients must be on the trusted list, {strangers} are not")
        draws, threshold = wire.get_int(order, "draws"), wire.get_int(order, "threshold")
        policy.check_draws(len(clients), draws, threshold)
        number, own = wire.get_int(order, "number"), self.identity.public
        after = before.draw(number, clients, own, (draws, threshold))
        return after, ConfigRecord({"drawn": list(after.drawn)})

    def shares(
        self, policy: Policy, order: ConfigRecord, before: Participant
    ) -> tuple[Participant, ConfigRecord]:
        """Share the secrets, once every announcement has a trusted signature."""
        number, threshold = wire.get_int(order, "number"), wire.get_int(order, "threshold")
        signed = get_signed_keys_of_peers(order)
        known = {announcement.public for announcement in signed.values()}
        if len(known) < len(signed) or self.identity.public in known:
            raise RefusedError("every client must announce keys once; one has done so twice")
        for peer, announcement in signed.items():
            announcement.check(before.session, peer, self.trusted)
        keys = {peer: announcement.keys for peer, announcement in signed.items()}
        signers = {peer: announcement.signer for peer, announcement in signed.items()}
        after, boxes = before.share(number, keys, threshold, policy, signers)
        return after, ConfigRecord(put_by_number("boxes", boxes))

    def survivors(
        self, order: ConfigRecord, before: Participant
    ) -> tuple[Participant, ConfigRecord]:
        """Sign who has survived, once."""
        after, signature = before.sign(get_numbers(order, "survivors"), self.identity)
        return after, ConfigRecord({"signature": signature})

    def unmask(self, order: ConfigRecord, before: Participant) -> tuple[Participant, ConfigRecord]:
        """Reveal one share of each peer, once enough others have signed as this client has."""
        after, shares = before.reveal_signed(*get_signatures(order))
        return after, ConfigRecord(put_by_number("shares", shares))
