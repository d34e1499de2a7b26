"""Watches a run: what a strategy sends and gets, and what each client would have done by itself.

Beside every train message a shadow is delivered: the same message without records of the audit,
to the same app without the audit's mods, from the same state and the same random numbers. What an
honest client replies and keeps must equal its shadow, whatever model it was sent.
"""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from leakmeter.auditors import Auditor, canary_mod, tap_mod
from leakmeter.auditors.auditor import Canary
from leakmeter.fl_app.engines.inline import InlineGrid
from leakmeter.strategies.flower import CLIENT_APP_RAISED
from tests.guest.clients import REPLAY, Seen
from tests.guest.frozen import (
    Frozen,
    copied,
    frozen,
    frozen_arrays,
    frozen_reply,
    is_ours,
    without,
)

CANARY, TAP = "leakmeter.canary", "leakmeter.tap"
LOST = "lost"  # group of replies that never come
AUDIT = (CANARY, TAP, REPLAY, "leakmeter.layout")  # records that only an audit writes
_CLIP_BITS = ("norm_bit", "below-clip")  # by which mods say whether they have clipped

# Of the mods to leave out, and of what notes the calls of the train function.
MakeApp = Callable[[Collection[Any], Seen | None], ClientApp]


@dataclass(repr=False)
class Trace:
    """What was seen of a run.

    Attributes:
        configured: Round to the messages that the strategy made, as node and content.
        sent: Train messages as they were delivered: node and content; no replays.
        aggregated: Round to the replies that the strategy got, as node and content or error.
        released: Rounds after which there was a model.
        seats: Round and node of clients that an auditor has asked for a canary.
        swapped: Round and node of replies whose arrays are not those of the client itself.
        harm: What a client did, sent or kept that it would not have without the audit.
    """

    configured: dict[int, list[tuple[int, Frozen]]] = field(default_factory=dict)
    sent: list[tuple[int, Frozen]] = field(default_factory=list)
    aggregated: dict[int, list[tuple[int, Any]]] = field(default_factory=dict)
    released: list[int] = field(default_factory=list)
    seats: list[tuple[int, int]] = field(default_factory=list)
    swapped: list[tuple[int, int]] = field(default_factory=list)
    harm: list[str] = field(default_factory=list)


class WatchedGrid(InlineGrid):
    """Nodes of an app, watched.

    Args:
        apps: Makes the app without some mods; notes what its train function gets, if asked.
        num_nodes: How many.
        trace: What is seen is noted here.
        lost: Rounds and nodes whose replies to train messages never come.
        shadow: Whether to deliver shadows. Masks are drawn from the operating system, so masked
            replies have none.
    """

    def __init__(
        self,
        apps: MakeApp,
        num_nodes: int,
        trace: Trace,
        *,
        lost: Collection[tuple[int, int]] = (),
        shadow: bool,
    ) -> None:
        self.seen = Seen()
        super().__init__(apps((), self.seen), num_nodes)
        self._shadow = apps((canary_mod, tap_mod), None) if shadow else None
        self._lost = lost
        self.trace = trace

    @property
    def is_shadowed(self) -> bool:
        """Whether clients are compared with what they do by themselves."""
        return self._shadow is not None

    @property
    def states(self) -> dict[int, Frozen]:
        """Return what each client keeps."""
        return {node: frozen(context.state) for node, context in self._contexts.items()}

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that were not lost."""
        return [m for m in super().pull_messages(message_ids) if m.metadata.group_id != LOST]

    def _deliver(self, message: Message) -> Message:
        if message.metadata.message_type.split(".")[0] != "train":
            return super()._deliver(message)
        node = message.metadata.dst_node_id
        content = RecordDict(dict(message.content))
        before = copied(self._contexts[node].state)
        if REPLAY in content:
            reply = super()._deliver(message)
            if frozen(self._contexts[node].state) != frozen(before):
                self.trace.harm.append(f"a replay changes the state of node {node}")
            return reply
        if not content.array_records:  # a stage of a secure sum, or a copy is collected
            return super()._deliver(message)
        self.trace.sent.append((node, frozen(content)))
        drawn = random_state()
        reply = super()._deliver(message)
        if (_round(content), node) in self._lost:
            reply.metadata.__dict__["_group_id"] = LOST
        if self._shadow is not None:
            used = random_state()
            set_random_state(drawn)
            self._compare(node, content, reply, *self._by_itself(message, content, before))
            set_random_state(used)
        return reply

    def _by_itself(
        self, message: Message, content: RecordDict, state: RecordDict
    ) -> tuple[Message, RecordDict]:
        """Return what the client replies and keeps without the audit."""
        about = message.metadata
        plain = copied(without(content, {key for key in content if key in (CANARY, TAP)}))
        twin = Message(plain, about.dst_node_id, about.message_type, group_id=about.group_id)
        twin.metadata.__dict__["_message_id"] = about.message_id
        context: Context = copy.copy(self._contexts[about.dst_node_id])
        context.state = copied(state)
        assert self._shadow is not None
        try:
            return self._shadow(twin, context), context.state
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return Message(Error(CLIENT_APP_RAISED, reason), reply_to=twin), state

    def _compare(
        self, node: int, content: RecordDict, reply: Message, twin: Message, kept: RecordDict
    ) -> None:
        """Note where a client differs from its shadow."""
        server_round = _round(content)
        who = f"node {node} in round {server_round}"
        state = self._contexts[node].state
        mine = without(state, {key for key in state if key.startswith(TAP)})
        if frozen(mine) != frozen(kept):
            self.trace.harm.append(f"{who} keeps {list(state)}, by itself {list(kept)}")
        if reply.has_error() or twin.has_error():
            if frozen_reply(reply) != frozen_reply(twin):
                said = [m.error.reason if m.has_error() else "a model" for m in (reply, twin)]
                self.trace.harm.append(f"{who} replies {said[0]}, by itself {said[1]}")
            return
        added = {key for key in reply.content if is_ours(key) and key not in twin.content}
        clean = without(reply.content, added)
        if frozen(clean) == frozen(twin.content):
            return
        if (server_round, node) not in self.trace.seats:
            self.trace.harm.append(f"{who} is honest and sends something else than by itself")
        self.trace.swapped.append((server_round, node))
        if (what := _changed(clean, twin.content)) is not None:
            self.trace.harm.append(f"{who} plays a canary and changes its {what}")
        if _arrays(clean) == _arrays(content):
            self.trace.harm.append(f"{who} plays a canary and sends exactly the model it got")
        if all(_is_zero(record) for record in clean.array_records.values()):
            self.trace.harm.append(f"{who} plays a canary and sends zeros")


def random_state() -> tuple[Any, Any, Any]:
    """Return where the generators are that Flower and clients draw from."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002


