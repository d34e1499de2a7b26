"""One digest of all that the clients of a round were told, for the keys of their masks.

Two clients that were told different things get different mask keys, so their masks do not cancel,
and the sum shows nothing. Without it, a server that sends everybody but one client a huge clip
range, a learning rate of zero or another model reads that client's update from an honest sum.
(Pasquini et al. 2022, Eluding Secure Aggregation in Federated Learning via Model Inconsistency,
arXiv 2111.07380.)

The encoding is unambiguous: every value has a tag for its type and its length in front. Names are
sorted, since Flower may change their order on the way; the order of a model's arrays means
something and is kept. Left out is what each client is told separately: its boxes and its canary.
Such a record has known fields and no others. Anything else under its name is bound in: a model
there would reach the app, and each client could get another one. Who has a canary seat is a record
of its own, the same for all. So is an order to keep an update: where `tap_mod` refuses it, training
fails, and a server that could choose who fails would choose all but one.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.seat import FIELDS
from leakmeter.clients.secure_sum.keys import PROTOCOL, Session

_SIZE, _LARGE = struct.Struct("<Q"), 2**12  # bytes
# What each client is told separately: type and fields. `MaskMod` limits what these may say.
_OWN: Mapping[str, tuple[type, frozenset[str]]] = {
    wire.MASK: (ConfigRecord, frozenset({"stage", "round", "number", "boxes"})),
    wire.CANARY: (MetricRecord, FIELDS),
}


@dataclass(frozen=True)
class Terms:
    """What clients of a round agree on besides the train message.

    Attributes:
        session: Run and round.
        threshold: Shares that open a secret.
        settings: Fingerprint of the run's configuration, see `fingerprint`.
        roster: Fingerprint of those among whom neighbours were drawn; empty if none were.
    """

    session: Session
    threshold: int
    settings: bytes
    roster: bytes = b""

    def digest(self, instruction: bytes) -> bytes:
        """Return the 32 bytes that enter the mask keys.

        Args:
            instruction: Fingerprint of the train message, see `Instructions`.
        """
        place = self.session.context("binding", self.threshold)
        return _hash([place, self.settings, self.roster, instruction])


class Instructions:
    """Fingerprints of train messages; a record that several of them share is read once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, bytes]] = {}

    def of(self, message: Message) -> bytes:
        """Return the fingerprint of all that a message tells every client of its round."""
        told = message.metadata
        parts = [PROTOCOL, told.message_type.encode(), told.group_id.encode()]
        for name, record in sorted(_common(message).items()):
            parts += [name.encode(), self._record(record)]
        return _hash(parts)

    def same(self, messages: Iterable[Message]) -> bytes | None:
        """Return the one fingerprint of all messages; None if they differ."""
        found = {self.of(message) for message in messages}
        return found.pop() if len(found) == 1 else None

    def differing(self, one: Message, other: Message) -> list[str]:
        """Return the names of what two messages have differently."""
        ours, theirs = _common(one), _common(other)
        pairs = ((n, ours.get(n), theirs.get(n)) for n in sorted({*ours, *theirs}))
        different = [n for n, a, b in pairs if self._fingerprint(a) != self._fingerprint(b)]
        return different or ["message type"]

    def _fingerprint(self, record: object) -> bytes | None:
        return None if record is None else self._record(record)

    def _record(self, record: object) -> bytes:
        kept = self._known.get(id(record))
        if kept is None:
            # With the record itself, so that nothing else gets its id meanwhile.
            kept = self._known[id(record)] = (record, _record(record))
        return kept[1]


def fingerprint(config: Mapping[str, object]) -> bytes:
    """Return the fingerprint of a run's configuration, which the server hands to every client."""
    return _hash([b"settings", *_entries(config)])


def _common(message: Message) -> dict[str, object]:
    """Return the records that must be the same for all clients."""
    return {n: record for n, record in message.content.items() if not _is_own(n, record)}


def _is_own(name: str, record: object) -> bool:
    """Whether a record is what one client is told by itself, and nothing beside."""
    if name not in _OWN or not isinstance(record, Mapping):
        return False
    kind, fields = _OWN[name]
    return isinstance(record, kind) and record.keys() <= fields


def _record(record: object) -> bytes:
    if isinstance(record, ArrayRecord):
        return _hash([b"arrays", *(part for name in record for part in _array(name, record[name]))])
    if isinstance(record, Mapping):
        # The class tells numbers of a MetricRecord from those of a ConfigRecord.
        return _hash([type(record).__name__.encode(), *_entries(record)])
    raise ValueError(f"a train message must contain Flower's records, got {type(record).__name__}")


def _array(name: str, array: Array) -> list[bytes]:
    shape = struct.pack(f"<{len(array.shape)}q", *array.shape)
    return [name.encode(), array.dtype.encode(), array.stype.encode(), shape, array.data]


def _entries(values: Mapping[str, object]) -> list[bytes]:
    return [
        part for name, value in sorted(values.items()) for part in (name.encode(), _value(value))
    ]


def _value(value: object) -> bytes:
    """Return a value of Flower's records with a tag for its type; True is not 1, and 1 not 1.0."""
    if isinstance(value, bool):
        return b"b1" if value else b"b0"
    if isinstance(value, int):
        return b"i" + str(int(value)).encode()
    if isinstance(value, float):
        return b"f" + struct.pack("<d", value)
    if isinstance(value, str):
        return b"s" + value.encode()
    if isinstance(value, bytes):
        return b"y" + value
    if isinstance(value, list | tuple):
        return b"l" + _joined(map(_value, value))
    raise ValueError(f"a record must contain numbers, texts and bytes, got {type(value).__name__}")


def _joined(parts: Iterable[bytes]) -> bytes:
    return b"".join(piece for part in parts for piece in (_SIZE.pack(len(part)), part))


def _hash(parts: Sequence[bytes]) -> bytes:
    """Return SHA-256 of the parts, each with its length in front; large ones are not copied."""
    state, start = hashlib.sha256(struct.pack("<B", len(PROTOCOL)) + PROTOCOL), 0
    for i, part in enumerate(parts):
        if len(part) > _LARGE:
            state.update(_joined(parts[start:i]) + _SIZE.pack(len(part)))
            state.update(part)
            start = i + 1
    state.update(_joined(parts[start:]))
    return state.digest()
