"""The reference attacks of a malicious server on a secure sum, one class each.

The server wants the update of one client, the target. Sources: Bonawitz et al. 2017 (CCS), section
6.1 and Figure 4, for keys, invented clients and survivors; Pasquini et al. 2022 (arXiv:2111.07380)
for unequal models. Unequal instructions and canary orders are the same idea without a crafted
model: all others are told to contribute nothing.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from leakmeter.auditors._types import Vector
from leakmeter.auditors.auditor import Canary
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.seat import Order
from leakmeter.clients.secure_sum.wire import get_by_number, put_by_number
from leakmeter.fl_app.experiments.active_server.federation import Federation, Shape
from leakmeter.fl_app.experiments.active_server.perceptron import Weights, dead, to_record
from leakmeter.fl_app.experiments.active_server.server import Server, Wire
from leakmeter.fl_app.experiments.active_server.transcript import TARGET, Transcript

Record = Any  # any of Flower's records
_HUGE = 1e30
_KEYS = 96  # bytes of an announcement's keys; what follows them is a signature


@dataclass(frozen=True, eq=False)
class Opened:
    """What a server says it has read.

    Attributes:
        members: Numbers of the clients in it, the target among them.
        vector: The sum of their updates.
        read: Which coordinates of it the server vouches for; None for all.
    """

    members: frozenset[int]
    vector: Vector
    read: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Played:
    """One trial of an attack: what the server has seen in its last round, and what it has read."""

    seen: Transcript
    opened: Opened | None


class Attack(ABC):
    """A malicious server. One object plays one trial."""

    name: ClassVar[str]
    what: ClassVar[str]

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def play(self, server: Server) -> Played:
        """Play a round over a wire that this attack controls."""
        seen = server.round(self.relay)
        return Played(seen, self.opened(seen))

    def relay(self, stage: str, messages: Sequence[Message], to: Wire) -> list[Message]:
        """Deliver the messages of a stage and return the replies; by default as they are."""
        return [to.deliver(message) for message in messages]

    @abstractmethod
    def opened(self, seen: Transcript) -> Opened | None:
        """Return what the server reads in what it has seen."""


class Honest(Attack):
    """No attack: the sum over all is all that the server reads."""

    name = "none"
    what = "follows the protocol"

    def opened(self, seen: Transcript) -> Opened | None:
        """Return the sum that the protocol gave."""
        if seen.mean is None:
            return None
        return Opened(frozenset(self.shape.honest), seen.mean * self.shape.clients)


class Ending(Attack):
    """A server that ends the round by itself once it has the uploads, without its own checks."""

    def relay(self, stage: str, messages: Sequence[Message], to: Wire) -> list[Message]:
        """Follow the protocol up to the uploads."""
        if stage != "train":
            return super().relay(stage, messages, to)
        for message in messages:
            to.deliver(self.told(message))
        self.end(to)
        return []  # the protocol is not needed any more

    def told(self, message: Message) -> Message:
        """Return the train message that a client gets."""
        return message

    def end(self, to: Wire) -> None:
        """Ask for shares; by default all clients, and as the protocol does."""
        to.ask_for_shares(dict.fromkeys(to.seen.uploads, to.seen.uploads))


class UnevenOrders(Ending):
    """The server gives everyone but the target other instructions, and then opens the sum."""

    def told(self, message: Message) -> Message:
        """Change what the others are told to train and encode."""
        if message.metadata.dst_node_id == TARGET:
            return message
        return changed(message, self.others(message))

    @abstractmethod
    def others(self, message: Message) -> Mapping[str, Record]:
        """Return the records that the others get in place of the target's."""

    def opened(self, seen: Transcript) -> Opened | None:
        """Open the sum of all: what the others have added to it is zero."""
        vector = seen.sum_of(seen.uploads)
        return None if vector is None else Opened(frozenset({TARGET}), vector, self.read(seen))

    def read(self, seen: Transcript) -> NDArray[np.bool_] | None:
        """Return the coordinates at which the others' updates are zero; None for all."""
        return None


class UnevenEncoding(UnevenOrders):
    """Clip range 1e30 for the others: on that grid their updates round to zero."""

    name = "uneven encoding"
    what = "sends everyone but the target clip-range 1e30"

    def others(self, message: Message) -> Mapping[str, Record]:
        """Return how the others encode."""
        order = message.content.config_records[wire.SUM_ORDER]
        return {wire.SUM_ORDER: ConfigRecord({**order, "clip-range": _HUGE})}


