"""What surrounds Flower's own strategies: grids before them, and what they can do with replies.

Grids show only some nodes, send a message again, or can be stopped. Some know which client each
node is, and deliver several messages at once, so that an app can train clients together.

Flower's strategies raise if one reply differs in form, so only those are kept that they can
aggregate. They keep momentum and their own copy of the model in attributes. Which ones is listed
here for each class; a strategy that is not listed cannot be resumed.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
    Strategy,
)
from numpy.typing import NDArray

from leakmeter.auditors.codec import CodecError, codec, plain
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.grid import GridWrapper
from leakmeter.auditors.hook.layout import all_finite, numbers_in
from leakmeter.auditors.hook.wrapper import Foreign, Wrapper, chain
from leakmeter.auditors.values import within
from leakmeter.auditors.wording import counted

_log = logging.getLogger("flwr")

# What must be the same in all replies of a round.
_Form: TypeAlias = tuple[tuple[object, ...], ...]

_Metric: TypeAlias = int | float | list[int] | list[float]

_NUMBERS = "fiub"  # numpy's kinds of types that can be averaged
_WIDEST = 8  # bytes of a number; PyTorch cannot read longer ones

_ADAPTIVE = ("current_arrays", "m_t", "v_t")
_ATTRIBUTES: dict[type[Strategy], tuple[str, ...]] = {
    FedAvg: (),
    FedProx: (),
    FedAvgM: ("current_arrays", "momentum_vector"),
    FedAdam: _ADAPTIVE,
    FedYogi: _ADAPTIVE,
    FedAdagrad: _ADAPTIVE,
}


def usable_train_replies(
    replies: Iterable[Message], weight_key: str, fits: Callable[[ArrayRecord], bool]
) -> list[Message]:
    """Return errors and the replies of a training round that can be averaged.

    All others are dropouts, and logged: those whose arrays do not fit or are not finite, and those
    with other names, types or metrics than most.

    Args:
        replies: Those of the round, one of each client.
        weight_key: The metric that weights clients.
        fits: Whether arrays can take the place of the model that was sent. A client that is alone
            in its round would otherwise decide what the next model looks like.
    """

    def form(reply: Message) -> _Form:
        record = wire.arrays(reply.content)
        if not fits(record):
            raise ValueError("its arrays have other names or shapes than the model that was sent")
        key = wire.arrays_key(reply.content)
        return (key,), _of_arrays(record), *_of_metrics(reply, weight_key)

    return _alike(replies, weight_key, form)


def usable_evaluate_replies(replies: Iterable[Message], weight_key: str) -> list[Message]:
    """Return errors and the replies of an evaluation round that can be averaged."""
    return _alike(replies, weight_key, lambda reply: _of_metrics(reply, weight_key))


def left_out(replies: Iterable[Message], usable: Iterable[Message]) -> frozenset[int]:
    """Return the nodes of replies that are not among the usable ones."""
    nodes = {reply.metadata.src_node_id for reply in replies if reply.has_content()}
    return frozenset(nodes - {reply.metadata.src_node_id for reply in usable})


def shapes(record: ArrayRecord) -> dict[str, tuple[int, ...]]:
    """Return the shape that each array says it has."""
    return {name: tuple(array.shape) for name, array in record.items()}


def _alike(
    replies: Iterable[Message], weight_key: str, form: Callable[[Message], _Form]
) -> list[Message]:
    """Return errors and the replies of the form that most have."""
    sent = list(replies)
    forms: dict[int, _Form] = {}
    for place, reply in enumerate(sent):
        if reply.has_content():
            try:
                forms[place] = form(reply)
            except Exception as error:  # a client may send anything
                _complain(reply, str(error))
    usual = Counter(forms.values()).most_common(1)  # of equally many the first
    for place, one in forms.items():
        if one != usual[0][0]:
            _complain(sent[place], "arrays or metrics have other names or types than most")
    good = [place for place, one in forms.items() if one == usual[0][0]]
    total = sum(wire.weight(sent[place].content, weight_key) for place in good)
    if good and not 0 < total < math.inf:
        _log.warning("nobody counts: the weights %r add up to %g", weight_key, total)
        good = []
    return [reply for place, reply in enumerate(sent) if place in good or reply.has_error()]


def _of_arrays(record: ArrayRecord) -> tuple[object, ...]:
    """Return names, shapes and types; raise if the arrays cannot be averaged at all."""
    found: list[object] = []
    for name, array in sorted(record.items()):
        numbers = numbers_in(array)
        kind = numbers.dtype
        if kind.kind not in _NUMBERS or kind.itemsize > _WIDEST:
            raise ValueError(f"array {name!r} must contain numbers of at most 64 bits, got {kind}")
        if numbers.shape != tuple(array.shape):  # what it says need not be what it is
            raise ValueError(f"array {name!r} must have shape {array.shape}, got {numbers.shape}")
        if not all_finite(numbers):  # not by the type that the array says
            raise ValueError(f"array {name!r} is not finite")
        found.append((name, numbers.shape, kind.kind, kind.itemsize))
    return tuple(found)


def _of_metrics(reply: Message, weight_key: str) -> tuple[tuple[object, ...], ...]:
    """Return names and lengths (-1 for a number); raise if there is no usable weight."""
    metrics = [(k, r) for k, r in reply.content.items() if isinstance(r, MetricRecord)]
    if len(metrics) != 1:
        raise ValueError(f"a reply must have one MetricRecord, got {len(metrics)}")
    key, record = metrics[0]
    weight = wire.get_float(record, weight_key)
    within(weight_key, weight, lowest=0.0, below=math.inf)
    return (key,), tuple((name, _length(value)) for name, value in sorted(record.items()))


def _length(value: _Metric) -> int:
    """Return the length of a list, -1 for a number; raise for what is no number of 64 bits."""
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, int) and not -(2**63) <= number < 2**64:
            raise ValueError("metrics must be numbers of at most 64 bits, got a longer one")
    return len(value) if isinstance(value, list) else -1


def _complain(reply: Message, reason: str) -> None:
    node = reply.metadata.src_node_id
    _log.warning("node %d drops out, its reply cannot be used: %s", node, wire.one_line(reason))


def check_resumable(strategy: Strategy) -> None:
    """Raise with the reason if a strategy in the chain keeps state that is not listed here."""
    for held in chain(strategy):
        if not isinstance(held, Wrapper) and type(held) not in _ATTRIBUTES:
            known = ", ".join(sorted(cls.__name__ for cls in _ATTRIBUTES))
            raise TypeError(
                f"a run can be resumed only with a strategy among {known}, "
                f"got {type(held).__name__}: what it remembers between rounds is unknown"
            )


def strategy_state(strategy: Strategy) -> list[dict[str, Any]]:
    """Return the state of every strategy in the chain, outermost first."""
    check_resumable(strategy)
    return [
        held.state()
        if isinstance(held, Wrapper)
        else {name: plain(_Arrays.of(kept), np.copy) for name, kept in _attributes(held).items()}
        for held in chain(strategy)
    ]


def restore_strategy(strategy: Strategy, states: Sequence[Mapping[str, Any]]) -> None:
    """Restore the state of every strategy in the chain.

    Raises:
        CodecError: A state is not one that its strategy has written.
    """
    check_resumable(strategy)
    held = list(chain(strategy))
    if len(states) != len(held):
        raise CodecError(f"there must be {len(held)} strategies, got {len(states)}")
    for one, state in zip(held, states, strict=True):
        if isinstance(one, Wrapper):
            one.restore(state)
            continue
        read = codec(_Arrays | None)
        found = {name: read.read(state.get(name, "nothing"), name) for name in _attributes(one)}
        kept = {name: None if value is None else value.unpacked() for name, value in found.items()}
        Foreign(one).set_attributes(kept)


def _attributes(strategy: Strategy) -> dict[str, Any]:
    """Return what one of Flower's strategies keeps."""
    return Foreign(strategy).attributes(_ATTRIBUTES[type(strategy)])


