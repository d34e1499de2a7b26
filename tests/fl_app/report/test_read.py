"""A record is checked when it is read: a wrong file is one line that names the place."""

from __future__ import annotations

import json
import math
import re
import runpy
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest

from leakmeter.auditors import Assumption, Finding, ThreatModel
from leakmeter.auditors.auditor import Schedule
from leakmeter.auditors.codec import CodecError
from leakmeter.auditors.finding import Limitation, RunWarning
from leakmeter.auditors.run_log import SCHEMA
from leakmeter.auditors.wording import claim
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.report.read import Report, Round, Schema, read, read_run, read_runs
from tests.helpers.findings import finding
from tests.helpers.fixtures import Printed
from tests.helpers.project import ROOT
from tests.helpers.reports import full, write_report

DOCS = ROOT / "docs" / "report.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_report(tmp_path / "run")


def changed(folder: Path, path: Sequence[str | int], value: Any) -> None:
    """Put another value at a place of the report."""
    file = folder / "report.json"
    file.write_text(json.dumps(with_change(json.loads(file.read_text()), tuple(path), value)))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_was_written_is_read_back(folder: Path) -> None:
    run = read_run(folder)
    assert (run.name, run.is_finished, run.config) == ("run", True, {"seed": 3})
    assert run.findings == (full(server_round=1), full(), finding())
    assert run.of_the_run == (full(), finding())
    assert run.failures == ("x failed",)
    assert run.limitations == (Limitation("mine", "cannot see it"),)
    assert run.warnings == (RunWarning.of("dropouts", 1, 4),)
    assert (run.rounds[0].accuracy, run.accuracy) == (0.5, 0.5)
    assert math.isnan(run.rounds[0].metrics["loss"])
    assert read_run(folder / "report.json").findings == run.findings
    (folder / "report.json").unlink()
    unfinished = read_run(folder)
    assert not unfinished.is_finished
    assert unfinished.findings == (full(server_round=1),)


def test_names_that_others_read_are_as_promised(folder: Path) -> None:
    report = json.loads((folder / "report.json").read_text())
    assert report["schema"] == SCHEMA == get_args(Schema)[0] == "leakmeter-report/2"
    [warning] = report["warnings"]
    assert warning.pop("text")
    assert warning == {"kind": "dropouts", "value": 0.25, "count": 1, "total": 4}
    assert report["limitations"] == [{"auditor": "mine", "text": "cannot see it"}]
    first, _, plain = report["findings"]
    assert (first["quantity"], first["kind"], first["adjacency"]) == (
        *("epsilon", "lower_bound"),
        "zero-out",
    )
    assert first["threat_model"] == {
        "observer": "outsider",
        "sees": "all models",
        "holds": "canary",
        "knows_cohort": False,
        "participations": 2,
        "game": None,
        "colluders": 0,
        "conduct": "curious",
    }
    assert (first["conditional"], plain["conditional"]) == (True, False)
    assert report["glossary"] == {
        "a sentence of my own": "a sentence of my own",
        "independent-scores": Assumption.INDEPENDENT_SCORES.sentence,
    }


def test_fields_of_later_releases_are_left_alone(folder: Path) -> None:
    changed(folder, ["findings", 0, "more"], 1)
    changed(folder, ["findings", 0, "threat_model", "more"], 1)
    changed(folder, ["more"], {})
    assert read_run(folder).findings[0] == full(server_round=1)


