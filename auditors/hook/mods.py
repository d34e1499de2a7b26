"""Client mods for an audit: play a canary, keep the plain update, take planted records.

All are instruments. A client obeys only because its owner has listed them. A client that plays a
canary is one honest contributor fewer for everybody else in a secure sum.

The server sends records to plant themselves, so a client needs neither a generator nor a file. They
are bytes in a MetricRecord, eight in a whole number: Flower's clipping mods refuse a second
ConfigRecord. An order is a proposal. Nothing is planted unless the owner of the client lists
`plant_mod` and the app asks for the records; both may ignore them, and what a client says it took
only makes a warning.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, ClassVar, Final, overload

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from leakmeter.auditors.canary_draws import KINDS, CanaryKind
from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.canary_order import (
    HIDING,
    MASKS,
    Answer,
    Order,
    Outcome,
    Sends,
    Size,
    may_be_longer,
    reply_kind_by_lengths,
)
from leakmeter.auditors.hook.guest_noise import LIBRARY, LocalNoise, watch_training
from leakmeter.auditors.hook.layout import Layout
from leakmeter.auditors.rng import borrowed_generators
from leakmeter.auditors.values import Record

_log = logging.getLogger("flwr")

# What a mod calls to reach the next mod, and at last the app.
Call = Callable[[Message, Context], Message]

# Flower's programs for deployed clients load this module; its simulations never do.
_SUPERNODE: Final = "flwr.supernode.cli"
_LINK: Final = "new_ffn"
_MOD: Final = "_mod"
_NEXT: Final = "_ffn"
_DEEPEST: Final = 200  # frames; a client's stack is far shorter


def is_supernode() -> bool:
    """Whether this process runs the clients of a deployment."""
    return _SUPERNODE in sys.modules


class OrderedMod(ABC):
    """A mod that carries out orders of a train message, and says which.

    Attributes:
        carries_out: Keys of the records that its orders travel in.
    """

    carries_out: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def __call__(self, message: Message, context: Context, call_next: Call) -> Message:
        """Answer a message, or hand it on."""


def canary_mod(message: Message, context: Context, call_next: Call) -> Message:
    """Train, then replace the update by the canary that the message orders, if it orders one.

    The seat trains as usual, so its metrics, its weight and its timing stay honest; only the float
    arrays change. The canary's norm is that of the order, otherwise the clip norm of the round,
    otherwise the norm of the update just trained; it is ten times as long where a claim is tested,
    unless a mod behind this one may clip. The client app does not see the order. In the reply the
    mod says that it is present, and between which other mods; the hook removes that.

    After a replay, what the app keeps in `context.state` is restored, and so are the global
    generators of `random`, numpy and torch. What our mods keep is not: a step of a secure sum is
    taken once, whatever the message is marked as.

    It also serves apps with the legacy API, `ClientApp(client_fn=client_fn, mods=[canary_mod])`.
    """
    if not wire.is_legacy_order(message.content):
        return _carry_out(message, context, call_next, call_next)

    def train(_: Message, context: Context) -> Message:
        # Another mod reads the records to plant.
        plain = wire.without_orders(message, lambda key: wire.is_ours(key) and key != wire.PLANTED)
        return wire.from_legacy_reply(call_next(plain, context))

    reply = _carry_out(wire.from_legacy(message), context, train, call_next)
    return wire.as_legacy_reply(reply)


def _carry_out(message: Message, context: Context, call: Call, link: Call) -> Message:
    """Carry out the order of a message.

    Args:
        message: In our records.
        context: Of the client.
        call: Lets the app train.
        link: What Flower has given the mod, which shows the other mods.
    """
    order, replay = Order.of(message.content), wire.replay_number(message.content)
    if order is None and replay is None:
        return call(message, context)
    mods = mods_around(link)
    with _leave_no_trace(replay, context), watch_training() as engine:
        reply = call(_without_order(message), context)
    if reply.has_error():
        return reply
    answer = _answer(mods, "greeted")
    if mods.itself is not None and not _is_hidden(message, answer):
        answer = replace(answer, local_noise=LocalNoise.of(mods.before), engine=engine())
    if order is not None and order.canary is not None:
        if not may_be_longer(answer):  # it would bypass a clip that the update has passed
            order = replace(order, size=Size())
        outcome, sends = _play(_with_known_kind(order, message, answer), message, reply)
        answer = replace(answer, outcome=outcome, sends=sends)
    reply.content = RecordDict({**reply.content, wire.CANARY: answer.to_record()})
    return reply


def with_answer(
    message: Message, mods: ModList, reply: RecordDict, content: RecordDict
) -> RecordDict:
    """Return `content` with what `canary_mod` has answered, for a mod that builds its own replies.

    The answer is made from the order alone. So it is there, and the same, whatever the training
    gave: the answer travels in plain text. A `canary_mod` that the list does not show, inside
    another mod, gets none; it is asked itself only where no list can be read.

    Args:
        message: What the mod was sent.
        mods: The list as that mod finds it.
        reply: What came from behind it; empty if training has failed.
        content: What the mod replies with.
    """
    order, found = Order.of(message.content), mods.around(canary_mod)
    if mods.itself is None:
        answer = Answer.of(reply)
        if answer is not None:
            answer = replace(answer, sends=None, local_noise=None, engine=None)
    elif found is None or (order is None and wire.replay_number(message.content) is None):
        answer = None
    else:
        is_seat = order is not None and order.canary is not None
        answer = _answer(found, "played" if is_seat else "greeted")
    if answer is None:
        return content
    return RecordDict({**content, wire.CANARY: answer.to_record()})


def failure_note(error: BaseException, *, allow_tap: bool) -> dict[str, ConfigRecord]:
    """Log why a reply contains no update; return what to tell whoever runs a simulation.

    A deployed client tells nobody: which data make its training fail is a secret like any other.
    """
    reason = wire.blank_record(error)
    level = logging.INFO if allow_tap else logging.ERROR
    _log.log(level, "this client sends no update in this round: %s", reason["reason"])
    _log.debug("the training of a client failed", exc_info=error)
    return {wire.BLANK: reason} if allow_tap else {}


def _answer(mods: ModList, outcome: Outcome) -> Answer:
    """Return what `canary_mod` says from its place in the list."""
    outer, inner = names_of(mods.before), names_of(mods.behind)
    return Answer(outcome, outer, inner, trains_privately=LIBRARY in sys.modules)


@contextmanager
def _leave_no_trace(number: int | None, context: Context) -> Iterator[None]:
    """Leave no trace of a replay; without a number do nothing."""
    if number is None:
        yield
        return
    before = copy.deepcopy(context.state)
    # Put back alone, the generators would give every replay of a client the same draws.
    with borrowed_generators("replay", number, context.node_id):
        try:
            yield
        finally:
            context.state = _state_after_replay(before, context.state)


def _state_after_replay(before: RecordDict, after: RecordDict) -> RecordDict:
    """Return the state before a replay, with what mods of ours have noted since."""
    apps = {key: record for key, record in before.items() if not wire.is_ours(key)}
    ours = {key: record for key, record in after.items() if wire.is_ours(key)}
    return RecordDict({**apps, **ours})


def _without_order(message: Message) -> Message:
    """Return the message as the app would have got it.

    The original stays whole: an app may empty its own (`keep_input=False`), and a canary is added
    to the arrays that were sent.
    """
    inside = copy.copy(message)
    kept = {
        key: ArrayRecord(dict(record)) if isinstance(record, ArrayRecord) else record
        for key, record in message.content.items()
        if key != wire.CANARY
    }
    inside.content = RecordDict(kept)
    return inside


def _with_known_kind(order: Order, message: Message, answer: Answer) -> Order:
    """Return the order, settled where mods outside hide the reply, which the answer does not.

    All of these mods take replies for models.
    """
    is_hidden = wire.is_hidden(message.content) or not HIDING.isdisjoint(answer.outer)
    return replace(order, sends=order.sends or "models") if is_hidden else order


def _is_hidden(message: Message, answer: Answer) -> bool:
    """Whether masks may hide what the client sends, so that the answer must not tell of it."""
    return wire.MASK in message.content or not MASKS.isdisjoint(answer.outer)


def _play(order: Order, message: Message, reply: Message) -> tuple[Outcome, Sends | None]:
    """Put the canary into the reply, or leave the reply as it is and say why.

    Where the order leaves open what the reply is, return what it was taken for.
    """
    canary = order.canary
    assert canary is not None
    try:
        sent, trained = wire.arrays(message.content), wire.arrays(reply.content)
        names = list(sent)
        layout = Layout.of(sent, [names[place] for place in order.left_out])
        layout.check(trained)
    except (ValueError, IndexError):
        return "other-arrays", None
    sends = order.sends
    if sends is None:
        change, length = layout.distance(trained, sent), layout.distance(trained, None)
        own = layout.distance(sent, None)
        sends = reply_kind_by_lengths(change, length, own)
        if sends is None and own != 0 and math.isfinite(change):
            return "undecided", None
    told = sends if order.sends is None else None
    base = None if sends == "differences" else sent
    kind = KINDS[canary.kind]
    norm = wire.clip_norm(message.content) if canary.norm is None else canary.norm
    if norm is None:
        norm = _length(layout, trained, base, kind if canary.included else None)
        if not math.isfinite(norm):
            # The reply stays as it is, as without an audit: others see a client that diverged. The
            # answer does not say so, since it may leave a client whose update is hidden.
            return "played", told
    if canary.included:
        # The seed of an order is a key.
        add = kind.planted(canary.seed, layout.dim, order.size.norm(norm))
        arrays = layout.apply_change(base, trained, add, least=kind.dtype)
    else:  # not exactly zero: Flower's mods divide by the norm of an update
        arrays = layout.nudge(base, trained)
    wire.replace_arrays(reply, arrays)
    return "played", told


def _length(
    layout: Layout, trained: ArrayRecord, base: ArrayRecord | None, kind: CanaryKind | None
) -> float:
    """Return the norm of an update for a canary of a kind; not finite if the update is not.

    A seat that sends no canary needs to know only that, which takes less time.
    """
    if kind is not None:
        return layout.distance(trained, base, least=kind.dtype)
    records = [trained] if base is None else [trained, base]
    return 0.0 if all(map(layout.is_finite, records)) else math.inf


def tap_mod(message: Message, context: Context, call_next: Call) -> Message:
    """Keep the update in the client's own state until the auditor's server collects it.

    Only in simulations: a deployed client must never hand out a plain update next to a masked one.
    Nodes of a deployment may have a partition-id too, so the process is checked as well. The copy
    does not travel with the train reply.
    """
    if wire.TAP not in message.content:
        return call_next(message, context)
    if is_supernode():
        raise ValueError("tap_mod works on simulated nodes only: this one is a SuperNode")
    if "partition-id" not in context.node_config:
        raise ValueError("tap_mod works on simulated nodes only: node_config lacks 'partition-id'")
    order = wire.config(message.content, wire.TAP)
    if order is not None:
        return Message(_collect(context, order), reply_to=message)
    server_round = wire.kept_round(message.content)
    reply = call_next(message, context)
    if server_round is not None and not reply.has_error():
        context.state[wire.TAP] = ConfigRecord({"round": server_round})
        # Copies, because in one process the server may change the records of the reply.
        context.state[_ARRAYS] = ArrayRecord(dict(wire.arrays(reply.content)))
        context.state[_METRICS] = _scalars(reply.content)
    return reply


_ARRAYS: Final = f"{wire.TAP}.arrays"
_METRICS: Final = f"{wire.TAP}.metrics"


def _scalars(content: RecordDict) -> MetricRecord:
    """Return all single numbers of a reply in one record, the first of a name."""
    found = MetricRecord()
    for record in content.metric_records.values():
        for name, value in record.items():
            if name not in found and not isinstance(value, list):
                found[name] = value
    return found


def _collect(context: Context, order: ConfigRecord) -> RecordDict:
    """Return what was kept of this round and delete it."""
    server_round, key = wire.get_int(order, "round"), wire.get_text(order, "weight-key")
    kept = wire.config(context.state, wire.TAP)
    if kept is None or kept["round"] != server_round:
        raise ValueError(f"nothing is kept for round {server_round}, kept: {kept}")
    arrays = context.state.pop(_ARRAYS)
    weight = wire.weight(RecordDict({"metrics": context.state.pop(_METRICS)}), key)
    del context.state[wire.TAP]
    content = RecordDict({wire.TAP: ConfigRecord({"round": server_round, "weight": weight})})
    if order.get("arrays") is True:
        content["arrays"] = arrays
    return content


# The position of a mod in the client app's list. Flower gives a mod only the next call, so the
# list is read from how Flower chains mods (`make_ffn`, the same from release 1.26.1 to 1.41.0):
# each link is a function `new_ffn` that keeps its mod as `_mod` and the next link as `_ffn`. Those
# behind the mod are in the closure of the next call, those before it on the stack. A release that
# chains mods differently shows nothing: the audit then says less about them, and a client that
# signs takes no part.


@dataclass(frozen=True)
class ModList:
    """The mods of a client app as one of them finds them, in list order.

    Attributes:
        before: Those between the wire and this mod.
        itself: This mod, as it is listed; None if the list cannot be read.
        behind: Those between this mod and the app.
    """

    before: tuple[Any, ...]
    itself: Any
    behind: tuple[Any, ...]

    def around(self, mod: Any) -> ModList | None:
        """Return the list as a mod behind this one finds it; None if it is not there."""
        place = next((i for i, one in enumerate(self.behind) if unwrap(one) is mod), None)
        if place is None:
            return None
        before = (*self.before, self.itself, *self.behind[:place])
        return ModList(before, mod, self.behind[place + 1 :])


def mods_around(call_next: Callable[..., Any]) -> ModList:
    """Return the mods around the one that calls this.

    Args:
        call_next: What the calling mod was given.
    """
    passed = list(_before(sys._getframe(1)))  # the first is the calling mod itself
    itself = passed[0] if passed else None
    return ModList(tuple(reversed(passed[1:])), itself, tuple(_behind(call_next)))


def unwrap(mod: Any) -> Any:
    """Return what a `functools.partial` calls; everything else is itself."""
    return getattr(mod, "func", mod)


def names_of(mods: tuple[Any, ...]) -> tuple[str, ...]:
    """Return what a user calls mods: the name of a function, or of an object's class."""
    functions = map(unwrap, mods)
    return tuple(str(getattr(f, "__name__", type(f).__name__)) for f in functions)


