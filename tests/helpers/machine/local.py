"""Every local history of one client, tried on the library's own code.

A server may send any order at any time. Here it tries all of them on the real `Participant` and
`SigningClient`, in every state that they can be brought to, and notes what they accept: a `Part`
for each history. Nothing about the protocol's rules is repeated here, so a client that forgets a
rule has more parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, combinations, product
from unittest.mock import patch

import numpy as np
from flwr.app import ConfigRecord

from leakmeter.clients.secure_sum import participant as module
from leakmeter.clients.secure_sum.participant import Participant, Policy
from leakmeter.clients.secure_sum.sharing import SHARE_BYTES
from leakmeter.clients.secure_sum.signing import PublicKeys, survivors_text
from leakmeter.clients.secure_sum.wire import get_by_number, put_signatures
from tests.helpers.machine.cast import (
    RING,
    SESSION,
    Colluder,
    identity,
    peers_order,
    signing_client,
    start,
    told,
)

_MOST_ORDERS = 6  # that a client may take, besides a draw; an honest one takes four
_VECTOR = np.zeros(1, RING.dtype)
_ELSEWHERE = bytes(range(32))  # a digest that nobody was told
Group = frozenset[int]
Next = Iterator[tuple[Participant, "Part"]]


@dataclass(frozen=True)
class Reveal:
    """Shares that a client gives away, and whose signatures make it do so.

    Attributes:
        digest: What the client was told when it trained.
        alive: The list that it has signed.
        seeds: Numbers of those of whose seed it gives a share.
        keys: Numbers of those of whose mask key it gives a share.
        enough: Sets of numbers; once all of one set have signed as it has, the client reveals.
    """

    digest: bytes
    alive: Group
    seeds: Group
    keys: Group
    enough: frozenset[Group]


@dataclass(frozen=True)
class Part:
    """All that one honest client does in a round, by what it was told.

    Attributes:
        owner: Its identity.
        number: Its number.
        peers: Pairs of number and identity whose keys it was shown; they get its boxes.
        holders: Numbers that hold shares of its secrets, its own included.
        threshold: Shares that open its secrets.
        boxes: Numbers of the peers that it masks with.
        instruction: Which train message it got; -1 for none.
        uploads: Digest of each vector that it has uploaded.
        lists: Digest and survivors of each signature that it has given.
        reveals: Shares that it gives away.
        is_drawn: Whether neighbours were drawn; then any list with its number on it counts.
    """

    owner: int
    number: int
    peers: frozenset[tuple[int, int]] = frozenset()
    holders: Group = frozenset()
    threshold: int = 0
    boxes: Group = frozenset()
    instruction: int = -1
    uploads: tuple[bytes, ...] = ()
    lists: tuple[tuple[bytes, Group], ...] = ()
    reveals: tuple[Reveal, ...] = ()
    is_drawn: bool = False

    @property
    def is_full(self) -> bool:
        """Whether the client goes on to the end once it has trained."""
        return not self.uploads or bool(self.reveals)

    def order(self) -> tuple[object, ...]:
        """Return where to put it among others, those that say most first."""
        lists = [sorted(alive) for _, alive in self.lists]
        told = [(sorted(r.seeds), sorted(r.keys), len(r.enough)) for r in self.reveals]
        stages = (-len(told), -len(lists), -len(self.uploads))
        shape = (sorted(self.peers), sorted(self.holders), sorted(self.boxes))
        return (*stages, self.threshold, self.instruction, shape, lists, told)


@dataclass(frozen=True)
class Setting:
    """A world in which the histories of clients are tried.

    Attributes:
        size: Numbers from 1 to this exist.
        colluders: How many clients work for the server; they have the last numbers.
        policy: What honest clients insist on.
        draws: Neighbours that a client draws; 0 for a complete graph.
        instructions: How many different train messages the server sends.
        disguise: Whether a colluder may also announce the number of an honest client.
        is_signed: Whether clients have signing keys.
    """

    size: int
    colluders: int = 0
    policy: Policy = field(default_factory=Policy)
    draws: int = 0
    instructions: int = 1
    disguise: bool = False
    is_signed: bool = True

    @property
    def honest(self) -> range:
        """Identities, and numbers, of those who follow the protocol."""
        return range(1, self.size - self.colluders + 1)

    @property
    def hired(self) -> range:
        """Identities of those who work for the server."""
        return range(self.size - self.colluders + 1, self.size + 1)

    @property
    def numbers(self) -> range:
        """All numbers."""
        return range(1, self.size + 1)

    def views(self, own: int) -> Iterator[dict[int, int]]:
        """Yield all that a server can show a client as its peers: number to identity."""
        others = [n for n in self.numbers if n != own]
        for shown in subsets(n for n in others if n in self.honest):
            for used in subsets(self.hired):
                free = [n for n in others if n not in shown] if self.disguise else sorted(used)
                for at in combinations(free, len(used)):
                    yield {**{n: n for n in shown}, **dict(zip(at, sorted(used), strict=True))}


class Explorer:
    """Tries all orders on one client.

    Args:
        setting: The world.
        own: The client's identity and number.

    Attributes:
        tried: Orders that were sent to it so far.
        accepted: Orders that it has taken.
    """

    def __init__(self, setting: Setting, own: int) -> None:
        self.setting, self.own = setting, own
        self.tried = self.accepted = 0
        self._start = {n: start(n, n) for n in setting.honest}
        self._signed = {(n, n): p.signed(identity(n)) for n, p in self._start.items()}
        self._hired = {
            (n, of): Colluder(of, n, start(of, n))
            for of in setting.hired
            for n in setting.numbers
            if n != own
        }
        self._signed |= {place: hired.signed for place, hired in self._hired.items()}
        self._boxes = {place: self._box(*place) for place in self._signed if place[0] != own}
        self._signatures: dict[tuple[int, int, bytes, Group], bytes] = {}

    def parts(self) -> frozenset[Part]:
        """Return every part that the client can be made to play, silence included."""
        silent = Part(self.own, self.own)
        return frozenset({silent, *self._walk(self._start[self.own], silent, 0)})

    def _walk(self, state: Participant, part: Part, taken: int) -> Iterator[Part]:
        """Yield the parts behind every order that is accepted in a state, whichever it is."""
        if taken == _MOST_ORDERS:
            return
        kinds = (self._drawn, self._shared, self._trained, self._listed, self._revealed)
        for after, more in chain.from_iterable(kind(state, part) for kind in kinds):
            yield more
            yield from self._walk(after, more, taken + (after.step != "drawn"))

    def _try(self, order: Callable[[], Participant]) -> Participant | None:
        """Return the state after an order; None if it is refused."""
        self.tried += 1
        try:
            after = order()
        except ValueError:
            return None
        self.accepted += 1
        return after

    def _drawn(self, state: Participant, part: Part) -> Next:
        """Let the client draw, each outcome once."""
        if not self.setting.draws:
            return
        roster = {n: identity(n).public for n in self.setting.numbers}
        others = [n for n in self.setting.numbers if n != self.own]
        chosen = combinations(others, self.setting.draws)
        for drawn, threshold in product(chosen, self._thresholds(state)):

            def order(drawn: tuple[int, ...] = drawn, threshold: int = threshold) -> Participant:
                with patch.object(module, "draw", lambda *_: drawn):
                    shape = (self.setting.draws, threshold)
                    return state.draw(self.own, roster, identity(self.own).public, shape)

            if (after := self._try(order)) is not None:
                yield after, part

    def _thresholds(self, state: Participant) -> Iterable[int]:
        """Return the thresholds to try; one where no order should be taken, since each costs."""
        size = self.setting.size
        return range(1, size + 2) if state.step in ("announced", "drawn") else [size // 2 + 1]

    def _shared(self, state: Participant, part: Part) -> Next:
        """Show the client peers."""
        for view, threshold in product(self.setting.views(self.own), self._thresholds(state)):
            after = self._try(partial(self._share, state, view, threshold))
            if after is not None:
                yield (
                    after,
                    replace(
                        part,
                        peers=frozenset(view.items()),
                        holders=frozenset(after.drawn or view) | {self.own},
                        threshold=threshold,
                        is_drawn=bool(after.drawn),
                    ),
                )

    def _share(self, before: Participant, view: Mapping[int, int], threshold: int) -> Participant:
        keys = {n: self._signed[n, of] for n, of in view.items()}
        if not self.setting.is_signed:
            plain = {n: replace(one, signer=b"", signature=b"") for n, one in keys.items()}
            return before.share(self.own, plain, threshold, self.setting.policy)[0]
        order = peers_order(self.own, threshold, keys)
        return signing_client(self.own).shares(self.setting.policy, order, before)[0]

    def _trained(self, state: Participant, part: Part) -> Next:
        """Deliver boxes and one of the train messages."""
        view = {n: n for n in self.setting.numbers if n != self.own} | dict(part.peers)
        for boxes, instruction in product(subsets(view), range(self.setting.instructions)):
            digest = told(state, instruction)
            given = {n: self._boxes[n, view[n]] for n in boxes}
            after = self._try(partial(self._train, state, given, digest))
            if after is not None:
                uploads = (*part.uploads, digest)
                yield after, replace(part, boxes=boxes, instruction=instruction, uploads=uploads)

    def _train(self, state: Participant, boxes: Mapping[int, bytes], digest: bytes) -> Participant:
        return state.open(boxes, self.setting.policy).upload(_VECTOR, RING, digest)[0]

    def _listed(self, state: Participant, part: Part) -> Next:
        """Ask the client to sign a list of survivors."""
        for alive in subsets(self.setting.numbers):
            after = self._try(partial(self._sign, state, alive))
            if after is not None:
                yield after, replace(part, lists=(*part.lists, (state.digest, alive)))

    def _sign(self, state: Participant, alive: Group) -> Participant:
        order = ConfigRecord({"survivors": sorted(alive)})
        return signing_client(self.own).survivors(order, state)[0]

    def _revealed(self, state: Participant, part: Part) -> Next:
        """Ask the client for shares, with signatures or without."""
        yield from self._revealed_plain(state, part)
        alive = frozenset(state.alive or self.setting.numbers)
        found: dict[tuple[Group, Group], tuple[Participant, set[Group]]] = {}
        for signers, with_wrong in product(subsets(part.boxes), (False, True)):
            record = self._signature_record(state, part, alive, signers, with_wrong)
            given: dict[int, bytes] = {}

            def order(
                record: ConfigRecord = record, given: dict[int, bytes] = given
            ) -> Participant:
                after, shares = signing_client(self.own).unmask(record, state)
                given.update(get_by_number(shares, "shares"))
                return after

            if (after := self._try(order)) is not None:
                found.setdefault(share_kinds(state, given), (after, set()))[1].add(signers)
        for kinds, (after, enough) in found.items():
            reveal = Reveal(state.digest, alive, *kinds, frozenset(enough))
            yield after, replace(part, reveals=(*part.reveals, reveal))

    def _revealed_plain(self, state: Participant, part: Part) -> Next:
        """Ask for shares as a client without signing keys is asked."""
        if self.setting.is_signed and state.step != "uploaded":
            return
        for alive, gone in product(subsets(self.setting.numbers), repeat=2):
            given: dict[int, bytes] = {}

            def order(
                alive: Group = alive, gone: Group = gone, given: dict[int, bytes] = given
            ) -> Participant:
                after, shares = state.reveal(alive, gone)
                given.update(shares)
                return after

            if (after := self._try(order)) is not None:
                kinds = share_kinds(state, given)
                reveal = Reveal(state.digest, alive, *kinds, frozenset({frozenset()}))
                yield after, replace(part, reveals=(*part.reveals, reveal))

    def _signature_record(
        self, state: Participant, part: Part, alive: Group, signers: Group, with_wrong: bool
    ) -> ConfigRecord:
        """Return signatures that should count, and if wanted of all others some that should not."""
        view, given, lists = dict(part.peers), {}, {}
        for n in part.boxes if with_wrong else signers:
            if n in signers:
                digest, listed = state.digest, frozenset({self.own, n}) if state.drawn else alive
            elif n % 2:
                digest, listed = _ELSEWHERE, alive
            else:
                digest, listed = state.digest, alive - {self.own}
            given[n], lists[n] = self._signature(n, view[n], digest, listed), listed
        return ConfigRecord(put_signatures(given, lists if state.drawn else {}))

    def _signature(self, number: int, of: int, digest: bytes, alive: Group) -> bytes:
        place = (number, of, digest, alive)
        if place not in self._signatures:
            own = self._signed[number, of].announced
            text = survivors_text(SESSION, number, own, digest, alive)
            self._signatures[place] = identity(of).sign(text)
        return self._signatures[place]

    def _box(self, number: int, of: int) -> bytes:
        """Return a box for the client from this peer."""
        mine: PublicKeys = self._signed[self.own, self.own]
        if (number, of) in self._hired:
            return self._hired[number, of].box_for(self.own, mine)
        # What is in it does not matter to who opens it, so any other peers will do.
        other = Colluder(of, number, self._start[number])
        return other.box_for(self.own, mine)


def explored(setting: Setting) -> dict[int, list[Part]]:
    """Return every honest client's parts, always in the same order."""
    return {one: sorted(Explorer(setting, one).parts(), key=Part.order) for one in setting.honest}


def share_kinds(state: Participant, shares: Mapping[int, bytes]) -> tuple[Group, Group]:
    """Return for whom a client has revealed a share of the seed, and for whom of the mask key."""
    both = {**state.held, state.number: state.own_shares}
    seeds = {n for n, share in shares.items() if share == both[n][SHARE_BYTES:]}
    keys = {n for n, share in shares.items() if share == both[n][:SHARE_BYTES]}
    return frozenset(seeds), frozenset(keys)


def subsets(numbers: Iterable[int]) -> list[Group]:
    """Return all subsets, the empty one first."""
    those = sorted(numbers)
    sizes = range(len(those) + 1)
    return [frozenset(one) for size in sizes for one in combinations(those, size)]