class ReadArray(Array):
    """An array whose header was read before.

    Flower's own parses it whenever it is asked for the numbers, which takes longer than to average
    those of most updates.
    """

    @classmethod
    def of(cls, array: Array) -> Self:
        """Return the same array, read."""
        read = object.__new__(cls)
        read.__dict__.update(array.__dict__, _numbers=numbers_in(array))
        return read

    def numpy(self) -> NDArray[Any]:
        """Return a copy of the numbers, which a strategy may change."""
        numbers: NDArray[Any] = self.__dict__["_numbers"]
        return numbers.copy()


@dataclass(frozen=True, eq=False)
class _Arrays:
    """Arrays that a strategy of Flower's keeps in one attribute.

    Attributes:
        kind: In which container.
        items: By name, or by number in a list.
    """

    kind: Literal["record", "dict", "list"]
    items: dict[str, NDArray[Any]]

    @classmethod
    def of(cls, value: Any) -> Self | None:
        """Return the arrays of an attribute; None if it is not set yet."""
        match value:
            case None:
                return None
            case ArrayRecord():
                return cls("record", {name: array.numpy() for name, array in value.items()})
            case dict():
                return cls("dict", {name: np.asarray(array) for name, array in value.items()})
            case list():
                return cls("list", {str(i): np.asarray(array) for i, array in enumerate(value)})
        raise TypeError(f"cannot keep a {type(value).__name__}")

    def unpacked(self) -> Any:
        """Return what `of` was given."""
        if self.kind == "record":
            return ArrayRecord({name: Array(array) for name, array in self.items.items()})
        return self.items if self.kind == "dict" else list(self.items.values())


