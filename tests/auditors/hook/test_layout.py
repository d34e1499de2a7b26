"""Vectors of records, numbers read in place, and work that nobody needs."""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from leakmeter.auditors import Audited, Auditor, OneShotCanaries, RoundView, canary_mod
from leakmeter.auditors.codec import codec, plain
from leakmeter.auditors.hook.layout import Layout, LayoutError, LazyModel, is_finite, values
from leakmeter.auditors.hook.open_round import Updates
from tests.helpers.numbers import num_examples

FLOATS = st.sampled_from([np.float16, np.float32, np.float64])
INTEGERS = st.sampled_from([np.int64, np.int32, np.uint8, np.bool_])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


def arrays_of(dtypes: st.SearchStrategy[Any]) -> st.SearchStrategy[np.ndarray]:
    finite = {"allow_nan": False, "allow_infinity": False, "width": 16}
    elements = st.floats(**finite)  # exact in every float type
    return dtypes.flatmap(
        lambda dtype: hnp.arrays(
            dtype, SHAPES, elements=elements if np.issubdtype(dtype, np.floating) else None
        )
    )


RECORDS = st.tuples(
    st.lists(arrays_of(FLOATS), min_size=1, max_size=4),
    st.lists(arrays_of(INTEGERS), max_size=2),
    st.randoms(),
)


def record_of(floats: list[np.ndarray], integers: list[np.ndarray], rng: Any) -> ArrayRecord:
    """Return a record in which float and integer arrays stand in any order."""
    named = [(f"f{i}", a) for i, a in enumerate(floats)]
    named += [(f"i{i}", a) for i, a in enumerate(integers)]
    rng.shuffle(named)
    return ArrayRecord({name: Array(np.asarray(a)) for name, a in named})


def assert_same(a: ArrayRecord, b: ArrayRecord) -> None:
    assert list(a) == list(b)
    for name in a:
        assert (a[name].dtype, a[name].shape) == (b[name].dtype, b[name].shape)
        assert np.array_equal(a[name].numpy(), b[name].numpy())


@settings(max_examples=num_examples(40), deadline=None)
@given(RECORDS)
def test_records_and_vectors_come_back_from_each_other(parts: Any) -> None:
    record = record_of(*parts)
    layout = Layout.of(record)
    vector = layout.flatten(record)
    assert vector.dtype == np.float64
    assert vector.shape == (layout.dim,) == (sum(a.size for a in parts[0]),)
    assert_same(layout.restore(vector, record), record)
    other = np.arange(layout.dim, dtype=np.float64)  # small whole numbers: exact in float16
    restored = layout.restore(other, record)
    assert np.array_equal(layout.flatten(restored), other)
    # Arrays that are no floats are kept as sent.
    assert set(layout.left_out) == {name for name in record if name.startswith("i")}
    for name in layout.left_out:
        assert np.array_equal(restored[name].numpy(), record[name].numpy())
    assert codec(Layout).read(json.loads(json.dumps(plain(layout)))) == layout


def simple(counter: Any = np.int64(3)) -> ArrayRecord:  # noqa: B008
    return ArrayRecord(
        {
            "a": Array(np.ones((2, 2), dtype=np.float32)),
            "n": Array(np.asarray(counter)),
            "b": Array(np.full(3, 2.0)),
        }
    )


@pytest.mark.usefixtures("flower_task")
def test_the_first_layout_still_fits_after_fedavg_turned_integers_into_floats() -> None:
    first = simple()
    layout = Layout.of(first)
    question = Message(RecordDict(), dst_node_id=1, message_type="train")
    content = RecordDict({"arrays": first, "metrics": MetricRecord({"num-examples": 2})})
    later, _ = FedAvg().aggregate_train(1, [Message(content, reply_to=question)])
    assert later is not None
    assert np.issubdtype(later["n"].numpy().dtype, np.floating)  # the trap
    assert np.array_equal(layout.flatten(later), layout.flatten(first))
    assert Layout.of(later) != layout
    assert Layout.of(later, left_out=layout.left_out) == layout


def test_float16_is_flattened_without_rounding_sums() -> None:
    record = ArrayRecord({"a": Array(np.array([2048.0, 1.0], dtype=np.float16))})
    assert Layout.of(record).flatten(record).sum() == 2049.0  # float16 would say 2048


def test_records_that_do_not_fit_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"float arrays .* got int64"):
        Layout.of(ArrayRecord({"n": Array(np.array([1]))}))
    with pytest.raises(ValueError, match=r"array 'b' must be in the record, got \['a'\]"):
        Layout.of(simple()).flatten(ArrayRecord({"a": simple()["a"]}))
    with pytest.raises(ValueError, match=r"array 'a' must have shape \(2, 2\), got \(4,\)"):
        Layout.of(simple()).flatten(ArrayRecord({**simple(), "a": Array(np.ones(4))}))


@pytest.mark.parametrize("shape", [(6,), (8,), (7, 1)])
def test_a_vector_of_another_length_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"vector must have shape \(7,\), got"):
        Layout.of(simple()).restore(np.zeros(shape), simple())


