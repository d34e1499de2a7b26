"""A round played with real keys, masks and signatures, and what a server reads from it.

The server tells each client a `Story`. It collects uploads and shares, recovers every secret of
which it has enough shares, takes off every mask that it can compute, and looks which sums come out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from unittest.mock import patch

import numpy as np
from flwr.app import ConfigRecord

from leakmeter.clients.secure_sum import participant as module
from leakmeter.clients.secure_sum.keys import KeyPair, agree, belongs, opens, self_mask_key
from leakmeter.clients.secure_sum.participant import Participant, Policy, RefusedError
from leakmeter.clients.secure_sum.quantise import RingVector, add_masks, add_vectors, pair_sign
from leakmeter.clients.secure_sum.sharing import recover
from leakmeter.clients.secure_sum.signing import PublicKeys
from leakmeter.clients.secure_sum.wire import get_by_number, put_signatures
from tests.helpers.machine.cast import (
    RING,
    SESSION,
    Colluder,
    identity,
    peers_order,
    signing_client,
    told,
)
from tests.helpers.machine.local import Group, Part, subsets

DIM = 3


@dataclass(frozen=True)
class Story:
    """What a server tells one honest client in a round, up to where it stops talking.

    Attributes:
        number: The client's number.
        peers: Number to identity of those whose keys it is shown; none: it hears nothing.
        threshold: Shares that open a secret.
        boxes: Peers whose boxes it gets with the train message; None: no such message.
        instruction: Which of two train messages it gets.
        alive: Survivors that it is told to sign; None: it is not asked.
        is_asked: Whether it is asked to reveal, with all signatures that may help.
        drawn: Neighbours that it has drawn; None where all peers are neighbours.
    """

    number: int
    peers: Mapping[int, int] = field(default_factory=dict)
    threshold: int = 0
    boxes: frozenset[int] | None = None
    instruction: int = 0
    alive: frozenset[int] | None = None
    is_asked: bool = True
    drawn: frozenset[int] | None = None


def story(part: Part) -> Story:
    """Return what a client was told that plays a part."""
    alive = part.lists[-1][1] if part.lists else None
    return Story(
        part.number,
        dict(part.peers),
        part.threshold,
        part.boxes if part.uploads else None,
        max(part.instruction, 0),
        alive,
        bool(part.reveals),
        part.holders - {part.number} if part.is_drawn else None,
    )


@dataclass(frozen=True)
class Reading:
    """What the server has in the end.

    Attributes:
        seeds: Whose self-mask seed it has recovered.
        keys: Whose mask secret it has recovered.
        revealed: Who has revealed shares.
        sums: Sets of honest clients the sum of whose updates it can compute.
    """

    seeds: Group
    keys: Group
    revealed: Group
    sums: frozenset[Group]


class Round:
    """One round in which every client follows the library's code and the server does not.

    Args:
        stories: Honest identity to what it is told.
        policy: What every honest client insists on.
        size: Clients on the roster, where neighbours are drawn.
    """

    def __init__(self, stories: Mapping[int, Story], policy: Policy, size: int = 0) -> None:
        self.stories, self.policy, self.size = stories, policy, size
        self.clients = {i: Participant.announce(SESSION, s.number) for i, s in stories.items()}
        self.secret = dict(self.clients)  # what the clients were before they forgot their secrets
        self.signed = {i: c.signed(identity(i)) for i, c in self.clients.items()}
        self.colluders: dict[tuple[int, int], Colluder] = {}
        self.boxes: dict[int, dict[int, bytes]] = {}
        self.uploads: dict[int, RingVector] = {}
        self.digests: dict[int, bytes] = {}
        self.lists: dict[int, bytes] = {}
        self.revealed: dict[int, dict[int, bytes]] = {}
        rng = np.random.default_rng(len(stories))
        self.updates = {
            i: rng.integers(0, 2**32, DIM, dtype=np.uint64).astype(RING.dtype) for i in stories
        }

    def play(self) -> Reading:
        """Play all stages and return what the server reads."""
        for stage in (self._share, self._train, self._sign, self._reveal):
            for one in self.stories:
                stage(one)
        return self._read()

    def _colluder(self, of: int, number: int) -> Colluder:
        return self.colluders.setdefault((of, number), Colluder.under(of, number))

    def _keys(self, number: int, of: int) -> PublicKeys:
        return self.signed[of] if of in self.stories else self._colluder(of, number).signed

    def _share(self, one: int) -> None:
        story = self.stories[one]
        if not story.peers:
            return
        keys = {number: self._keys(number, of) for number, of in story.peers.items()}
        before = self._drawn(one, story)
        order = peers_order(story.number, story.threshold, keys)
        self.clients[one], record = signing_client(one).shares(self.policy, order, before)
        self.boxes[one] = get_by_number(record, "boxes")

    def _drawn(self, one: int, story: Story) -> Participant:
        """Let the client draw the neighbours of the story, among all on the roster."""
        if story.drawn is None:
            return self.clients[one]
        roster = {number: identity(number).public for number in range(1, self.size + 1)}
        with patch.object(module, "draw", lambda *_: tuple(sorted(story.drawn or ()))):
            shape = (len(story.drawn), story.threshold)
            return self.clients[one].draw(story.number, roster, identity(one).public, shape)

    def _train(self, one: int) -> None:
        story = self.stories[one]
        if story.boxes is None:
            return
        boxes = {number: self._box(one, number) for number in story.boxes}
        opened = self.clients[one].open(boxes, self.policy)
        self.digests[one] = told(opened, story.instruction)
        after, masked = opened.upload(self.updates[one], RING, self.digests[one])
        self.clients[one], self.uploads[one] = after, masked

    def _box(self, one: int, number: int) -> bytes:
        """Return the box that the peer with this number has made for a client."""
        story = self.stories[one]
        of = story.peers[number]
        if of in self.stories:
            return self.boxes[of][story.number]
        return self._colluder(of, number).box_for(story.number, self.signed[one])

    def _sign(self, one: int) -> None:
        story = self.stories[one]
        if story.alive is None:
            return
        order = ConfigRecord({"survivors": sorted(story.alive)})
        self.clients[one], record = signing_client(one).survivors(order, self.clients[one])
        signature = record["signature"]
        assert isinstance(signature, bytes)
        self.lists[one] = signature

    def _reveal(self, one: int) -> None:
        story = self.stories[one]
        if story.alive is None or not story.is_asked:
            return
        signatures, lists = {}, {}
        for number in story.boxes or ():
            of = story.peers[number]
            if of in self.lists:
                signatures[number] = self.lists[of]
                lists[number] = self.stories[of].alive or frozenset()
            elif of not in self.stories:
                lists[number] = story.alive
                about = (self.digests[one], story.alive)
                signatures[number] = self._colluder(of, number).signature(*about)
        order = ConfigRecord(put_signatures(signatures, lists if story.drawn else {}))
        try:
            self.clients[one], record = signing_client(one).unmask(order, self.clients[one])
        except RefusedError:
            return
        self.revealed[one] = get_by_number(record, "shares")

    def _read(self) -> Reading:
        """Recover secrets, take masks off, and compare all sums with the truth."""
        seeds = self._recovered(is_seed=True)
        keys = self._recovered(is_seed=False)
        sums = [s for s in subsets(self.uploads) if s and self._is_read(s, seeds, keys)]
        return Reading(frozenset(seeds), frozenset(keys), frozenset(self.revealed), frozenset(sums))

    def _recovered(self, *, is_seed: bool) -> dict[int, bytes]:
        """Return every secret of one kind that the shares give, by its owner."""
        found: dict[int, bytes] = {}
        for one in self.boxes:
            threshold = self.stories[one].threshold
            shares = dict(self._shares_of(one, is_seed))
            secrets = recover({one: shares}, threshold, lambda o, s: self._is_right(o, s, is_seed))
            found |= secrets
        return found

    def _shares_of(self, owner: int, is_seed: bool) -> Iterator[tuple[int, bytes]]:
        """Yield what may be a share of a client's secret, by the number of its holder."""
        number = self.stories[owner].number
        for holder, shares in self.revealed.items():
            peers = {**self.stories[holder].peers, self.stories[holder].number: holder}
            if peers.get(number) == owner and number in shares:
                alive = self.stories[holder].alive or ()
                if (number in alive) == is_seed and self._holds(owner, holder):
                    yield self.stories[holder].number, shares[number]
        for at, of in self.stories[owner].peers.items():
            if of not in self.stories and at in self._holders(owner):
                box = self.boxes[owner][at]
                both = self._colluder(of, at).shares_from(number, self.signed[owner], box)
                yield at, both[is_seed]

    def _holders(self, owner: int) -> Collection[int]:
        story = self.stories[owner]
        return story.peers if story.drawn is None else story.drawn

    def _holds(self, owner: int, holder: int) -> bool:
        return holder == owner or self.stories[holder].number in self._holders(owner)

    def _is_right(self, owner: int, secret: bytes, is_seed: bool) -> bool:
        keys, number = self.signed[owner], self.stories[owner].number
        if is_seed:
            return opens(SESSION, number, secret, keys.commitment)
        return belongs(secret, keys.mask)

    def _is_read(self, group: Group, seeds: Mapping[int, bytes], keys: Mapping[int, bytes]) -> bool:
        """Whether the uploads of a group, without all masks that are known, give its sum."""
        known = []
        for one in group:
            number = self.stories[one].number
            if one in seeds:
                known.append((self_mask_key(SESSION, number, seeds[one]), -1))
            for peer in self.stories[one].boxes or ():
                if key := self._pair_key(one, peer, keys):
                    known.append((key, -pair_sign(number, peer)))
        total = add_masks(add_vectors([self.uploads[i] for i in group], RING), known, RING)
        truth = add_vectors([self.updates[i] for i in group], RING)
        return bool((total == truth).all())

    def _pair_key(self, one: int, peer: int, keys: Mapping[int, bytes]) -> bytes | None:
        """Return the key of a mask that a client has used, if the server can compute it."""
        story, digest = self.stories[one], self.digests[one]
        of = story.peers[peer]
        if one in keys:
            public = {peer: self._keys(peer, of).mask}
            pair = KeyPair.of(keys[one])
            return agree(SESSION, "mask", story.number, pair, public, digest)[peer]
        if of in self.stories and of not in keys:
            return None
        if of in keys:
            pair = KeyPair.of(keys[of])
        else:
            secrets = self._colluder(of, peer).start.secrets
            assert secrets is not None
            pair = secrets.mask
        public = {story.number: self.signed[one].mask}
        return agree(SESSION, "mask", peer, pair, public, digest)[story.number]
