"""The secure sum's messages and client state as Flower records, parsed in this one place.

Keys, boxes and shares of several peers travel as one run of bytes: how many, their numbers, and
their parts, all of one length. A list of many short entries costs Flower more than the cryptography
does.
Whatever a record should not hold is refused: it comes from the other side of the wire.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal, get_args

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.layout import NPY, Layout, npy_header, to_array
from leakmeter.auditors.hook.wire import RefusedError
from leakmeter.clients.secure_sum.keys import (
    KEY_BYTES,
    ClientSecrets,
    Session,
    check_order,
)
from leakmeter.clients.secure_sum.participant import BOX_BYTES, Participant, Step
from leakmeter.clients.secure_sum.quantise import Quantiser, Ring, RingVector
from leakmeter.clients.secure_sum.sharing import SHARE_BYTES
from leakmeter.clients.secure_sum.signing import SIGNATURE_BYTES, PublicKeys

_UPLOAD = "masked"
# A client's own state: sizes of its parts, then the parts; the first has the numbers and the step.
_STATE = "state"
_SIZES, _HEAD = struct.Struct("<15Q"), struct.Struct("<2Q3qB")
_STEPS: tuple[Step, ...] = get_args(Step)
_MAX_HEADER = 2**10  # bytes before the numbers of an array; numpy writes 128


def put_by_number(name: str, values: Mapping[int, bytes]) -> dict[str, Any]:
    """Return numbers and their bytes, which all have one length, under one name."""
    if len(sizes := set(map(len, values.values()))) > 1:
        raise RefusedError(f"{name} must have one length, got {sorted(sizes)} bytes")
    count = len(values)
    return {name: b"".join([struct.pack(f"<{count + 1}I", count, *values), *values.values()])}


def get_by_number(record: ConfigRecord, name: str) -> dict[int, bytes]:
    """Return number to bytes; a number that occurs twice, or uneven parts, are refused."""
    data = wire.get_bytes(record, name)
    count = int.from_bytes(data[:4], "little")
    start = 4 * (count + 1)
    rest = len(data) - start
    if rest < 0 or (rest % count if count else rest):
        raise RefusedError(f"{name} must be numbers and as many equal parts, got {len(data)} bytes")
    numbers = struct.unpack_from(f"<{count}I", data, 4)
    if len(set(numbers)) < count:
        raise RefusedError(f"{name} must be for distinct numbers, got {list(numbers)}")
    return _parts(numbers, data[start:]) if count else {}


def get_numbers(record: ConfigRecord, name: str) -> list[int]:
    """Return a list of distinct numbers."""
    values: Any = record.get(name)
    if not isinstance(values, list) or not {*map(type, values)} <= {int}:  # True is no number
        raise RefusedError(f"{name} must be a list of numbers, got {wire.describe(values)}")
    if len(set(values)) < len(values):
        raise RefusedError(f"{name} must be distinct, got {values}")
    return list(values)


def get_settings(record: ConfigRecord) -> bytes:
    """Return the fingerprint of the run's configuration as a client has got it."""
    return _of_size(record, "settings", KEY_BYTES)


def get_signature(record: ConfigRecord) -> bytes:
    """Return a signature of the right length."""
    return _of_size(record, "signature", SIGNATURE_BYTES)


def _of_size(record: ConfigRecord, name: str, size: int) -> bytes:
    value = wire.get_bytes(record, name)
    if len(value) != size:
        raise RefusedError(f"{name} must be {size} bytes, got {len(value)}")
    return value


def get_keys(record: ConfigRecord, *, is_signed: bool = False) -> PublicKeys:
    """Return what a client has announced; keys that no peer could use are refused."""
    keys = PublicKeys.from_bytes(wire.get_bytes(record, "keys"), is_signed=is_signed)
    if keys.share == keys.mask:
        raise RefusedError("the two public keys must differ, got one key twice")
    for key in (keys.share, keys.mask):
        check_order(key)
    return keys


def get_answers(
    record: ConfigRecord, name: Literal["boxes", "shares"], numbers: Collection[int]
) -> dict[int, bytes]:
    """Return number to a client's box for it, or share of its secret: one for each, of one size."""
    given, size = get_by_number(record, name), BOX_BYTES if name == "boxes" else SHARE_BYTES
    if set(given) != set(numbers):
        wrong = len(set(given) ^ set(numbers))
        raise RefusedError(f"{name} must be for the {len(numbers)} asked for, {wrong} differ")
    if any(len(part) != size for part in given.values()):
        length = len(next(iter(given.values())))
        raise RefusedError(f"{name} must have {size} bytes each, got {length}")
    return given


