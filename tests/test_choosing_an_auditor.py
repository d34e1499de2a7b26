"""The table of auditors names every one of them, with a command that runs it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.settings import AUDITOR_NAMES
from tests.docs_blocks import our_arguments
from tests.helpers.project import ROOT

PAGE = ROOT / "docs" / "choosing-an-auditor.md"


def rows() -> list[tuple[str, list[str]]]:
    """Return the name in each row of the table, "none" if there is none, and its arguments."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    head, _, *body = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    found = []
    for cells in body:
        row = dict(zip(head, cells, strict=True))
        name = re.findall(r"`([^`]+)`", row["auditor"])[0]
        [command] = re.findall(r"`([^`]+)`", row["try it"])
        arguments = our_arguments(shlex.split(command))
        assert arguments is not None, command
        found.append(("none" if "." in name else name, arguments))  # a module is no name
    return found


def test_every_auditor_has_a_row_with_a_command() -> None:
    assert {name for name, _ in rows()} == set(AUDITOR_NAMES)
    for name, arguments in rows():
        assert arguments[arguments.index("--auditors") + 1] == name


@pytest.mark.slow
@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_the_command_of_each_row_runs_its_auditor(
    row: tuple[str, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, arguments = row
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 0
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert report["failures"] == []
    wanted = "accountant" if name == "none" else name
    assert wanted in {finding["auditor"] for finding in report["findings"]}
    assert main(["report", "--text", str(tmp_path / "run")]) == 0
    assert f"{wanted}: " in " ".join(capsys.readouterr().out.split())