def test_what_is_not_audited_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="flwr"):
        Layout.of(simple()).announce()
        Layout.of(ArrayRecord({"a": simple()["a"]})).announce()
    lines = [r.getMessage() for r in caplog.records if "not audited" in r.getMessage()]
    assert lines == ["not audited (no float arrays): n"]


def test_weighted_records_and_distances_are_those_of_the_vectors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("leakmeter.auditors.hook.layout._BLOCK", 4)  # several, and parts of one
    rng = np.random.default_rng(0)
    record = ArrayRecord(
        {
            "a": Array(rng.standard_normal((3, 5)).astype(np.float32)),
            "n": Array(np.arange(3)),
            "b": Array(rng.standard_normal(2)),
        }
    )
    layout, vector = Layout.of(record), rng.standard_normal(17)
    flat = layout.flatten(record)
    parts = [block for _, block in layout.weighted_sum([(record, 0.3)], vector)]
    np.testing.assert_allclose(np.concatenate(parts), 0.3 * flat - vector, rtol=1e-14, atol=1e-15)
    other = layout.restore(vector, record, ["float64", "float32"])
    distance = np.linalg.norm(flat - layout.flatten(other))
    assert layout.distance(record, other) == pytest.approx(distance, rel=1e-14)
    assert layout.distance(record, None) == pytest.approx(np.linalg.norm(flat), rel=1e-14)


@pytest.mark.parametrize("least", [np.float32, np.float64])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_record_changed_by_blocks_is_a_vector_that_was_changed(dtype: type, least: type) -> None:
    rng = np.random.default_rng(0)
    sent = ArrayRecord(
        {
            "a": Array(rng.standard_normal((3, 5))),
            "n": Array(np.arange(3)),
            "e": Array(np.zeros((0, 2))),
            "b": Array(rng.standard_normal(2**15 + 3).astype(np.float32)),
        }
    )
    layout = Layout.of(sent)
    made = [np.asarray(v.numpy(), dtype) if n != "n" else v.numpy() for n, v in sent.items()]
    template = ArrayRecord({name: Array(v) for name, v in zip(sent, made, strict=True)})
    added, done = rng.standard_normal(layout.dim).astype(np.float16), 0

    def add(block: np.ndarray) -> None:
        nonlocal done
        block += added[done : done + block.size]
        done += block.size

    for base in (sent, None):
        done = 0
        found = layout.apply_change(base, template, add, least=least)
        start = layout.flatten(sent) if base is not None else np.zeros(layout.dim)
        flat = start.astype(np.result_type(dtype, least)) + added
        wanted = layout.restore(flat, template, layout.dtypes_in(template))
        assert [a.data for a in found.values()] == [a.data for a in wanted.values()]
        assert [a.data for a in found.values()] == [Array(a.numpy()).data for a in wanted.values()]


def test_a_nudge_moves_one_entry_by_a_step_of_its_type() -> None:
    sent = ArrayRecord({"e": Array(np.zeros(0)), "a": Array(np.float32([2, 3])), "b": HALVES})
    layout = Layout.of(sent)
    first, second = (layout.nudge(sent, sent) for _ in range(2))
    assert first["a"].numpy().tolist() == [2 + 2**-22, 3]
    assert first["b"].data is sent["b"].data  # bytes cannot be written to
    assert first["a"].data is second["a"].data
    other = ArrayRecord({**sent, "a": Array(np.float32([5, 3]))})
    assert layout.nudge(other, other)["a"].numpy().tolist() == [5 + 2**-21, 3]
    exact = ArrayRecord({**sent, "a": Array(np.zeros(2))})
    assert layout.nudge(sent, exact)["a"].numpy().tolist() == [2 + 2**-51, 3]
    zeros = layout.nudge(None, sent)
    assert zeros["a"].numpy().tolist() == [2**-23, 0]
    assert zeros["b"].numpy().tolist() == [0, 0]


HALVES = Array(np.float16([1, 2]))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_distance_to_what_is_not_finite_is_not_finite(value: float) -> None:
    record = ArrayRecord({"a": Array(np.array([1.0, value], dtype=np.float32))})
    assert not np.isfinite(Layout.of(record).distance(record, None))
    assert not Layout.of(record).is_finite(record)


ARRAYS = {
    "a matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a number": np.array(2.5),
    "nothing": np.empty((0, 4), dtype=np.float16),
    "columns first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "the other end first": np.arange(4, dtype=">f4"),
    "whole numbers": np.arange(5),
    "a shape of many digits": np.zeros((1,) * 30, dtype=np.float32),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_values_are_those_that_flower_reads(name: str) -> None:
    array = Array(ARRAYS[name])
    found, known = values(array), array.numpy().ravel()
    assert found.dtype == known.dtype
    assert np.array_equal(found, known)
    if name == "a matrix":  # nothing is copied
        assert not found.flags.writeable
        assert not found.flags.owndata


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({"data": lambda data: data[:3]}, (ValueError, EOFError)),
        ({"data": lambda data: data[:200]}, (ValueError, EOFError)),
        ({"stype": lambda _: "torch"}, TypeError),
    ],
)
def test_bytes_that_are_no_array_raise_as_flower_does(change: Any, kinds: Any) -> None:
    broken = Array(np.ones(100, dtype=np.float32))
    for name, make in change.items():
        setattr(broken, name, make(getattr(broken, name)))
    for read in (values, Array.numpy):
        with pytest.raises(kinds):
            read(broken)