# Each way to be wrong, once: what classes refuse is shown where they are, in tests/auditors.
@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["schema"], "other/9", f"schema must be {SCHEMA}, got 'other/9'. Another release of leak"),
        (["schema"], KeyError, "got None"),
        (["rounds"], KeyError, "must have a field 'rounds'"),
        (["versions"], {"numpy": 2}, "versions.numpy must be a text, got 2"),
        (["findings", 1, "kind"], "proof", "findings[1].kind must be one of guarantee, lower_b"),
        (["findings", 1, "delta"], 2.0, "findings[1]: delta must be in [0, 1), got 2.0"),
        (
            ["findings", 1, "threat_model", "observer"],
            "god",
            "must be one of server, outsider, ",
        ),
        (["findings", 1, "threat_model", "colluders"], -1, "threat_model: colluders must be at"),
        (["findings", 1, "details", 2, "type"], "pie", "findings[1].details[2].type must be one"),
        (["findings", 1, "details", 0, "fpr"], [0.1], "details[0]: fpr, fnr must have equal len"),
        (["findings", 1, "details", 1, "edges"], [0, 1, "inf"], "details[1]: edges must be finite"),
        (["findings", 1], [], "findings[1] must be an object, got []"),
        (["findings", 1, "value"], 10**400, "findings[1].value must be a number within ±1.8e308"),
        (["findings", 1, "facts"], {"a\nb": []}, "findings[1].facts.'a\\nb' must be a number"),
        (["findings", 1, "conditional"], "no", "findings[1].conditional must be true or false"),
        (["rounds", 0, "num_clients"], -1, "rounds[0]: num_clients must be at least 0, got -1"),
        (["warnings", 0, "value"], 0.5, "warnings[0]: value must be count / total = 1/4, got 0.5"),
        (["failures"], ["\ud800"], "must be Unicode text, got half a character: '\\ud800'"),
    ],
)
def test_a_wrong_field_is_one_line_that_names_file_place_and_what_is_allowed(
    folder: Path, path: list[str | int], value: Any, message: str, capsys: Printed
) -> None:
    changed(folder, path, value)
    assert message in refused(folder, capsys)


def refused(folder: Path, capsys: Printed) -> str:
    """Return the line about a report that has no page, and leaves none."""
    before = contents(folder)
    assert main(["report", str(folder)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"error: {folder / 'report.json'}")
    assert printed.err.count("\n") == 1
    assert contents(folder) == before
    return printed.err


@pytest.mark.parametrize(
    ("found", "written", "message"),
    [
        (None, b"", "must be JSON"),
        (None, b"[]", "must be"),
        (None, b'{"schema": "leak', "must be JSON"),
        (None, b"\xff\xfe\x00", "must be UTF-8 text"),
        (b'"seed": 3', b'"seed": %b%b' % (b"[" * 5000, b"]" * 5000), "at most 100 levels"),
        (b'"seed": 3', b'"seed": %b%b' % (b"[" * 100, b"]" * 100), "at most 100 levels"),
        (b'"seed": 3', b'"seed": 3, "seed": 4', "the name 'seed' occurs twice in one object"),
    ],
)
def test_a_file_that_is_no_report_is_one_line(
    folder: Path, found: bytes | None, written: bytes, message: str, capsys: Printed
) -> None:
    text = (folder / "report.json").read_bytes()
    changed_text = written if found is None else text.replace(found, written, 1)
    assert changed_text != text
    (folder / "report.json").write_bytes(changed_text)
    assert message in refused(folder, capsys)


def test_settings_beyond_floats_are_shown_and_end_no_page(folder: Path) -> None:
    changed(folder, ["config"], Config().to_mapping() | {"lr": 10**400, "rounds": -(10**400)})
    assert main(["report", str(folder)]) == 0


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["findings", 0, "details", 2, "variance", 0], 1.7e308),
        (["findings", 0, "details", 2, "variance", 1], 5e-324),
        (["findings", 1, "details", 1, "edges", 2], 1.7e308),
        (["findings", 2, "facts", "separation"], -1.5),
        (["findings", 0, "cap"], 1.7e308),
        (["rounds", 0, "server_round"], 2**128 - 1),
        (["rounds", 0, "accuracy"], -1.7e308),
    ],
)
def test_values_at_the_edge_of_floats_end_no_page(
    folder: Path, place: list[str | int], value: float
) -> None:
    changed(folder, ["findings", 2, "kind"], "approximation")  # to the curve of round 1
    changed(folder, ["findings", 2, "server_round"], 1)
    changed(folder, place, value)
    assert main(["report", str(folder)]) == 0


def test_a_round_that_is_listed_twice_is_refused(folder: Path) -> None:
    [line] = json.loads((folder / "report.json").read_text())["rounds"]
    changed(folder, ["rounds"], [line, line])
    with pytest.raises(ConfigError, match=r"rounds must list each round once, got round 1 again"):
        read_run(folder)


