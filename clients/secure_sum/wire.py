"""The secure sum's messages and client state as Flower records, parsed in this one place.

Keys, boxes and shares of several peers travel as one run of bytes, in the order of `peers` and all
of one length: a list of many short entries costs Flower more than the cryptography does.
Whatever a record should not hold is refused: it comes from the other side of the wire.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import index
from typing import Any, get_args

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.layout import NPY, Layout, npy_header, packed
from leakmeter.auditors.hook.wire import RefusedError
from leakmeter.clients.secure_sum.announcement import PublicKeys
from leakmeter.clients.secure_sum.keys import (
    KEY_BYTES,
    ClientSecrets,
    KeyPair,
    Session,
    check_order,
)
from leakmeter.clients.secure_sum.masking import Ring, RingVector
from leakmeter.clients.secure_sum.participant import BOX_BYTES, Participant, Step
from leakmeter.clients.secure_sum.quantise import Quantiser
from leakmeter.clients.secure_sum.sharing import SHARE_BYTES

_UPLOAD = "masked"
_BY_PEER = ("locks", "masks", "held", "signers")
_TEXTS = ("roster", "announced", "digest")
_MOST_HEADER = 2**10  # bytes before the numbers of an array; numpy writes 128


def put_by_number(name: str, values: Mapping[int, bytes]) -> dict[str, Any]:
    """Return numbers and their bytes, which all have one length."""
    if len(sizes := set(map(len, values.values()))) > 1:
        raise RefusedError(f"{name} must have one length, got {sorted(sizes)} bytes")
    return {"peers": list(values), name: b"".join(values.values())}


def get_by_number(record: ConfigRecord, name: str) -> dict[int, bytes]:
    """Return number to bytes; a number that occurs twice, or uneven parts, are refused."""
    numbers, data = get_numbers(record, "peers"), wire.get_bytes(record, name)
    if not numbers and not data:
        return {}
    if not numbers or len(data) % len(numbers):
        raise RefusedError(f"{name} must be {len(numbers)} equal parts, got {len(data)} bytes")
    return _parts(numbers, data)


def get_numbers(record: ConfigRecord, name: str) -> list[int]:
    """Return a list of distinct numbers."""
    values = record.get(name)
    if not isinstance(values, list) or not all(type(v) is int for v in values):
        raise RefusedError(f"{name} must be a list of numbers, got {wire.described(values)}")
    if len(set(values)) < len(values):
        raise RefusedError(f"{name} must be distinct, got {values}")
    return [int(v) for v in values]


def get_keys(record: ConfigRecord) -> PublicKeys:
    """Return what a client has announced; keys that no peer could use are refused."""
    return check_keys(PublicKeys.from_bytes(wire.get_bytes(record, "keys")))


def get_settings(record: ConfigRecord) -> bytes:
    """Return the fingerprint of the run's configuration as a client has got it."""
    value = wire.get_bytes(record, "settings")
    if len(value) != KEY_BYTES:
        raise RefusedError(f"settings must be {KEY_BYTES} bytes, got {len(value)}")
    return value


def check_keys(keys: PublicKeys) -> PublicKeys:
    """Return keys that peers can use; others are refused."""
    if keys.share == keys.mask:
        raise RefusedError("the two public keys must differ, got one key twice")
    for key in (keys.share, keys.mask):
        check_order(key)
    return keys


def get_boxes(record: ConfigRecord, peers: Collection[int]) -> dict[int, bytes]:
    """Return peer to the box for it; one for each peer, each as long as two sealed shares."""
    return _exactly(record, "boxes", peers, BOX_BYTES)


def get_shares(record: ConfigRecord, owners: Collection[int]) -> dict[int, bytes]:
    """Return owner to the share of one of its secrets; one for each that was asked for."""
    return _exactly(record, "shares", owners, SHARE_BYTES)


def _exactly(
    record: ConfigRecord, name: str, numbers: Collection[int], size: int
) -> dict[int, bytes]:
    given = get_by_number(record, name)
    if set(given) != set(numbers):
        wrong = len(set(given) ^ set(numbers))
        raise RefusedError(f"{name} must be for the {len(numbers)} asked for, {wrong} differ")
    if any(len(part) != size for part in given.values()):
        length = len(next(iter(given.values())))
        raise RefusedError(f"{name} must have {size} bytes each, got {length}")
    return given


def get_keys_of_peers(record: ConfigRecord) -> dict[int, PublicKeys]:
    """Return number to the keys that a peer has announced."""
    return {n: PublicKeys.from_bytes(keys) for n, keys in get_by_number(record, "keys").items()}


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
    values: dict[str, Any] = dict(record)
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


def get_layout(record: ConfigRecord, sent: ArrayRecord) -> Layout:
    """Return the layout that a train order names.

    A client cannot tell it from the model it was sent: after its first round FedAvg sends as
    floats what were integers before.
    """
    names = record.get("arrays")
    if not isinstance(names, list) or not all(isinstance(n, str) and n in sent for n in names):
        raise RefusedError(f"arrays must be names among {list(sent)}, got {names!r}")
    return Layout.of(ArrayRecord({str(name): sent[str(name)] for name in names}))


