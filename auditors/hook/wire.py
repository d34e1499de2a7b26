"""Record keys that travel in Flower messages, and the one place where they are parsed."""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from leakmeter.auditors.auditor import Canary

CANARY = "leakmeter.canary"
TAP = "leakmeter.tap"
NOISE = "leakmeter.noise"
FILLED = "leakmeter.filled"
MASK = "leakmeter.mask"
LAYOUT = "leakmeter.layout"
SUM = "leakmeter.sum"
REPLAY = "leakmeter.replay"
WEIGHT = "num-examples"


def arrays(content: RecordDict) -> ArrayRecord:
    """Return the one ArrayRecord of a message's content."""
    return _arrays(content)[1]


def arrays_key(content: RecordDict) -> str:
    """Return the key under which the one ArrayRecord stands."""
    return _arrays(content)[0]


def _arrays(content: RecordDict) -> tuple[str, ArrayRecord]:
    found = [(k, r) for k, r in content.items() if isinstance(r, ArrayRecord)]
    if len(found) != 1:
        raise ValueError(f"content must hold exactly one ArrayRecord, got {len(found)}")
    return found[0]


def weight(content: RecordDict, key: str = WEIGHT) -> float:
    """Return the weight that a reply states for itself; 1 if it states none."""
    for record in content.values():
        if isinstance(record, MetricRecord) and key in record:
            value = record[key]
            if isinstance(value, int | float):
                return float(value)
    return 1.0


def add_record(message: Message, key: str, record: ConfigRecord | MetricRecord) -> None:
    """Give one outgoing message a record of its own.

    Flower's strategies share one RecordDict among all messages of a round, so the dictionary is
    copied; the records inside stay shared.
    """
    message.content = RecordDict({**message.content, key: record})


def replace_arrays(reply: Message, arrays: ArrayRecord) -> Message:
    """Give the reply other arrays, leave everything else as it was, and return it."""
    key = arrays_key(reply.content)
    reply.content = RecordDict({**reply.content, key: arrays})
    return reply


def config(content: RecordDict, key: str) -> ConfigRecord | None:
    """Return the ConfigRecord under `key`, if there is one."""
    record = content.get(key)
    return record if isinstance(record, ConfigRecord) else None


def canary_record(canary: Canary, *, avoid_zero: bool = False) -> MetricRecord:
    """Return the order that tells a seat which canary to play.

    It is a MetricRecord because Flower's clipping mods refuse messages with two ConfigRecords.

    Args:
        canary: Which, and whether it takes part.
        avoid_zero: Whether a seat that sends nothing moves one parameter by a rounding step, since
            Flower's clipping divides by the length of an update.
    """
    order = MetricRecord({"id": canary.id, "seed": canary.seed, "included": int(canary.included)})
    if canary.norm is not None:
        order["norm"] = float(canary.norm)
    if avoid_zero:
        order["avoid-zero"] = 1
    return order


def canary(content: RecordDict) -> Canary | None:
    """Return the canary that a train message orders, if it orders one."""
    order = _numbers(content, CANARY)
    if order is None:
        return None
    norm = order.get("norm")
    return Canary(
        id=int(str(order["id"])),
        seed=int(str(order["seed"])),
        included=bool(order["included"]),
        norm=float(norm) if isinstance(norm, int | float) else None,
    )


def avoids_zero(content: RecordDict) -> bool:
    """Whether a seat that sends nothing must not send exactly nothing."""
    order = _numbers(content, CANARY)
    return order is not None and "avoid-zero" in order


def add_left_out(message: Message, names: Sequence[str]) -> None:
    """Tell a client which arrays are no part of the update vector.

    FedAvg turns integer arrays into floats after round 1, so a client cannot see it by itself.
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
    norm = order.get("clip-norm") if order is not None else None
    return float(norm) if isinstance(norm, int | float) else None


def share_std(content: RecordDict) -> float:
    """Return the noise that the message asks each client to add; 0 if it asks for none."""
    order = config(content, NOISE)
    std = order.get("share-std") if order is not None else None
    return float(std) if isinstance(std, int | float) else 0.0


def replay_record(number: int) -> MetricRecord:
    """Return what marks a message as a replay; numbers for the same reason as canaries."""
    return MetricRecord({"number": number})


def replay(content: RecordDict) -> int | None:
    """Return which replay of its round a train message is; None for the round itself.

    A client app that seeds its batches by the round mixes this in, or all replays are equal.
    """
    order = _numbers(content, REPLAY)
    return None if order is None else int(str(order["number"]))


def _numbers(content: RecordDict, key: str) -> MetricRecord | None:
    record = content.get(key)
    return record if isinstance(record, MetricRecord) else None


def is_instrument(content: RecordDict) -> bool:
    """Whether a message is an auditor's own: it collects what a tap has kept, or is a replay."""
    return only_collects(content) or replay(content) is not None


def only_collects(content: RecordDict) -> bool:
    """Whether a message does nothing but collect what a tap has kept.

    Without a model beside it, an app that lists no tap has nothing to train and to answer with.
    """
    tap = config(content, TAP)
    return tap is not None and tap.get("action") == "collect" and list(content) == [TAP]
