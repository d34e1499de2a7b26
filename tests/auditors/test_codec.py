"""JSON is read by the annotations of dataclasses, and an error names the place."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from typing_extensions import TypeAliasType

from leakmeter.auditors.codec import CodecError, Kept, Resumable, codec, pack, unpack
from leakmeter.auditors.finding import Detail, Finding, PerClient
from tests.helpers.findings import finding


@dataclass(frozen=True)
class Point:
    """A point.

    Attributes:
        x: Where it is,
            along the axis.
    """

    x: float
    name: str | None = None

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError(f"x must be at least 0, got {self.x}")


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (float, 3, 3.0),
        (float, "-inf", -math.inf),
        (int, 3, 3),
        (bool, True, True),
        (float | None, None, None),
        (Literal["a", "b"], "b", "b"),
        (Literal["a"] | str, "c", "c"),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[float, float], [1, "inf"], (1.0, math.inf)),
        (Mapping[str, int], {"a": 1}, {"a": 1}),
        (Mapping[str, Any], {"a": [{}]}, {"a": [{}]}),
        (tuple[Point, ...], [{"x": 1, "name": None, "later": 2}], (Point(1.0),)),
        (
            Detail,
            {"type": "per-client", "clients": [1], "values": [0.5], "audited": [2]},
            PerClient((1,), (0.5,), (2,)),
        ),
    ],
)
def test_values_are_read(hint: Any, value: Any, expected: Any) -> None:
    assert codec(hint).read(value) == expected


def test_in_a_union_whole_numbers_and_flags_stay_what_they_are() -> None:
    facts = codec(Mapping[str, float | int | bool | str | None])
    found = facts.read({"a": 3, "b": True, "c": 0.5, "d": "inf", "e": "x", "f": None})
    assert found == {"a": 3, "b": True, "c": 0.5, "d": math.inf, "e": "x", "f": None}
    assert [type(v) for v in found.values()] == [int, bool, float, float, str, type(None)]


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (float, "much", 'there must be a number, or "inf", "-inf", "nan", got \'much\''),
        (float, True, "there must be a number"),
        (float, 10**400, "there must be a number within ±1.8e308, got 1000"),
        (int, 1.5, "there must be a whole number, got 1.5"),
        (int, "0" * 1000, f"there must be a whole number, got '{'0' * 76}..."),
        (int, 2**128, "there must be a whole number of 128 bits, got 3402"),
        (int, True, "there must be a whole number, got True"),
        (bool, 1, "there must be true or false, got 1"),
        (str, None, "there must be a text, got None"),
        (int | None, "x", "there must be a whole number, or null, got 'x'"),
        (Literal["a", "b"], "c", "there must be one of a, b, got 'c'"),
        (Literal["a", "b"] | None, 1, "there must be one of a, b, or null, got 1"),
        (tuple[int, ...], {}, "there must be a list, got {}"),
        (tuple[int, ...], [1, "x"], "there[1] must be a whole number, got 'x'"),
        (tuple[float, float], [1], "there must be a list of 2, got [1]"),
        (Mapping[str, int], [], "there must be an object, got []"),
        (Mapping[str, int], {"a": "x"}, "there.a must be a whole number, got 'x'"),
        (Point, {"name": "x"}, "there must have a field 'x', got ['name']"),
        (Point, {"x": -1, "name": None}, "there: x must be at least 0, got -1"),
        (Detail, {"type": "pie"}, "there.type must be one of error-curve, histogram, losses, "),
        (Detail, {}, "there.type must be one of error-curve"),
        (
            Detail,
            {"type": "per-client", "clients": [1], "values": [], "audited": [2]},
            "there: clients, values, audited must have equal lengths",
        ),
    ],
)
def test_errors_name_the_place_what_is_allowed_and_what_came(
    hint: Any, value: Any, message: str
) -> None:
    with pytest.raises(CodecError) as caught:
        codec(hint).read(value, "there")
    assert str(caught.value).startswith(message)


def test_the_schema_has_the_words_of_the_docstrings() -> None:
    @dataclass(frozen=True)
    class Stripped(Point):
        # As by Python 3.13 and later.
        __doc__ = "A point.\n\nAttributes:\n    x: Where it is,\n        along the axis.\n"

    for kind in (Point, Stripped):
        schema = codec(kind).schema
        assert (schema["title"], schema["description"]) == (kind.__name__, "A point.")
        assert schema["properties"]["x"]["description"] == "Where it is, along the axis."
        assert schema["required"] == ["x", "name"]
    with pytest.raises(TypeError, match="no rule for"):
        codec(complex)


def test_a_finding_survives() -> None:
    detail = PerClient((1, 2), (0.5, math.inf), (3, 4))
    made = finding(facts={"k": 3, "form": "fitted"}, null_band=(0.0, 1.0), details=(detail,))
    assert codec(Finding).read(made.to_json()) == made


STATE = {"round": 3, "model": {"w": np.arange(6.0).reshape(2, 3)}, "list": [1.5, None, "x", True]}

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
arrays = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
states = st.recursive(
    scalars | arrays,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def same(one: Any, other: Any) -> bool:
    """Whether both are equal in every number, type and shape."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype != bool)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@given(state=states)
