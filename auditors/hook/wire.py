"""Every name that travels in Flower messages, and typed readers for the values behind them.

First the names, then readers of single values, then one section per record: who writes it and who
reads it. The secure sum has records of many bytes; `clients.secure_sum.wire` packs and unpacks
them under the names listed here.

The last part is Flower's legacy API. Its arrays travel as bytes without type and shape, and
everything else as scalars in one config. Here arrays get both, and our records are texts in that
config. All else knows only our records.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from leakmeter.auditors.hook.layout import numbers_in
from leakmeter.auditors.noise import Distribution, distribution_named
from leakmeter.auditors.values import NotFiniteError

if TYPE_CHECKING:  # every client loads this module; a release may come without the legacy API
    from flwr.common import Parameters

# Records, by who writes them; all of ours begin with the same word.
CANARY = "leakmeter.canary"  # server: the canary that a seat plays; client: what became of it
SEATS = "leakmeter.seats"  # server: who of a secure sum plays a canary, the same for all clients
PLANTED = "leakmeter.planted"  # server: records to train on as well; client: whether it did
TAP = "leakmeter.tap"  # server: keep or hand out the plain update
LAYOUT = "leakmeter.layout"  # server: arrays that are no part of the update
REPLAY = "leakmeter.replay"  # server: train once more, for an auditor
NOISE = "leakmeter.noise"  # server: clip and noise; client: done so
FILLED = "leakmeter.filled"  # server: fill to this floor; client: done so
MASK = "leakmeter.mask"  # server and client: one stage of the secure sum
SUM_ORDER = "leakmeter.mask.sum"  # server: how all clients of a secure sum encode their updates
SUM_OUTCOME = "leakmeter.sum"  # `Masked`, to the strategy inside: how the sum was rounded
BLANK = "leakmeter.blank"  # client of a simulation: why its reply contains no update
IDENTITY = "leakmeter.identity"  # client: which client it is
CONFIG = "config"  # Flower's own, with the round

# Message types.
IDENTITY_QUERY = "query.identity"

# Error codes of replies; Flower's own are below 100.
DROPPED = 1702  # a simulated dropout

# Arrays.
STEPS = "leakmeter.steps"  # client, inside itself: update and integer noise in steps of the ring

# Metrics.
WEIGHT = "num-examples"  # Flower's default name of a client's weight
CLIP_BIT = "below-clip"  # 1 where an update was below the clip norm

Record: TypeAlias = ConfigRecord | MetricRecord


class WireError(ValueError):
    """A record lacks a value or has one of another type."""


def get_int(record: Record, name: str) -> int:
    """Return a whole number.

    Raises:
        WireError: It is missing or something else.
    """
    value = record.get(name)
    if type(value) is not int:  # True is an int to isinstance
        raise WireError(f"{name} must be a whole number, got {describe(value)}")
    return value


def get_float(record: Record, name: str) -> float:
    """Return a number.

    Raises:
        WireError: It is missing or something else.
    """
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WireError(f"{name} must be a number, got {describe(value)}")
    return as_float(value)


def as_float(value: float) -> float:
    """Return a number as float64; an integer beyond its range is infinite, as limits expect."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def get_text(record: ConfigRecord, name: str) -> str:
    """Return a text.

    Raises:
        WireError: It is missing or something else.
    """
    value = record.get(name)
    if not isinstance(value, str):
        raise WireError(f"{name} must be a text, got {describe(value)}")
    return value


def get_bytes(record: ConfigRecord, name: str) -> bytes:
    """Return bytes.

    Raises:
        WireError: They are missing or something else.
    """
    value = record.get(name)
    if not isinstance(value, bytes):
        raise WireError(f"{name} must be bytes, got {describe(value)}")
    return value


def describe(value: object) -> str:
    """Describe a value without showing what may be long or secret."""
    if value is None:
        return "nothing"
    return f"{len(value)} entries" if isinstance(value, list) else type(value).__name__