def _behind(link: Any) -> Iterator[Any]:
    """Yield the mods that a call passes on its way to the app."""
    for _ in range(_DEEPEST):
        code, cells = getattr(link, "__code__", None), getattr(link, "__closure__", None)
        if code is None or cells is None or code.co_name != _LINK:
            return
        kept = dict(zip(code.co_freevars, cells, strict=True))
        if not {_MOD, _NEXT} <= set(kept):
            return
        yield kept[_MOD].cell_contents
        link = kept[_NEXT].cell_contents


def _before(frame: FrameType | None) -> Iterator[Any]:
    """Yield the mods that a call has passed, the last first."""
    for _ in range(_DEEPEST):
        if frame is None:
            return
        if frame.f_code.co_name == _LINK and _MOD in frame.f_code.co_freevars:
            yield frame.f_locals[_MOD]
        frame = frame.f_back


MAX_BYTES: Final = 2**26  # of one order
MAX_COPIES: Final = 10_000
_MAX_TOTAL: Final = 2**30  # bytes of all copies together
_DTYPES: Final = frozenset(
    {"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"}
)
_ORDER_FIELDS: Final = frozenset({"bytes", "words", "copies"})


def planting_order(records: Sequence[Record], copies: int) -> MetricRecord:
    """Return the order to train on records, each so many times, as it travels.

    Raises:
        ValueError: Clients would refuse it.
    """
    texts = [one for one in records if isinstance(one, str)]
    pairs = [one for one in records if not isinstance(one, str)]
    head: Any = {"texts": texts}
    body = b""
    if pairs:
        stacks = [np.stack([np.asarray(pair[part]) for pair in pairs]) for part in (0, 1)]
        head = [[stack.dtype.name, list(stack.shape)] for stack in stacks]
        body = b"".join(stack.tobytes() for stack in stacks)
    named = json.dumps(head).encode()
    data = len(named).to_bytes(4, "little") + named + body
    if len(data) > MAX_BYTES:
        raise ValueError(
            f"records of one client must have at most {MAX_BYTES:,} bytes, got {len(data):,}: use "
            "fewer canaries, or more clients that hold them"
        )
    words = np.frombuffer(data + bytes(-len(data) % 8), "<i8").tolist()
    order = MetricRecord({"bytes": len(data), "words": words, "copies": copies})
    # What clients would refuse is not sent: they would fail instead of train.
    read_planting_order(order)
    return order