def test_an_assumption_that_is_none_of_ours_has_the_sentence_of_the_report(folder: Path) -> None:
    names = ["separate-trials", "later-one", "a text of its own", "sly-one"]
    sentences = {"later-one": "the moon is full", "sly-one": "fair-coins", "separate-trials": "no"}
    changed(folder, ["findings", 1, "assumptions"], names)
    changed(folder, ["glossary"], sentences)
    found = read_run(folder).findings[1]
    assert found.assumptions == (
        *("separate-trials", "the moon is full"),
        *("a text of its own", "sly-one"),  # our own names are no sentences
    )
    assert claim(found).startswith("if its assumptions hold: ε")  # three sentences of others


def test_a_folder_whose_name_is_no_text_has_a_page_and_no_table(
    folder: Path, tmp_path: Path, capsys: Printed
) -> None:
    odd = folder.rename(folder.with_name("run\udcff"))  # a byte that is no UTF-8
    assert main(["report", str(odd)]) == 0
    assert "run?" in (odd / "report.html").read_text()
    assert main(["report", str(odd), "--csv", str(tmp_path / "tables")]) == 2
    assert capsys.readouterr().err.startswith("error: RUN must have a name in Unicode, got [")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rounds.jsonl", "{line}{broken}", r"rounds\.jsonl, line 2 must be JSON"),
        ("rounds.jsonl", "{line}{line}", r"rounds\.jsonl: rounds must list each round once"),
        ("rounds.jsonl", "{line}{short}", r"rounds\[1\] must have a field 'accuracy'"),
        ("rounds.jsonl", "{line}{bare}", r"rounds\.jsonl: schema must be .*, got None"),
        ("rounds.jsonl", "{newer}", r"rounds\.jsonl: schema must be .*, got 'leakmeter-rep"),
        ("config.toml", "{deep}", r"config\.toml must be a TOML file with at most 100"),
        ("config.toml", "rounds =", r"config\.toml must be a TOML file"),
    ],
)
def test_a_broken_file_of_an_unfinished_run_is_named(
    folder: Path, name: str, content: str, message: str
) -> None:
    (folder / "report.json").unlink()
    line = (folder / "rounds.jsonl").read_text()
    pieces = {
        "line": line,
        "broken": "{broken\n",
        "short": f'{{"schema": "{SCHEMA}", "server_round": 2}}\n',
        "bare": line.replace(f'"schema": "{SCHEMA}", ', ""),
        "newer": line.replace(SCHEMA, "leakmeter-report/3"),
        "deep": f"a = {'[' * 100}{']' * 100}\n",
    }
    (folder / name).write_text(content.format(**pieces))
    with pytest.raises(ConfigError, match=message):
        read_run(folder)


def test_an_unfinished_run_has_its_whole_rounds_and_the_settings_of_its_file(folder: Path) -> None:
    (folder / "report.json").unlink()
    assert read_run(folder).config == {}
    (folder / "config.toml").write_text("rounds = 7\n")
    line = (folder / "rounds.jsonl").read_text()
    (folder / "rounds.jsonl").write_text(line + line[:30])  # cut off while it was written
    run = read_run(folder)
    assert (len(run.rounds), run.is_finished, run.config) == (1, False, {"rounds": 7})


def test_names_of_runs_differ(folder: Path) -> None:
    assert [run.name for run in read_runs([folder])] == ["run"]
    assert [run.name for run in read_runs([folder, folder])] == ["1: run", "2: run"]


def test_every_field_of_the_schema_is_documented() -> None:
    text = DOCS.read_text()
    assert SCHEMA in text
    documented = set(re.findall(r"^\| `([a-z_.]+)` \|", text, flags=re.MULTILINE))
    types = (Report, Round, Finding, ThreatModel, Limitation, RunWarning, Schedule)
    assert documented >= {spec.name for one in types for spec in fields(one)} | {"conditional"}


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


def with_change(report: Any, place: Place, value: Any) -> Any:
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
    validator.validate(with_change(report, ("later",), {}))
    validator.validate(with_change(report, ("findings", 0, "threat_model", "later"), 1))


# In the fast set one wrong value for each place, another for the next; in the slow set all.
@pytest.mark.parametrize("step", [len(WRONG), pytest.param(1, marks=pytest.mark.slow)])
def test_every_change_is_refused_by_both_or_by_neither(
    report: Any, validator: Any, step: int
) -> None:
    report["findings"] = report["findings"][:1]
    refused = 0
    for number, place in enumerate(places(report)):
        for wrong in WRONG[number % step :: step]:
            other = with_change(report, place, wrong)
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
    other = with_change(report, place, wrong)
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