@settings(deadline=None)
def test_what_is_packed_is_unpacked(state: Any) -> None:
    assert same(unpack(pack(state)), state)


def test_numpy_scalars_tuples_and_infinities_come_back_as_plain_values() -> None:
    state = {"a": np.float64(0.1), "b": (1, 2), "c": -math.inf, "d": np.float32(0.5)}
    assert unpack(pack(state)) == {"a": 0.1, "b": [1, 2], "c": -math.inf, "d": 0.5}


@pytest.mark.parametrize(
    "state", [{1: "a number as a key"}, {"x": np.array([object()])}, {"__array__": 1}, {"x": {1}}]
)
def test_what_could_not_be_unpacked_is_not_packed(state: Any) -> None:
    with pytest.raises(TypeError, match=r"of a state must be texts|a state contains JSON types"):
        pack(state)


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_no_cut_and_no_changed_byte_changes_what_is_unpacked(step: int) -> None:
    content, rejected = pack(STATE), 0
    for position in range(0, len(content), step):
        with pytest.raises(CodecError):
            unpack(content[:position])
        for bit in (0, 3, 7):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            try:
                loaded = unpack(bytes(damaged))
            except CodecError:
                rejected += 1
            else:  # a date or an attribute that nobody reads
                assert same(loaded, STATE)
    assert rejected > len(content) / step


