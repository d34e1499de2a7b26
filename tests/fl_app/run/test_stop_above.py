"""--bounds anytime and --stop-above: the whole run, from the command line to the page."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.audits import AUDITORS
from leakmeter.fl_app.run.progress import Progress
from leakmeter.strategies.accounting.ledger import Ledger
from tests.helpers.runs import report_of

ANYTIME = ["--bounds", "anytime", "--auditors", "one-shot,likelihood-ratio"]
LITTLE = ["--lrt-fit", "20", "--lrt-candidates", "10", "--lrt-trials", "20"]
FEW = [*LITTLE, "--transcript-trials", "20", "--mine-critics", "2"]
NOISE = ["--noise", "central", "--clip-norm", "1", "--noise-multiplier", "0.01"]


def so_far(report: dict[str, Any], auditor: str) -> dict[int | None, float]:
    """Return the bounds that hold at all rounds together, by round."""
    found = report["findings"]
    return {
        f["server_round"]: f["value"]
        for f in found
        if f["auditor"] == auditor and "all-rounds-together" in f["assumptions"]
    }


@pytest.fixture(scope="module")
def stopped(tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder of a run that stopped after its first round, and what it printed."""
    folder = tmp_path_factory.mktemp("stopped")
    places = ["--out", str(folder / "run"), "--ledger", str(folder / "ledger.jsonl")]
    more = [*ANYTIME, *LITTLE, *NOISE, "--stop-above", "0.5", "--rounds", "6"]
    with pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        patch.setattr(Progress, "say", lambda _, text: said.append(text))
        assert main([*tiny, *places, *more]) == 0
    return folder, "\n".join(said)


def test_a_stopped_run_has_model_report_page_and_ledger(stopped: tuple[Path, str]) -> None:
    folder, said = stopped
    report = report_of(folder / "run")
    played = len(report["rounds"])
    assert 1 <= played < 6
    warned = report["warnings"][0]
    assert (warned["kind"], warned["count"], warned["total"]) == ("stopped-above", 6 - played, 6)
    assert "stopped" in said
    assert "so far" in said
    assert (folder / "run" / "report.html").exists()
    [entry] = Ledger(folder / "ledger.jsonl").entries("synthetic")
    assert len(entry.releases) == played


def test_rounds_and_run_have_bounds_that_hold_together(stopped: tuple[Path, str]) -> None:
    report = report_of(stopped[0] / "run")
    for auditor in ("one-shot", "likelihood-ratio"):
        values = so_far(report, auditor)
        last = values.pop(None)
        assert list(values.values()) == sorted(values.values())
        assert values[max(r for r in values if r is not None)] == last
    assert max(so_far(report, name)[None] for name in ("one-shot", "likelihood-ratio")) > 0.5


def test_page_text_and_csv_show_the_bound_growing(
    stopped: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stopped[0] / "run"
    page = (run / "report.html").read_text()
    assert "Proven ε so far" in page
    assert "limit of --stop-above" in page
    assert "The run stopped" in page
    assert main(["report", "--text", str(run)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"9[5-9][\d.]* % confidence at all rounds together", said)
    assert re.search(r"All that is shown holds together with 9[5-9][\d.]* % confidence\.", said)
    assert "The run stopped" in said
    assert main(["report", str(run), "--csv", str(tmp_path / "csv")]) == 0
    with (tmp_path / "csv" / "findings.csv").open(encoding="utf-8") as file:
        claims = [row["claim"] for row in csv.DictReader(file)]
    assert any("at all rounds together" in claim for claim in claims)
    curves = (tmp_path / "csv" / "curves.csv").read_text(encoding="utf-8")
    assert "Proven ε so far,one-shot" in curves
    assert "Proven ε so far,LRT" in curves


def test_a_replay_bets_as_the_run_did(tiny: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    more = ["--bounds", "anytime", "--auditors", "one-shot,recorder"]
    assert main([*tiny, *more, "--out", str(run)]) == 0
    assert main(["replay", str(run), "--out", str(tmp_path / "again")]) == 0
    split = ["replay", str(run), "--bounds", "split", "--out", str(tmp_path / "split")]
    assert main(split) == 0
    kept = so_far(report_of(run), "one-shot")
    assert so_far(report_of(tmp_path / "again"), "one-shot") == kept
    assert so_far(report_of(tmp_path / "split"), "one-shot") == {}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            ["--stop-above", "5"],
            "--stop-above must be 0 without --bounds anytime: only its bounds hold at every round, "
            "got 5.0. Add --bounds anytime.",
        ),
        (
            ["--bounds", "anytime", "--auditors", "span"],
            "--bounds must be split without one of the auditors one-shot, likelihood-ratio, got "
            "'anytime'. Add --auditors one-shot.",
        ),
        (
            ["--bounds", "anytime", "--delta", "0.01"],
            "auditor one-shot: delta must be below 0.0031 with bounds at every round, which pay δ "
            "for each of 8 canaries, got 0.01. Try 3e-05",
        ),
        (["--bounds", "any"], "--bounds must be one of split, anytime, got 'any'"),
        (["--stop-above", "-1"], "--stop-above must be at least 0"),
    ],
)
def test_what_cannot_work_is_named_before_anything_starts(
    given: Sequence[str], words: str, tiny: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*tiny, *given]) == 2
    assert words in capsys.readouterr().err


ABLE = [(name, "anytime") for name, owner in AUDITORS.items() if owner.bets]


@pytest.mark.parametrize(("auditor", "bounds"), [*((name, "split") for name in AUDITORS), *ABLE])
def test_no_auditor_needs_canaries_without_saying_so(
    auditor: str, bounds: str, tiny: list[str], tmp_path: Path, capsys: Any
) -> None:
    given = ["--auditors", auditor, "--bounds", bounds, "--canary-seats", "0", *FEW]
    code = main([*tiny, *given, "--rounds", "1", "--out", str(tmp_path / "run")])
    assert code == 0 or (code == 2 and capsys.readouterr().err.startswith("error: --"))
    if auditor == "likelihood-ratio":
        assert report_of(tmp_path / "run")["verdict"]["confidence"] >= 0.95 - 1e-9