def get_keys_of_peers(record: ConfigRecord, *, is_signed: bool = False) -> dict[int, PublicKeys]:
    """Return number to the keys that a peer has announced."""
    each = get_by_number(record, "keys").items()
    return {n: PublicKeys.from_bytes(keys, is_signed=is_signed) for n, keys in each}


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


def put_sum(quantiser: Quantiser, layout: Layout, weight_key: str) -> ConfigRecord:
    """Return what is the same for all clients of a round: one record that messages can share."""
    return ConfigRecord(
        {**put_quantiser(quantiser), "arrays": list(layout.names), "weight-key": weight_key}
    )


def put_quantiser(quantiser: Quantiser) -> dict[str, Any]:
    """Return what a client needs to encode its update."""
    names = sorted(quantiser.metrics)
    noise = {"noise-distribution": quantiser.noise_distribution} if quantiser.has_integers else {}
    return {
        **noise,
        "clip-range": float(quantiser.clip_range),
        "bits": quantiser.bits,
        "max-clients": quantiser.max_clients,
        "max-weight": float(quantiser.max_weight),
        "noise-std": float(quantiser.noise_std),
        "metric-names": names,
        "metric-lows": [float(quantiser.metrics[n][0]) for n in names],
        "metric-highs": [float(quantiser.metrics[n][1]) for n in names],
    }


