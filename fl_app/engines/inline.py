"""All clients in this process: a grid that calls the client app directly.

Flower's simulation takes seconds to start and milliseconds a message; this takes neither, and
the order of everything is fixed. It knows two internals of Flower: message ids, and from release
1.38 the identity of the running task, without which no message can be made.

`UnmaskedSums` and `UnmaskedMod` are secure sums without masks: this process plays both sides and
has nobody to hide from. Masks cancel in the sum, whatever they are, so quantising, rounding, what
is summed, charged and reported are the same to the last bit, in a third of the time. They protect
nobody.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from flwr.app import Array, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.mods import Call, mods_around, with_answer
from leakmeter.clients import MaskMod
from leakmeter.clients.secure_sum.keys import both_sides_here
from leakmeter.clients.secure_sum.quantise import Ring, RingVector, add_vectors
from leakmeter.clients.secure_sum.signing import PublicKeys
from leakmeter.clients.secure_sum.wire import put_upload
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import out_of_range
from leakmeter.strategies import Masked
from leakmeter.strategies.flower import CLIENT_APP_RAISED, NumberedGrid, delivering
from leakmeter.strategies.secure_sum.sum_round import Exchange, MaskedCohort
from leakmeter.strategies.secure_sum.topology import GraphPlan

_log = logging.getLogger("flwr")

_RUN_ID = 1
_PAUSE, _MAX_WAITS = 0.5, 4  # seconds between two questions for nodes, and how many such pauses
_TRIED = "1.26.1 and 1.41.0"

App = ClientApp | Callable[[Message, Context], Message]


class InlineGrid(NumberedGrid):
    """A grid whose nodes 1 to N are client apps called in turn, each with its own state.

    A node takes room only while it keeps a state: its context is made when it gets a message.

    Args:
        app: The client app.
        num_nodes: How many clients there are.
        run_config: The settings in each client's context.
        node_config: What each client's own settings have beside its number.
    """

    def __init__(
        self,
        app: App,
        num_nodes: int,
        run_config: Mapping[str, Any] | None = None,
        node_config: Mapping[str, Any] | None = None,
    ) -> None:
        self._app = app
        self._contexts = _Contexts(num_nodes, run_config or {}, node_config or {})
        self.nodes: range = range(1, num_nodes + 1)
        self._ids = itertools.count(1)
        self._asked, self._waits, self._thread = time.monotonic(), 0, threading.get_ident()
        self._waiting: dict[str, Message] = {}
        self._turn = threading.Lock()

    def set_run(self, run: Any) -> None:
        """Ignore: there is one run only."""

    @property
    def run(self) -> Any:
        """The number of the run, which Flower's legacy loop asks for; nothing more is known."""
        return SimpleNamespace(run_id=_RUN_ID)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a new message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes; refuse an app that would wait for more of them forever."""
        if threading.get_ident() != self._thread:  # Flower's legacy loop asks all the time
            return list(self.nodes)
        now = time.monotonic()
        # Apps that wait sleep in between; those that do something else send messages now and then.
        self._waits += now - self._asked > _PAUSE
        self._asked = now
        if self._waits > _MAX_WAITS:
            few = len(self.nodes)
            allowed = "as many as the app waits for (min_available_nodes of its strategy)"
            fix = "How many it waits for is not known here: look where the app calls get_node_ids"
            if (wanted := _awaited()) is not None and wanted > few:
                fix = f"Try --clients {wanted}"
            raise out_of_range("--clients", allowed, few, fix=fix)
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Deliver the messages and keep the replies until they are pulled."""
        pushed = list(messages)
        self._waits = 0
        for message in pushed:
            message.metadata.__dict__["_message_id"] = str(next(self._ids))
        clients = [self._client(message.metadata.dst_node_id) for message in pushed]
        with delivering(list(zip(clients, pushed, strict=True))):
            replies = {m.metadata.message_id: self._deliver(m) for m in pushed}
        self._waiting |= replies
        return list(replies)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages."""
        return [self._waiting.pop(i) for i in message_ids if i in self._waiting]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Deliver the messages and return the replies.

        The legacy loop sends from one thread per client. They take turns: apps use generators and
        other things of the process that they would have for themselves under Flower.
        """
        with self._turn:
            return self.pull_messages(self.push_messages(messages))

    def _client(self, node: int) -> int:
        # A foreign app may run without numbers; only ours trains clients together, and has them.
        return int(self._contexts[node].node_config.get("partition-id", -1))

    def _deliver(self, message: Message) -> Message:
        """Call the client app; as in Flower an exception is an error reply and keeps no state."""
        node = message.metadata.dst_node_id
        context = copy.copy(self._contexts[node])
        context.state = _copied(context.state)
        try:
            reply = self._app(_received(message), context)
        except Exception as error:
            _log.debug("client app of node %d failed", node, exc_info=True)
            reason = f"{type(error).__name__}: {error}"
            return Message(Error(code=CLIENT_APP_RAISED, reason=reason), reply_to=message)
        self._contexts.keep(context)
        reply.metadata.__dict__["_message_id"] = str(next(self._ids))
        return reply


