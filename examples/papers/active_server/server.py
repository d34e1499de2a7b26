"""A server that follows the protocol except where an attack bends it.

`Masked` runs the round, and what it sends passes the attack, which may change messages, deliver
them elsewhere, twice or not at all. Once the uploads are there, the attack ends the round: with
`Masked`, or by requests of its own and without the server's checks.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from leakmeter.auditors.hook import wire
from leakmeter.auditors.values import Vector
from leakmeter.clients.secure_sum.keys import KEY_BYTES, Instructions
from leakmeter.clients.secure_sum.quantise import RingVector
from leakmeter.clients.secure_sum.wire import get_by_number, get_signature, put_signatures
from leakmeter.fl_app.engines.inline import InlineGrid
from leakmeter.papers.active_server.federation import Federation, Shape, to_record
from leakmeter.papers.active_server.perceptron import Weights
from leakmeter.strategies import Masked, Risks
from leakmeter.strategies.secure_sum.sum_round import AbandonedError, SumRound

TARGET = 1  # the node whose update the server is after, and its number in every cohort


@dataclass(frozen=True, eq=False)
class Opened:
    """What a server says it has read: the sum of some clients' updates."""

    members: frozenset[int]  # the clients, by their numbers
    vector: Vector
    is_sum: bool = True  # whether it can be a sum of updates; noise cannot


@dataclass(frozen=True)
class Attack:
    """What a malicious server does; by default it sends what the protocol sends."""

    name: str
    what: str  # in words
    # Delivers a message of the protocol and returns the reply.
    bend: Callable[[Server, Message], Message] = lambda server, message: server.deliver(message)
    # Ends a round that has its uploads, and returns what the server reads.
    end: Callable[[Ending], Opened | None] = lambda ending: ending.open_all()
    adding: int | None = 1  # clients that add something to the sum, the target first; None for all
    # Nodes of each round, the target first; later sums are subtracted from the first.
    cohorts: Callable[[Shape], Sequence[Sequence[int]]] = lambda shape: [shape.honest]
    # What all clients are sent.
    model: Callable[[Federation], Weights] = lambda federation: federation.weights
    threshold: int = 0  # shares that open a secret; 0 for those of the federation
    unread: int = 0  # how many of the last coordinates the server does not vouch for


