"""The reference attacks of a malicious server on a secure sum, a row each.

The server wants the update of one client, the target. Sources: Bonawitz et al. 2017 (CCS), section
6.1 and Figure 4, for keys, invented clients and survivors; Pasquini et al. 2022 (arXiv:2111.07380)
for unequal models. Unequal instructions and canary orders are the same idea without a crafted
model: all others are told to contribute nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from leakmeter.auditors.auditor import Canary
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.canary_order import Order
from leakmeter.clients.secure_sum.keys import KEY_BYTES
from leakmeter.clients.secure_sum.wire import get_by_number, put_by_number
from leakmeter.papers.active_server.federation import Federation, to_record
from leakmeter.papers.active_server.perceptron import CLASSES, Weights
from leakmeter.papers.active_server.server import TARGET, Attack, Ending, Opened, Server

Record = Any  # any of Flower's records
_MODEL = "arrays"  # Flower's name of the record with the model
_KEYS = 3 * KEY_BYTES  # bytes of an announcement's keys; what follows them is a signature


def changed(message: Message, records: Mapping[str, Record]) -> Message:
    """Return the message with records replaced, added or, by None, removed."""
    other, content = copy.copy(message), {**message.content, **records}
    other.content = RecordDict(
        {key: record for key, record in content.items() if record is not None}
    )
    return other


# How messages are bent.


def _swapped_keys(server: Server, message: Message) -> Message:
    """Stand between the target and its peers, with keys of the server's own.

    The target seals its shares for the server, and adds masks that the server can compute. An
    announcement keeps all but its keys: its signature is the peer's, where there is one.
    """
    node = message.metadata.dst_node_id
    order = message.content.config_records[wire.MASK]
    if node != TARGET:
        if order["stage"] == "keys":
            server.deliver(message)  # for the signature
        # A node of the server's answers in the peer's place.
        instead = node + server.federation.shape.clients
        reply = server.deliver(Message(message.content, instead, message.metadata.message_type))
        return Message(reply.error if reply.has_error() else reply.content, reply_to=message)
    if order["stage"] != "shares":
        return server.deliver(message)
    # The peers themselves were asked for nothing but keys.
    genuine = {asked.metadata.dst_node_id: reply for _, asked, reply in server.answers}
    shown = {}
    for number, keys in get_by_number(order, "keys").items():
        announced = genuine[number].content.config_records[wire.MASK]
        shown[number] = keys[:_KEYS] + wire.get_bytes(announced, "keys")[_KEYS:]
    bent = ConfigRecord({**order, **put_by_number("keys", shown)})
    return server.deliver(changed(message, {wire.MASK: bent}))


def _to_others(
    key: str, bent: Callable[[Federation, Record], Record], server: Server, message: Message
) -> Message:
    """Change one record for everyone but the target."""
    if key in message.content and message.metadata.dst_node_id != TARGET:
        message = changed(message, {key: bent(server.federation, message.content[key])})
    return server.deliver(message)


def _set(name: str, value: float, _: Federation, record: Record) -> Record:
    """Return a configuration with another value."""
    return ConfigRecord({**record, name: value})


def _dead(federation: Federation, arrays: Record) -> Record:
    """Return a model with dead units: all gradients but the last bias' are zero."""
    (model,) = arrays.to_numpy_ndarrays()
    return to_record(federation.network.dead(model))


def _hidden(server: Server, message: Message) -> Message:
    """Send a dead model to the others, and each model under the name of a canary order.

    Each client gets a canary order by itself. A digest that leaves such records out by their name
    would not cover the model.
    """
    if _MODEL not in message.content:
        return server.deliver(message)
    model: Record = message.content[_MODEL]
    if message.metadata.dst_node_id != TARGET:
        model = _dead(server.federation, model)
    return server.deliver(changed(message, {_MODEL: None, wire.CANARY: model}))


def _seats(server: Server, message: Message) -> Message:
    """Let all who should add nothing play canaries, which are zero.

    Canaries are known to whoever has ordered them. All clients get the same list of seats, so that
    none can object to what only it was told.
    """
    if wire.SUM_ORDER not in message.content:
        return server.deliver(message)
    node, honest = message.metadata.dst_node_id, server.federation.shape.honest
    seats = honest[server.attack.adding :]
    records: dict[str, Record] = {wire.SEATS: wire.seats_record(seats)}
    if node in seats:
        records[wire.CANARY] = Order(Canary(node, seed=0, norm=0.0)).to_record()
    return server.deliver(changed(message, records))


# How rounds are ended.