# Flower's error code for an exception inside the client app: asking again would not help.
CLIENT_APP_RAISED = 2
# How a client app says that its machine, not the client, is at fault.
UNUSABLE = "this machine cannot run the client"
# What Python says where something cannot be imported, in whatever Ray and Flower wrap it.
_IMPORT_FAILED = ("ModuleNotFoundError", "ImportError", "No module named")


class UnusableNodeError(RuntimeError):
    """A machine cannot import the client app or find its data, so its clients would be missing."""


class Places(Mapping[int, int]):
    """Maps each number of a range to its place in it; takes no room, however long the range is."""

    def __init__(self, numbers: range) -> None:
        self._numbers = numbers

    def __getitem__(self, number: int) -> int:
        if number not in self._numbers:
            raise KeyError(number)
        return self._numbers.index(number)

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


class NumberedGrid(Grid):
    """A grid that may know by itself which client each node is, so that nobody has to ask.

    Attributes:
        nodes: The ids of all nodes in the order of clients; None if the nodes must be asked.
    """

    nodes: range | None = None


def known_nodes(grid: Grid) -> range | None:
    """Return the ids of all nodes in the order of clients, if the grid knows it."""
    return grid.nodes if isinstance(grid, NumberedGrid) else None


@dataclass(frozen=True)
class Delivery:
    """Messages that are delivered one after the other.

    Attributes:
        messages: The clients, by partition-id, and what is sent to them, in this order.
        ahead: What the app has computed for a message before it got it, by the message's id.
    """

    messages: Sequence[tuple[int, Message]]
    ahead: dict[str, Any] = field(default_factory=dict)


_current: ContextVar[Delivery | None] = ContextVar("delivery", default=None)


def current_delivery() -> Delivery | None:
    """Return what is being delivered in this process; None in every other engine."""
    return _current.get()


@contextmanager
def delivering(messages: Sequence[tuple[int, Message]]) -> Iterator[None]:
    """Announce messages while they are delivered."""
    token = _current.set(Delivery(messages))
    try:
        yield
    finally:
        _current.reset(token)


