"""A record is checked when it is read: a wrong file is one line that names the place."""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leakmeter.auditors import Finding
from leakmeter.auditors.run_log import SCHEMA, RoundLine, RunLog
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.report.read.fields import FINDING, REPORT, ROUND
from leakmeter.fl_app.report.read.run import read_run, read_runs
from tests.helpers import findings
from tests.helpers.project import ROOT

DOCS = ROOT / "docs" / "report.md"

finding = partial(
    findings.finding,
    value=math.inf,
    kind="lower_bound",
    confidence=0.95,
    observer="server",
    null_band=(0.0, math.inf),
    sample_sizes={"in": 3},
    assumptions=("one", "two"),
    details={"x": [1, 2]},
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    record = RunLog(tmp_path / "run", {"seed": 3})
    record.add(RoundLine(1, 5, {"accuracy": 0.5, "loss": math.nan}, (finding(server_round=1),)))
    record.finish([finding()], ["x failed"])
    return tmp_path / "run"


def changed(folder: Path, path: list[str | int], value: Any) -> None:
    """Put another value at a place of the report."""
    report = json.loads((folder / "report.json").read_text())
    place = report
    for key in path[:-1]:
        place = place[key]
    if value is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    (folder / "report.json").write_text(json.dumps(report))


def test_what_was_written_is_read_back(folder: Path) -> None:
    run = read_run(folder)
    assert (run.name, run.is_finished, run.config) == ("run", True, {"seed": 3})
    assert run.findings == (finding(server_round=1), finding())
    assert run.of_the_run == (finding(),)
    assert run.failures == ("x failed",)
    assert (run.rounds[0].accuracy, run.accuracy) == (0.5, 0.5)
    assert math.isnan(run.rounds[0].metrics["loss"])
    assert read_run(folder / "report.json").findings == run.findings


def test_records_without_versions_are_read(folder: Path) -> None:
    changed(folder, ["versions"], KeyError)
    assert read_run(folder).versions == {}


def test_fields_of_later_releases_are_left_alone(folder: Path) -> None:
    changed(folder, ["findings", 0, "more"], 1)
    changed(folder, ["more"], {})
    assert read_run(folder).findings[0] == finding(server_round=1)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["schema"], "other/9", f"schema must be {SCHEMA}, got 'other/9'"),
        (["schema"], KeyError, f"schema must be {SCHEMA}, got None"),
        (["rounds"], KeyError, "must have a field 'rounds'"),
        (["failures"], [1], "failures must be a text, got [1]"),
        (["versions"], {"numpy": 2}, "versions must be a text"),
        (["findings", 1, "kind"], "proof", "findings[1].kind must be one of guarantee, lower_b"),
        (["findings", 1, "value"], "much", 'findings[1].value must be a number, or "inf"'),
        (["findings", 1, "value"], "nan", "findings[1].value must be a number, got nan"),
        (["findings", 0, "value"], True, "findings[0].value must be a number"),
        (["findings", 1, "delta"], 2.0, "findings[1]: delta must be in [0, 1), got 2.0"),
        (["findings", 1, "confidence"], None, "findings[1]: a lower_bound must state its confid"),
        (["findings", 1, "observer"], "god", "findings[1].observer must be one of server, outs"),
        (["findings", 1, "adjacency"], 3, "findings[1].adjacency must be one of add-remove, "),
        (["findings", 1, "null_band"], [1], "findings[1].null_band must be a list of 2, or null"),
        (["findings", 1, "saturated"], 0, "findings[1].saturated must be true or false, got 0"),
        (["findings", 1, "server_round"], 0, "findings[1].server_round must be a whole number"),
        (["findings", 1, "rule"], KeyError, "findings[1] must have a field 'rule'"),
        (["findings", 1], [], "findings[1] must be an object, got []"),
        (["rounds", 0, "num_clients"], -1, "rounds[0].num_clients must be a whole number, at "),
        (["rounds", 0, "metrics"], {"a": "b"}, "rounds[0].metrics must be a number"),
    ],
)
def test_a_wrong_field_is_one_line_that_names_file_place_and_what_is_allowed(
    folder: Path,
    path: list[str | int],
    value: Any,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    changed(folder, path, value)
    assert main(["report", str(folder)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert str(folder / "report.json") in printed.err
    assert message in printed.err
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize("content", ["", "[]", '{"schema": "leak', "\x00\x01"])
def test_a_file_that_is_no_report_is_one_line(
    folder: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "report.json").write_text(content)
    assert main(["report", str(folder)]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: {folder / 'report.json'}")
    assert printed.count("\n") == 1


def test_bytes_that_are_no_text_are_one_line(folder: Path) -> None:
    (folder / "report.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"report\.json must be UTF-8 text"):
        read_run(folder)


def test_a_folder_without_a_record_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        assert main(["report", str(place)]) == 2
        said = capsys.readouterr().err
        assert said == (
            "error: RUN must be the folder of a run with report.json or rounds.jsonl, got "
            f"{place}\n"
        )
    assert main(["report"]) == 2


def test_a_broken_line_of_an_unfinished_run_is_named(folder: Path) -> None:
    (folder / "report.json").unlink()
    whole = (folder / "rounds.jsonl").read_text()
    (folder / "rounds.jsonl").write_text(whole + "{broken\n")
    with pytest.raises(ConfigError, match=r"rounds\.jsonl, line 2 must be JSON"):
        read_run(folder)
    (folder / "rounds.jsonl").write_text(whole + '{"server_round": 2}\n')
    with pytest.raises(ConfigError, match=r"rounds\[1\] must have a field 'accuracy'"):
        read_run(folder)
    (folder / "rounds.jsonl").write_text(whole + whole[:30])  # cut off while it was written
    run = read_run(folder)
    assert (len(run.rounds), run.is_finished) == (1, False)


def test_settings_of_an_unfinished_run_come_from_its_file(folder: Path) -> None:
    (folder / "report.json").unlink()
    assert read_run(folder).config == {}
    (folder / "config.toml").write_text("rounds = 7\n")
    assert read_run(folder).config == {"rounds": 7}
    (folder / "config.toml").write_text("rounds =")
    with pytest.raises(ConfigError, match=r"config\.toml must be a TOML file"):
        read_run(folder)


def test_names_of_runs_differ(folder: Path) -> None:
    assert [run.name for run in read_runs([folder])] == ["run"]
    assert [run.name for run in read_runs([folder, folder])] == ["1: run", "2: run"]


def test_every_field_of_the_schema_is_documented() -> None:
    text = DOCS.read_text()
    assert SCHEMA in text
    documented = set(re.findall(r"^\| `([a-z_.]+)` \|", text, flags=re.MULTILINE))
    assert {spec.name for spec in fields(Finding)} == set(FINDING)
    assert documented >= {"schema", "versions", *REPORT, *ROUND, *FINDING}
