"""--clip-aggregate from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config
from tests.helpers.refusals import refuses


@pytest.mark.parametrize(
    "more",
    [
        ["--auditors", "one-shot,likelihood-ratio"],
        ["--auditors", "one-shot", "--noise", "central", "--clip-norm", "1"],
        ["--auditors", "none", "--noise", "distributed", "--clip-norm", "1", "--sample", "5"],
    ],
    ids=["none", "central", "distributed"],
)
def test_a_run_clips_its_aggregate_and_says_who_sees_it(
    more: list[str], tmp_path: Path, tiny: list[str]
) -> None:
    out = tmp_path / "run"
    short = ["--rounds", "2", "--clip-aggregate", "0.01", "--out", str(out)]
    assert main([*tiny, *more, *short]) == 0
    report = json.loads((out / "report.json").read_text())
    said = [one["text"] for one in report["limitations"]]
    assert any("clips the mean update after it has seen it" in text for text in said)


@pytest.mark.parametrize("auditor", ["likelihood-ratio", "mutual-information"])
def test_an_outsiders_view_of_a_clipped_sum_is_refused_before_training(auditor: str) -> None:
    with refuses("--clip-aggregate"):
        Config(auditors=auditor, clip_aggregate=1.0, noise="central", clip_norm=1.0)