class Server(InlineGrid):
    """Plays an attack with a federation; it is the way to the clients, on which messages bend."""

    def __init__(self, federation: Federation, attack: Attack) -> None:
        super().__init__(federation.app, 2 * federation.shape.clients)
        logging.getLogger("flwr").setLevel(logging.CRITICAL)  # refusals are counted, not shown
        self.federation, self.attack = federation, attack
        # Stage, message and reply of all that was delivered in the last trial.
        self.answers: list[tuple[str, Message, Message]] = []
        # Where set, nodes get messages while they work on those of other branches. Flower reads a
        # client's state before it calls the client app and writes it afterwards, so what runs in
        # parallel does not see each other's state. A branch starts from the state that the node
        # has when its first message comes.
        self.branch = ""
        self._branches: dict[tuple[int, str], Context] = {}
        self._rounds = 0

    def play(self) -> tuple[Opened | None, list[str]]:
        """Play a trial; return what the server has read, and the stages that clients refused."""
        self.answers.clear()
        self._branches.clear()
        self.branch = ""
        found = [self._round(cohort) for cohort in self.attack.cohorts(self.federation.shape)]
        refused = list(dict.fromkeys(s for s, _, reply in self.answers if reply.has_error()))
        sums = [opened for opened in found if opened is not None]
        if len(sums) < len(found):
            return None, refused
        vector = np.subtract.reduce([opened.vector for opened in sums])  # the first less the rest
        is_sum = all(opened.is_sum for opened in sums)
        return Opened(sums[0].members, vector, is_sum), refused

    def _round(self, cohort: Sequence[int]) -> Opened | None:
        attack, shape = self.attack, self.federation.shape
        self._rounds += 1
        # One of its own in each round: an honest one would stop after three rejected sums.
        strategy = Masked(
            _Cohort(cohort),
            threshold=attack.threshold or shape.threshold,
            max_weight=shape.batch,
            risks=Risks(trusted=self.federation.known),
        )
        config = ConfigRecord({"server-round": self._rounds, "lr": shape.lr})
        model = to_record(attack.model(self.federation))
        asked = strategy.configure_train(self._rounds, model, config, self)
        replies = self.send_and_receive(asked)
        current = strategy.current
        if current is None or TARGET not in current.sharers or replies[0].has_error():
            return None  # no sum can have the target in it
        return attack.end(Ending(self, strategy, current, replies))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Hand the messages to the attack and return what it makes of the replies."""
        return [self.attack.bend(self, message) for message in messages]

    def deliver(self, message: Message) -> Message:
        """Deliver one message of the secure sum and return the reply."""
        node = message.metadata.dst_node_id
        held = self._contexts[node]
        self._contexts[node] = self._branches.get((node, self.branch), held)
        (reply,) = super().send_and_receive([message])
        if self.branch:
            self._branches[node, self.branch], self._contexts[node] = self._contexts[node], held
        stage = wire.get_text(message.content.config_records[wire.MASK], "stage")
        self.answers.append((stage, message, reply))
        return reply


class Ending:
    """A round that has the target's upload, and ways to end it; clients go by their numbers."""

    def __init__(
        self, server: Server, strategy: Masked, current: SumRound, replies: Sequence[Message]
    ) -> None:
        self.clients, self.threshold = sorted(current.cohort.keys), current.cohort.threshold
        self.adding = self.clients[: server.attack.adding]  # something to the sum
        self._server, self._strategy = server, strategy
        self._current, self._replies = current, replies
        about = (current.sharers, current.quantiser, len(current.start))
        self.uploads = current.exchange.uploads(replies, *about)  # masked vectors
        # What clients have revealed, by holder, owner, and whether the owner is said to be alive:
        # a share of its seed, or else of its mask key.
        self._shares: dict[tuple[int, int, bool], bytes] = {}

    def follow(self) -> Opened | None:
        """Follow the protocol to its end."""
        self._strategy.aggregate_train(self._current.cohort.session.server_round, self._replies)
        facts = self._strategy.facts()
        if facts.aggregate is None or facts.num_clients is None:
            return None
        return Opened(frozenset(self.adding), facts.aggregate * facts.num_clients)

    def open_all(self) -> Opened | None:
        """Ask as the protocol does, but without the server's own checks."""
        self.ask(dict.fromkeys(self.uploads, self.uploads))
        return self.sum_of(self.uploads, self.adding)

    def ask(self, survivors: Mapping[int, Collection[int]], branch: str = "") -> None:
        """Ask clients for shares and keep what they reveal.

        Where clients sign, each signs its survivors first, and then gets all signatures.

        Args:
            survivors: Client to the survivors that it is told.
            branch: Where set, the requests run in parallel to those of other branches.
        """
        exchange, graph = self._current.exchange, self._current.cohort.graph
        told = {number: sorted(alive) for number, alive in survivors.items()}
        orders: dict[int, dict[str, Any]] = {n: {"survivors": alive} for n, alive in told.items()}
        self._server.branch = branch
        if self._server.federation.mode == "active":
            signed = exchange.ask("survivors", orders, lambda _, record: get_signature(record))
            orders = dict.fromkeys(told, put_signatures(signed, {}))
        else:
            for number, order in orders.items():
                order["dropped"] = sorted(set(graph[number]) - set(told[number]))
        revealed = exchange.ask("unmask", orders, lambda _, record: get_by_number(record, "shares"))
        for holder, shares in revealed.items():
            for owner, share in shares.items():
                self._shares[holder, owner, owner in told[holder]] = share

    def sum_of(
        self, clients: Collection[int], members: Collection[int] | None = None
    ) -> Opened | None:
        """Open the sum of some clients as if all others had dropped out; None if no shares do.

        Args:
            clients: Whose uploads are added.
            members: Whose updates the server takes it for; None for those of all `clients`.
        """
        cohort = self._current.cohort
        uploads = {n: vector for n, vector in self.uploads.items() if n in clients}
        if not uploads:
            return None
        revealed: dict[int, dict[int, bytes]] = defaultdict(dict)
        for (holder, owner, is_alive), share in self._shares.items():
            if is_alive == (owner in uploads):
                revealed[holder][owner] = share
        about = (self._current.quantiser.ring, self._digest())
        try:
            total = cohort.total(uploads, self._current.sharers, revealed, *about)
        except AbandonedError:
            return None
        return self.decoded(total, len(uploads), clients if members is None else members)

    def decoded(self, total: RingVector, num_clients: int, members: Collection[int]) -> Opened:
        """Return the sum of updates behind a ring sum, for clients of equal weight."""
        quantiser = self._current.quantiser
        mean = quantiser.decode(total)
        vector = mean.mean * (mean.total_weight / quantiser.max_weight)  # all weigh the most
        is_sum = quantiser.implausible(total, num_clients) is None
        return Opened(frozenset(members), vector, is_sum)

    def _digest(self) -> bytes:
        """Return what the target has bound into its masks.

        Only a sum that lacks some client needs it, and attacks that open one bend no train message.
        """
        if self._server.federation.mode == "unbound":
            return bytes(KEY_BYTES)
        told = self._current.exchange.messages[TARGET]
        return self._current.bound(Instructions().of(told))


class _Cohort(FedAvg):
    """Sends one model to the nodes it was given, in their order."""

    def __init__(self, nodes: Sequence[int]) -> None:
        super().__init__()
        self._nodes = nodes

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message a node."""
        content = RecordDict({"arrays": arrays, wire.CONFIG: config})
        return [Message(content, node, "train") for node in self._nodes]