def get_quantiser(record: ConfigRecord) -> Quantiser:
    """Return the quantiser that a train order describes; it checks itself."""
    values: dict[str, Any] = dict(record.items())  # their own iteration is slow
    try:
        limits = zip(values["metric-lows"], values["metric-highs"], strict=True)
        return Quantiser(
            clip_range=values["clip-range"],
            bits=values["bits"],
            max_clients=values["max-clients"],
            max_weight=values["max-weight"],
            noise_std=values["noise-std"],
            noise_distribution=wire.as_distribution(
                values.get("noise-distribution", "gaussian")
            ).name,
            metrics=dict(zip(values["metric-names"], limits, strict=True)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RefusedError(f"mask order must describe the quantiser: {error}") from None


def get_layout(record: ConfigRecord, sent: ArrayRecord) -> tuple[Layout, ArrayRecord]:
    """Return the layout that a train order names, and the arrays in a record of our own.

    A client cannot tell it from the model it was sent: after its first round FedAvg sends as
    floats what were integers before. And an app may empty its message (`keep_input=False`).
    """
    names = record.get("arrays")
    if not isinstance(names, list) or not all(isinstance(n, str) and n in sent for n in names):
        raise RefusedError(f"arrays must be names among {list(sent)}, got {names!r}")
    own = ArrayRecord({str(name): sent[str(name)] for name in names})
    return Layout.of(own), own


def metrics_of(content: RecordDict) -> MetricRecord:
    """Return all metrics of a reply in one record."""
    records = [r for r in content.values() if isinstance(r, MetricRecord)]
    return MetricRecord({name: value for record in records for name, value in record.items()})


def put_upload(masked: RingVector, ring: Ring) -> dict[str, ArrayRecord]:
    """Return a masked vector for the content of a reply, in as few bytes as whole bytes allow."""
    flat: RingVector = np.ascontiguousarray(masked)
    if ring.wire_bytes < ring.dtype.itemsize:
        flat = np.frombuffer(ring.to_bytes(masked), np.uint8)
    return {"arrays": ArrayRecord({_UPLOAD: to_array(flat)})}


def get_upload(content: RecordDict, ring: Ring, length: int) -> RingVector:
    """Return the masked vector in a reply; it may not be written to."""
    arrays = wire.arrays(content)
    if _UPLOAD not in arrays:
        raise RefusedError(f"reply must contain the array {_UPLOAD!r}, got {list(arrays)}")
    if ring.wire_bytes < ring.dtype.itemsize:
        packed = _flat(arrays[_UPLOAD], np.dtype(np.uint8), length * ring.wire_bytes)
        return ring.from_bytes(packed.tobytes(), length)
    vector = _flat(arrays[_UPLOAD], ring.dtype, length)
    if (reduced := ring.reduce(vector)) is not vector and (vector != reduced).any():
        raise RefusedError(f"masked vector must be below 2^{ring.bits}, got {vector.max()}")
    return vector


def _flat(array: Array, dtype: np.dtype[Any], length: int) -> NDArray[Any]:
    """Return the numbers of an array if they are flat, of this type and this number."""
    header = npy_header(dtype.str, (length,))
    size = len(header) + length * dtype.itemsize
    if array.stype == NPY and len(array.data) == size and array.data.startswith(header):
        return np.frombuffer(array.data, dtype, offset=len(header))  # nothing is copied
    if not 0 <= len(array.data) - length * dtype.itemsize <= _MAX_HEADER:
        # Before numpy reads it: a header may promise more than there is memory for.
        raise RefusedError(
            f"masked vector must be {length} of {dtype}, got {len(array.data)} bytes"
        )
    vector = array.numpy()
    if vector.shape != (length,) or vector.dtype != dtype:
        raise RefusedError(
            f"masked vector must be {length} of {dtype}, got shape {vector.shape} of {vector.dtype}"
        )
    return vector


def put_participant(participant: Participant) -> ConfigRecord:
    """Return a client's state between two stages. It holds secrets: it stays on the client.

    One run of bytes: Flower looks at every entry of a record, and copies each.
    """
    session, secrets = participant.session, participant.secrets
    numbers = (participant.number, participant.threshold, participant.least)
    step = _STEPS.index(participant.step)
    by_peer = (participant.locks, participant.masks, participant.held, participant.signers)
    # Those that are there have the same peers.
    peers: Iterable[int] = next(filter(None, by_peer), ())
    lists = (peers, participant.drawn, participant.seats, participant.alive)
    parts = [
        _HEAD.pack(session.run, session.server_round, *numbers, step),
        # With the public keys, which would take a scalar multiplication each to have again.
        b"" if secrets is None else secrets.to_bytes(),
        *(participant.own_shares, participant.roster, participant.announced, participant.digest),
        *(array("q", listed).tobytes() for listed in lists),
        *(b"".join(given.values()) for given in (*by_peer, participant.drawn)),
    ]
    return ConfigRecord({_STATE: _SIZES.pack(*map(len, parts)) + b"".join(parts)})


def get_participant(record: ConfigRecord) -> Participant:
    """Return the participant that `put_participant` was given.

    Raises:
        RefusedError: The state is not whole.
    """
    try:
        return _participant(wire.get_bytes(record, _STATE))
    except (LookupError, TypeError, ValueError, ArithmeticError, struct.error):
        # Nothing of the state: it holds secrets, and the text travels to the server.
        raise RefusedError(
            "this client's own state of the secure sum is not whole, or another release wrote it; "
            "start the run again"
        ) from None


def _participant(data: bytes) -> Participant:
    ends = list(accumulate(_SIZES.unpack_from(data), initial=_SIZES.size))
    if ends[-1] != len(data):
        raise ValueError(f"state must have {ends[-1]} bytes")
    parts = [data[start:end] for start, end in pairwise(ends)]
    (head, secrets), (own_shares, roster, announced, digest) = parts[:2], parts[2:6]
    run, server_round, number, threshold, least, step = _HEAD.unpack(head)
    peers, drawn, seats, alive = (array("q", part).tolist() for part in parts[6:10])
    locks, masks, held, signers = (_even(peers, part) for part in parts[10:14])
    return Participant(
        session=Session(run, server_round),
        number=number,
        step=_STEPS[step],
        secrets=ClientSecrets.from_bytes(secrets) if secrets else None,
        threshold=threshold,
        locks=locks,
        masks=masks,
        own_shares=own_shares,
        held=held,
        drawn=_even(drawn, parts[14]),
        roster=roster,
        signers=signers,
        announced=announced,
        digest=digest,
        seats=tuple(seats),
        least=least,
        alive=tuple(alive),
    )


def _even(numbers: Sequence[int], data: bytes) -> dict[int, bytes]:
    """Return number to its part of the data, which must be that of all of them or nothing."""
    if not data:
        return {}
    if len(data) % len(numbers):
        raise ValueError(f"there must be {len(numbers)} equal parts")
    return _parts(numbers, data)


def _parts(numbers: Sequence[int], data: bytes) -> dict[int, bytes]:
    """Return number to its part of the data, all parts of one length."""
    size = len(data) // len(numbers)
    return {n: data[i * size : (i + 1) * size] for i, n in enumerate(numbers)}
