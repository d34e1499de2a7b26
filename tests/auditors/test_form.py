"""JSON is read by the annotations of dataclasses, and an error names the place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from leakmeter.auditors.details import Detail, PerClient
from leakmeter.auditors.finding import Finding
from leakmeter.auditors.form import FormError, form
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
    assert form(hint).read(value) == expected


def test_in_a_union_whole_numbers_and_flags_stay_what_they_are() -> None:
    facts = form(Mapping[str, float | int | bool | str | None])
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
        (Detail, {"type": "pie"}, "there.type must be one of error-curve, histogram, spectrum, "),
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
    with pytest.raises(FormError) as caught:
        form(hint).read(value, "there")
    assert str(caught.value).startswith(message)


def test_long_values_are_cut() -> None:
    with pytest.raises(FormError, match=r"got '0{76}\.\.\.$"):
        form(int).read("0" * 1000, "there")


def test_types_without_a_rule_are_our_mistake() -> None:
    with pytest.raises(TypeError, match="no rule for"):
        form(set[int])


def test_the_schema_has_the_words_of_the_docstrings() -> None:
    schema = form(Point).schema
    assert (schema["title"], schema["description"]) == ("Point", "A point.")
    assert schema["properties"]["x"]["description"] == "Where it is, along the axis."
    assert schema["required"] == ["x", "name"]


def test_a_finding_survives() -> None:
    detail = PerClient((1, 2), (0.5, math.inf), (3, 4))
    made = finding(facts={"k": 3, "form": "fitted"}, null_band=(0.0, 1.0), details=(detail,))
    assert form(Finding).read(made.to_json()) == made