def put_upload(masked: RingVector, ring: Ring) -> RecordDict:
    """Return a masked vector as the content of a reply, in as few bytes as whole bytes allow."""
    flat: RingVector = np.ascontiguousarray(masked)
    if ring.wire_bytes < ring.dtype.itemsize:
        flat = np.frombuffer(ring.to_bytes(masked), np.uint8)
    return RecordDict({"arrays": ArrayRecord({_UPLOAD: packed(flat)})})


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
    if not 0 <= len(array.data) - length * dtype.itemsize <= _MOST_HEADER:
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
    """Return a client's state between two stages. It holds secrets: it stays on the client."""
    session = participant.session
    values: dict[str, Any] = {
        "run": str(session.run),  # unsigned 64 bits, more than a record's integer
        "step": participant.step,
        "numbers": [
            *(session.server_round, participant.number, participant.threshold),
            participant.least,
        ],
    }
    if participant.own_shares:
        values["own-shares"] = participant.own_shares
    # Those that are there have the same peers.
    by_peer = (participant.locks, participant.masks, participant.held, participant.signers)
    for name, given in zip(_BY_PEER, by_peer, strict=True):
        if given:
            values |= put_by_number(name, given)
    if participant.drawn:
        values |= {"drawn": list(participant.drawn), "keys": b"".join(participant.drawn.values())}
    for name, listed in (("seats", participant.seats), ("alive", participant.alive)):
        if listed:
            values[name] = list(listed)
    texts = (participant.roster, participant.announced, participant.digest)
    values |= {name: text for name, text in zip(_TEXTS, texts, strict=True) if text}
    if (secrets := participant.secrets) is not None:
        # With the public keys, which would take a scalar multiplication each to have again.
        pairs = (secrets.share, secrets.mask)
        values["secrets"] = b"".join([*(p.secret + p.public for p in pairs), secrets.seed])
    return ConfigRecord(values)


@contextmanager
def _own_state() -> Iterator[None]:
    """Refuse a state that is not as `put_participant` writes it, perhaps of another release."""
    try:
        yield
    except (LookupError, TypeError, ValueError, ArithmeticError):
        # Nothing of the state: it holds secrets, and the text travels to the server.
        raise RefusedError(
            "this client's own state of the secure sum is not whole, or another release wrote it; "
            "start the run again"
        ) from None


def get_session(record: ConfigRecord) -> Session:
    """Return the run and the round that a client's state belongs to.

    Raises:
        RefusedError: The state is not whole.
    """
    with _own_state():
        numbers: Any = record["numbers"]
        return Session(int(wire.get_text(record, "run")), index(numbers[0]))


def get_participant(record: ConfigRecord) -> Participant:
    """Return the participant that `put_participant` was given.

    Raises:
        RefusedError: The state is not whole.
    """
    with _own_state():
        return _participant(record, dict(record))


def _participant(record: ConfigRecord, values: dict[str, Any]) -> Participant:
    if values["step"] not in get_args(Step):
        raise ValueError("step must be one of a participant")
    secrets = None
    if "secrets" in values:
        parts = _even(range(5), values["secrets"])
        if len(parts[0]) != KEY_BYTES:
            raise ValueError(f"secrets must have {KEY_BYTES} bytes each")
        secrets = ClientSecrets(KeyPair(parts[0], parts[1]), KeyPair(parts[2], parts[3]), parts[4])
    _, number, threshold, least = map(index, values["numbers"])
    more: dict[str, Any] = {name: wire.get_bytes(record, name) for name in _TEXTS if name in values}
    more |= {n: _even(values["peers"], values[n]) for n in _BY_PEER if n in values}
    return Participant(
        session=get_session(record),
        number=number,
        step=values["step"],
        secrets=secrets,
        threshold=threshold,
        own_shares=wire.get_bytes(record, "own-shares") if "own-shares" in values else b"",
        least=least,
        drawn=_even(values["drawn"], values["keys"]) if "drawn" in values else {},
        seats=tuple(map(index, values.get("seats", ()))),
        alive=tuple(map(index, values.get("alive", ()))),
        **more,
    )


def _even(numbers: Sequence[int], data: bytes) -> dict[int, bytes]:
    """Return number to its part of the data, which must be that of all of them."""
    if len(data) % len(numbers) or not data:
        raise ValueError(f"there must be {len(numbers)} equal parts")
    return _parts([index(number) for number in numbers], data)


def _parts(numbers: Sequence[int], data: bytes) -> dict[int, bytes]:
    """Return number to its part of the data, all parts of one length."""
    size = len(data) // len(numbers)
    return {n: data[i * size : (i + 1) * size] for i, n in enumerate(numbers)}
