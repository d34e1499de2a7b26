"""The page on choosing has a card for every auditor, with commands that run it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.settings import AUDITOR_NAMES
from tests.docs_blocks import commands, our_arguments
from tests.helpers.project import ROOT

PAGE = ROOT / "docs" / "choosing-an-auditor.md"
ACCOUNTANT = "accountant"  # of the noise; `--auditors none` leaves it


def cards() -> dict[str, str]:
    """Return the text of each card by its heading."""
    parts = re.split(r"^### (\S+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def runs() -> list[tuple[str, list[str]]]:
    """Return the auditor and the arguments of each command in the cards."""
    found = []
    for name, text in cards().items():
        [block] = re.findall(r"^```bash\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
        for words in commands(block):
            arguments = our_arguments(words)
            assert arguments is not None, words
            found.append((name, arguments))
    return found


def test_every_auditor_has_a_card_with_a_command() -> None:
    names = {"none" if name == ACCOUNTANT else name for name in cards()}
    assert names == set(AUDITOR_NAMES)
    assert {name for name, _ in runs()} == set(cards())
    for name, arguments in runs():
        asked = arguments[arguments.index("--auditors") + 1]
        assert asked == ("none" if name == ACCOUNTANT else name)


def test_the_comparison_leads_to_every_card() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    assert re.findall(r"\]\(#([\w-]+)\)", "\n".join(lines)) == list(cards())


def test_every_card_answers_the_same_questions() -> None:
    for name, text in cards().items():
        asked = re.findall(r"^- \*\*([\w ]+):\*\* \S", text, flags=re.MULTILINE)
        assert asked == ["Class", "Number", "Needs", "Costs", "Can mislead"], name


@pytest.mark.slow
@pytest.mark.parametrize("run", runs(), ids=lambda run: " ".join(run[1][1:4]))
def test_the_commands_of_each_card_run_its_auditor(
    run: tuple[str, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted, arguments = run
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 0
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert report["failures"] == []
    assert wanted in {finding["auditor"] for finding in report["findings"]}
    assert main(["report", "--text", str(tmp_path / "run")]) == 0
    assert f"{wanted}: " in " ".join(capsys.readouterr().out.split())