def _lied_dropouts(ending: Ending) -> Opened | None:
    """Tell every client of other survivors, so that a sum over two of them opens.

    The target and one more survive on every list, and each of the others is missing on as many
    lists as open its mask key. By counting shares, lists of `threshold` survivors can open a sum of
    n(2t − n)/t clients; with the least threshold that clients accept, t = (n + 1)/2, that is two.
    """
    pair = [TARGET, ending.clients[-1]]
    others = [number for number in ending.clients if number not in pair]
    size = ending.threshold - len(pair)
    lists = {}
    for number in ending.uploads:
        # The pair's own lists start where the other's ends, so that nobody is on one too many.
        start = others.index(number) if number in others else size * pair.index(number)
        lists[number] = [*pair, *(others[(start + i) % len(others)] for i in range(size))]
    ending.ask(lists)
    return ending.sum_of(pair)


def _two_requests(ending: Ending) -> Opened | None:
    """Ask twice at once, and say in one of the requests that the target has dropped out.

    The sums differ by its update. If only one request is answered, open the sum of all.
    """
    everyone = list(ending.uploads)
    others = [number for number in everyone if number != TARGET]
    ending.ask(dict.fromkeys(everyone, everyone), "with the target")
    ending.ask(dict.fromkeys(others, others), "without the target")
    whole, rest = ending.sum_of(everyone), ending.sum_of(others)
    if whole is None or rest is None:
        return whole
    return Opened(frozenset({TARGET}), whole.vector - rest.vector)


def _fewest(ending: Ending) -> Opened | None:
    """Call as many clients dropped as the threshold allows."""
    members = ending.clients[: ending.threshold]
    ending.ask({n: members for n in members if n in ending.uploads})
    return ending.sum_of(members)


def _give_up(ending: Ending) -> Opened | None:
    """Ask for no shares, and decode the target's upload as it came."""
    return ending.decoded(ending.uploads[TARGET], 1, [TARGET])


def _trap(federation: Federation) -> Weights:
    return federation.network.trap(federation.weights, federation.brightness)


# fmt: off
NONE = Attack("none", "follows the protocol", end=Ending.follow, adding=None)

# What clients can notice.
ATTACKS = (
    Attack("swapped keys", "gives the target public keys of its own in place of its peers'",
        bend=_swapped_keys, end=Ending.follow),
    Attack("invented peers", "lets the target mask with clients that the server runs itself",
        cohorts=lambda shape: [[TARGET, *shape.invented[1:]]], end=Ending.follow),
    # On the grid of such an encoding every update rounds to zero.
    Attack("uneven encoding", "sends everyone but the target clip-range 1e30",
        bend=partial(_to_others, wire.SUM_ORDER, partial(_set, "clip-range", 1e30))),
    Attack("uneven configuration", "sends everyone but the target lr = 0",
        bend=partial(_to_others, wire.CONFIG, partial(_set, "lr", 0.0))),
    Attack("inconsistent model", "sends everyone but the target a model whose gradient is zero",
        bend=partial(_to_others, _MODEL, _dead), unread=CLASSES),
    Attack("hidden model",
        "sends the same models in the place of canary orders, which differ between clients",
        bend=_hidden, unread=CLASSES),
    Attack("canary orders", "makes everyone but the target a canary seat", bend=_seats),
    Attack("lied dropouts", "tells every client of other survivors", end=_lied_dropouts),
    Attack("two requests at once",
        "asks each client for shares twice at the same moment, with and without the target",
        end=_two_requests),
    Attack("small cohort",
        "lets the target mask with two others only, and calls one of them dropped",
        cohorts=lambda shape: [shape.honest[:3]], threshold=2, end=_fewest),
)

# What a server can still do when all clients are told the same and check it: it picks who takes
# part, which model all get, whom it calls dropped as long as it tells all the same, and when it
# gives up. Only noise in the updates limits what it learns.
REMAINING = (
    # Exact where training is deterministic. The two rounds have other batches where it is not.
    Attack("chosen cohorts",
        "plays the same model twice, with and without the target, and subtracts the sums",
        cohorts=lambda shape: [shape.honest, shape.honest[1:]], end=Ending.follow),
    # Clients accept it who list `canary_mod`.
    Attack("canary seats", "makes everyone but the target and one other client a canary seat",
        bend=_seats, adding=2),
    Attack("smallest sum",
        "calls as many clients dropped as the threshold allows, and tells all clients the same",
        end=_fewest),
    Attack("rounds given up", "gives up every round once it has the uploads", end=_give_up),
)

# Images out of one client's update, or out of the sum of all: then nobody knows whose.
TRAP_FOR_ONE = Attack("trap for the target",
    "sends the target a model that separates its images, and the others dead units",
    bend=partial(_to_others, _MODEL, _dead), model=_trap)
TRAP_FOR_ALL = Attack("one trap for all", "sends all clients the same model that separates images",
    end=Ending.follow, adding=None, model=_trap)
# fmt: on