@pytest.mark.parametrize(
    ("numbers", "finite"),
    [
        ([1.0, -2.0], True),
        ([], True),
        ([1.0, np.nan], False),
        ([np.inf, -np.inf], False),
        ([3e38, 3e38], True),  # whose sum is too large for single precision
    ],
)
def test_numbers_are_finite_whatever_their_sum_is(numbers: list[float], finite: bool) -> None:
    assert is_finite(Array(np.array(numbers, dtype=np.float32))) is finite


def test_what_is_no_float_is_finite() -> None:
    assert is_finite(Array(np.array([1, 2])))
    assert is_finite(Array(dtype="bfloat16", shape=(1,), stype="numpy.ndarray", data=b""))


def test_asking_whether_a_client_has_replied_does_not_make_its_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = ArrayRecord({"w": Array(np.zeros(3))})
    updates = Updates(
        Layout.of(record), LazyModel(Layout.of(record), record), {4: RecordDict({"arrays": record})}
    )
    monkeypatch.setattr(Layout, "flatten", None)
    assert 4 in updates
    assert 5 not in updates


def test_masked_replies_are_shown_as_they_are_and_have_no_mean() -> None:
    record, upload = (ArrayRecord({"w": Array(a)}) for a in (np.zeros(3), np.arange(9)))
    layout = Layout.of(record)
    replies = {client: RecordDict({"arrays": one}) for client, one in enumerate((record, upload))}
    updates = Updates(layout, LazyModel(layout, record), replies)
    assert updates[1].tolist() == list(range(9))
    assert updates.mean() is None
    assert updates.mean(without=[1]) is None


class Reading(Auditor):
    """Keeps the means that it is shown."""

    name = "reading"

    def __init__(self) -> None:
        self.means: list[Any] = []

    def observe(self, view: RoundView) -> Any:
        self.means.append(view.facts.aggregate)
        return ()


@pytest.mark.parametrize("sends", ["auto", "models", "differences"])
def test_the_mean_is_for_auditors_that_want_it(federation: Any, sends: Any) -> None:
    means = {}
    for wants_mean in (True, False):
        of, auditor = federation(mods=[canary_mod]), Reading()
        auditor.wants_mean = wants_mean
        inner = FedAvg(min_train_nodes=6, min_available_nodes=6, fraction_evaluate=0.0)
        audited = Audited(inner, [auditor, OneShotCanaries(seats=2)], sends=sends)
        audited.start(of.grid, of.arrays(), num_rounds=3)
        assert not audited.failures
        means[wants_mean] = auditor.means
    assert all(mean is not None for mean in means[True])
    assert [mean is None for mean in means[False]] == [True, True, True]


@pytest.mark.parametrize("kind", ["sphere", "signs"])
def test_canaries_are_looked_for_without_a_vector_of_the_model(
    federation: Any, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    monkeypatch.setattr(LazyModel, "vector", property(lambda _: pytest.fail("a vector")))
    of = federation(mods=[canary_mod])
    inner = FedAvg(min_train_nodes=6, min_available_nodes=6, fraction_evaluate=0.0)
    audited = Audited(inner, [OneShotCanaries(seats=2, kind=kind)])
    audited.start(of.grid, of.arrays(), num_rounds=3)
    assert not audited.failures
    assert any(finding.kind == "lower_bound" for finding in audited.findings())


@given(data=st.data(), sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_parts_of_a_model_are_those_of_its_vector(data: Any, sizes: list[int]) -> None:
    kinds = ["float16", "float32", "float64"]
    arrays = [np.arange(size).astype(kinds[place % 3]) for place, size in enumerate(sizes)]
    record = ArrayRecord({str(place): Array(array) for place, array in enumerate(arrays)})
    model, whole = LazyModel(Layout.of(record), record), np.concatenate(arrays)
    start, stop = (data.draw(st.integers(0, whole.size)) for _ in range(2))
    part = model[start:stop]
    assert part.dtype == np.float64
    assert np.array_equal(part, whole[start:stop])
    assert np.array_equal(model.vector, whole)
    assert model.size == whole.size


def test_bytes_of_another_length_than_an_array_says_are_refused() -> None:
    record = ArrayRecord({"w": Array(np.zeros(3)), "b": Array(np.zeros(2))})
    layout = Layout.of(record)
    record["w"].data = Array(np.zeros(4)).data
    with pytest.raises(LayoutError, match="the bytes must have 5 numbers, got 6"):
        LazyModel(layout, record)