class Planted(Sequence[Any]):
    """Records of a round that a client trains on besides its own; empty where there are none.

    Items are texts, or pairs of an input and a label: tensors if torch is loaded, else arrays. It
    is a data set for torch's `ConcatDataset`.

    Args:
        records: Each record once.
        copies: How often each is there.
    """

    def __init__(self, records: Sequence[Record] = (), copies: int = 1) -> None:
        self._records, self._copies, self._example = tuple(records), copies, None

    def __len__(self) -> int:
        return len(self._records) * self._copies

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> list[Any]: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return [self[one] for one in range(len(self))[place]]
        record = self._records[range(len(self))[place] % max(len(self._records), 1)]
        return record if isinstance(record, str) else self._as_item(*record)

    def like(self, example: Any) -> Planted:
        """Return the same, with items in the form of the app's own, such as `mine[0]`.

        Args:
            example: A pair of an input and a label, or a dictionary with both, in this order.
                Tensors, arrays and plain numbers keep their types.
        """
        made = Planted(self._records, self._copies)
        made._example = example
        return made

    def append(self, x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return arrays of inputs and labels with these records behind them."""
        if not self:
            return x, y
        pairs = [record for record in self._records if not isinstance(record, str)]
        if not pairs or pairs[0][0].shape != x.shape[1:] or pairs[0][1].shape != y.shape[1:]:
            own = tuple(part.shape for part in pairs[0]) if pairs else "texts"
            raise ValueError(
                f"x and y must have records of the shapes {own}, got {x.shape[1:]} and "
                f"{y.shape[1:]}: the auditor's generator must draw records like the client's"
            )
        more = [np.stack([pair[part] for pair in pairs] * self._copies) for part in (0, 1)]
        both = zip((x, y), more, strict=True)
        first, second = (np.concatenate([own, _cast(new, own.dtype)]) for own, new in both)
        return first, second

    def _as_item(self, x: NDArray[Any], y: NDArray[Any]) -> Any:
        example = self._example
        if example is None:
            return _tensor(x), _tensor(y)
        if isinstance(example, Mapping):
            pairs = zip(example.items(), (x, y), strict=False)
            return {key: _in_form(value, own) for (key, value), own in pairs}
        return tuple(_in_form(value, own) for value, own in zip(example, (x, y), strict=False))


def _cast(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array in the type of the app's own, unless its numbers become others."""
    with np.errstate(invalid="ignore"):
        cast = array.astype(dtype)
    # Pixels from 0 to 1 are all 0 as whole numbers: decoys would have other inputs than canaries.
    if dtype.kind in "iub" and not np.array_equal(cast, array):
        raise ValueError(
            f"planted records must fit into {dtype}, the type of the client's own, got numbers "
            f"from {array.min()} to {array.max()}: draw them in that type and range, or convert "
            "the client's own first"
        )
    return cast


def _tensor(array: NDArray[Any]) -> Any:
    torch = sys.modules.get("torch")
    return array.copy() if torch is None else torch.tensor(array)


def _in_form(example: Any, array: NDArray[Any]) -> Any:
    """Return an array as what the example is: a tensor or an array of its type, or a number."""
    if isinstance(example, np.ndarray | np.generic):
        return _cast(array, example.dtype)
    if isinstance(example, bool | int | float):
        return _cast(array, np.dtype(type(example))).item()
    if example.dtype.is_floating_point:
        return _tensor(array).to(example.dtype)
    return _tensor(_cast(array, np.dtype(str(example.dtype).removeprefix("torch."))))


def read_planting_order(record: MetricRecord) -> Planted:
    """Return the records of an order.

    Raises:
        WireError: The order is not one; the error says what is wrong.
    """
    if not _ORDER_FIELDS.issuperset(record):
        raise wire.WireError(
            f"an order to plant must have {sorted(_ORDER_FIELDS)}, got other fields"
        )
    size, copies, words = wire.get_int(record, "bytes"), record.get("copies"), record.get("words")
    if type(copies) is not int or not 1 <= copies <= MAX_COPIES:
        raise wire.WireError(f"copies must be in [1, {MAX_COPIES}], got {copies!r:.20}")
    if size * copies > _MAX_TOTAL:
        raise wire.WireError(f"all copies must have at most {_MAX_TOTAL:,} bytes, got more")
    if (
        not isinstance(words, list)
        or not all(type(word) is int for word in words)
        or not 4 <= size <= min(8 * len(words), MAX_BYTES)
    ):
        raise wire.WireError(f"words must hold {size} bytes, got {wire.describe(words)}")
    data = np.array(words, "<i8").tobytes()[:size]
    end = 4 + int.from_bytes(data[:4], "little")
    try:
        head = json.loads(data[4:end])
        records = _texts(head) if isinstance(head, dict) else _pairs(head, data[end:])
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError, MemoryError) as error:
        raise wire.WireError(f"records to plant cannot be read: {error}") from None
    return Planted(records, copies)


