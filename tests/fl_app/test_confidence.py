"""--confidence reaches every lower bound, and every sentence about one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from leakmeter.auditors.audited_round import Claims
from leakmeter.auditors.auditor import share_confidence
from leakmeter.auditors.finding import ThreatModel
from leakmeter.auditors.likelihood_ratio.auditor import AttackedRound, ConstantRound
from leakmeter.fl_app import build
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config


def test_a_lower_bound_has_the_confidence_that_was_asked_for(
    tmp_path: Path, tiny: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--auditors", "one-shot,likelihood-ratio", "--confidence", "0.8", "--rounds", "2"]
    assert main([*tiny, *more, "--out", str(tmp_path / "run")]) == 0
    report = json.loads((tmp_path / "run/report.json").read_text())
    lines = (tmp_path / "run/rounds.jsonl").read_text().splitlines()
    found = [*report["findings"], *(f for one in lines for f in json.loads(one)["findings"])]
    bounds = [f for f in found if f["kind"] == "lower_bound"]
    assert {f["auditor"] for f in bounds} == {"one-shot", "likelihood-ratio"}
    # Three bounds of the run share the failures: two of the canaries, one of the trials.
    assert [f["confidence"] for f in bounds] == pytest.approx([1 - 0.2 / 3] * len(bounds))
    assert report["verdict"]["confidence"] == pytest.approx(0.8)
    page = (tmp_path / "run/report.html").read_text()
    for text in (capsys.readouterr().out, page):
        assert "95 % confidence" not in text
        assert "80 % confidence" in text


def test_a_smaller_confidence_shows_more(tiny_config: Config) -> None:
    config = replace(tiny_config, confidence=0.9, noise="none")
    for auditor in build.auditors(replace(config, auditors="one-shot,likelihood-ratio"), 210):
        assert auditor.confidence == pytest.approx(1 - 0.1 / 3)


def test_all_bounds_of_a_run_share_its_confidence_once(tiny_config: Config) -> None:
    config = replace(tiny_config, auditors="one-shot,likelihood-ratio", noise="none")
    made = build.auditors(config, 210)
    share_confidence(made)  # the hook does so again
    assert sum(one.num_bounds * (1 - one.confidence) for one in made) == pytest.approx(0.05)


def test_every_bound_without_a_condition_is_counted(tmp_path: Path, panel: list[str]) -> None:
    assert main([*panel, "--out", str(tmp_path / "run")]) == 0
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert report["verdict"]["confidence"] >= 0.95 - 1e-9


def test_the_rule_of_three_is_one_of_its_confidence() -> None:
    for confidence, times in ((0.95, 3.0), (0.99, 4.7), (0.5, 0.7)):
        claims = Claims(
            "x", ThreatModel(observer="server", sees="round sum"), confidence=confidence
        )
        where = AttackedRound(1, "rerun", target=0, others=3)
        facts = ConstantRound(where, 100, is_rounded=False).finding(claims).facts
        assert facts["largest chance"] == pytest.approx(times / 100)
        assert (1 - times / 100) ** 100 <= 1 - confidence