def archive(**arrays: Any) -> bytes:
    """Return an archive that `pack` has not written."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def forged() -> bytes:
    """Return a state whose text is another than was hashed."""
    with np.load(io.BytesIO(pack(STATE))) as file:
        return archive(**{**file, "state": np.array('{"round": 4}')})


@pytest.mark.parametrize(
    "content",
    [
        archive(a=np.ones(3)),
        archive(state=np.array({"a": 1}, dtype=object), digest=np.array("")),  # never runs code
        forged(),
        b"not even an archive",
        b"",
    ],
)
def test_an_archive_of_something_else_is_damaged(content: bytes) -> None:
    with pytest.raises(CodecError):
        unpack(content)


class Counts(Resumable):
    """Keeps numbers in every way there is."""

    total: Kept[float] = 0.0
    by_client: Kept[dict[int, tuple[int, str]]]
    _seen: Kept[set[str]]
    _played: Kept[NDArray[np.int64]]
    _grown: Kept[NDArray[np.float64]]
    _points: Kept[list[Point]]
    _times: Kept[Counter[int]]
    _inner: Kept[Inner]
    _missing: Kept[Inner | None]
    elsewhere: SomethingForATypeChecker  # type: ignore[name-defined]  # noqa: F821

    def __init__(self) -> None:
        self.by_client, self._seen, self._points = {}, set(), []
        self._played, self._grown = np.zeros(3, dtype=np.int64), np.empty(0)
        self._times, self._inner, self._missing = Counter(), Inner(), None


class Inner(Resumable):
    """A part that is restored in place."""

    value: Kept[int | None] = None


def filled() -> Counts:
    """Return counts after some rounds."""
    counts = Counts()
    counts.total, counts.by_client, counts._seen = math.inf, {-3: (1, "x")}, {"b", "a"}
    counts._played[1], counts._grown = 4, np.array([0.5])
    counts._points, counts._times, counts._inner.value = [Point(1.0)], Counter({7: 2}), 5
    return counts


def test_what_is_annotated_survives() -> None:
    first, second = filled(), Counts()
    inner = second._inner
    second.restore(unpack(pack(first.state())))
    assert pack(second.state()) == pack(first.state())
    assert (second.total, second.by_client, second._seen) == (math.inf, {-3: (1, "x")}, {"a", "b"})
    assert (second._points, second._times) == ([Point(1.0)], Counter({7: 2}))
    assert second._inner is inner
    assert inner.value == 5


def test_a_state_does_not_change_with_what_it_was_taken_from() -> None:
    counts = filled()
    state = counts.state()
    counts._played += 1
    again = Counts()
    again.restore(state)
    again._played += 1
    assert state["played"].tolist() == [0, 4, 0]


@pytest.mark.parametrize(
    ("key", "lie", "message"),
    [
        ("total", "much", "total must be a number"),
        ("total", True, "total must be a number"),
        ("by_client", {"x": [1, "x"]}, "a name in by_client must be a whole number, got 'x'"),
        ("by_client", {"1": [1]}, "by_client.1 must be a list of 2, got "),
        ("by_client", {"1": ["x", 1]}, r"by_client.1\[0\] must be a whole number, got 'x'"),
        ("seen", [1], r"seen\[0\] must be a text, got 1"),
        ("played", [0, 4, 0], r"played must be an array, got \[0, 4, 0\]"),
        ("played", np.zeros(3), "played must be an array of int64, got one of float64"),
        ("played", np.array(["x"] * 3), "played must be an array of int64, got one of <U1"),
        ("played", np.zeros(4, dtype=np.int64), r"played must have shape \(3,\), got \(4,\)"),
        ("grown", np.zeros(2, dtype=complex), "grown must be an array of float64"),
        ("points", [{"x": -1.0, "name": None}], r"points\[0\]: x must be at least 0, got -1.0"),
        ("times", {"7": 0.5}, "times.7 must be a whole number, got 0.5"),
        ("inner", {"value": "x"}, "inner: value must be a whole number, or null, got 'x'"),
        ("inner", {}, r"inner: the state must have a field 'value', got \[\]"),
        ("inner", None, "inner: the state must be an object, got None"),
        ("missing", {"value": 3}, "missing must be the state of a Inner, or null, got"),
    ],
)
def test_a_state_with_a_well_formed_lie_is_refused(key: str, lie: Any, message: str) -> None:
    state = {**filled().state(), key: lie}
    with pytest.raises(CodecError, match=message):
        Counts().restore(state)
    del state[key]
    with pytest.raises(CodecError, match=f"the state must have a field '{key}', got"):
        Counts().restore(state)


def test_an_array_may_be_hinted_by_an_alias() -> None:
    """As by `NDArray` itself since numpy 2.5, on Python 3.12 and later."""
    scalar = TypeVar("scalar", bound=np.generic)
    array = np.ndarray[tuple[Any, ...], np.dtype[scalar]]
    alias: Any = TypeAliasType("Alias", array, type_params=(scalar,))
    assert codec(alias[np.int64]).read(np.arange(3)).tolist() == [0, 1, 2]
    assert codec(alias[np.int64] | None).read(None) is None
    with pytest.raises(CodecError, match="must be an array"):
        codec(alias[np.int64]).read("text")