def _awaited() -> int | None:
    """Return for how many nodes a caller waits; None if none says it.

    Flower's `sample_nodes`, which all of its strategies call, has the number in a variable alone.
    """
    frame = inspect.currentframe()
    while frame is not None:
        found = frame.f_locals.get("min_available_nodes")
        if isinstance(found, int):
            return found
        frame = frame.f_back
    return None


class _Contexts(dict[int, Context]):
    """The contexts of nodes with a state; that of any other node is made when it is asked for."""

    def __init__(
        self, num_nodes: int, run_config: Mapping[str, Any], node_config: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self._num_nodes, self._run_config = num_nodes, run_config
        self._node_config = {**node_config, "num-partitions": num_nodes}

    def keep(self, context: Context) -> None:
        """Keep a context after a message, unless it is as a new one."""
        if context == self.__missing__(context.node_id):
            self.pop(context.node_id, None)
        else:
            self[context.node_id] = context

    def __missing__(self, node: int) -> Context:
        if not 1 <= node <= self._num_nodes:
            raise KeyError(node)
        return Context(
            run_id=_RUN_ID,
            node_id=node,
            node_config={**self._node_config, "partition-id": node - 1},
            state=RecordDict(),
            run_config=dict(self._run_config),
        )


def _received(message: Message) -> Message:
    """Return a message as it arrives: a client may empty or change its own, and nobody else's."""
    own = copy.copy(message)
    own.__dict__["_metadata"] = copy.copy(message.metadata)
    if message.has_content():
        own.content = _copied(message.content)
    return own


def _copied(state: RecordDict) -> RecordDict:
    """Return a copy that can be changed; the bytes of arrays are shared, they cannot be."""
    # A look at each value, as by the constructors or by `deepcopy`, takes as long as the rest of a
    # short message.
    if "_data" not in state.__dict__:  # a release that keeps them elsewhere
        return copy.deepcopy(state)
    twin = copy.copy(state)
    twin.__dict__["_data"] = {}
    for key, record in state.items():
        twin.__dict__["_data"][key] = copied = copy.copy(record)
        copied.__dict__["_data"] = {
            # Numbers, texts and bytes cannot be changed.
            name: copy.copy(value) if isinstance(value, list | Array) else value
            for name, value in record.items()
        }
    return twin


_IDENTITY = {"_run_id": _RUN_ID, "_node_id": 0, "_task_id": 1}


def _task_identity() -> Any:
    """Return the class that tells Flower which task this process is; None if it needs none."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:  # releases before 1.38
        return None
    for name in _IDENTITY:
        getattr(TaskIdentity, name)  # a release that has moved these must fail now, not silently
    return TaskIdentity


@contextmanager
def _identified(identity: Any) -> Iterator[None]:
    """Be a task of Flower's for as long as the run takes."""
    names = () if identity is None else tuple(_IDENTITY)
    before = {name: getattr(identity, name) for name in names}
    for name in names:
        setattr(identity, name, _IDENTITY[name])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(identity, name, value)


def run_inline(
    server_app: ServerApp | Callable[[Grid, Context], None],
    client_app: App,
    num_clients: int,
    run_config: Mapping[str, Any] | None = None,
    node_config: Mapping[str, Any] | None = None,
) -> None:
    """Run both apps in this process until the server's is done."""
    config = dict(run_config or {})
    try:
        context = Context(
            run_id=_RUN_ID, node_id=0, node_config={}, state=RecordDict(), run_config=config
        )
        grid = InlineGrid(client_app, num_clients, config, node_config)
        identity = _task_identity()
    except (TypeError, AttributeError) as error:
        raise RuntimeError(
            f"the inline engine was tried with flwr {_TRIED}; the installed release differs in "
            f"something it needs ({error}): use --engine ray, or one of these releases"
        ) from error
    with _identified(identity), both_sides_here():
        server_app(grid, context)


_NO_KEYS = PublicKeys(b"", b"", b"")


def cheapest_sums(config: Config) -> tuple[type[Masked], type[MaskMod]]:
    """Return both halves of secure sums for a run in this process, without masks if possible.

    Clients that sign or drop out do more than to mask, so there the whole protocol is played.
    """
    can_open = config.engine == "inline" and config.secagg == "on" and not config.dropout
    return (UnmaskedSums, UnmaskedMod) if can_open else (Masked, MaskMod)


class UnmaskedSums(Masked):
    """The server's half: sums what clients have encoded, and asks for no keys and shares."""

    def _exchange(self, grid: Grid, messages: Mapping[int, Message]) -> Exchange:
        return _OpenExchange(grid, messages, self._last, self._timeout)

    def _cohort(
        self, exchange: Exchange, keys: Mapping[int, PublicKeys], plan: GraphPlan
    ) -> MaskedCohort:
        alone: dict[int, tuple[int, ...]] = dict.fromkeys(keys, ())
        return _OpenCohort(exchange.session, keys, alone, plan.threshold)


class UnmaskedMod(MaskMod):
    """The client's half: encodes the update as all were told, and masks nothing."""

    def __call__(self, message: Message, context: Context, call_next: Call) -> Message:
        """Train, and answer with what is summed."""
        order = wire.config(message.content, wire.MASK)
        if order is None:
            return call_next(message, context)
        mods = mods_around(call_next)
        summed = self._sum_order(0, message, mods)
        server_round = wire.get_int(order, "round")
        vector, trained, notes = self._train_and_encode(
            summed, server_round, message, context, call_next
        )
        upload = RecordDict({**put_upload(vector, summed.quantiser.ring), **notes})
        return Message(with_answer(message, mods, trained, upload), reply_to=message)


class _OpenExchange(Exchange):
    def keys(self) -> dict[int, PublicKeys]:
        return dict.fromkeys(self.messages, _NO_KEYS)

    def boxes(self, cohort: MaskedCohort) -> dict[int, dict[int, bytes]]:
        return {number: {} for number in cohort.keys}

    def shares(self, *_: Any) -> dict[int, dict[int, bytes]]:
        return {}


class _OpenCohort(MaskedCohort):
    def enough(self, sharers: Iterable[int]) -> set[int]:
        return set(sharers)

    def check(
        self, uploads: Iterable[int], sharers: Iterable[int], seats: Collection[int] = ()
    ) -> None:
        """Nobody is missing."""

    def total(
        self,
        uploads: Mapping[int, RingVector],
        sharers: Iterable[int],
        revealed: Mapping[int, Mapping[int, bytes]],
        ring: Ring,
        digest: bytes,
    ) -> RingVector:
        return add_vectors(uploads.values(), ring)
