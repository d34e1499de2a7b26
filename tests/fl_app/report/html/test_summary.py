"""The sheet for data-protection readers: one page of A4, complete and escaped."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from leakmeter.auditors.finding import Limitation, RunWarning
from leakmeter.auditors.verdict.claim import Claim
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.report.read import Run
from leakmeter.fl_app.report.summary import answers, risks, summary
from tests.fl_app.report.html.test_browser import BROWSER, printed
from tests.fl_app.report.html.test_page import Page, finding, foreign
from tests.fl_app.report.judge.makers import ANYONE, CANARY, bound, guarantee
from tests.fl_app.report.judge.test_summary import RUNS
from tests.helpers import paper
from tests.helpers.numbers import first_fast
from tests.helpers.pages import check_policy

LONG = "very " * 60
CROWDED = replace(
    RUNS["protected"],
    name=f"run {LONG}",
    findings=(
        *RUNS["protected"].findings,
        *(
            bound(float(i), threat_model=replace(CANARY, observer=who, sees=sees))
            for i, who in enumerate(("server", "wire"))
            for sees in ("updates", "round sum", "noised sum", "all models", "final model")
        ),
        guarantee(30.0, adjacency="replace", threat_model=replace(ANYONE, colluders=9)),
    ),
    warnings=tuple(RunWarning.of("clipped-coordinates", i, 100) for i in (1, 2, 3)),
    failures=(LONG, LONG, LONG),
    limitations=(Limitation("mine", LONG),),
    claims=(Claim(10.0, 1e-5),),
)


@pytest.mark.parametrize("name", RUNS)
def test_the_sheet_has_every_risk_and_every_answer(name: str) -> None:
    text = summary(RUNS[name])
    page = Page(text)
    assert page.open == []
    check_policy(text)
    assert "http:" not in text
    assert "https:" not in text
    words = page.words.replace("\N{NO-BREAK SPACE}", " ")
    for topic, question, said in answers(RUNS[name]):
        assert f"{topic}{question}{said}".replace("\N{NO-BREAK SPACE}", " ") in words
    for risk in risks(RUNS[name]):
        assert f"{risk.name}{risk.question}" in words
        assert risk.evidence.replace("\N{NO-BREAK SPACE}", " ") in words
    assert "NIST SP 800-226" in words
    assert "WP 216" in words


def test_words_that_need_it_are_explained() -> None:
    words = Page(summary(RUNS["protected"])).words
    for word in ("ε (epsilon), δ (delta): ", "x % sure: ", "test update, canary: ", "noise: "):
        assert word in words


def test_a_name_never_becomes_markup() -> None:
    name = "</style><script>alert(1)</script>"
    text = summary(replace(RUNS["foreign"], name=name, config={"app": name}))
    check_policy(text)
    assert "<script>alert" not in text


@pytest.mark.skipif(
    BROWSER is None or shutil.which("pdftoppm") is None, reason="no Chromium or no poppler-utils"
)
@pytest.mark.parametrize("run", first_fast(1, [CROWDED, RUNS["protected"], RUNS["foreign"]]))
def test_it_is_one_sheet_of_paper(run: Run, tmp_path: Path) -> None:
    (tmp_path / "summary.html").write_text(summary(run))
    [sheet] = paper.texts(printed(tmp_path / "summary.html", tmp_path))
    assert "Access control" in sheet
    assert re.search(r"1 ?/ ?1\s*$", sheet)


def test_the_command_writes_it_into_the_folder_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = foreign(tmp_path / "run", finding())
    for _ in range(2):  # over an earlier one, too
        assert main(["report", "--summary", str(folder)]) == 0
        assert capsys.readouterr().out == f"summary: {folder / 'summary.html'}\n"
    assert "Privacy summary of" in (folder / "summary.html").read_text()
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--out", "x.html"], "leave out --out"),
        (["--csv", "x"], "leave out --csv"),
        (["--text"], "leave out --summary"),
    ],
)
def test_options_that_it_has_no_use_for_are_refused(
    more: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = foreign(tmp_path / "run", finding())
    assert main(["report", "--summary", str(folder), *more]) == 2
    assert words in capsys.readouterr().err


def test_a_file_of_somebody_else_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = foreign(tmp_path / "run", finding())
    (folder / "summary.html").write_text("mine")
    assert main(["report", "--summary", str(folder)]) == 2
    assert "summary.html must be a new file or an earlier page" in capsys.readouterr().err
    assert (folder / "summary.html").read_text() == "mine"


def test_the_sheet_names_a_distorted_run_and_a_limited_leak() -> None:
    broken = replace(RUNS["protected"], warnings=(RunWarning.of("clipped-coordinates", 60, 100),))
    assert '<p class="level">distorted run</p>' in summary(broken)
    limited = replace(RUNS["protected"], findings=(bound(0.04), guarantee(8.0)))
    assert '<p class="level">leak shown, limited by a guarantee</p>' in summary(limited)
    large = replace(RUNS["protected"], findings=(bound(0.04), guarantee(97.0)))
    assert '<p class="level">leak shown</p>' in summary(large)
    assert "none up to ε = 20" in summary(large)
    assert "none up to" not in summary(RUNS["foreign"])