class UnevenConfig(UnevenOrders):
    """Learning rate zero for the others."""

    name = "uneven configuration"
    what = "sends everyone but the target lr = 0"

    def others(self, message: Message) -> Mapping[str, Record]:
        """Return how the others train."""
        config = message.content.config_records[wire.CONFIG]
        return {wire.CONFIG: ConfigRecord({**config, "lr": 0.0})}


class InconsistentModel(UnevenOrders):
    """A model with dead units for the others: all gradients but the last bias' are zero."""

    name = "inconsistent model"
    what = "sends everyone but the target a model whose gradient is zero"

    def play(self, server: Server) -> Played:
        """Craft the model, then play."""
        self.weights = self.model(server.federation)
        self._dead = to_record(dead(self.weights))
        seen = server.round(self.relay, weights=self.weights)
        return Played(seen, self.opened(seen))

    def model(self, federation: Federation) -> Weights:
        """Return what the target trains."""
        return federation.weights

    def others(self, message: Message) -> Mapping[str, Record]:
        """Return the model that the others train."""
        return {wire.arrays_key(message.content): self._dead}

    def read(self, seen: Transcript) -> NDArray[np.bool_]:
        """Return all coordinates but the last bias."""
        return np.arange(seen.dim) < seen.dim - self.weights["b2"].size


class HiddenModel(InconsistentModel):
    """The same models under the name of a record that each client gets by itself.

    A digest that leaves such records out by their name would not cover the model.
    """

    name = "hidden model"
    what = "sends the same models in the place of canary orders, which differ between clients"

    def told(self, message: Message) -> Message:
        """Put the model where a canary order would be."""
        told = super().told(message)
        records = dict(told.content)
        records[wire.CANARY] = records.pop(wire.arrays_key(told.content))
        hidden = copy.copy(told)
        hidden.content = RecordDict(records)
        return hidden


class CanaryOrders(UnevenOrders):
    """Canaries for the others, which are known to whoever ordered them; here they are zero.

    All clients get the same list of seats, so that none can object to what only it was told.
    """

    name = "canary orders"
    what = "makes everyone but the target a canary seat"

    @property
    def seats(self) -> list[int]:
        """Numbers of those who play a canary."""
        return [number for number in self.shape.honest if number != TARGET]

    def told(self, message: Message) -> Message:
        """Tell all clients who has a seat, and those who have one to play."""
        listed = changed(message, {wire.SEATS: wire.seats_record(self.seats)})
        is_seat = message.metadata.dst_node_id in self.seats
        return changed(listed, self.others(message)) if is_seat else listed

    def others(self, message: Message) -> Mapping[str, Record]:
        """Return a canary order."""
        node = message.metadata.dst_node_id
        return {wire.CANARY: Order(Canary(node, seed=0, norm=0.0)).to_record()}


class SwappedKeys(Attack):
    """The server stands between the target and its peers, with keys of its own.

    The target seals its shares for the server, and adds masks that the server can compute. An
    announcement keeps all but its keys: its signature is the peer's, where there is one.
    """

    name = "swapped keys"
    what = "gives the target public keys of its own in place of its peers'"

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self._genuine: dict[int, bytes] = {}  # by number, what the peers have announced

    def relay(self, stage: str, messages: Sequence[Message], to: Wire) -> list[Message]:
        """Let a node of the server's answer in place of each peer."""
        return [
            to.deliver(self._signed(stage, m))
            if m.metadata.dst_node_id == TARGET
            else self._swapped(stage, m, to)
            for m in messages
        ]

    def _swapped(self, stage: str, message: Message, to: Wire) -> Message:
        node = message.metadata.dst_node_id
        if stage == "keys":
            announced = to.deliver(message).content.config_records[wire.MASK]
            self._genuine[to.numbers[node]] = wire.get_bytes(announced, "keys")
        return to.deliver_instead(message, self.shape.puppet(node))

    def _signed(self, stage: str, message: Message) -> Message:
        """Put the peers' own signatures behind the server's keys."""
        if stage != "shares":
            return message
        order = message.content.config_records[wire.MASK]
        shown = {
            number: keys[:_KEYS] + self._genuine[number][_KEYS:]
            for number, keys in get_by_number(order, "keys").items()
        }
        return changed(
            message, {wire.MASK: ConfigRecord({**order, **put_by_number("keys", shown)})}
        )

    def opened(self, seen: Transcript) -> Opened | None:
        """Open the sum: the server's own nodes have added nothing to it."""
        return of_target(seen.sum_of(seen.uploads))