def digest_of_draws() -> str:
    """Return a short text that says where these generators are."""
    python, (_, words, *rest), torchs = random_state()
    numbers = words.tobytes() + torchs.numpy().tobytes()
    return hashlib.sha256(numbers + repr((python, rest)).encode()).hexdigest()[:12]


def set_random_state(state: tuple[Any, Any, Any]) -> None:
    """Put them back."""
    random.setstate(state[0])
    np.random.set_state(state[1])  # noqa: NPY002
    torch.set_rng_state(state[2])


def _round(content: RecordDict) -> int:
    config = content.get("config")
    return int(str(config["server-round"])) if isinstance(config, ConfigRecord) else 0


def _arrays(content: RecordDict) -> list[Any]:
    return [frozen_arrays(record) for record in content.array_records.values()]


def _is_zero(record: ArrayRecord) -> bool:
    try:
        return not any(array.numpy().any() for array in record.values())
    except TypeError:  # bytes of the project's own
        return False


def _changed(content: RecordDict, twin: RecordDict) -> str | None:
    """Return what beside the values of arrays differs between two replies."""
    if [(k, type(r)) for k, r in content.items()] != [(k, type(r)) for k, r in twin.items()]:
        return f"records: {list(content)} in place of {list(twin)}"
    for key, record in content.items():
        other = twin[key]
        if isinstance(record, ArrayRecord) and isinstance(other, ArrayRecord):
            shapes = [[(n, a.dtype, tuple(a.shape)) for n, a in r.items()] for r in (record, other)]
            if shapes[0] != shapes[1]:
                return f"arrays: {shapes[0]} in place of {shapes[1]}"
        elif isinstance(record, MetricRecord):
            pair = [
                {n: repr(v) for n, v in r.items() if n not in _CLIP_BITS} for r in (record, other)
            ]
            if pair[0] != pair[1]:
                return f"metrics: {pair[0]} in place of {pair[1]}"
        elif repr(record) != repr(other):
            return f"record {key}"
    return None


def watch(strategy: Strategy, trace: Trace) -> None:
    """Note what this strategy sends and gets, by methods of its own instance."""
    configure, aggregate = strategy.configure_train, strategy.aggregate_train

    def configure_train(
        server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        messages = list(configure(server_round, arrays, config, grid))
        trace.configured[server_round] = [
            (m.metadata.dst_node_id, frozen(m.content)) for m in messages
        ]
        return messages

    def aggregate_train(server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        trace.aggregated[server_round] = [
            (m.metadata.src_node_id, frozen_reply(m)) for m in replies
        ]
        arrays, metrics = aggregate(server_round, replies)
        if arrays is not None:
            trace.released.append(server_round)
        return arrays, metrics

    hooks: dict[str, Callable[..., Any]] = {
        "configure_train": configure_train,
        "aggregate_train": aggregate_train,
    }
    vars(strategy).update(hooks)


def watch_seats(auditor: Auditor, trace: Trace) -> None:
    """Note which clients this auditor asks for canaries; client c is node c + 1 here."""
    instruct = auditor.instruct

    def noted(server_round: int, chosen: Sequence[int]) -> Mapping[int, Canary]:
        orders = instruct(server_round, chosen)
        trace.seats += [(server_round, client + 1) for client in orders]
        return orders

    vars(auditor)["instruct"] = noted