def server_round(content: RecordDict) -> int:
    """Return the round that Flower's strategies write into a train message.

    Raises:
        WireError: There is none.
    """
    record = config(content, CONFIG)
    if record is None:
        raise WireError(f"content must have a ConfigRecord {CONFIG!r}, got {list(content)}")
    return get_int(record, "server-round")


def arrays(content: RecordDict) -> ArrayRecord:
    """Return the one ArrayRecord of a message's content."""
    return _arrays(content)[1]


def own_arrays(content: RecordDict) -> ArrayRecord:
    """Return the same in a record of our own: an app may empty its message (`keep_input=False`)."""
    return ArrayRecord(dict(arrays(content)))


def arrays_key(content: RecordDict) -> str:
    """Return the key of the only ArrayRecord."""
    return _arrays(content)[0]


def _arrays(content: RecordDict) -> tuple[str, ArrayRecord]:
    found = [(k, r) for k, r in content.items() if isinstance(r, ArrayRecord)]
    if len(found) != 1:
        raise ValueError(f"content must contain exactly one ArrayRecord, got {len(found)}")
    return found[0]


class RefusedError(ValueError):
    """The client does not take this step; nothing of its has been sent.

    Raised before training and for what was ordered alone: the text travels to the server.
    """


class FailedError(ValueError):
    """Training has given nothing that can be sent; the text stays at the client."""


def trained_content(reply: Message) -> RecordDict:
    """Return what the app, or a mod behind this one, has replied with.

    Raises:
        FailedError: It has replied with an error.
    """
    if reply.has_error():
        raise FailedError(reply.error.reason or "no reason given")
    return reply.content


def blank_record(error: BaseException) -> ConfigRecord:
    """Return why a reply contains no update, for whoever runs a simulation."""
    reason = one_line(f"{type(error).__name__}: {error}")
    return ConfigRecord({"reason": reason, "diverged": isinstance(error, NotFiniteError)})


def blank_reason(reply: Message) -> str | None:
    """Return why a reply contains no update, if it does not and its client says so."""
    record = _blank(reply)
    reason = None if record is None else record.get("reason")
    return one_line(reason) if isinstance(reason, str) else None


def says_diverged(reply: Message) -> bool:
    """Whether a reply contains no update since that was not finite, as its client says."""
    record = _blank(reply) if blank_reason(reply) is not None else None
    return record is not None and record.get("diverged") is True


def _blank(reply: Message) -> ConfigRecord | None:
    return config(reply.content, BLANK) if reply.has_content() else None


def dropout_reply(message: Message, stage: str) -> Message:
    """Return the reply of a client that a simulation lets drop out in this stage."""
    reason = f"simulated dropout in stage {stage}"
    return Message(Error(DROPPED, reason), reply_to=message)


def says_dropped(reply: Message) -> bool:
    """Whether a simulation has let this client drop out."""
    return reply.has_error() and reply.error.code == DROPPED


def distinct(replies: Iterable[Message]) -> list[Message]:
    """Return the replies without second ones: of each node the first that has content.

    A network may deliver a reply twice, and a client may send two. Errors all stay: those of
    expired messages have one source, the SuperLink.
    """
    seen: set[int] = set()
    kept = []
    for reply in replies:
        if reply.has_content():
            if reply.metadata.src_node_id in seen:
                continue
            seen.add(reply.metadata.src_node_id)
        kept.append(reply)
    return kept


def one_line(text: str, most: int = 500) -> str:
    """Return a client's text as one short printable line, for logs."""
    words = " ".join(text[: 2 * most].split())
    return "".join(c for c in words if c.isprintable())[:most]


def weight(content: RecordDict, key: str = WEIGHT) -> float:
    """Return the weight that a reply states for itself; 1 if it states none."""
    for record in content.values():
        if isinstance(record, MetricRecord) and isinstance(record.get(key), int | float):
            return get_float(record, key)
    return 1.0