class InventedPeers(Attack):
    """A cohort in which all but the target are nodes of the server's."""

    name = "invented peers"
    what = "lets the target mask with clients that the server runs itself"

    def play(self, server: Server) -> Played:
        """Play a round with the target alone."""
        seen = server.round(self.relay, cohort=[TARGET, *self.shape.invented[1:]])
        return Played(seen, self.opened(seen))

    def opened(self, seen: Transcript) -> Opened | None:
        """Open the sum: the server's own nodes have added nothing to it."""
        return of_target(seen.sum_of(seen.uploads))


class LiedDropouts(Ending):
    """Every client is told of other survivors, so that a sum over two of them opens.

    The target and one more survive on every list, and each of the others is missing on as many
    lists as open its mask key. By counting shares, lists of `threshold` survivors can open a sum of
    n(2t − n)/t clients; with the least threshold that clients accept, t = (n + 1)/2, that is two.
    """

    name = "lied dropouts"
    what = "tells every client of other survivors"

    @property
    def _pair(self) -> list[int]:
        return [TARGET, self.shape.clients]

    def end(self, to: Wire) -> None:
        """Ask everyone with a list of its own."""
        to.ask_for_shares({number: self._survivors(number) for number in to.seen.uploads})

    def _survivors(self, number: int) -> list[int]:
        """Return a client's list: the pair and the next of the others on a circle."""
        others = [n for n in self.shape.honest if n not in self._pair]
        size = self.shape.threshold - 2
        # The pair's own lists start where the other's ends, so that nobody is on one too many.
        start = others.index(number) if number in others else size * self._pair.index(number)
        return [*self._pair, *(others[(start + i) % len(others)] for i in range(size))]

    def opened(self, seen: Transcript) -> Opened | None:
        """Open the sum over the two."""
        return of_members(seen, self._pair)


class TwoRequests(Ending):
    """Two requests at once, one of which says that the target has dropped out."""

    name = "two requests at once"
    what = "asks each client for shares twice at the same moment, with and without the target"

    def end(self, to: Wire) -> None:
        """Ask all with the target among the survivors, and all others without it."""
        everyone = list(to.seen.uploads)
        others = [number for number in everyone if number != TARGET]
        to.ask_for_shares(dict.fromkeys(everyone, everyone), "with the target")
        to.ask_for_shares(dict.fromkeys(others, others), "without the target")

    def opened(self, seen: Transcript) -> Opened | None:
        """Take all masks off the target's upload, or else open the sum that one answer gives."""
        return of_target(seen.stripped(TARGET)) or of_members(seen, seen.uploads)


class SmallCohort(Ending):
    """A cohort of three with the least threshold, one of whom is called dropped."""

    name = "small cohort"
    what = "lets the target mask with two others only, and calls one of them dropped"
    _pair = (TARGET, 2)

    def play(self, server: Server) -> Played:
        """Play a round with three clients."""
        seen = server.round(self.relay, cohort=self.shape.honest[:3], threshold=2)
        return Played(seen, self.opened(seen))

    def end(self, to: Wire) -> None:
        """Ask the two for shares of the third."""
        to.ask_for_shares({n: self._pair for n in self._pair if n in to.seen.uploads})

    def opened(self, seen: Transcript) -> Opened | None:
        """Open the sum over the two."""
        return of_members(seen, self._pair)


ATTACKS: tuple[type[Attack], ...] = (
    SwappedKeys,
    InventedPeers,
    UnevenEncoding,
    UnevenConfig,
    InconsistentModel,
    HiddenModel,
    CanaryOrders,
    LiedDropouts,
    TwoRequests,
    SmallCohort,
)


def of_target(vector: Vector | None) -> Opened | None:
    """Return an update as the target's."""
    return None if vector is None else Opened(frozenset({TARGET}), vector)


def of_members(seen: Transcript, members: Collection[int]) -> Opened | None:
    """Open the sum over some clients, if the shares that were revealed do."""
    vector = seen.sum_of(members)
    return None if vector is None else Opened(frozenset(members), vector)


def changed(message: Message, records: Mapping[str, Record]) -> Message:
    """Return the message with some records replaced or added; the one given stays as it is."""
    other = copy.copy(message)
    other.content = RecordDict({**message.content, **records})
    return other
