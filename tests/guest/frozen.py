"""Values that two runs are compared by: everything in a record, down to the bytes."""

from __future__ import annotations

import copy
from typing import Any, TypeAlias

from flwr.app import ArrayRecord, Message, RecordDict

# Key, kind of record, and what it holds; numbers as text, so that NaN equals NaN.
Frozen: TypeAlias = tuple[tuple[str, str, tuple[Any, ...]], ...]


def frozen(content: RecordDict) -> Frozen:
    """Return the records with their order, names, types, shapes and bytes."""
    return tuple((key, type(record).__name__, _values(record)) for key, record in content.items())


def frozen_arrays(record: ArrayRecord) -> tuple[Any, ...]:
    """Return names, types, shapes and bytes of arrays."""
    return tuple((k, a.dtype, tuple(a.shape), a.stype, a.data) for k, a in record.items())


def _values(record: Any) -> tuple[Any, ...]:
    if isinstance(record, ArrayRecord):
        return frozen_arrays(record)
    return tuple((key, type(value).__name__, repr(value)) for key, value in record.items())


def frozen_reply(reply: Message) -> Frozen | tuple[int, str]:
    """Return the content of a reply, or its error."""
    if reply.has_error():
        return reply.error.code, str(reply.error.reason)
    return frozen(reply.content)


def is_ours(key: str) -> bool:
    """Whether a record has a name of Leakmeter's."""
    return key.startswith("leakmeter.")


def without(content: RecordDict, keys: set[str]) -> RecordDict:
    """Return the records under other keys."""
    return RecordDict({key: record for key, record in content.items() if key not in keys})


def copied(content: RecordDict) -> RecordDict:
    """Return records that may be changed; arrays are shared, since nobody writes into them."""
    return RecordDict(
        {
            key: ArrayRecord(dict(record))
            if isinstance(record, ArrayRecord)
            else copy.deepcopy(record)
            for key, record in content.items()
        }
    )