def add_record(message: Message, key: str, record: ConfigRecord | MetricRecord) -> None:
    """Add a record to one outgoing message.

    Flower's strategies share one RecordDict among all messages of a round, so the dictionary is
    copied; the records inside stay shared.
    """
    message.content = RecordDict({**message.content, key: record})


def remove(message: Message, *keys: str) -> None:
    """Remove records from a message, if it has them; the dictionary is copied here as well."""
    if any(key in message.content for key in keys):
        kept = {key: record for key, record in message.content.items() if key not in keys}
        message.content = RecordDict(kept)


def replace_arrays(reply: Message, arrays: ArrayRecord) -> Message:
    """Give the reply other arrays, leave everything else as it was, and return it."""
    key = arrays_key(reply.content)
    reply.content = RecordDict({**reply.content, key: arrays})
    return reply


def is_ours(key: str) -> bool:
    """Whether a record is one of ours, by its key."""
    return key.startswith("leakmeter.")


def is_hidden(content: RecordDict) -> bool:
    """Whether our own mods will change an update before it is sent: only a tap has it plain."""
    return any(key in content for key in (MASK, NOISE, FILLED))


def config(content: RecordDict, key: str) -> ConfigRecord | None:
    """Return the ConfigRecord under `key`, if there is one."""
    record = content[key] if key in content else None  # noqa: SIM401 - their `get` is slow
    return record if isinstance(record, ConfigRecord) else None


def keep_record(server_round: int) -> MetricRecord:
    """Return the order that asks clients with a tap to keep their plain update."""
    return MetricRecord({"round": server_round})


def kept_round(content: RecordDict) -> int | None:
    """Return the round whose update a client is asked to keep, if it is."""
    order = _numbers(content, TAP)
    return None if order is None else get_int(order, "round")


def collect_record(server_round: int, weight_key: str, *, arrays: bool = True) -> ConfigRecord:
    """Return the order that asks clients with a tap for what they kept.

    Args:
        server_round: Of this round.
        weight_key: The metric that weights them.
        arrays: Whether the update itself is wanted, not only its weight.
    """
    return ConfigRecord(
        {"action": "collect", "round": server_round, "weight-key": weight_key, "arrays": arrays}
    )


def add_left_out(message: Message, names: Sequence[str]) -> None:
    """Tell a client which arrays are no part of the update vector.

    FedAvg turns integer arrays into floats after round 1, so a client cannot find out alone.
    """
    if names:
        add_record(message, LAYOUT, ConfigRecord({"left-out": list(names)}))


def left_out(content: RecordDict) -> list[str]:
    """Return the arrays that are no part of the update vector, as `add_left_out` has noted."""
    order = config(content, LAYOUT)
    names = order.get("left-out") if order is not None else None
    return [str(name) for name in names] if isinstance(names, list) else []


def clip_norm(content: RecordDict) -> float | None:
    """Return the norm that the message asks clients to clip to, if it does."""
    order = config(content, NOISE)
    return get_float(order, "clip-norm") if order is not None and "clip-norm" in order else None


def share_std(content: RecordDict) -> float:
    """Return the noise that the message asks each client to add; 0 if it asks for none."""
    order = config(content, NOISE)
    return get_float(order, "share-std") if order is not None and "share-std" in order else 0.0


def noise_distribution(content: RecordDict) -> Distribution:
    """Return the distribution of noise that the message names.

    Raises:
        WireError: It is unknown.
    """
    order = config(content, NOISE)
    return as_distribution("gaussian" if order is None else order.get("distribution", "gaussian"))


def as_distribution(value: object) -> Distribution:
    """Return the distribution that a record names.

    Raises:
        WireError: There is no such distribution.
    """
    try:
        return distribution_named(
            one_line(value, 40) if isinstance(value, str) else describe(value)
        )
    except ValueError as error:
        raise WireError(f"noise {error}") from None


