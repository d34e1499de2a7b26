"""The published JSON Schema and our own reader agree on what a report may hold."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from leakmeter.auditors.codec import CodecError
from leakmeter.fl_app.report.read import Report, read
from tests.helpers.project import ROOT
from tests.helpers.reports import write_report

Place = tuple[str | int, ...]
WRONG = (None, "weird", 3.5, True, [None], {"a": {}}, KeyError)


@pytest.fixture
def report(tmp_path: Path) -> Any:
    return json.loads((write_report(tmp_path / "run") / "report.json").read_text())


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json.loads((ROOT / "docs/report.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def places(value: Any, where: Place = ()) -> Iterator[Place]:
    """Yield every place in a report, without the settings, which may hold anything.

    Of a list of values that are alike, the first.
    """
    several = len(value) if where[-1:] == ("details",) else 1
    inside = value.items() if isinstance(value, dict) else list(enumerate(value))[:several]
    for key, one in inside:
        if key != "config":
            yield (*where, key)
            if isinstance(one, dict | list):
                yield from places(one, (*where, key))


def changed(report: Any, place: Place, value: Any) -> Any:
    """Return a copy with another value at a place."""
    copy = deepcopy(report)
    inside = copy
    for key in place[:-1]:
        inside = inside[key]
    if value is KeyError:
        del inside[place[-1]]
    else:
        inside[place[-1]] = value
    return copy


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs/make_schema.py"))


def test_the_published_schema_is_up_to_date(made: dict[str, Any]) -> None:
    published = made["FILE"].read_text(encoding="utf-8")
    assert published == made["text"](), "run: python docs/make_schema.py"


def test_a_report_is_valid_also_with_fields_of_later_releases(report: Any, validator: Any) -> None:
    validator.validate(report)
    validator.validate(changed(report, ("later",), {}))
    validator.validate(changed(report, ("findings", 0, "threat_model", "later"), 1))


# In the fast set one wrong value for each place, another for the next; in the slow set all.
@pytest.mark.parametrize("step", [len(WRONG), pytest.param(1, marks=pytest.mark.slow)])
def test_every_change_is_refused_by_both_or_by_neither(
    report: Any, validator: Any, step: int
) -> None:
    report["findings"] = report["findings"][:1]
    refused = 0
    for number, place in enumerate(places(report)):
        for wrong in WRONG[number % step :: step]:
            other = changed(report, place, wrong)
            is_refused, is_own = refusal(other)
            # What a class checks by itself, such as equal lengths, no schema says.
            assert is_refused == (not validator.is_valid(other)) or is_own, (place, wrong)
            refused += is_refused
    assert refused > 400 / step


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (("findings", 0, "value"), "nan"),
        (("findings", 0, "delta"), 1),
        (("findings", 0, "delta"), -0.1),
        (("findings", 0, "confidence"), 0),
        (("findings", 0, "confidence"), 1),
        (("findings", 0, "server_round"), 0),
        (("findings", 0, "conditional"), 1),
        (("findings", 0, "threat_model", "colluders"), -1),
        (("findings", 0, "threat_model", "participations"), -1),
        (("findings", 0, "details", 0, "deltas", 0), 1e308),
        (("findings", 0, "details", 0, "deltas", 0), 1),
        (("findings", 0, "details", 0, "fpr", 0), -0.1),
        (("findings", 0, "details", 0, "balanced_error"), 1.5),
        (("findings", 0, "details", 1, "included", 0), -1),
        (("findings", 0, "details", 1, "null", 0), 2),
        (("rounds", 0, "server_round"), 0),
        (("rounds", 0, "num_clients"), -1),
        (("warnings", 0, "value"), 1.5),
        (("warnings", 0, "count"), -1),
        (("warnings", 0, "total"), 0),
    ],
)
def test_limits_of_numbers_are_in_the_schema_too(
    report: Any, validator: Any, place: Place, wrong: Any
) -> None:
    other = changed(report, place, wrong)
    assert refusal(other)[0]
    assert not validator.is_valid(other)


def refusal(report: Any) -> tuple[bool, bool]:
    """Return whether a report is refused, and whether by a check of a class's own."""
    try:
        read(Report, report)
    except CodecError as error:
        return True, isinstance(error.__context__, ValueError)
    return False, False


def test_the_schema_says_what_every_field_is(made: dict[str, Any]) -> None:
    def described(schema: dict[str, Any]) -> Iterator[tuple[str, bool]]:
        for name, one in schema.get("properties", {}).items():
            yield f"{schema['title']}.{name}", "description" in one or name == "type"
        for one in (*schema.get("properties", {}).values(), *schema.get("anyOf", ())):
            yield from described(one)
            yield from described(one.get("items", {}))

    found = dict(described(made["json_schema"]()))
    assert len(found) > 60
    assert [name for name, is_there in found.items() if not is_there] == []
