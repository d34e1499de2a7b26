"""Records that a client is asked to train on besides its own: order, mod, and the app's part.

The server sends the records themselves, so a client needs neither a generator nor a file. They are
bytes in a MetricRecord, eight in a whole number: Flower's clipping mods refuse a second
ConfigRecord. An order is a proposal. Nothing is planted unless the owner of the client lists
`plant_mod` and the app asks for the records; both may ignore them, and what a client says it took
only makes a warning.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, overload

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from leakmeter.auditors.hook import legacy_wire, wire
from leakmeter.auditors.hook.mods import Call
from leakmeter.auditors.values import Record

MAX_BYTES: Final = 2**26  # of one order
MAX_COPIES: Final = 10_000
_MAX_TOTAL: Final = 2**30  # bytes of all copies together
_DTYPES: Final = frozenset(
    {"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"}
)
_FIELDS: Final = frozenset({"bytes", "words", "copies"})


def order_of(records: Sequence[Record], copies: int) -> MetricRecord:
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
    planted_in(order)  # what clients would refuse is not sent: they would fail instead of train
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


def planted_in(record: MetricRecord) -> Planted:
    """Return the records of an order.

    Raises:
        WireError: The order is not one; the error says what is wrong.
    """
    if not _FIELDS.issuperset(record):
        raise wire.WireError(f"an order to plant must have {sorted(_FIELDS)}, got other fields")
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
        raise wire.WireError(f"words must hold {size} bytes, got {wire.described(words)}")
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
class _Held:
    """What an app may take in one call, and whether it has."""

    records: Planted
    is_taken: bool = False


_held: ContextVar[_Held | None] = ContextVar("leakmeter planted records", default=None)


def plant_mod(message: Message, context: Context, call_next: Call) -> Message:
    """Let the app take the records that a train message orders, if it orders any.

    The app sees the message without the order and gets the records from `planted`. In the reply
    the mod says whether it took them; the hook removes that. Other messages pass as they are.

    It also serves apps with the legacy API, `ClientApp(client_fn=client_fn, mods=[plant_mod])`.
    """
    order = legacy_wire.order(message.content, wire.PLANTED)
    if order is None:
        return call_next(message, context)
    held = _Held(planted_in(order))
    token = _held.set(held)
    try:
        reply = call_next(legacy_wire.without_order(message, wire.PLANTED), context)
    finally:
        _held.reset(token)
    if reply.has_error():
        return reply
    answer = ConfigRecord({"taken": held.is_taken})
    return legacy_wire.with_answer(reply, wire.PLANTED, answer)


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


def take_answer(reply: Message) -> bool | None:
    """Return whether a client says that it took its records, and remove what it says."""
    if not reply.has_content() or wire.PLANTED not in reply.content:
        return None
    said = wire.config(reply.content, wire.PLANTED)
    kept = {key: record for key, record in reply.content.items() if key != wire.PLANTED}
    reply.content = RecordDict(kept)
    return said is not None and said.get("taken") is True