@dataclass(frozen=True)
class SumOutcome:
    """What `Masked` says of a secure sum to the strategies inside it.

    Attributes:
        step: Grid that each update was rounded to.
        saturated: Coordinates that were clipped to fit, over all clients.
        colluders: Most clients that may collude with the server without opening an update.
        fewest: Fewest clients in a sum that a server which may do anything could have opened in
            place of this one; 0 where the server must follow the protocol.
    """

    step: float
    saturated: int
    colluders: int = 0
    fewest: int = 0

    def to_record(self) -> ConfigRecord:
        """Return it as a record."""
        return ConfigRecord(asdict(self))


def sum_outcome(content: RecordDict) -> SumOutcome | None:
    """Return what a secure sum has noted about its mean; None without one."""
    record = config(content, SUM_OUTCOME)
    if record is None:
        return None
    counts = (get_int(record, name) for name in ("saturated", "colluders", "fewest"))
    return SumOutcome(get_float(record, "step"), *counts)


def mask_number(content: RecordDict) -> int | None:
    """Return the number of a client in the secure sum that its train message belongs to."""
    order = config(content, MASK)
    return get_int(order, "number") if order is not None and "number" in order else None


def seats_record(numbers: Iterable[int]) -> MetricRecord:
    """Return who plays a canary, by their numbers in the secure sum."""
    return MetricRecord({"numbers": sorted(numbers)})


def seat_numbers(content: RecordDict) -> tuple[int, ...]:
    """Return who plays a canary, as every client of a secure sum is told.

    Raises:
        WireError: The list is something else.
    """
    record = _numbers(content, SEATS)
    listed = record.get("numbers") if record is not None else []
    if not isinstance(listed, list) or not all(type(n) is int for n in listed):
        raise WireError(f"{SEATS} must list numbers, got {describe(listed)}")
    return tuple(int(number) for number in listed)


def replay_record(number: int) -> MetricRecord:
    """Return what marks a message as a replay; numbers for the same reason as canaries."""
    return MetricRecord({"number": number})


def replay_number(content: RecordDict) -> int | None:
    """Return which replay of its round a train message is; None for the round itself.

    A client app that seeds its batches by the round mixes this in, or all replays are equal.
    """
    order = _numbers(content, REPLAY)
    return None if order is None else get_int(order, "number")


def _numbers(content: RecordDict, key: str) -> MetricRecord | None:
    record = content.get(key)
    return record if isinstance(record, MetricRecord) else None


def is_instrument(content: RecordDict) -> bool:
    """Whether a message is an auditor's own: it collects what a tap has kept, or is a replay."""
    return only_collects(content) or replay_number(content) is not None


def only_collects(content: RecordDict) -> bool:
    """Whether a message does nothing but collect what a tap has kept.

    The message has no model, so an app that lists no tap has nothing to train and answer with.
    """
    tap = config(content, TAP)
    return tap is not None and tap.get("action") == "collect" and list(content) == [TAP]


# Flower's own names of what a legacy message has.
_LEGACY_SENT: Final = "fitins.parameters"
_LEGACY_CONFIG: Final = "fitins.config"
_LEGACY_TRAINED: Final = "fitres.parameters"
_LEGACY_METRICS: Final = "fitres.metrics"

_UNREADABLE: Final = "bytes"  # the type of what is no array of numbers, such as trees

RecordT = TypeVar("RecordT", MetricRecord, ConfigRecord)

# Arrays.


def record_of(parameters: Parameters) -> ArrayRecord:
    """Return legacy parameters as a record, named by their places."""
    tensors = enumerate(parameters.tensors)
    return ArrayRecord({str(i): _with_shape(data, parameters.tensor_type) for i, data in tensors})


def _with_shape(data: bytes, stype: str) -> Array:
    """Return an array with the type and the shape that its bytes have."""
    try:
        numbers = numbers_in(Array(dtype="", shape=(), stype=stype, data=data))
    except Exception:  # bytes of anything: they can be trained, not audited
        return Array(dtype=_UNREADABLE, shape=(), stype=stype, data=data)
    return Array(dtype=str(numbers.dtype), shape=numbers.shape, stype=stype, data=data)