class PartialGrid(GridWrapper):
    """Shows only some of the nodes, so that a strategy samples among these."""

    def __init__(self, grid: Grid, nodes: Iterable[int]) -> None:
        super().__init__(grid)
        self._nodes = list(nodes)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes that are shown."""
        return list(self._nodes)


class InterruptibleGrid(GridWrapper):
    """Ends the thread that waits for replies once `stop` is set.

    For Flower's simulation, whose server would wait for replies that nobody is left to give.
    """

    def __init__(self, grid: Grid, stop: threading.Event) -> None:
        super().__init__(grid)
        self._stop = stop

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return the replies that have come when all have, or when time is up."""
        missing = set(self.grid.push_messages(messages))
        replies: list[Message] = []
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            come = list(self.grid.pull_messages(missing))
            missing -= {reply.metadata.reply_to_message_id for reply in come}
            replies += come
            if not missing or (deadline is not None and time.monotonic() > deadline):
                return replies
            if self._stop.wait(0.1):
                raise SystemExit("interrupted")  # no Exception, which strategies might handle


class PatientGrid(GridWrapper, NumberedGrid):
    """Sends a message again if it failed for a reason outside the client app.

    A worker that dies loses its message. The client's state is then unchanged, so the second try
    gives what the first would have given. A machine of a simulation that cannot import the client
    app fails the run: its clients would be missing in every round, and the result would differ.

    Args:
        grid: Delivers the messages.
        is_simulated: Whether the clients run on machines of ours. In a deployment every client
            writes its own errors, so an error never ends the run: the client has dropped out.
    """

    def __init__(self, grid: Grid, *, is_simulated: bool = True) -> None:
        super().__init__(grid)
        self._is_simulated, self.nodes = is_simulated, known_nodes(grid)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return the replies, those of the second try in place of the failed ones."""
        sent = list(messages)
        contents = {m.metadata.dst_node_id: m for m in sent}
        replies = self._received(sent, timeout)
        if raised := [_reason(r) for r in replies if _app_raised(r)]:
            first = wire.one_line(raised[0])
            _log.warning("%s failed, the first with %s", counted(len(raised), "client app"), first)
        # The SuperLink answers expired messages, so the source does not identify the client: match
        # message ids.
        by_id = {m.metadata.message_id: m.metadata.dst_node_id for m in sent}

        def asked(reply: Message) -> int:
            return by_id.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)

        # An error that is the client's own answer would not change with a second message.
        errors = [r for r in replies if r.has_error()]
        lost = [r for r in errors if not (_app_raised(r) or wire.says_dropped(r))]
        failed = {asked(r) for r in lost} & set(contents)
        if not failed:
            return replies
        _log.warning("%s failed on the way; trying once more", counted(len(failed), "message"))
        again = [
            Message(
                contents[node].content,
                dst_node_id=node,
                message_type=contents[node].metadata.message_type,
                ttl=contents[node].metadata.ttl,
                group_id=contents[node].metadata.group_id,
            )
            for node in sorted(failed)
        ]
        kept = [r for r in replies if asked(r) not in failed]
        return kept + self._received(again, timeout)

    def _received(self, messages: list[Message], timeout: float | None) -> list[Message]:
        """Return the replies, or raise if one says that a machine is of no use."""
        replies = list(self.grid.send_and_receive(messages, timeout=timeout))
        for reply in filter(_is_unusable, replies):
            reason = f"a machine cannot run the client app: {wire.one_line(_reason(reply))}"
            if self._is_simulated:
                raise UnusableNodeError(reason)
            _log.warning("node %d drops out: %s", reply.metadata.src_node_id, reason)
        if not self._is_simulated:
            for reply in (one for one in replies if one.has_error()):
                # Flower's strategies log what a client says as it is.
                reply.error = Error(reply.error.code, wire.one_line(_reason(reply)))
        return replies


def _is_unusable(reply: Message) -> bool:
    """Whether the machine behind a reply will never be able to run the client app."""
    if _app_raised(reply):
        return UNUSABLE in _reason(reply)
    return reply.has_error() and any(word in _reason(reply) for word in _IMPORT_FAILED)


def _reason(reply: Message) -> str:
    blank = wire.blank_reason(reply)
    return (reply.error.reason or "no reason given") if blank is None else blank


def _app_raised(reply: Message) -> bool:
    """Whether the client app itself failed; behind masks or noise it has answered nevertheless."""
    if wire.blank_reason(reply) is not None:
        return True
    return reply.has_error() and reply.error.code == CLIENT_APP_RAISED
