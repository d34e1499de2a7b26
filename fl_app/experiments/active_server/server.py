"""A server that follows the protocol over a wire that an attack controls.

`Masked` runs the round, and what it sends passes a relay that may change messages, deliver them
elsewhere, twice or not at all. So an attack says only where it departs from the protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from leakmeter.auditors.hook import wire
from leakmeter.clients.secure_sum.signed_wire import get_signature, put_signatures
from leakmeter.fl_app.engines.inline import InlineGrid
from leakmeter.fl_app.experiments.active_server.federation import Federation
from leakmeter.fl_app.experiments.active_server.perceptron import Weights, to_record
from leakmeter.fl_app.experiments.active_server.transcript import Transcript
from leakmeter.strategies import Masked, Risks

CLIP_RANGE = 4.0


class Wire(InlineGrid):
    """The way to the clients: delivers messages and keeps a transcript."""

    def __init__(self, federation: Federation) -> None:
        shape = federation.shape
        super().__init__(federation.app, len(shape.honest) + len(shape.invented))
        self.seen = federation.transcript()
        self.numbers: Mapping[int, int] = {}
        self.relay: Relay = deliver_all
        self._signs = federation.mode == "active"
        self._branches: dict[tuple[int, str], Context] = {}

    def start(self, seen: Transcript, numbers: Mapping[int, int], relay: Relay) -> None:
        """Begin a round.

        Args:
            seen: Notes everything.
            numbers: Node to its number in the round.
            relay: Passes on the messages of each stage.
        """
        self.seen, self.numbers, self.relay = seen, numbers, relay
        self._branches.clear()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Hand the messages of a stage to the relay and return what it makes of the replies."""
        asked = list(messages)
        return self.relay(_stage(asked), asked, self) if asked else []

    def deliver(self, message: Message) -> Message:
        """Deliver one message and return the reply."""
        (reply,) = super().send_and_receive([message])
        node = message.metadata.dst_node_id
        self.seen.note(self.numbers[node], message, reply)
        return reply

    def deliver_instead(self, message: Message, node: int) -> Message:
        """Deliver a message to another node, whose reply is then that of the one it is for."""
        kind = message.metadata.message_type
        reply = self.deliver(Message(message.content, node, kind))
        return Message(reply.error if reply.has_error() else reply.content, reply_to=message)

    def deliver_in_parallel(self, message: Message, branch: str) -> Message:
        """Deliver a message to a node that works on another one at the same time.

        Flower reads a client's state before it calls the client app and writes it afterwards, so
        what runs in parallel does not see each other's state. A branch is such a line of messages;
        it starts from the state that the node has when its first message comes.
        """
        node = message.metadata.dst_node_id
        held = self._contexts[node]
        self._contexts[node] = self._branches.get((node, branch), held)
        try:
            return self.deliver(message)
        finally:
            self._branches[node, branch], self._contexts[node] = self._contexts[node], held

    def ask_for_shares(self, survivors: Mapping[int, Collection[int]], branch: str = "") -> None:
        """Ask clients for shares, each with survivors of its own, and note what they reveal.

        Where clients sign, each signs its survivors first, and then gets all signatures.

        Args:
            survivors: Number to the survivors that this client is told.
            branch: Where set, the requests run in parallel to all others.
        """
        named = {number: sorted(alive) for number, alive in survivors.items()}
        if not self._signs:
            for number, alive in named.items():
                gone = sorted(set(self.seen.peers[number]) - set(alive))
                self._order(number, "unmask", {"survivors": alive, "dropped": gone}, branch)
            return
        signed = {}
        for number, alive in named.items():
            reply = self._order(number, "survivors", {"survivors": alive}, branch)
            if not reply.has_error():
                signed[number] = get_signature(reply.content.config_records[wire.MASK])
        for number in named:
            self._order(number, "unmask", put_signatures(signed, {}), branch)

    def _order(self, number: int, stage: str, values: Mapping[str, Any], branch: str) -> Message:
        """Send the order of a stage to one client of the cohort."""
        node = next(node for node, known in self.numbers.items() if known == number)
        record = {"stage": stage, "round": self.seen.session.server_round, **values}
        message = Message(RecordDict({wire.MASK: ConfigRecord(record)}), node, "train")
        return self.deliver_in_parallel(message, branch) if branch else self.deliver(message)


Relay = Callable[[str, Sequence[Message], Wire], list[Message]]


def deliver_all(_: str, messages: Sequence[Message], to: Wire) -> list[Message]:
    """Relay the messages of any stage as an honest server does."""
    return [to.deliver(message) for message in messages]


class Server:
    """Plays rounds with a federation.

    Attributes:
        federation: The clients.
        rounds: Rounds played so far.
    """

    def __init__(self, federation: Federation) -> None:
        logging.getLogger("flwr").setLevel(logging.CRITICAL)  # refusals are counted, not shown
        self.federation = federation
        self.rounds = 0
        self._wire = Wire(federation)

    def round(
        self,
        relay: Relay = deliver_all,
        *,
        cohort: Sequence[int] | None = None,
        threshold: int | None = None,
        weights: Weights | None = None,
    ) -> Transcript:
        """Play one round and return what the server has seen.

        Args:
            relay: What passes on the messages.
            cohort: Nodes that take part, the target first; None for all honest clients.
            threshold: Shares that open a secret; None for those of the federation's shape.
            weights: The model; None for an honest one.
        """
        federation, shape = self.federation, self.federation.shape
        model = federation.weights if weights is None else weights
        nodes = shape.honest if cohort is None else list(cohort)
        self.rounds += 1
        seen = federation.transcript()
        numbers = {node: number for number, node in enumerate(nodes, start=1)}
        puppets = {shape.puppet(node): n for node, n in numbers.items() if node in shape.honest}
        self._wire.start(seen, numbers | puppets | numbers, relay)
        # One of its own in each round: an honest one would stop after three rejected sums.
        strategy = Masked(
            _Cohort(nodes),
            threshold=threshold or shape.threshold,
            clip_range=CLIP_RANGE,
            max_weight=shape.batch,
            risks=Risks(trusted=federation.known),
        )
        config = ConfigRecord({"server-round": self.rounds, "lr": shape.lr})
        asked = list(strategy.configure_train(self.rounds, to_record(model), config, self._wire))
        if asked:
            replies = self._wire.send_and_receive(asked)
            strategy.aggregate_train(self.rounds, replies)
        facts = strategy.facts()
        seen.abandoned, seen.mean = facts.abandoned, facts.aggregate
        return seen


class _Cohort(Strategy):
    """Sends one model to the nodes it was given, in their order; the mean goes no further."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self._nodes = nodes

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message a node."""
        content = RecordDict({"arrays": arrays, wire.CONFIG: config})
        return [Message(content, node, "train") for node in self._nodes]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return nothing: the wrapper's facts have the mean."""
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return nothing."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        """Return nothing."""

    def summary(self) -> None:
        """Say nothing."""


def _stage(messages: Sequence[Message]) -> str:
    order = wire.config(messages[0].content, wire.MASK)
    return "" if order is None else wire.get_text(order, "stage")
