"""What a client may send in place of an honest reply, as strategies of hypothesis.

Malformed replies are no answer to what was asked. Well-formed lies are one: nobody can distinguish
them from an honest reply before the masks come off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import strategies as st

from leakmeter.auditors.hook import wire

Lie = Callable[[Message], Message]

NAMES = (
    *("keys", "boxes", "shares", "stage", "round"),
    *("settings", "drawn", "signature", "signatures"),
)
DTYPES = ("<f2", "<f4", "<f8", ">f8", "<i4", "<u4", "<u8", "|u1", "<c16", "|b1")
numbers = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.sampled_from([0, 1, 0.5, 2, -1, 5e-324, 1e308]),
)
values = st.one_of(
    numbers,
    st.booleans(),
    st.text(max_size=20),
    st.binary(max_size=400),
    st.lists(st.integers(-2, 9), max_size=6),
    st.lists(st.floats(), max_size=4),
)
words = st.one_of(
    st.text(max_size=60),
    st.sampled_from(["No module named 'torch'", "this machine cannot run the client", "\n\x1b[2J"]),
)


@st.composite
def any_array(draw: Any) -> Array:
    """Return an array of any type and shape, perhaps torn or with another shape than it says."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=2)))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    raw = rng.bytes(max(int(np.prod(shape)), 1) * dtype.itemsize)
    made = Array(np.frombuffer(raw, dtype, int(np.prod(shape))).reshape(shape))
    data = made.data[: len(made.data) - draw(st.sampled_from([0, 0, 1, 7, 100]))]
    said = draw(st.sampled_from([tuple(made.shape), (3,), (-1,), (2**60,)]))
    stype = draw(st.sampled_from(["numpy.ndarray", "numpy.ndarray", "torch", ""]))
    return Array(draw(st.sampled_from([made.dtype, "float64", "nonsense"])), said, stype, data)


array_records = st.dictionaries(
    st.sampled_from(["w", "b", "masked", "x"]), any_array(), max_size=3
).map(ArrayRecord)
metric_records = st.dictionaries(
    st.sampled_from(["num-examples", "train-loss", wire.CLIP_BIT]),
    st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(), st.lists(st.floats(), max_size=2)),
    max_size=3,
).map(MetricRecord)
config_records = st.dictionaries(st.sampled_from(NAMES), values, max_size=4).map(ConfigRecord)
contents = st.dictionaries(
    st.sampled_from(
        [
            wire.MASK,
            wire.NOISE,
            wire.CANARY,
            wire.SUM_OUTCOME,
            "arrays",
            "metrics",
            "config",
            "more",
        ]
    ),
    st.one_of(array_records, metric_records, config_records),
    max_size=4,
).map(RecordDict)


def _with(content: RecordDict) -> Lie:
    def lie(reply: Message) -> Message:
        reply.content = content
        return reply

    return lie


def _failing(code: int, reason: str) -> Lie:
    def lie(reply: Message) -> Message:
        # Flower's setters refuse an error where a content is.
        reply.__dict__.update(_content=None, _error=Error(code, reason))
        return reply

    return lie


def _raising(reason: str) -> Lie:
    def lie(_: Message) -> Message:
        raise RuntimeError(reason)

    return lie


def _patched(values: dict[str, Any]) -> Lie:
    """Return a lie that changes some values of an honest answer to a stage."""

    def lie(reply: Message) -> Message:
        order = wire.config(reply.content, wire.MASK) or ConfigRecord()
        reply.content = RecordDict({wire.MASK: ConfigRecord({**order, **values})})
        return reply

    return lie


def _scrambled(seed: int) -> Lie:
    """Return a lie that sends other bytes, of the right lengths, in an answer to a stage."""

    def lie(reply: Message) -> Message:
        order = wire.config(reply.content, wire.MASK) or ConfigRecord()
        rng = np.random.default_rng(seed)
        fake = {k: rng.bytes(len(v)) if isinstance(v, bytes) else v for k, v in order.items()}
        reply.content = RecordDict({wire.MASK: ConfigRecord(fake)})
        return reply

    return lie


malformed: st.SearchStrategy[Lie] = st.one_of(
    contents.map(_with),
    st.builds(_failing, st.integers(0, 2000), words),
    words.map(_raising),
)
malformed_stages: st.SearchStrategy[Lie] = st.one_of(
    malformed,
    st.dictionaries(st.sampled_from(NAMES), values, min_size=1, max_size=3).map(_patched),
)
well_formed_stages: st.SearchStrategy[Lie] = st.integers(0, 2**32).map(_scrambled)


def _moved(slot: int, by: int) -> Lie:
    def lie(reply: Message) -> Message:
        vector = wire.arrays(reply.content)["masked"].numpy().copy()
        vector[slot % len(vector)] += np.asarray(by).astype(vector.dtype)
        reply.content = RecordDict({"arrays": ArrayRecord({"masked": Array(vector)})})
        return reply

    return lie


def _random_upload(seed: int) -> Lie:
    def lie(reply: Message) -> Message:
        honest = wire.arrays(reply.content)["masked"].numpy()
        raw = np.random.default_rng(seed).bytes(honest.nbytes)
        vector = np.frombuffer(raw, honest.dtype)
        reply.content = RecordDict({"arrays": ArrayRecord({"masked": Array(vector)})})
        return reply

    return lie


well_formed_uploads: st.SearchStrategy[Lie] = st.one_of(
    st.builds(_moved, st.integers(0, 40), st.integers(1, 2**32 - 1)),
    st.builds(_moved, st.integers(0, 40), st.integers(1, 3)),
    st.integers(0, 2**32).map(_random_upload),
)