def _record_with_shapes(content: RecordDict, key: str) -> ArrayRecord:
    arrays = content.array_records[key].items()
    return ArrayRecord({name: _with_shape(a.data, a.stype) for name, a in arrays})


def _bare_record(content: RecordDict) -> ArrayRecord:
    """Return the trained arrays as a legacy client sends them."""
    arrays = content.array_records[_LEGACY_TRAINED].items()
    return ArrayRecord(
        {name: Array(dtype="", shape=(), stype=a.stype, data=a.data) for name, a in arrays}
    )


# Our records among the scalars of a config.


def as_scalars(content: RecordDict) -> dict[str, str]:
    """Return our records of a message as scalars."""
    ours = {key: record for key, record in content.items() if is_ours(key)}
    return {key: json.dumps(dict(record)) for key, record in ours.items()}


def from_scalars(scalars: Mapping[str, Any], kind: type[RecordT]) -> dict[str, RecordT]:
    """Return our records among scalars; what anybody else has put in their place is left out."""
    records = {}
    for key in filter(is_ours, scalars):
        try:
            records[key] = kind(json.loads(scalars[key]))
        except (TypeError, ValueError, RecursionError):  # a client may send anything
            continue
    return records


def without_our_scalars(scalars: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scalars that are not ours."""
    return {key: value for key, value in scalars.items() if not is_ours(key)}


# A fit message at the client.


def is_legacy_order(content: RecordDict) -> bool:
    """Whether a legacy fit message has records of ours."""
    scalars = config(content, _LEGACY_CONFIG)
    return _LEGACY_SENT in content and scalars is not None and any(map(is_ours, scalars))


def from_legacy(message: Message) -> Message:
    """Return a legacy fit message as the audit reads it."""
    orders = from_scalars(message.content.config_records[_LEGACY_CONFIG], MetricRecord)
    return _with_content(
        message, {_LEGACY_SENT: _record_with_shapes(message.content, _LEGACY_SENT), **orders}
    )


def order_under(content: RecordDict, key: str) -> MetricRecord | None:
    """Return one of our orders in a message, a legacy one or not."""
    if is_legacy_order(content):
        return from_scalars(content.config_records[_LEGACY_CONFIG], MetricRecord).get(key)
    record = content.get(key)
    return record if isinstance(record, MetricRecord) else None


def without_orders(message: Message, is_order: Callable[[str], bool]) -> Message:
    """Return a message, a legacy one or not, without those of our orders."""
    content = {key: record for key, record in message.content.items() if not is_order(key)}
    if is_legacy_order(message.content):
        config = message.content.config_records[_LEGACY_CONFIG]
        content[_LEGACY_CONFIG] = ConfigRecord(
            {key: value for key, value in config.items() if not is_order(key)}
        )
    return _with_content(message, content)


def from_legacy_reply(reply: Message) -> Message:
    """Return a legacy reply as the audit reads it; what is none stays as it is."""
    if reply.has_error() or _LEGACY_TRAINED not in reply.content:
        return reply
    return _with_content(
        reply,
        {**reply.content, _LEGACY_TRAINED: _record_with_shapes(reply.content, _LEGACY_TRAINED)},
    )


def as_legacy_reply(reply: Message) -> Message:
    """Return a reply as the legacy API sends it, our answers among its metrics."""
    if reply.has_error() or not {_LEGACY_TRAINED, _LEGACY_METRICS} <= set(reply.content):
        return reply
    kept = {key: record for key, record in reply.content.items() if not is_ours(key)}
    metrics = {**reply.content.config_records[_LEGACY_METRICS], **as_scalars(reply.content)}
    changed = {_LEGACY_TRAINED: _bare_record(reply.content), _LEGACY_METRICS: ConfigRecord(metrics)}
    return _with_content(reply, {**kept, **changed})


def _with_content(message: Message, content: Mapping[str, Any]) -> Message:
    twin = copy.copy(message)
    twin.content = RecordDict(dict(content))
    return twin
