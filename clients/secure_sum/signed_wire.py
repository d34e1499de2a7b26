"""The records of the stages that only a signed secure sum has, and their parsers.

As in `wire`: what a record should not hold is refused, whoever has sent it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from typing import Any

from flwr.app import ConfigRecord

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.wire import RefusedError
from leakmeter.clients.secure_sum.announcement import SignedKeys
from leakmeter.clients.secure_sum.keys import KEY_BYTES
from leakmeter.clients.secure_sum.signing import SIGNATURE_BYTES
from leakmeter.clients.secure_sum.wire import (
    check_keys,
    get_by_number,
    get_numbers,
    put_by_number,
)


def get_signed_keys(record: ConfigRecord) -> SignedKeys:
    """Return what a client has announced and signed; keys that no peer could use are refused."""
    signed = SignedKeys.from_bytes(wire.get_bytes(record, "keys"))
    check_keys(signed.keys)
    return signed


def get_signed_keys_of_peers(record: ConfigRecord) -> dict[int, SignedKeys]:
    """Return number to the signed announcement of a peer."""
    return {n: SignedKeys.from_bytes(keys) for n, keys in get_by_number(record, "keys").items()}


def put_roster(clients: Mapping[int, bytes]) -> dict[str, Any]:
    """Return everybody's public signing key, by number."""
    return put_by_number("identities", clients)


def get_roster(record: ConfigRecord) -> dict[int, bytes]:
    """Return number to public signing key."""
    clients = get_by_number(record, "identities")
    if not clients or any(len(key) != KEY_BYTES for key in clients.values()):
        raise RefusedError(f"identities must be of {KEY_BYTES} bytes each, and not none")
    return clients


def get_drawn(record: ConfigRecord, own: int, roster: Collection[int], draws: int) -> list[int]:
    """Return whom a client has drawn: this many others on the roster."""
    drawn = get_numbers(record, "drawn")
    if len(drawn) != draws or own in drawn or set(drawn) - set(roster):
        raise RefusedError(f"drawn must be {draws} other clients of the roster, got {drawn[:20]}")
    return drawn


def get_signature(record: ConfigRecord) -> bytes:
    """Return a signature of the right length."""
    signature = wire.get_bytes(record, "signature")
    if len(signature) != SIGNATURE_BYTES:
        raise RefusedError(f"signature must be {SIGNATURE_BYTES} bytes, got {len(signature)}")
    return signature


def put_signatures(
    signatures: Mapping[int, bytes], lists: Mapping[int, Collection[int]]
) -> dict[str, Any]:
    """Return signatures by number, and the lists that were signed if they are not all the same."""
    values = put_by_number("signatures", signatures)
    if lists:
        listed = [sorted(lists[n]) for n in signatures]
        values["lengths"] = [len(numbers) for numbers in listed]
        flat = [number for numbers in listed for number in numbers]
        values["lists"] = struct.pack(f"<{len(flat)}I", *flat)
    return values


def get_signatures(record: ConfigRecord) -> tuple[dict[int, bytes], dict[int, list[int]]]:
    """Return signatures by number, and who has signed which list; none if they are not given."""
    signatures = get_by_number(record, "signatures")
    if any(len(signature) != SIGNATURE_BYTES for signature in signatures.values()):
        raise RefusedError(f"signatures must be {SIGNATURE_BYTES} bytes each")
    if "lists" not in record:
        return signatures, {}
    lengths: Any = record.get("lengths")
    data = wire.get_bytes(record, "lists")
    if (
        not isinstance(lengths, list)
        or len(lengths) != len(signatures)
        or not all(type(length) is int and length >= 0 for length in lengths)
        or 4 * sum(lengths) != len(data)
    ):
        raise RefusedError(f"lists must be one for each of {len(signatures)} signatures")
    flat = struct.unpack(f"<{len(data) // 4}I", data)
    lists, start = {}, 0
    for number, length in zip(signatures, lengths, strict=True):
        lists[number] = list(flat[start : start + length])
        start += length
    return signatures, lists
