"""The server's part in one secure sum: relay keys and boxes, then take the masks off the sum.

Bonawitz et al. 2017 and Bell et al. 2020, as in `clients.secure_sum.participant`. Nothing here
knows Flower.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass

from leakmeter.clients.secure_sum.graph import Graph
from leakmeter.clients.secure_sum.keys import KeyPair, Session, agree, belongs, opens, self_mask_key
from leakmeter.clients.secure_sum.masking import Ring, RingVector, add_vectors, unmask
from leakmeter.clients.secure_sum.sharing import recover
from leakmeter.clients.secure_sum.signing import PublicKeys


class AbandonedError(Exception):
    """The round gives no sum; the text says why."""


class RejectedError(AbandonedError):
    """The sum was opened, and is none of honest clients; the server has seen it all the same."""


@dataclass(frozen=True)
class MaskedCohort:
    """Who takes part, after all have announced their keys.

    Attributes:
        session: Run and round.
        keys: Number to public keys.
        graph: Number to the numbers of its neighbours.
        threshold: Shares that open a secret.
        drawn: Where clients draw their neighbours, number to those that it has drawn: they hold its
            shares. None where all neighbours do.
    """

    session: Session
    keys: Mapping[int, PublicKeys]
    graph: Graph
    threshold: int
    drawn: Mapping[int, Collection[int]] | None = None

    def peers(self, number: int) -> dict[int, PublicKeys]:
        """Return the keys that one client is told."""
        return {peer: self.keys[peer] for peer in self.graph[number]}

    def neighbourhood(self, number: int, among: Container[int]) -> list[int]:
        """Return the neighbours of a client among some numbers."""
        return [peer for peer in self.graph[number] if peer in among]

    def holders(self, number: int, among: Iterable[int]) -> set[int]:
        """Return who of some clients holds shares of a client's secrets, the client left out."""
        own = self.graph[number] if self.drawn is None else self.drawn.get(number, ())
        return set(own) & set(among)

    def enough(self, sharers: Iterable[int]) -> set[int]:
        """Return those who have enough peers left to continue, after some have not shared.

        A client whose own holders are too few would make the whole sum unrecoverable.
        """
        left = set(sharers)
        while short := {n for n in left if len(self.holders(n, left)) + 1 < self.threshold}:
            left -= short
        if len(left) < 2:
            raise AbandonedError(f"{len(left)} clients have enough peers to continue, 2 are needed")
        return left

    def check(
        self, uploads: Iterable[int], sharers: Iterable[int], seats: Collection[int] = ()
    ) -> None:
        """Give up before anything is revealed if the sum cannot come out, or would come in parts.

        More clients may drop out than the graph was planned for. If the survivors fall apart, their
        masks cancel within each part, and the shares would open the parts' sums one by one.

        Args:
            uploads: Those who have uploaded.
            sharers: Everybody whose peers have masked with them.
            seats: Those who play a canary, and hide nobody.
        """
        alive, gone = set(uploads), set(sharers) - set(uploads)
        if len(alive) < 2:
            raise AbandonedError(f"{len(alive)} clients have uploaded, 2 are needed")
        # Survivors hold a share of their own; the dropped matter if a survivor masked with them.
        short = self._short(alive, gone, alive)
        if short:
            raise AbandonedError(
                f"{len(alive)} of {len(alive) + len(gone)} clients have uploaded, too few to open "
                f"the masks of {short} with threshold {self.threshold}"
            )
        around = ({n, *self.neighbourhood(n, alive)} for n in alive)
        if seats and any(len(near - set(seats)) < 2 for near in around):
            raise AbandonedError(
                f"{len(alive)} clients have uploaded, {len(alive & set(seats))} of them canaries: "
                "fewer than two others would be in a sum"
            )
        if not self._is_joined(alive):
            raise AbandonedError(
                f"the {len(alive)} clients that have uploaded fall apart into groups"
            )

    def check_signed(
        self, asked: Collection[int], uploads: Iterable[int], sharers: Iterable[int]
    ) -> None:
        """Give up if too few survivors have signed, and so will reveal shares.

        Args:
            asked: Survivors that have signed, and whose holders have.
            uploads: All survivors.
            sharers: Everybody whose peers have masked with them.
        """
        alive = set(uploads)
        if short := self._short(alive, set(sharers) - alive, set(asked)):
            raise AbandonedError(
                f"{len(asked)} of {len(alive)} survivors have signed the list of them, too few to "
                f"open the masks of {short} with threshold {self.threshold}"
            )

    def _short(self, alive: set[int], gone: set[int], speaking: set[int]) -> int:
        """Return how many secrets cannot be had from those who speak."""
        counts = {n: len(self.holders(n, speaking)) + (n in speaking) for n in alive | gone}
        needed = [n for n in alive | gone if n in alive or self.neighbourhood(n, alive)]
        return sum(counts[n] < self.threshold for n in needed)

    def total(
        self,
        uploads: Mapping[int, RingVector],
        sharers: Iterable[int],
        revealed: Mapping[int, Mapping[int, bytes]],
        ring: Ring,
        digest: bytes,
    ) -> RingVector:
        """Return the sum of the plain vectors of all who uploaded.

        Args:
            uploads: Number to masked vector; these are the survivors.
            sharers: Everybody whose peers have masked with them.
            revealed: Number to the shares it has revealed, by owner.
            ring: The ring.
            digest: What the clients were told.
        """
        gone = {n for n in sharers if n not in uploads and self.neighbourhood(n, uploads)}
        held: dict[int, dict[int, bytes]] = {n: {} for n in [*uploads, *gone]}
        holders = {n: {n, *self.holders(n, self.keys)} for n in held}
        for holder, shares in revealed.items():
            for owner, share in shares.items():
                # Nobody but these was given a share of this owner's.
                if holder in holders.get(owner, ()):
                    held[owner][holder] = share
        secrets = recover(held, self.threshold, lambda n, s: self._is_right(n, s, n in gone))
        if missing := sorted(set(held) - set(secrets)):
            raise AbandonedError(
                f"the secrets of clients {missing} cannot be recovered from the shares of "
                f"{len(revealed)} clients with threshold {self.threshold}"
            )
        try:
            orphans = {n: self._orphan_keys(n, secrets[n], uploads, digest) for n in gone}
        except ValueError as error:  # a key that somebody has announced, and that fits no other
            raise AbandonedError(f"masks of clients that are gone cannot be had: {error}") from None
        own = [self_mask_key(self.session, n, secrets[n]) for n in uploads]
        return unmask(add_vectors(uploads.values(), ring), own, orphans, ring)

    def _is_joined(self, numbers: Iterable[int]) -> bool:
        """Whether one can walk from any of these clients to any other along the graph."""
        left = set(numbers)
        reached = [left.pop()]
        while reached:
            near = left.intersection(self.graph[reached.pop()])
            left -= near
            reached += near
        return not left

    def _is_right(self, owner: int, secret: bytes, is_gone: bool) -> bool:
        """Whether a recovered secret is the one that its owner announced."""
        keys = self.keys[owner]
        if is_gone:
            return belongs(secret, keys.mask)
        return opens(self.session, owner, secret, keys.commitment)

    def _orphan_keys(
        self, number: int, secret: bytes, survivors: Container[int], digest: bytes
    ) -> dict[int, bytes]:
        """Return the keys of the masks that survivors have in common with one who is gone."""
        peers = {p: self.keys[p].mask for p in self.neighbourhood(number, survivors)}
        pair = KeyPair(secret, self.keys[number].mask)  # which belong together, as was checked
        return agree(self.session, "mask", number, pair, peers, digest)