def _texts(head: dict[str, Any]) -> list[Record]:
    texts = head["texts"]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("texts must be a list of texts")
    return list(texts)


def _pairs(head: Any, data: bytes) -> list[Record]:
    """Return inputs and labels from their types, shapes and bytes."""
    stacks, start = [], 0
    for name, shape in head:
        if name not in _DTYPES or not all(type(n) is int and 1 <= n < 2**31 for n in shape):
            raise ValueError("records must be arrays of numbers")
        size = np.dtype(name).itemsize * math.prod(shape)
        if len(shape) < 1 or start + size > len(data):
            raise ValueError("shapes must fit the bytes that came")
        part = np.frombuffer(data, name, math.prod(shape), start).reshape(shape)
        # One record that is not finite would end the training of whoever takes it.
        if not np.isfinite(part).all():
            raise ValueError("records must be finite")
        stacks.append(part)
        start += size
    x, y = stacks
    return list(zip(x, (np.asarray(one) for one in y), strict=True))


@dataclass
class _HeldRecords:
    """What an app may take in one call, and whether it has."""

    records: Planted
    is_taken: bool = False


_held: ContextVar[_HeldRecords | None] = ContextVar("leakmeter planted records", default=None)


def plant_mod(message: Message, context: Context, call_next: Call) -> Message:
    """Let the app take the records that a train message orders, if it orders any.

    The app sees the message without the order and gets the records from `planted`. In the reply
    the mod says whether it took them; the hook removes that. Other messages pass as they are.

    It also serves apps with the legacy API, `ClientApp(client_fn=client_fn, mods=[plant_mod])`.
    """
    order = wire.order_under(message.content, wire.PLANTED)
    if order is None:
        return call_next(message, context)
    held = _HeldRecords(read_planting_order(order))
    token = _held.set(held)
    try:
        reply = call_next(wire.without_orders(message, lambda key: key == wire.PLANTED), context)
    finally:
        _held.reset(token)
    if reply.has_error():
        return reply
    wire.add_record(reply, wire.PLANTED, ConfigRecord({"taken": held.is_taken}))
    return wire.as_legacy_reply(reply)


@contextmanager
def planted(
    message: Message | None = None,  # noqa: ARG001 - says where the records belong
    context: Context | None = None,  # noqa: ARG001
) -> Iterator[Planted]:
    """Give the canaries that this client trains on in this round; usually none.

    They are there if the client app lists `plant_mod` and an auditor plants records. Leaving the
    block without an error says that the app has taken them.

    Args:
        message: The train message, as the app got it. A `fit` of the legacy API has none.
        context: The same.

    Example:
        with planted(message, context) as canaries:
            dataset = ConcatDataset([mine, canaries])  # torch
            texts = [*texts, *canaries]  # a list of texts
            x, y = canaries.append(x, y)  # numpy
    """
    held = _held.get()
    if held is None:
        yield Planted()
        return
    yield held.records
    held.is_taken = True


def take_planting_answer(reply: Message) -> bool | None:
    """Return whether a client says that it took its records, and remove what it says."""
    if not reply.has_content() or wire.PLANTED not in reply.content:
        return None
    said = wire.config(reply.content, wire.PLANTED)
    wire.remove(reply, wire.PLANTED)
    return said is not None and said.get("taken") is True
